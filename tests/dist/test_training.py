"""Real ranks on the tiny scene: bits, resumption, failures. Each run ends by itself within its timeout."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from odin import api
from odin.data.jsonio import read_json
from odin.distributed.launch import TrainingFailed
from odin.primitives.checkpoint import list_checkpoints
from odin.schedule.build import with_ranks
from odin.schedule.plan_io import save_plan
from odin.training.options import TrainOptions

VIEWS = 840  # 210 steps of 4; one refinement, after step 100
pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="session")
def plans(tiny_prepared, tmp_path_factory):
    """The same batches for 1 to 3 ranks, and for more ranks than views of a step."""
    folder = tmp_path_factory.mktemp("plans")
    plan, scene = api.schedule(tiny_prepared, pipeline="3dgs", preset="small", batch=4, ranks=3, views=VIEWS, seed=0)
    assert plan.structural_steps, "the test is about nothing without a structural change"
    for ranks in (1, 2, 3, 5):
        save_plan(with_ranks(plan, ranks, scene), folder / f"{ranks}.odin")
    return folder


def options(tiny_prepared, plans, out, **changes):
    ranks = changes.get("ranks", 1)
    values = {
        "scene_dir": str(tiny_prepared), "plan": str(plans / f"{ranks}.odin"), "views": VIEWS, "out": str(out),
        "mode": "sync", "timeout_s": 60.0, "pin": False,
    }  # fmt: skip
    return TrainOptions(**values | changes)


def train(opts):
    run = api.train(opts, data="tiny", on_progress=lambda step: None)
    return read_json(run.summary)


@pytest.fixture(scope="session")
def reference(tiny_prepared, plans, tmp_path_factory):
    """Synchronized training on one rank."""
    return train(options(tiny_prepared, plans, tmp_path_factory.mktemp("reference") / "run"))


@pytest.mark.parametrize(
    "ranks, mode, changes",
    [
        (1, "quality", {}),
        (2, "sync", {"delay_s": 0.001}),
        (2, "quality", {"delay_s": 0.001}),
        (2, "quality", {"delay_s": 0.001, "transport": "gloo"}),
        (3, "quality", {"delay_s": 0.0005, "checkpoint_every": 7}),
        (2, "quality", {"delay_s": 0.001, "announce": False, "refine_scopes": False}),
        (5, "sync", {}),  # more ranks than views of a step: one is idle in each
    ],
)
def test_every_timing_and_number_of_ranks_gives_the_same_bits(
    tiny_prepared, plans, reference, tmp_path, ranks, mode, changes
):
    result = train(options(tiny_prepared, plans, tmp_path / "run", ranks=ranks, mode=mode, **changes))
    assert result["model_sha256"] == reference["model_sha256"]
    assert result["num_gs"] == reference["num_gs"]
    assert len(result["wait_s"]) == ranks


def test_the_densification_in_between_did_something(reference, tiny_prepared):
    assert reference["num_gs"] != len(api.load_scene(tiny_prepared).points)
    assert reference["final_loss"] < 0.2


def test_ddp_agrees_with_sync_within_rounding(tiny_prepared, plans, reference, tmp_path):
    """The first steps only: differences of rounding grow, and densification is a threshold."""
    few = 80
    plan, scene = api.schedule(tiny_prepared, pipeline="3dgs", preset="small", batch=4, ranks=2, views=few, seed=0)
    save_plan(plan, tmp_path / "plan.odin")
    rows = {}
    for mode in ("ddp", "sync"):
        opts = options(
            tiny_prepared, plans, tmp_path / mode, ranks=2, mode=mode, views=few, plan=str(tmp_path / "plan.odin")
        )
        train(opts)
        rows[mode] = api.load_ply(tmp_path / mode / "model.ply").rows
    moved = np.abs(rows["sync"] - api.get_pipeline("3dgs").initialize(scene, opts.resolve_preset(), 0).rows)
    assert np.median(np.abs(rows["ddp"] - rows["sync"])[moved > 0]) < 1e-3 * np.median(moved[moved > 0])


def test_ddp_with_an_idle_rank_ends(tiny_prepared, plans, tmp_path):
    result = train(options(tiny_prepared, plans, tmp_path / "run", ranks=5, mode="ddp"))
    assert result["steps"] == VIEWS // 4 and len(result["wait_s"]) == 5


def command(opts, tiny_prepared):
    return [
        sys.executable, "-m", "odin", "train", "--data", str(tiny_prepared), "--plan", opts.plan, "--out", opts.out,
        "--mode", opts.mode, "--ranks", str(opts.ranks), "--views", str(opts.views), "--timeout-s", str(opts.timeout_s),
        "--checkpoint-every", str(opts.checkpoint_every), "--delay-s", str(opts.delay_s), "--no-pin",
    ]  # fmt: skip


def start(opts, tiny_prepared):
    return subprocess.Popen(
        command(opts, tiny_prepared),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def wait_for_step(out: Path, step: int, seconds: float = 90.0):
    """Wait until every rank has reached `step`."""
    deadline = time.monotonic() + seconds
    path = out / "progress.bin"
    while time.monotonic() < deadline:
        if path.exists() and len(progress := np.fromfile(path, np.int64)) and progress.min() >= step:
            return
        time.sleep(0.02)
    raise AssertionError(f"step {step} was not reached in {seconds} s")


def rank_processes(process):
    """The worker processes of a launched run, by rank."""
    found = {}
    for child in psutil.Process(process.pid).children(recursive=True):
        if "odin.distributed.worker" in child.cmdline():
            found[int(child.environ().get("RANK", 0))] = child
    return found


def stop(process):
    """End whatever is left of a run: the whole session it was started in."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)
    process.stdout.close()


