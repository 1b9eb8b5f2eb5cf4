"""The `odin` command in this process: what it prints, its exit codes, and one line for every mistake."""

import inspect
import io
import logging
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import get_args

import numpy as np
import psutil
import pytest
from small_runs import launch_here, write_capture

from odin import __version__, api
from odin.cli import main
from odin.cli.commands import Operation, RawData, train_command
from odin.cli.entry import explanation
from odin.cli.terminal import Progress, show_notes, silently
from odin.data.jsonio import read_json
from odin.training.options import MODES, TrainOptions


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch):
    monkeypatch.setattr(api, "launch", launch_here)


@pytest.fixture
def odin(capfd):
    """Runs a command line and returns (exit code, stdout, stderr)."""

    def run(*words) -> tuple[int, str, str]:
        capfd.readouterr()
        code = 0
        try:
            main([str(word) for word in words])
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capfd.readouterr()
        return code, out, err

    return run


@pytest.fixture(scope="module")
def trained(tiny_prepared, tmp_path_factory):
    """A run of six steps and the same in another mode, both evaluated."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "launch", launch_here)
        for mode in ("sync", "quality"):
            words = ["--data", tiny_prepared, "--views", "24", "--mode", mode, "--out", folder / mode]
            main(["train", *map(str, words)])
        main(["evaluate", str(folder / "sync"), str(folder / "quality")])
    return folder


class TestHelp:
    def test_version(self, odin):
        assert odin("--version") == (0, f"odin {__version__}\n", "")

    def test_help_names_all_commands(self, odin):
        code, out, _ = odin("--help")
        assert code == 0
        for command in ("prepare", "schedule", "train", "evaluate", "exactness", "tables", "figures"):
            assert f" {command} " in out

    def test_help_of_train_is_grouped(self, odin):
        _, out, _ = odin("train", "--help")
        assert out.index("--mode") < out.index("operation options") < out.index("--timeout-s")
        assert out.index("raw options") < out.index("--skip-missing")
        assert "None|" not in out

    def test_nothing_heavy_is_imported_for_help(self):
        code = (
            "import sys; from odin.cli import main\ntry: main(['train', '--help'])\nexcept SystemExit: pass\n"
            "print('heavy:', sorted({'torch', 'numba', 'numpy', 'pycolmap', 'matplotlib'} & set(sys.modules)))"
        )
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        assert result.stdout.endswith("heavy: []\n"), result.stdout[-200:] + result.stderr

    def test_options_are_those_of_the_functions(self):
        from odin.data.prepare import prepare

        of_prepare = {name: p.default for name, p in inspect.signature(prepare).parameters.items()}
        assert {f.name: f.default for f in fields(RawData)}.items() <= of_prepare.items()
        assert set(of_prepare) == {f.name for f in fields(RawData)} | {"data", "out", "seed"}
        of_training = {f.name: f.default for f in fields(TrainOptions)}
        assert {f.name: f.default for f in fields(Operation)}.items() <= of_training.items()
        modes = get_args(inspect.signature(train_command, eval_str=True).parameters["mode"].annotation)
        assert set(modes) == set(MODES)


class TestPrepareAndSchedule:
    def test_prepare_says_what_came_out(self, odin, tiny_scene, tmp_path):
        code, out, err = odin("prepare", "--data", tiny_scene, "--factor", "2", "--out", tmp_path / "s")
        assert (code, out) == (0, f"{tmp_path / 's'}: 24 views (3 test), 300 points, 24x18 px\n")
        assert err == f"{tiny_scene}: 24 registered of 24 images on disk\n"
        code, _, err = odin("prepare", "--data", tiny_scene, "--factor", "2", "--out", tmp_path / "s")
        assert code == 0 and "already prepared from the same input, nothing to do" in err

    def test_schedule_explains_and_draws(self, odin, tiny_prepared, tmp_path):
        plan, figure = tmp_path / "new" / "plan.odin", tmp_path / "new" / "plan.png"
        words = ("--views", "800", "--explain", "--figure", figure)
        code, out, err = odin("schedule", "--data", tiny_prepared, "--out", plan, *words)
        assert (code, err) == (0, "")
        lines = out.splitlines()
        assert re.fullmatch(r".*plan\.odin: 200 steps of 4 views on 2 ranks, \d+ windows", lines[0])
        assert lines[1] == "plan of tiny_scene0: 200 steps of 4 views on 2 ranks, greedy order, seed 0"
        assert "; 2 structural changes" in lines[2]
        assert max(map(len, lines[1:])) < 120 and len(lines) < 32
        assert figure.read_bytes().startswith(b"\x89PNG")


class TestTraining:
    def test_last_line(self, odin, tiny_prepared, trained):
        code, out, err = odin(
            "train", "--data", tiny_prepared, "--views", "24", "--mode", "sync", "--out", trained / "sync"
        )
        assert code == 0
        assert re.fullmatch(
            r".*sync/model\.ply: 300 primitives, 6 steps in [\d.]+ s \([\d.]+ samples/s, [\d.]+% waiting\), "
            r"model [0-9a-f]{16}\n",
            out,
        )
        assert err == f"{trained / 'sync'}: trained already, nothing to do\n"

    def test_raw_data_and_progress(self, odin, tiny_scene, tmp_path):
        words = ("--factor", "2", "--test-every", "3", "--background", "1", "1", "1", "--name", "half", "--views", "8")
        code, out, err = odin("train", "--data", tiny_scene, *words, "--out", tmp_path / "run")
        assert code == 0 and "model.ply: 300 primitives, 2 steps" in out
        assert "step 2 of 2" in err
        manifest = read_json(tmp_path / "run" / "scene" / "manifest.json")
        assert (manifest["name"], manifest["num_test_views"]) == ("half", 8)
        assert manifest["protocol"]["background"] == [1.0, 1.0, 1.0]

    def test_options_reach_the_run(self, odin, tiny_prepared, tmp_path):
        words = ("--transport", "gloo", "--timeout-s", "7", "--checkpoint-every", "9", "--delay-s", "0.001", "--no-pin")
        assert odin("train", "--data", tiny_prepared, "--views", "4", *words, "--out", tmp_path / "run")[0] == 0
        record = read_json(tmp_path / "run" / "run.json")
        expected = {"transport": "gloo", "timeout_s": 7.0, "checkpoint_every": 9, "delay_s": 0.001, "pin": False}
        assert {name: record[name] for name in expected} == expected


class TestResults:
    def test_evaluate_prints_a_line_a_run(self, odin, trained):
        code, out, err = odin("evaluate", trained / "sync", trained / "quality")
        lines = out.splitlines()
        assert code == 0 and len(lines) == 2
        assert re.fullmatch(
            r".*sync: PSNR \d+\.\d\d dB, SSIM 0\.\d{4}, LPIPS n/a \(no LPIPS weights configured\), mean of 3 test "
            r"views, 300 primitives",
            lines[0],
        )
        assert "view 3 of 3" in err

    def test_no_run_is_scored_before_all_are_found(self, odin, trained, tmp_path):
        code, out, err = odin("evaluate", trained / "sync", tmp_path)
        assert (code, out) == (1, "") and err.startswith(f"odin: error: {tmp_path}: no run in there")

    def test_tables_and_figures(self, odin, trained, tmp_path):
        code, out, _ = odin("tables", "--runs", trained, "--out", tmp_path)
        assert code == 0 and out.count("| tiny_scene0 |") == 4
        code, out, _ = odin("figures", "--runs", trained, "--out", tmp_path)
        assert code == 0 and len(out.splitlines()) >= 3
        assert all(Path(line).is_file() for line in out.splitlines())

    @pytest.mark.parametrize("command", ["tables", "figures"])
    def test_no_runs(self, odin, tmp_path, command):
        code, _, err = odin(command, "--out", tmp_path, "--runs")
        assert (code, err) == (1, "odin: error: no run given; name at least one run folder.\n")

    def test_equal_models_are_exact(self, odin, tiny_prepared):
        code, out, err = odin(
            "exactness", "--data", tiny_prepared, "--ranks", "1,1", "--steps", "3", "--delay-s", "1e-4"
        )
        # the ranks, here in this process, print too
        first, second, last = (line for line in out.splitlines() if line.startswith(("mode=", "exact")))
        assert code == 0
        assert first.startswith("mode=sync     ranks=1   num_gs=300 ") and second.startswith("mode=quality ")
        assert first.split("model=")[1] == second.split("model=")[1]
        assert re.fullmatch(r"exact: all 2 models are equal to the bit, 0 structural changes included: \w{64}", last)
        assert "warning: no structural change fell into 3 steps; more steps check more" in err

    def test_other_models_are_not(self, odin, monkeypatch):
        def results(*arguments, **options):
            for mode, model in (("sync", "a" * 64), ("quality", "b" * 64)):
                yield api.ExactnessRun(mode=mode, ranks=1, num_gs=1, model_sha256=model, train_s=1.0, num_structural=1)

        monkeypatch.setattr(api, "exactness", results)
        code, out, err = odin("exactness", "--data", "x")
        assert code == 1 and len(out.splitlines()) == 2
        assert err == "NOT exact: 2 runs gave 2 different models\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train --views 0", "views is 0; it must be positive"),
        ("train --ranks -1", "ranks is -1; it must be positive"),
        ("train --batch 0", "batch is 0; it must be positive"),
        ("train --batch 22", "batch = 22, but the scene has 21 training views"),
        ("train --timeout-s nan", "timeout_s is nan; it must be positive"),
        ("train --timeout-s inf", "timeout_s is inf; it must be positive"),
        ("train --delay-s nan", "delay_s is nan; it must be 0 (off) or more"),
        ("train --checkpoint-every -1", "checkpoint_every is -1; it must be 0 (off) or more"),
        ("train --seed -1", "seed is -1; allowed: 0 to 2^63 - 1"),
        ("train --cap 0", "cap is 0; it must be at least 1"),
        ("train --cap 299", "300 points are more than the cap of 299 primitives"),
        ("train --pipeline x", "pipeline 'x' is not known; allowed: 3dgs"),
        ("train --preset x", "preset 'x' is not known for pipeline 3dgs; allowed: paper, small"),
        ("train --plan nowhere.odin", "nowhere.odin: No such file or directory"),
        ("train --factor 2", "is prepared already, which settled factor"),
        ("train --data nowhere", "nowhere: no such file or folder"),
        ("train --data gallery:nothing", "unknown scene 'nothing'"),
        ("schedule --data nowhere", "nowhere: no manifest.json, so no prepared folder. Make one with `odin prepare`"),
        ("schedule --ranks 0", "ranks is 0; it must be positive"),
        ("schedule --batch 22", "batch = 22, but the scene has 21 training views"),
        ("schedule --figure plan.gif", "--figure is plan.gif; its suffix must be one of .png, .pdf, .svg"),
        ("schedule --out {folder}", "a folder; it must be the name of a file"),
        ("prepare --data nowhere", "nowhere: no such file or folder"),
        ("prepare --factor 0.5", "factor must be at least 1"),
        ("prepare --background 2 0 0", "background must be three numbers in 0..1"),
        ("prepare --width 32", "width and num_views are for gallery scenes only"),
        ("exactness --ranks a", "--ranks is 'a'; allowed: whole numbers separated by commas, e.g. 1,2,4"),
        ("exactness --ranks 1,0", "ranks is 0; it must be positive"),
        ("exactness --steps 0", "steps is 0; it must be at least 1"),
    ],
)
def test_a_mistake_is_one_line(odin, tiny_prepared, tmp_path, words, message):
    command, *rest = words.format(folder=tmp_path).split()
    defaults = {"--data": tiny_prepared, "--out": tmp_path / "new" / "out"}
    for name, value in defaults.items():
        rest += [] if name in rest else [name, value]
    code, out, err = odin(command, *rest)
    assert (code, out) == (1, "")
    assert err.startswith("odin: error: ") and err.count("\n") == 1 and message in err
    assert not (tmp_path / "new" / "out" / "run.json").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("evaluate", "no run given; name at least one run folder"),
        ("evaluate nowhere", "nowhere: no such folder. Give the folder of a run"),
        ("evaluate {run} --lpips-weights w.pt", "belong together: give both or neither"),
        ("evaluate {run} --lpips-sha256 00", "belong together: give both or neither"),
        ("evaluate {run} --lpips-weights {run}/model.ply --lpips-sha256 00", "This is not the file configured"),
        ("evaluate {run} --scene nowhere", "nowhere: no prepared scene in there"),
        ("tables --runs nowhere --out t", "nowhere: no run directory here or below"),
        ("figures --runs nowhere --out t", "nowhere: no run directory here or below"),
    ],
)
def test_a_mistake_about_results_is_one_line(odin, trained, words, message):
    code, out, err = odin(*words.format(run=trained / "sync").split())
    assert (code, out) == (1, "")
    assert err.startswith("odin: error: ") and err.count("\n") == 1 and message in err


@pytest.mark.parametrize(
    "words",
    ["", "nonsense", "train --out x", "train --data x --out y --mode hogwild", "train --data x --out y --views z"],
)
def test_words_that_are_no_command(odin, words):
    code, out, err = odin(*words.split())
    assert (code, out) == (2, "") and "Traceback" not in err and "--help" in err


class TestErrors:
    def test_a_defect_keeps_its_traceback(self, odin, tiny_prepared, tmp_path, monkeypatch):
        monkeypatch.setattr(api, "schedule", lambda *arguments, **options: np.ones(2) + np.ones(3))
        with pytest.raises(ValueError, match="broadcast"):
            odin("schedule", "--data", tiny_prepared, "--out", tmp_path / "plan.odin")

    def test_a_raised_error_of_the_package_is_explained(self):
        try:
            TrainOptions(scene_dir="", plan="", ranks=0).validate()
        except ValueError as error:
            assert explanation(error) == "ranks is 0; it must be positive."

    @pytest.mark.parametrize("make", [lambda: int("x"), lambda: np.zeros(2).reshape(3), lambda: {}["x"], lambda: 1 / 0])
    def test_what_others_raise_is_not(self, make):
        try:
            make()
        except Exception as error:
            assert explanation(error) is None

    def test_files_name_themselves(self, tmp_path):
        try:
            (tmp_path / "absent").read_text()
        except OSError as error:
            assert explanation(error) == f"{tmp_path / 'absent'}: No such file or directory"

    def test_a_closed_pipe_is_no_error(self, odin, tiny_prepared, tmp_path):
        command = [sys.executable, "-m", "odin", "schedule", "--data", str(tiny_prepared), "--views", "40", "--explain"]
        reading, writing = os.pipe()
        os.close(reading)
        result = subprocess.run(
            [*command, "--out", str(tmp_path / "plan.odin")], stdout=writing, stderr=subprocess.PIPE, timeout=60
        )
        os.close(writing)
        assert (result.returncode, result.stderr) == (1, b"")


class TestNotes:
    def test_only_notes_of_the_package_each_once(self, capfd):
        show_notes()
        logger = logging.getLogger("odin.data.anything")
        for _ in range(2):
            logger.info("read 3 files")
            logger.warning("one is odd")
        logger.debug("detail")
        logging.getLogger("torch.distributed").info("noise")
        assert capfd.readouterr().err == "read 3 files\nwarning: one is odd\n"
        assert not any(type(handler).__module__.startswith("odin") for handler in logging.root.handlers)

    def test_progress_without_a_terminal(self, monkeypatch):
        clock = iter(np.arange(0.0, 1000.0, 0.5).tolist())
        monkeypatch.setattr(time, "monotonic", lambda: next(clock))
        monkeypatch.setattr(sys, "stderr", io.StringIO())
        with Progress("step", 50) as progress:
            for step in range(51):
                progress(step)
        lines = sys.stderr.getvalue().splitlines()
        assert lines[0] == "step 5 of 50" and lines[-1] == "step 50 of 50"
        assert 4 <= len(lines) <= 10

    def test_parts_count_anew(self, monkeypatch):
        monkeypatch.setattr(sys, "stderr", io.StringIO())
        with Progress("step", 2) as progress:
            for name in ("sync, 1 rank", "quality, 1 rank"):
                progress.named(name, 2)
        assert sys.stderr.getvalue() == "sync, 1 rank: step 2 of 2\nquality, 1 rank: step 2 of 2\n"

    def test_children_are_silent_between_results(self, capfd):
        def results():
            for number in range(2):
                subprocess.run(["echo", "noise"], check=True)
                yield number

        for number in silently(results()):
            print("result", number, flush=True)
        subprocess.run(["echo", "later"], check=True)
        assert capfd.readouterr().out == "result 0\nresult 1\nlater\n"


class TestOddScenes:
    """Few points, few images, small ones, and views that see nothing: a sound model, or a refusal that says why."""

    def train(self, odin, data, tmp_path, *words):
        """The written metrics of a run over some refinements."""
        code, _, err = odin("train", "--data", data, "--views", "440", "--out", tmp_path / "run", *words)
        assert code == 0, err
        code, _, err = odin("evaluate", tmp_path / "run")
        assert code == 0, err
        summary, metrics = read_json(tmp_path / "run" / "summary.json"), read_json(tmp_path / "run" / "metrics.json")
        assert np.isfinite(summary["final_loss"]) and np.isfinite(metrics["mean"]["psnr"])
        assert np.isfinite(api.load_ply(tmp_path / "run" / "model.ply").rows).all()
        return summary, err

    @pytest.mark.parametrize("num", [1, 2, 3])
    def test_few_points_train(self, odin, tmp_path, num):
        write_capture(tmp_path / "data", np.random.default_rng(0).normal(size=(num, 3)) * 0.4)
        summary, _ = self.train(odin, tmp_path / "data", tmp_path)
        assert summary["num_gs"] >= num

    def test_points_at_one_place_train(self, odin, tmp_path):
        write_capture(tmp_path / "data", np.full((5, 3), 0.2))
        self.train(odin, tmp_path / "data", tmp_path)

    def test_a_point_at_a_camera_centre_trains(self, odin, tmp_path):
        centres = write_capture(tmp_path / "other", np.zeros((0, 3)))
        points = np.vstack([np.random.default_rng(0).normal(size=(20, 3)) * 0.4, centres[1:2]])
        write_capture(tmp_path / "data", points)
        self.train(odin, tmp_path / "data", tmp_path)

    def test_no_points_are_random_ones(self, odin, tmp_path):
        write_capture(tmp_path / "data", np.zeros((0, 3)))
        code, out, err = odin("prepare", "--data", tmp_path / "data", "--out", tmp_path / "scene")
        assert code == 0 and "5000 points" in out
        assert "warning: data: the data has no points: 5000 random ones inside the camera bounds instead" in err

    def test_views_that_see_nothing(self, odin, tmp_path):
        write_capture(tmp_path / "data", np.random.default_rng(0).normal(size=(30, 3)) * 0.3, inwards=False)
        code, _, err = odin("prepare", "--data", tmp_path / "data", "--out", tmp_path / "scene")
        assert code == 0 and "warning: data: only 0% of the points lie inside a training view" in err
        summary, _ = self.train(odin, tmp_path / "scene", tmp_path)
        assert summary["num_gs"] == 30

    def test_the_cap_holds(self, odin, tmp_path):
        write_capture(tmp_path / "data", np.random.default_rng(0).normal(size=(60, 3)) * 0.4)
        summary, _ = self.train(odin, tmp_path / "data", tmp_path, "--cap", "61", "--views", "1000")
        assert summary["num_gs"] <= 61

    @pytest.mark.parametrize(("num_views", "num_test"), [(2, 1), (7, 1), (8, 1), (9, 2)])
    def test_few_images(self, odin, tmp_path, num_views, num_test):
        write_capture(tmp_path / "data", np.eye(3) * 0.3, num_views=num_views)
        code, out, _ = odin("prepare", "--data", tmp_path / "data", "--out", tmp_path / "scene")
        assert code == 0 and f"{num_views} views ({num_test} test)" in out

    def test_one_image(self, odin, tmp_path):
        write_capture(tmp_path / "data", np.eye(3) * 0.3, num_views=1)
        code, _, err = odin("prepare", "--data", tmp_path / "data", "--out", tmp_path / "scene")
        assert code == 1 and "1 views give 0 training and 1 test views" in err

    def test_fewer_images_than_a_batch(self, odin, tmp_path):
        write_capture(tmp_path / "data", np.eye(3) * 0.3, num_views=3)
        words = ("--data", tmp_path / "data", "--views", "6", "--out", tmp_path / "run")
        code, _, err = odin("train", *words)
        assert code == 1 and "batch = 4, but the scene has 2 training views" in err
        code, _, err = odin("train", *words, "--batch", "2")
        assert code == 0, err

    def test_images_too_small_for_ssim(self, odin, tmp_path):
        write_capture(tmp_path / "data", np.eye(3) * 0.3, size=(16, 10))
        words = ("--data", tmp_path / "data", "--views", "8", "--out", tmp_path / "run")
        code, _, err = odin("train", *words)
        assert code == 0 and "10 pixels wide or high, and SSIM needs 11: a model of it can be trained, but not" in err
        code, _, err = odin("evaluate", tmp_path / "run")
        assert code == 1 and "SSIM needs images of at least 11 x 11 pixels" in err


@pytest.mark.parametrize(("ranks", "number", "to_group"), [(2, signal.SIGTERM, False), (1, signal.SIGINT, True)])
def test_a_signal_ends_all_ranks(tiny_prepared, tmp_path, ranks, number, to_group):
    """To the launcher alone, as `kill` and Slurm do it, and to its whole group, as Ctrl-C does it."""
    command = [sys.executable, "-m", "odin", "train", "--data", str(tiny_prepared), "--views", "400000"]
    process = subprocess.Popen(
        [*command, "--ranks", str(ranks), "--out", str(tmp_path / "run"), "--delay-s", "0.01"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # a shell's background jobs start with SIGINT ignored, and their children inherit that
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        children = wait_for_ranks(process, tmp_path / "run", ranks)
        (os.killpg if to_group else os.kill)(process.pid, number)
        _, err = process.communicate(timeout=20)
        psutil.wait_procs(children, timeout=5)
        assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    finally:
        if process.poll() is None:
            process.kill()
    assert process.returncode == 128 + number
    assert err.splitlines()[-1] == f"odin: stopped by {number.name}" and "Traceback" not in err


def wait_for_ranks(process: subprocess.Popen, out: Path, ranks: int) -> list[psutil.Process]:
    """The rank processes, as soon as each has done a step."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and process.poll() is None:
        path = out / "progress.bin"
        if path.exists() and len(steps := np.fromfile(path, np.int64)) == ranks and steps.min() > 0:
            return psutil.Process(process.pid).children(recursive=True)
        time.sleep(0.05)
    raise AssertionError(f"no step in 90 s: {process.poll()}")
