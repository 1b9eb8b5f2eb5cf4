"""Run directories are read whole or refused with the file and field that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic_runs import write_run

from odin.data.jsonio import read_json, write_json
from odin.report.records import load_run, load_runs


def change(path: Path, **values: object) -> None:
    write_json(path, read_json(path) | values)


def test_reads_what_tables_need(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path / "r", seed=3, admission={"rule": "impact", "epsilon": 0.1}, transport="gloo"))
    assert (run.scene, run.pipeline, run.mode, run.preset) == ("fox", "3dgs", "sync", "small")
    assert (run.ranks, run.batch, run.views, run.steps, run.seed) == (2, 4, 2000, 500, 3)
    assert run.wait_s == (2.0, 4.0)
    assert run.mean_wait_share == pytest.approx(3.0 / 40.0)
    # Paths and the plan's hash are not settings; nested options become dotted.
    assert run.options == {
        "balance": True,
        "transport": "gloo",
        "admission.rule": "impact",
        "admission.epsilon": 0.1,
    }
    assert run.quality.psnr == 25.0
    assert run.quality.lpips is None
    assert run.quality.test_names == ("0.png", "8.png")


def test_images_seen_are_those_of_full_batches(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r")
    change(run / "run.json", views=1998)
    assert load_run(run).views == 2000


def test_what_auto_became_is_a_setting(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", transport="auto", identity="x", out="o")
    change(run / "summary.json", transport="shared-memory", renderer="cpu")
    assert load_run(run).options == {"balance": True, "transport": "shared-memory", "renderer": "cpu"}


def test_a_run_without_metrics_has_no_quality(tmp_path: Path) -> None:
    assert load_run(write_run(tmp_path / "r", metrics=False)).quality is None


def test_finds_runs_below_folders_once(tmp_path: Path) -> None:
    for name in ("b/x", "a"):
        write_run(tmp_path / name)
    runs = load_runs([tmp_path, tmp_path / "a"])
    assert [run.path for run in runs] == [tmp_path / "a", tmp_path / "b" / "x"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty: no run directory here or below"):
        load_runs([tmp_path / "empty"])


def test_half_written_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"not a run directory \(no run\.json\)"):
        load_run(tmp_path)
    run = write_run(tmp_path / "r")
    (run / "summary.json").rename(run / "away")
    with pytest.raises(ValueError, match=r"training has not finished \(no summary\.json\)"):
        load_run(run)
    text = (run / "away").read_text()
    (run / "summary.json").write_text(text[: len(text) // 2])
    with pytest.raises(ValueError, match=r"summary\.json: not valid JSON"):
        load_run(run)


@pytest.mark.parametrize(
    ("file", "values", "message"),
    [
        ("summary.json", {"steps": 400}, r"counts 400 steps and 2000 views, run\.json asks for 500 and"),
        ("summary.json", {"views": 1999}, r"counts 500 steps and 1999 views"),
        ("summary.json", {"views": 2004}, r"counts 500 steps and 2004 views"),
        ("summary.json", {"wait_s": [1.0]}, "wait_s has 1 entries for 2 ranks"),
        ("summary.json", {"wait_share": [1.5, 0.1]}, r"summary\.json: wait_share\.0: .* less than or equal"),
        ("summary.json", {"num_gs": 0}, r"summary\.json: num_gs: "),
        ("summary.json", {"model_sha256": "bb" * 32}, r"metrics\.json: model_sha256 is aaaa.*Evaluate the run again"),
        ("summary.json", {"kind": "emulated"}, r"kind is measured, summary\.json has emulated"),
        ("run.json", {"ranks": "many"}, r"run\.json: ranks: "),
        ("metrics.json", {"views": [{"name": "0.png"}] * 2}, "over 2 views, but 2 rows with 1 names"),
        ("metrics.json", {"lpips_reason": None}, "no LPIPS and no lpips_reason"),
    ],
)
def test_files_that_do_not_fit(tmp_path: Path, file: str, values: dict, message: str) -> None:
    run = write_run(tmp_path / "r")
    change(run / file, **values)
    with pytest.raises(ValueError, match=message):
        load_run(run)


def test_missing_fields_are_all_named(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r")
    content = read_json(run / "run.json")
    del content["seed"], content["mode"]
    write_json(run / "run.json", content)
    with pytest.raises(ValueError, match=r"run\.json: mode: Field required; seed: Field required"):
        load_run(run)