@pytest.mark.parametrize("mode", ["quality", "ddp"])
def test_a_killed_run_goes_on_with_the_same_command(tiny_prepared, plans, reference, tmp_path, mode):
    opts = options(tiny_prepared, plans, tmp_path / "run", ranks=2, mode=mode, checkpoint_every=20, delay_s=0.004)
    process = start(opts, tiny_prepared)
    try:
        wait_for_step(tmp_path / "run", 115)
    finally:
        stop(process)
    assert list_checkpoints(tmp_path / "run" / "checkpoints")
    assert not (tmp_path / "run" / "summary.json").exists()
    again = subprocess.run(
        command(replace(opts, delay_s=0.0), tiny_prepared), capture_output=True, text=True, timeout=150
    )
    assert again.returncode == 0, again.stdout + again.stderr
    assert "resuming after step" in again.stdout
    summary = read_json(tmp_path / "run" / "summary.json")
    assert summary["resumed_from"] >= 100
    if mode == "quality":
        assert summary["model_sha256"] == reference["model_sha256"]
    once_more = subprocess.run(command(opts, tiny_prepared), capture_output=True, text=True, timeout=60)
    assert once_more.returncode == 0 and "resuming" not in once_more.stdout


@pytest.mark.parametrize("mode", ["sync", "ddp"])
def test_a_dead_rank_ends_the_job_and_is_named(tiny_prepared, plans, tmp_path, mode):
    opts = options(tiny_prepared, plans, tmp_path / "run", ranks=2, mode=mode, delay_s=0.01, timeout_s=20.0)
    process = start(opts, tiny_prepared)
    try:
        wait_for_step(tmp_path / "run", 3)
        rank_processes(process)[1].kill()
        before = time.monotonic()
        output, _ = process.communicate(timeout=60)
        assert time.monotonic() - before < 50
    finally:
        stop(process)
    assert process.returncode != 0
    assert "odin: error: rank 1 was killed by SIGKILL at step" in output


def test_a_stopped_rank_is_noticed_within_the_timeout(tiny_prepared, plans, tmp_path):
    opts = options(tiny_prepared, plans, tmp_path / "run", ranks=2, delay_s=0.01, timeout_s=5.0)
    process = start(opts, tiny_prepared)
    try:
        wait_for_step(tmp_path / "run", 3)
        rank_processes(process)[1].send_signal(signal.SIGSTOP)
        output, _ = process.communicate(timeout=90)
    finally:
        stop(process)
    assert process.returncode != 0
    assert "nothing came for 5 s; rank 1 owes step" in output


def test_two_runs_at_once_do_not_meet(tiny_prepared, plans, tmp_path):
    runs = [
        start(options(tiny_prepared, plans, tmp_path / name, ranks=2, mode=mode), tiny_prepared)
        for name, mode in (("a", "quality"), ("b", "ddp"))
    ]
    try:
        outputs = [process.communicate(timeout=200)[0] for process in runs]
    finally:
        for process in runs:
            stop(process)
    assert [process.returncode for process in runs] == [0, 0], outputs


def test_another_run_in_the_folder_is_refused_and_left_alone(tiny_prepared, plans, tmp_path):
    opts = options(tiny_prepared, plans, tmp_path / "run")
    train(opts)
    before = (tmp_path / "run" / "summary.json").read_bytes()
    with pytest.raises(ValueError, match="holds another run: .*mode"):
        train(replace(opts, mode="quality"))
    assert (tmp_path / "run" / "summary.json").read_bytes() == before


def test_a_failure_names_rank_step_and_cause(tiny_prepared, plans, tmp_path):
    """Poison the checkpoint's rows: training must stop at the next check, not finish with NaN."""
    opts = options(tiny_prepared, plans, tmp_path / "run", ranks=2, checkpoint_every=40, delay_s=0.004)
    process = start(opts, tiny_prepared)
    try:
        wait_for_step(tmp_path / "run", 45)
    finally:
        stop(process)
    checkpoint = list_checkpoints(tmp_path / "run" / "checkpoints")[-1]
    with np.load(checkpoint) as archive:
        arrays = {name: archive[name] for name in archive.files}
    arrays["rows"][:, 7] = np.nan
    np.savez(checkpoint, **arrays)
    with pytest.raises(TrainingFailed, match=r"rank 0 failed at step \d+: step \d+: non-finite parameters in .*scales"):
        train(replace(opts, delay_s=0.0))


def test_spans_are_json_lines_and_cover_the_run(tiny_prepared, plans, tmp_path):
    summary = train(options(tiny_prepared, plans, tmp_path / "run", ranks=2, mode="quality"))
    for rank in range(2):
        lines = (tmp_path / "run" / "spans" / f"rank{rank}.jsonl").read_text().splitlines()
        spans = [json.loads(line) for line in lines]
        assert {"render", "backward", "exchange", "row_update", "scope"} <= {span["name"] for span in spans}
        assert {span["step"] for span in spans} == set(range(1, VIEWS // 4 + 1))
        waited = sum(span["dur_s"] for span in spans if span["name"] == "wait")
        assert waited == pytest.approx(summary["wait_s"][rank], rel=0.02, abs=1e-4)
