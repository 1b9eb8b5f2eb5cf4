"""Spans: totals and traces by hand, and figures that show what they are given."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from synthetic_runs import write_run, write_spans

from odin.data.jsonio import read_json
from odin.report import figures
from odin.report.compare import hidden_wait_interval
from odin.report.records import load_runs
from odin.report.spans import Span, aligned, chrome_trace, read_spans, totals, wait_by_step, write_trace

SPANS = (
    Span(rank=0, name="render", step=1, unit=0, start_s=10.0, dur_s=0.5),
    Span(rank=0, name="wait", step=1, unit=None, start_s=10.5, dur_s=0.25),
    Span(rank=0, name="render", step=2, unit=2, start_s=10.75, dur_s=0.5),
    Span(rank=1, name="render", step=1, unit=1, start_s=10.125, dur_s=0.625),
    Span(rank=1, name="lunch", step=2, unit=None, start_s=11.0, dur_s=0.125),
)


def test_totals_and_waits() -> None:
    assert totals(SPANS) == {0: {"render": 1.0, "wait": 0.25}, 1: {"lunch": 0.125, "render": 0.625}}
    assert wait_by_step(SPANS) == {1: 0.25, 2: 0.0}


def test_alignment_keeps_offsets_only_where_clocks_are_shared() -> None:
    assert [span.start_s for span in aligned(SPANS)] == [0.0, 0.5, 0.75, 0.125, 1.0]
    assert [span.start_s for span in aligned(SPANS, common_clock=False)] == [0.0, 0.5, 0.75, 0.0, 0.875]


def test_chrome_trace(tmp_path: Path) -> None:
    trace = chrome_trace(SPANS)
    names = [e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M"]
    assert names == ["rank 0", "compute", "rank 0", "wait", "rank 1", "compute"]
    complete = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert complete[1] == {
        "ph": "X",
        "name": "wait",
        "cat": "wait",
        "pid": 0,
        "tid": 1,
        "ts": 500_000.0,
        "dur": 250_000.0,
        "args": {"step": 1},
    }
    assert complete[4]["cat"] == "other"
    write_trace(tmp_path / "trace.json", SPANS)
    assert read_json(tmp_path / "trace.json") == trace


def test_reading_checks_every_line(tmp_path: Path) -> None:
    folder = tmp_path / "spans"
    with pytest.raises(ValueError, match=r"no rank<r>\.jsonl files"):
        read_spans(tmp_path)
    folder.mkdir()
    line = {"name": "render", "step": 1, "unit": None, "start_s": 2.0, "dur_s": 0.5}
    (folder / "rank10.jsonl").write_text(json.dumps(line) + "\n" + json.dumps(line | {"start_s": 1.0}) + "\n")
    assert [(s.rank, s.start_s) for s in read_spans(tmp_path)] == [(10, 1.0), (10, 2.0)]
    with pytest.raises(ValueError, match=r"files of ranks \[10\], expected 0\.\.1"):
        read_spans(tmp_path, num_ranks=2)
    for bad in ('{"name": "ren', json.dumps(line | {"dur_s": -1.0}), json.dumps({"name": "x"}), "3"):
        (folder / "rank10.jsonl").write_text(json.dumps(line) + "\n" + bad + "\n")
        with pytest.raises(ValueError, match=r"rank10\.jsonl:2: "):
            read_spans(tmp_path)


def test_time_split_adds_up_to_training_time() -> None:
    split = figures.split_by_category(SPANS, train_s=2.0)
    assert split["render"] == (1.0 + 0.625) / 2
    assert split["wait"] == 0.125
    assert split["other"] == ((2.0 - 1.25) + (0.125 + 2.0 - 0.75)) / 2
    assert sum(split.values()) == 2.0


def texts(figure: Figure) -> set[str]:
    found = {text.get_text().strip() for axis in figure.axes for text in (*axis.texts, axis.title)}
    found |= {axis.get_title(loc="left") for axis in figure.axes}
    return found | {text.get_text() for legend in figure.legends for text in legend.get_texts()}


def test_figures_are_drawn(tmp_path: Path) -> None:
    for scene in ("fox", "miku"):
        for mode, speed in (("ddp", 40.0), ("sync", 50.0), ("throughput", 60.0)):
            for seed in range(2):
                folder = tmp_path / "runs" / f"{scene}-{mode}-{seed}"
                write_run(folder, scene=scene, mode=mode, seed=seed, samples_per_s=speed + seed, psnr=25.0 + seed)
                write_spans(folder, mode, seed=seed)
    records = load_runs([tmp_path / "runs"])
    spans = {mode: read_spans(tmp_path / "runs" / f"fox-{mode}-0", num_ranks=2) for mode in ("sync", "throughput")}

    speeds, psnrs = figures.samples_figure(records), figures.psnr_figure(records)
    assert {"fox", "miku", "ddp", "sync", "throughput", "40.5", "50.5", "60.5"} <= texts(speeds)
    assert "25.50" in texts(psnrs)
    spans_db = {round(axis.get_ylim()[1] - axis.get_ylim()[0], 6) for axis in psnrs.axes}
    assert spans_db == {1.5}
    gantt = figures.gantt(list(spans.items()), first_step=2, num_steps=3)
    assert {"sync", "throughput", "2", "3", "4", "render", "wait"} <= texts(gantt)
    assert "5" not in texts(gantt)
    split = figures.time_split([(mode, found, 0.5) for mode, found in spans.items()])
    interval = hidden_wait_interval([1.0, 2.0], [4.0, 4.0])
    drawn = {
        "speeds": speeds,
        "psnrs": psnrs,
        "gantt": gantt,
        "split": split,
        "interval": figures.interval_figure([("fox", interval)], label="hidden wait"),
    }
    for name, figure in drawn.items():
        path = figures.save(figure, tmp_path / "figures" / f"{name}.png")
        first = path.read_bytes()
        assert first[:4] == b"\x89PNG"
        assert figures.save(figure, path).read_bytes() == first
    with pytest.raises(ValueError, match=r"sync: no spans in steps 90\.\.91"):
        figures.gantt([("sync", spans["sync"])], first_step=90, num_steps=2)


def test_all_figures_of_a_folder(tmp_path: Path) -> None:
    for mode in ("sync", "quality"):
        folder = write_run(tmp_path / "runs" / mode, mode=mode, metrics=mode == "sync", steps=8, views=32, batch=4)
        write_spans(folder, mode)
    write_run(tmp_path / "runs" / "other", scene="miku", pipeline="2dgs")
    names = [path.name for path in figures.write_figures([tmp_path / "runs"], tmp_path / "figures")]
    assert names == [
        "throughput-2dgs.png",
        "psnr-2dgs.png",
        "throughput-3dgs.png",
        "time-split-3dgs-fox-w2-b4.png",
        "gantt-3dgs-fox-w2-b4.png",
    ]
    assert all((tmp_path / "figures" / name).stat().st_size > 1000 for name in names)
