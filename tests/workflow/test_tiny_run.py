"""A whole benchmark on a tiny scene, and what a second call does after a change."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pandas as pd
import pytest
import yaml

from .conftest import TINY, Result, command, environment, snakemake

RESULTS = Path("results/tiny_0.1+a-b")
SCENE = "ti_ny.v+1-a"


def run_of(folder: Path, recipe: str) -> Path:
    return folder / RESULTS / "runs" / SCENE / "3dgs" / recipe / "seed0"


def planned(folder: Path, scene: Path, *values: str) -> Result:
    result = snakemake(folder, TINY, "--dry-run", values=(f"captures_root={scene}", *values))
    assert result.returncode == 0, result.text
    return result


def test_everything_is_made(finished: Path):
    for recipe in ("sync", "quality"):
        names = {path.name for path in run_of(finished, recipe).iterdir()}
        assert {"run.json", "summary.json", "model.ply", "provenance.json", "metrics.json", "spans"} <= names
    models = {json.loads((run_of(finished, recipe) / "summary.json").read_text())["model_sha256"]
              for recipe in ("sync", "quality")}  # fmt: skip
    assert len(models) == 1  # the same model to the bit
    quality = pd.read_csv(finished / RESULTS / "tables" / "quality.csv")
    assert list(quality["scene"]) == [SCENE, SCENE]
    assert sorted(quality["mode"]) == ["quality", "sync"]
    assert len(list((finished / RESULTS / "figures").glob("*.png"))) == 4
    log = finished / RESULTS / "logs" / "train" / SCENE / "3dgs" / "quality" / "seed0.log"
    assert "step 10 of 10" in log.read_text()


def test_work_folder_keeps_no_checkpoints_of_a_finished_run(finished: Path):
    assert not list((finished / RESULTS / "work").rglob("checkpoints"))


def test_second_call_has_nothing_to_do(finished: Path, tiny_scene: Path):
    assert planned(finished, tiny_scene).jobs == {}


@pytest.mark.parametrize(
    "operational",
    ["{timeout_s: 33}", "{checkpoint_every: 7}", "{transport: gloo}", "{save_renders: true}"],
)
def test_operational_settings_train_nothing_again(finished: Path, tiny_scene: Path, operational: str):
    assert planned(finished, tiny_scene, f"runtime={operational}").jobs == {}


def test_other_views_train_again_but_prepare_nothing(finished: Path, tiny_scene: Path):
    jobs = planned(finished, tiny_scene, "views=44").jobs
    assert jobs == {"schedule": 1, "train": 2, "evaluate": 2, "tables": 1, "figures": 1, "all": 1}


def test_another_recipe_or_seed_adds_only_its_own_rows(finished: Path, tiny_scene: Path):
    jobs = planned(finished, tiny_scene, "recipes=[sync,quality,ddp]").jobs
    assert jobs == {"train": 1, "evaluate": 1, "tables": 1, "figures": 1, "all": 1}
    jobs = planned(finished, tiny_scene, "seeds=[0,1]").jobs
    assert jobs == {"schedule": 1, "train": 2, "evaluate": 2, "tables": 1, "figures": 1, "all": 1}


def test_report_is_one_page(finished: Path, tiny_scene: Path):
    result = snakemake(finished, TINY, "--report", "report.html", values=(f"captures_root={tiny_scene}",))
    assert result.returncode == 0, result.text
    page = (finished / "report.html").read_text()
    assert "quality.csv" in page
    assert f"gantt-3dgs-{SCENE}-w2-b4.png" in page


@pytest.mark.slow
def test_a_killed_run_goes_on_from_its_checkpoint(tmp_path: Path, tiny_scene: Path):
    config = tmp_path / "config.yaml"
    tiny = yaml.safe_load(TINY.read_text()) | {"captures_root": str(tiny_scene), "recipes": ["quality"], "views": 1600}
    config.write_text(yaml.safe_dump(tiny | {"runtime": {"checkpoint_every": 20}}))
    target = RESULTS / "runs" / SCENE / "3dgs" / "quality" / "seed0" / "summary.json"
    first = subprocess.Popen(
        command(tmp_path, config, str(target)), env=environment(), start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 200
    while not list((tmp_path / RESULTS / "work").rglob("checkpoints/*")):
        assert first.poll() is None, "finished before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    assert not (tmp_path / target).exists()
    shutil.rmtree(tmp_path / ".snakemake" / "locks")  # what `snakemake --unlock` does
    result = snakemake(tmp_path, config, str(target))
    assert result.returncode == 0, result.text[-4000:]
    assert json.loads((tmp_path / target).read_text())["resumed_from"] >= 20
