"""The commands as functions: what they refuse before anything is written, and what a second call does."""

import logging
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_runs import launch_here, write_capture

from odin import api
from odin.data.jsonio import read_json, write_json
from odin.evaluation.metrics import LpipsWeights
from odin.schedule.plan_io import load_plan
from odin.training.options import TrainOptions

OPTIONS = TrainOptions(scene_dir="", plan="", views=24)


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch):
    monkeypatch.setattr(api, "launch", launch_here)


@pytest.fixture(scope="module")
def run(tiny_prepared, tmp_path_factory):
    """A finished run of six steps. Do not change it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "launch", launch_here)
        out = tmp_path_factory.mktemp("runs") / "run"
        return api.train_from_data(replace(OPTIONS, out=str(out)), data=str(tiny_prepared)).path


@pytest.fixture
def own_run(run, tmp_path):
    """A copy of the finished run."""
    return Path(shutil.copytree(run, tmp_path / "run"))


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_run_has_a_model_a_summary_and_its_provenance(run):
    names = {path.name for path in run.iterdir()}
    assert {"run.json", "summary.json", "model.ply", "provenance.json", "plan.odin", "spans"} <= names
    assert read_json(run / "summary.json")["steps"] == 6
    assert load_plan(run / "plan.odin").num_steps == 6


def test_the_same_call_again_changes_nothing(own_run, tiny_prepared, monkeypatch, caplog):
    monkeypatch.setattr(api, "launch", None)  # it must not come so far
    options = replace(OPTIONS, out=str(own_run))
    before = contents(own_run)
    with caplog.at_level(logging.INFO, logger="odin"):
        logging.getLogger("odin").propagate = True
        api.train_from_data(options, data=str(tiny_prepared))
    assert contents(own_run) == before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mode": "quality"}, "holds another run: mode (sync there, quality here)"),
        ({"batch": 3, "views": 18}, "batch (4 there, 3 here), views (24 there, 18 here)"),
        ({"seed": 1}, "seed (0 there, 1 here)"),
        ({"cap": 5000}, "holds another run: cap (20000 there, 5000 here)"),
        ({"preset": "paper"}, "preset (small there, paper here)"),
        ({"ranks": 2}, "ranks (1 there, 2 here)"),
    ],
)
def test_another_run_is_refused_and_the_folder_left_alone(own_run, tiny_prepared, changes, words):
    before = contents(own_run)
    with pytest.raises(ValueError) as error:
        api.train_from_data(replace(OPTIONS, out=str(own_run), **changes), data=str(tiny_prepared))
    assert words in str(error.value)
    assert contents(own_run) == before


def test_other_ranking_is_another_run(own_run, tiny_prepared):
    with pytest.raises(ValueError, match=r"balance \(False there, True here\)"):
        api.train_from_data(replace(OPTIONS, out=str(own_run)), data=str(tiny_prepared), balance=True)


def test_operational_options_are_the_same_run(own_run, tiny_prepared, monkeypatch):
    monkeypatch.setattr(api, "launch", None)
    options = replace(OPTIONS, out=str(own_run), timeout_s=5.0, delay_s=0.1, checkpoint_every=3, pin=False)
    assert api.train_from_data(options, data=str(tiny_prepared)).complete


def test_a_plan_that_was_left_behind_is_made_again(run, tiny_prepared, tmp_path):
    """Where a start was given up before its run began, the plan there is of unknown options."""
    (tmp_path / "plan.odin").write_text("of another run")
    made = api.train_from_data(replace(OPTIONS, out=str(tmp_path)), data=str(tiny_prepared))
    assert read_json(made.summary)["model_sha256"] == read_json(run / "summary.json")["model_sha256"]


@pytest.mark.parametrize("content", ["notes.txt", "images/a.png"])
def test_a_folder_of_something_else_is_refused(tmp_path, tiny_prepared, content):
    path = tmp_path / "out" / content
    path.parent.mkdir(parents=True)
    path.touch()
    with pytest.raises(ValueError, match="is not empty and not a run of odin"):
        api.train_from_data(replace(OPTIONS, out=str(tmp_path / "out")), data=str(tiny_prepared))
    assert contents(tmp_path / "out") == {Path(content): b""}


def test_a_file_is_no_run_folder(tmp_path, tiny_prepared):
    (tmp_path / "out").touch()
    with pytest.raises(ValueError, match="is a file; a run needs a folder"):
        api.train_from_data(replace(OPTIONS, out=str(tmp_path / "out")), data=str(tiny_prepared))


def test_balance_belongs_to_the_plan(run, tiny_prepared, tmp_path):
    options = replace(OPTIONS, plan=str(run / "plan.odin"), out=str(tmp_path / "out"))
    with pytest.raises(ValueError, match="Make it with balance instead"):
        api.train_from_data(options, data=str(tiny_prepared), balance=True)


def test_a_missing_device_is_refused_before_the_folder_is_a_run(tiny_prepared, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ValueError, match="torch sees no CUDA device"):
        api.train_from_data(replace(OPTIONS, device="cuda", out=str(tmp_path)), data=str(tiny_prepared))
    assert not (tmp_path / "run.json").exists()


class TestRawData:
    def test_twice_with_the_same_options_trains_once(self, tiny_scene, tmp_path, monkeypatch):
        options = replace(OPTIONS, views=8, out=str(tmp_path))
        first = api.train_from_data(options, data=str(tiny_scene), factor=2.0, name="half")
        record = read_json(first.record)
        assert (record["scene"], record["data"]) == ("half", str(tiny_scene))
        assert api.load_scene(tmp_path / "scene").widths.max() == 24
        monkeypatch.setattr(api, "launch", None)
        assert api.train_from_data(options, data=str(tiny_scene), factor=2.0, name="half").complete
        with pytest.raises(ValueError, match="was prepared from other data or with other options"):
            api.train_from_data(options, data=str(tiny_scene))

    def test_options_for_a_scene_that_is_prepared_already_are_refused(self, tiny_prepared, tmp_path):
        with pytest.raises(ValueError, match="is prepared already, which settled factor, test_every"):
            api.train_from_data(replace(OPTIONS, out=str(tmp_path)), data=str(tiny_prepared), test_every=3, factor=2.0)

    def test_small_images_are_told_of_before_training(self, tmp_path, caplog):
        write_capture(tmp_path / "data", np.eye(3), size=(24, 10))
        logging.getLogger("odin").propagate = True
        api.prepare(str(tmp_path / "data"), tmp_path / "scene")
        assert "10 pixels wide or high, and SSIM needs 11" in caplog.text


class TestEvaluation:
    def test_metrics_are_written_and_progress_is_told(self, own_run):
        seen = []
        metrics = api.evaluate_run(own_run, on_view=lambda done, total: seen.append((done, total)))
        written = read_json(own_run / "metrics.json")
        assert written["mean"] == metrics["mean"] and written["views"] == metrics["views"]
        assert metrics["mean"]["num_views"] == 3 and 5 < metrics["mean"]["psnr"] < 40
        assert seen == [(1, 3), (2, 3), (3, 3)]

    def test_pictures_of_every_test_view(self, own_run):
        api.evaluate_run(own_run, save_renders=True)
        for folder in ("renders", "comparisons"):
            assert len(list((own_run / folder).rglob("*.png"))) == 3

    def test_the_scene_inside_the_run_is_found_after_a_move(self, tiny_prepared, own_run):
        record = read_json(own_run / "run.json")
        write_json(own_run / "run.json", record | {"scene_dir": "gone/scene"})
        with pytest.raises(ValueError, match="its scene is not at gone/scene nor"):
            api.evaluate_run(own_run)
        assert api.evaluate_run(own_run, scene_dir=tiny_prepared)["mean"]["num_views"] == 3
        shutil.copytree(tiny_prepared, own_run / "scene")
        assert api.evaluate_run(own_run)["mean"]["num_views"] == 3

    def test_another_scene_is_refused(self, own_run, tmp_path):
        write_capture(tmp_path / "data", np.eye(3))
        api.prepare(str(tmp_path / "data"), tmp_path / "scene")
        with pytest.raises(ValueError, match="is not the scene that .* was trained on"):
            api.evaluate_run(own_run, scene_dir=tmp_path / "scene")
        with pytest.raises(ValueError, match="no prepared scene in there"):
            api.evaluate_run(own_run, scene_dir=tmp_path / "data")

    @pytest.mark.parametrize(
        ("missing", "words"),
        [
            ("summary.json", "this run is not finished. The same `odin train` command"),
            ("model.ply", "this run is not finished. The same `odin train` command"),
            ("run.json", "no run in there"),
            (".", "no such folder"),
        ],
    )
    def test_only_finished_runs(self, own_run, missing, words):
        if missing == ".":
            shutil.rmtree(own_run)
        else:
            (own_run / missing).unlink()
        with pytest.raises(ValueError, match=words):
            api.evaluate_run(own_run)

    def test_wrong_weights_are_found_before_a_view_is_rendered(self, own_run, tmp_path, caplog):
        (tmp_path / "weights.pt").write_text("no weights")
        weights = LpipsWeights(path=tmp_path / "weights.pt", sha256="0" * 64, net="vgg", version="0.1")
        with pytest.raises(ValueError, match="This is not the file configured"):
            api.evaluate_run(own_run, lpips=weights, on_view=None)
        logging.getLogger("odin").propagate = True
        metrics = api.evaluate_run(own_run, lpips=replace(weights, path=tmp_path / "absent.pt"))
        assert metrics["mean"]["lpips"] is None and metrics["mean"]["psnr"] > 5
        assert "LPIPS weights not found: absent.pt: LPIPS will be n/a" in caplog.text


class TestExactness:
    OPTIONS = {"pipeline": "3dgs", "preset": "small", "batch": 4, "seed": 0}

    def test_each_mode_on_each_number_once(self, tiny_prepared, tmp_path):
        named = set()
        results = list(
            api.exactness(
                str(tiny_prepared), ranks=(1, 1), steps=3, out=tmp_path / "kept", delay_s=1e-4, **self.OPTIONS,
                on_progress=lambda name, step: named.add((name, step)),
            )
        )  # fmt: skip
        assert [(result.mode, result.ranks) for result in results] == [("sync", 1), ("quality", 1)]
        assert len({result.model_sha256 for result in results}) == 1
        assert {result.num_gs for result in results} == {300}
        assert {("sync, 1 rank", 3), ("quality, 1 rank", 3)} <= named
        assert {"sync-1", "quality-1", "plan-1.odin"} <= {path.name for path in (tmp_path / "kept").iterdir()}

    def test_kept_runs_are_gone_on_with_and_others_refused(self, tiny_prepared, tmp_path, monkeypatch):
        first = list(api.exactness(str(tiny_prepared), ranks=(1,), steps=2, out=tmp_path, **self.OPTIONS))
        monkeypatch.setattr(api, "launch", None)
        assert list(api.exactness(str(tiny_prepared), ranks=(1,), steps=2, out=tmp_path, **self.OPTIONS)) == first
        before = contents(tmp_path)
        with pytest.raises(ValueError, match=r"sync-1 holds another run: views \(8 there, 12 here\)"):
            list(api.exactness(str(tiny_prepared), ranks=(1,), steps=3, out=tmp_path, **self.OPTIONS))
        assert contents(tmp_path) == before

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"ranks": ()}, "no number of ranks"),
            ({"ranks": (1, 0)}, "ranks is 0"),
            ({"steps": 0}, "steps is 0"),
            ({"delay_s": -1.0}, "delay_s is -1"),
            ({"modes": ("sync", "hogwild")}, "mode is 'hogwild'"),
        ],
    )
    def test_refusals_come_before_any_run(self, tiny_prepared, tmp_path, changes, words):
        arguments = {"ranks": (1,), "steps": 2, **self.OPTIONS, **changes}
        with pytest.raises(ValueError, match=words):
            list(api.exactness(str(tiny_prepared), out=tmp_path / "out", **arguments))
        assert not (tmp_path / "out").exists()


def test_the_command_is_recorded_as_a_user_gave_it(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/somewhere/odin/__main__.py", "train", "--seed", "3"])
    assert api._command_words() == ["odin", "train", "--seed", "3"]
