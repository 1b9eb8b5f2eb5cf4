"""Throughput of the modes on two real ranks, as ratios of paired runs in alternating order.

    python -m benchmarks.runtime

prints JSON lines. Scene: the gallery's `rooms` at 160 px, rendered once into scratch/. A ratio is the median over the
pairs, so that a machine that slows down or speeds up meanwhile meets both sides.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from odin import api
from odin.data.jsonio import read_json
from odin.data.prepare import prepare
from odin.schedule.plan_io import save_plan
from odin.training.options import TrainOptions

PAIRS = 5
RANKS, BATCH, VIEWS = 2, 4, 1200
MODES = ("ddp", "sync", "quality")
SCRATCH = Path(__file__).resolve().parents[1] / "scratch"


def prepared(name: str) -> Path:
    """The gallery scene, rendered and prepared at the first call."""
    out = SCRATCH / "bench" / name
    prepare(f"gallery:{name}", out)
    return out


def run_once(scene: Path, plan: Path, mode: str, out: Path) -> dict:
    options = TrainOptions(
        scene_dir=str(scene), plan=str(plan), mode=mode, ranks=RANKS, batch=BATCH, views=VIEWS, out=str(out),
        checkpoint_every=0,
    )  # fmt: skip
    return read_json(api.train(options, data=str(scene), on_progress=lambda step: None).summary)


def paired_runs(scene: Path, plan: Path, folder: Path) -> list[dict[str, dict]]:
    """PAIRS rounds of one run of each mode; every round starts with another mode."""
    rounds = []
    for number in range(PAIRS):
        order = MODES[number % len(MODES) :] + MODES[: number % len(MODES)]
        rounds.append({mode: run_once(scene, plan, mode, folder / f"{number}-{mode}") for mode in order})
    return rounds


def bookkeeping(summary: dict) -> float:
    """Share of the time that is neither kernels, structural changes nor waiting: scopes, board, messages, Python."""
    work = [sum(s for name, s in spans.items() if name != "scope") for spans in summary["spans_s"]]
    return max(1.0 - busy / summary["train_s"] for busy in work)


def lines() -> Iterator[dict]:
    scene = prepared("rooms")
    with tempfile.TemporaryDirectory(prefix="odin-bench-") as temporary:
        plan, _ = api.schedule(scene, pipeline="3dgs", preset="small", batch=BATCH, ranks=RANKS, views=VIEWS, seed=0)
        save_plan(plan, Path(temporary) / "plan.odin")
        rounds = paired_runs(scene, Path(temporary) / "plan.odin", Path(temporary))
    common = {"scene": "rooms", "ranks": RANKS, "batch": BATCH, "views": VIEWS, "pairs": PAIRS}
    ratios = [r["quality"]["samples_per_s"] / r["ddp"]["samples_per_s"] for r in rounds]
    yield line("quality_over_ddp", statistics.median(ratios), "x", 1.2, all=ratios, **common)
    # whole runs hardly resolve these on a noisy machine: the goals are those of benchmarks/interleaved.py
    for name, values, unit in (
        ("quality_over_sync", [r["quality"]["samples_per_s"] / r["sync"]["samples_per_s"] for r in rounds], "x"),
        ("hidden_wait_of_sync", [1 - sum(r["quality"]["wait_s"]) / sum(r["sync"]["wait_s"]) for r in rounds], "share"),
    ):
        yield note(name, statistics.median(values), unit, all=[round(x, 4) for x in values], **common)
    for mode in ("sync", "quality"):
        shares = [bookkeeping(r[mode]) for r in rounds]
        yield line(f"bookkeeping_{mode}", statistics.median(shares), "share", 0.05, most=True, all=shares, **common)
    speeds = {mode: statistics.median(r[mode]["samples_per_s"] for r in rounds) for mode in MODES}
    for mode, speed in speeds.items():
        yield note(f"samples_per_s_{mode}", speed, "1/s", **common)
    same = all(r["quality"]["model_sha256"] == r["sync"]["model_sha256"] for r in rounds)
    yield {"bench": "quality_equals_sync_to_the_bit", "value": same, "unit": "", "goal": True, "ok": same, **common}


def note(bench: str, value: float, unit: str, **extra) -> dict:
    """A figure without a goal."""
    return {"bench": bench, "value": round(value, 4), "unit": unit, "goal": None, "ok": None, **extra}


def line(bench: str, value: float, unit: str, goal: float, *, most: bool = False, **extra) -> dict:
    """`most`: the goal is an upper limit."""
    extra["all"] = [round(x, 4) for x in extra.get("all", [])]
    return {
        "bench": bench,
        "value": round(value, 4),
        "unit": unit,
        "goal": goal,
        "ok": bool(value <= goal if most else value >= goal),
        **extra,
    }


def main() -> None:
    for record in lines():
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
