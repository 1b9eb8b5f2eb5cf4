"""Tables: medians, pairing and marks by hand; what may not stand together is refused."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from synthetic_runs import PROTOCOL, write_run

from odin.report.compare import hidden_wait, hidden_wait_interval, speedup
from odin.report.groups import baseline_of, group_runs, mean_problems
from odin.report.records import RunRecord, load_run
from odin.report.tables import Table, quality_table, throughput_table, write_tables


def run_of(folder: Path, **values: Any) -> RunRecord:
    number = len(list(folder.iterdir()))
    return load_run(write_run(folder / f"run{number}", **values))


def cells(table: Table, scene: str, mode: str) -> dict[str, Any]:
    return next(row for row in table.rows if (row["scene"], row["mode"]) == (scene, mode))


def markdown_row(table: Table, *starts: str) -> dict[str, str]:
    lines = [
        [c.strip() for c in line.strip("|").split("|")] for line in table.to_markdown().splitlines() if "|" in line
    ]
    return next(dict(zip(lines[0], line, strict=True)) for line in lines if all(s in line for s in starts))


def test_quality_rows_are_medians_with_their_spread(tmp_path: Path) -> None:
    records = [run_of(tmp_path, seed=s, psnr=p, model="a0") for s, p in ((0, 25.0), (1, 25.5), (2, 24.0))]
    table = quality_table(records)
    row = cells(table, "fox", "sync")
    assert (row["psnr"].value, row["psnr"].low, row["psnr"].high) == (25.0, 24.0, 25.5)
    assert (row["ranks"], row["batch"], row["images"], row["seeds"], row["kind"]) == (2, 4, 2000, 3, "measured")
    text = markdown_row(table, "fox", "sync")
    assert text["PSNR (dB)"] == "25.00 (24.00..25.50)"
    assert text["SSIM"] == "0.800"
    assert text["LPIPS"] == "n/a (1)"
    assert text["Gaussians"] == "20,000"
    assert text["model"] == "a0a0a0a0 +2 seeds"
    assert "- (1) no LPIPS weights configured" in table.to_markdown()
    assert "- preset: small" in table.to_markdown()


def test_csv_holds_raw_numbers_and_reasons(tmp_path: Path) -> None:
    records = [run_of(tmp_path, seed=s, psnr=p) for s, p in ((0, 25.0), (1, 25.0 + 1 / 3))]
    frame = pd.read_csv(StringIO(quality_table(records).to_csv()))
    assert frame.loc[0, "psnr_max"] == 25.0 + 1 / 3
    assert frame.loc[0, "num_gs"] == 20_000
    assert pd.isna(frame.loc[0, "lpips"])
    assert frame.loc[0, "notes"] == "lpips: no LPIPS weights configured"


def test_repeats_of_a_seed_are_pooled_before_seeds(tmp_path: Path) -> None:
    speeds = ((0, 10.0), (0, 20.0), (0, 90.0), (1, 40.0))
    records = [run_of(tmp_path, seed=seed, samples_per_s=speed, wait_s=(0.1, 0.1)) for seed, speed in speeds]
    row = cells(throughput_table(records), "fox", "sync")
    assert row["samples_per_s"].value == 30.0  # median of (median of 10, 20, 90) and 40
    assert (row["seeds"], row["runs"]) == (2, 4)


def test_speedups_and_hidden_wait_are_paired_by_seed(tmp_path: Path) -> None:
    # seed: (ddp, sync, throughput), samples/s and seconds waited
    speeds = {0: (40.0, 50.0, 60.0), 1: (20.0, 50.0, 100.0), 2: (50.0, 50.0, 55.0)}
    waits = {0: (10.0, 4.0, 1.0), 1: (8.0, 4.0, 3.0), 2: (8.0, 8.0, 0.0)}
    records = [
        run_of(tmp_path, mode=mode, seed=seed, samples_per_s=speeds[seed][i], wait_s=(waits[seed][i] / 2,) * 2)
        for seed in speeds
        for i, mode in enumerate(("ddp", "sync", "throughput"))
    ]
    table = throughput_table(records)
    row = cells(table, "fox", "throughput")
    assert row["speedup_ddp"].value == pytest.approx(1.5)  # median of 1.5, 5, 1.1
    assert row["speedup_sync"].value == pytest.approx(1.2)  # median of 1.2, 2, 1.1
    assert row["hidden_wait_sync"].value == pytest.approx(0.75)  # median of 0.75, 0.25, 1
    assert row["hidden_wait_ddp"].value == pytest.approx(0.9)  # median of 0.9, 0.625, 1
    assert cells(table, "fox", "sync")["speedup_sync"].value == 1.0
    text = markdown_row(table, "fox", "throughput")
    assert text["speed-up vs ddp"] == "1.50x"
    assert text["hidden wait vs sync"] == "75.0%"
    assert [row["mode"] for row in table.rows] == ["ddp", "sync", "throughput"]


def test_no_baseline_and_no_wait_are_reasons(tmp_path: Path) -> None:
    records = [run_of(tmp_path, mode="sync", wait_s=(0.1, 0.1)), run_of(tmp_path, mode="quality", wait_s=(0.1, 0.2))]
    row = cells(throughput_table(records), "fox", "quality")
    assert row["speedup_ddp"].reason == "no ddp run with the same ranks, batch and images seen"
    assert row["hidden_wait_sync"].reason == "sync waits 0.25 % of its time, under 0.5 %: nothing to hide"
    assert row["speedup_sync"].value == 1.0
    other = run_of(tmp_path, mode="throughput", seed=7)
    row = cells(throughput_table([*records, other]), "fox", "throughput")
    assert row["speedup_sync"].reason == "no seed in common with sync"


def test_baselines_must_agree_in_world_size(tmp_path: Path) -> None:
    groups = group_runs([run_of(tmp_path, mode="sync", wait_s=(1.0,) * 4), run_of(tmp_path, mode="quality")])
    quality = next(g for g in groups if g.first.mode == "quality")
    assert baseline_of(quality, groups, "sync")[0] is None
    assert len(throughput_table([run for g in groups for run in g.runs]).rows) == 2


def test_variants_are_rows_of_their_own_with_their_own_baseline(tmp_path: Path) -> None:
    records = [
        run_of(tmp_path, mode="sync", balance=True, samples_per_s=60.0, wait_s=(1.0, 1.0)),
        run_of(tmp_path, mode="sync", balance=False, samples_per_s=50.0, wait_s=(1.0, 1.0)),
        run_of(tmp_path, mode="quality", balance=False, samples_per_s=55.0, wait_s=(1.0, 1.0)),
        run_of(tmp_path, mode="quality", balance=True, samples_per_s=72.0, wait_s=(1.0, 1.0), scene_dir="elsewhere"),
    ]
    table = throughput_table(records)
    found = {(row["mode"], row["variant"]): row["speedup_sync"].value for row in table.rows}
    assert found == {
        ("sync", "balance=true"): 1.0,
        ("sync", "balance=false"): 1.0,
        ("quality", "balance=false"): pytest.approx(1.1),
        ("quality", "balance=true"): pytest.approx(1.2),
    }
    assert "balance=true" in table.to_markdown()


def test_models_are_marked_where_all_seeds_are_the_bits_of_sync(tmp_path: Path) -> None:
    for mode, models in {"sync": "ab", "quality": "ab", "throughput": "ac"}.items():
        for seed, model in enumerate(models):
            run_of(tmp_path, mode=mode, seed=seed, model=f"{model}{seed}")
    records = [load_run(path) for path in sorted(tmp_path.iterdir())]
    marks = {row["mode"]: row["model"] for row in quality_table(records).rows}
    assert marks == {
        "sync": "a0a0a0a0 +1 seeds",
        "quality": "a0a0a0a0 +1 seeds = sync",
        "throughput": "a0a0a0a0 +1 seeds",
    }
    drifted = run_of(tmp_path, mode="quality", seed=1, model="ff")
    changed = [r for r in records if (r.mode, r.seed) != ("quality", 1)] + [drifted]
    assert cells(quality_table(changed), "fox", "quality")["model"].endswith("!= sync")


def two_scenes(folder: Path, missing: tuple[str, str] | None = None, **of_miku: Any) -> list[RunRecord]:
    records = []
    for scene, factor in (("fox", 1.0), ("miku", 2.0)):
        for mode, speed in (("ddp", 40.0), ("sync", 50.0)):
            if (scene, mode) != missing:
                values = {"psnr": 24.0 * factor, "samples_per_s": speed * factor ** (mode == "sync")}
                values |= of_miku if scene == "miku" else {}
                records.append(run_of(folder, scene=scene, mode=mode, wait_s=(4.0, 4.0), **values))
    return records


def test_mean_over_scenes(tmp_path: Path) -> None:
    records = two_scenes(tmp_path, protocol=PROTOCOL | {"factor": 4.0})
    quality, throughput = quality_table(records, mean=True), throughput_table(records)
    assert cells(quality, "mean", "sync")["psnr"].value == 36.0
    assert cells(quality, "mean", "sync")["lpips"].reason == "no LPIPS weights configured"
    assert cells(throughput, "mean", "sync")["samples_per_s"].value == 75.0
    # Speed-ups 1.25 and 2.5: their geometric mean.
    assert cells(throughput, "mean", "sync")["speedup_ddp"].value == pytest.approx(3.125**0.5)
    assert not any(row["scene"] == "mean" for row in quality_table(records, mean=False).rows)


def test_no_mean_over_missing_scenes(tmp_path: Path) -> None:
    records = two_scenes(tmp_path, missing=("miku", "sync"))
    with pytest.raises(ValueError, match=r"3dgs/sync \(ranks 2, batch 4, 2000 images\) lacks miku"):
        quality_table(records, mean=True)
    table = quality_table(records)
    assert not any(row["scene"] == "mean" for row in table.rows)
    assert "- no mean over scenes: 3dgs/sync" in table.to_markdown()
    complete = two_scenes(tmp_path)
    with pytest.raises(ValueError, match="lacks miku, train"):
        throughput_table(records, scenes=["fox", "miku", "train"], mean=True)
    assert mean_problems(group_runs(complete), ["fox"])[0].endswith("has miku, not on the list of scenes")


def test_no_mean_over_protocols(tmp_path: Path) -> None:
    records = two_scenes(tmp_path, protocol=PROTOCOL | {"resize": "area"})
    with pytest.raises(ValueError, match=r"protocols differ between scenes \(fox: .*resize=none.*miku: .*resize=area"):
        quality_table(records, mean=True)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"protocol": PROTOCOL | {"factor": 2.0, "resize": "area"}}, r"has factor 2\.0, .* has 1\.0; .* resize 'area'"),
        ({"test_names": ("0.png", "9.png")}, "has 2 test views, .* 2, not the same ones"),
        ({"scene_sha256": "0d" * 32}, "was trained on other scene data"),
        ({"kind": "emulated"}, r"different kinds never share a table \(emulated: .*; measured: "),
    ],
)
def test_incomparable_runs_are_refused(tmp_path: Path, values: dict, message: str) -> None:
    records = [run_of(tmp_path), run_of(tmp_path, mode="quality", **values)]
    for table in (quality_table, throughput_table):
        with pytest.raises(ValueError, match=message):
            table(records)


def test_unevaluated_and_absent_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"1 runs have no metrics\.json: fox/3dgs/sync"):
        quality_table([run_of(tmp_path, metrics=False)])
    with pytest.raises(ValueError, match="no runs to tabulate"):
        throughput_table([])


def test_lpips_of_some_runs_only_is_not_averaged(tmp_path: Path) -> None:
    records = [run_of(tmp_path, seed=0, lpips=0.2), run_of(tmp_path, seed=1)]
    assert cells(quality_table(records), "fox", "sync")["lpips"].reason == "no LPIPS weights configured (1 of 2 runs)"
    assert cells(quality_table(records[:1]), "fox", "sync")["lpips"].value == 0.2


def test_written_files_keep_kinds_apart(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    measured = run_of(tmp_path / "runs")
    run_of(tmp_path / "runs", kind="emulated", mode="quality")
    run_of(tmp_path / "runs", kind="simulated", mode="quality", metrics=False)
    paths = write_tables([tmp_path / "runs"], tmp_path / "tables")
    tables = ["quality", "throughput", "quality-emulated", "throughput-emulated", "throughput-simulated"]
    assert [path.name for path in paths] == [name + suffix for name in tables for suffix in (".md", ".csv")]
    assert paths[0].read_text() == quality_table([measured]).to_markdown()
    assert sorted(paths) == sorted((tmp_path / "tables").iterdir())


def test_hidden_wait_interval() -> None:
    constant = hidden_wait_interval([1.0, 2.0, 3.0], [4.0, 8.0, 12.0])
    assert (constant.value, constant.low, constant.high, constant.num_pairs) == (0.75, 0.75, 0.75, 3)
    # Two pairs give three equally spaced outcomes with chances 1/4, 1/2, 1/4: hidden 0, 0.5 and 1.
    pair = hidden_wait_interval([0.0, 4.0], [4.0, 4.0])
    assert (pair.value, pair.low, pair.high) == (0.5, 0.0, 1.0)
    by_step = hidden_wait_interval({2: 4.0, 1: 0.0}, {1: 4.0, 2: 4.0})
    assert by_step == pair
    with pytest.raises(ValueError, match=r"cannot be paired: 2 keys in one only \(\[1, 3\]\)"):
        hidden_wait_interval({1: 0.0, 2: 1.0}, {2: 1.0, 3: 1.0})
    with pytest.raises(ValueError, match="two or more"):
        hidden_wait_interval([1.0], [1.0])
    with pytest.raises(ValueError, match="never waits"):
        hidden_wait_interval([1.0, 1.0], [0.0, 0.0])


def test_comparisons_without_a_baseline_keep_the_reason(tmp_path: Path) -> None:
    (group,) = group_runs([run_of(tmp_path)])
    assert speedup(group, None, "why").reason == "why"
    assert hidden_wait(group, None).reason == "no baseline"
