"""`quality` against `sync` on two real ranks, with the mode changing every few steps of one run.

    python -m benchmarks.interleaved

prints JSON lines. On a machine whose cores change speed from second to second, whole runs cannot resolve differences of
some per cent. Both modes train the same bits, so one run may change between them at barriers; a second run with the
modes swapped gives every step to both. A pair is two such runs; values are medians over the pairs.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.runtime import BATCH, RANKS, VIEWS, line, note, prepared
from odin import api
from odin.data.jsonio import read_json, write_json
from odin.distributed.launch import launch
from odin.distributed.replicated import ReplicatedRank
from odin.distributed.worker import Trainer
from odin.distributed.worker import main as run_worker
from odin.runtime.modes import RULES
from odin.schedule.plan_io import save_plan
from odin.training.job import load_job
from odin.training.options import TrainOptions
from odin.training.run_dir import RunDir

PAIRS = 5
SEGMENT = 50  # steps between two changes of the mode
MODES = ("sync", "quality")
_FIRST = "ODIN_INTERLEAVED_FIRST"  # mode of the first segment, for the ranks


class AlternatingRank(ReplicatedRank):
    """Changes the read rule from segment to segment and measures each."""

    def run_segment(self, first: int, last: int) -> None:
        records = self.__dict__.setdefault("records", [])
        mode = MODES[(MODES.index(os.environ[_FIRST]) + len(records)) % len(MODES)]
        self._rule = RULES[mode]()
        waited, start = self._spans.totals_s.get("wait", 0.0), time.perf_counter()
        super().run_segment(first, last)
        records.append(
            {
                "mode": mode,
                "steps": last - first + 1,
                "time_s": time.perf_counter() - start,
                "wait_s": self._spans.totals_s.get("wait", 0.0) - waited,
            }
        )


class AlternatingTrainer(Trainer):
    def _driver(self) -> ReplicatedRank:
        driver = super()._driver()
        driver.__class__ = AlternatingRank
        return driver

    def train(self) -> None:
        super().train()
        write_json(self.run.path / f"segments-rank{self.group.rank}.json", self.driver.records)


def run_once(options: TrainOptions, first_mode: str) -> dict[str, dict[str, float]]:
    """Seconds and waits of each mode, summed over its segments: time of the slowest rank, waits of all."""
    run = RunDir(Path(options.out))
    job = load_job(options)
    run.begin(job, data="benchmark")
    os.environ[_FIRST] = first_mode
    launch(run, options, num_steps=job.plan.num_steps, on_progress=lambda step: None, module="benchmarks.interleaved")
    ranks = [read_json(run.path / f"segments-rank{rank}.json") for rank in range(options.ranks)]
    total = {mode: {"time_s": 0.0, "wait_s": 0.0} for mode in MODES}
    for segment in zip(*ranks, strict=True):
        mode = segment[0]["mode"]
        total[mode]["time_s"] += max(record["time_s"] for record in segment)
        total[mode]["wait_s"] += sum(record["wait_s"] for record in segment)
    return total


def measure(scene: Path, folder: Path) -> list[dict[str, dict[str, float]]]:
    """One entry a pair: both modes over every step."""
    plan, _ = api.schedule(scene, pipeline="3dgs", preset="small", batch=BATCH, ranks=RANKS, views=VIEWS, seed=0)
    save_plan(plan, folder / "plan.odin")
    pairs = []
    for number in range(PAIRS):
        both = []
        for first_mode in MODES if number % 2 == 0 else MODES[::-1]:
            options = TrainOptions(
                scene_dir=str(scene), plan=str(folder / "plan.odin"), mode="quality", ranks=RANKS, batch=BATCH,
                views=VIEWS, out=str(folder / f"{number}-{first_mode}"), checkpoint_every=SEGMENT,
            )  # fmt: skip
            both.append(run_once(options, first_mode))
        pairs.append({mode: {k: both[0][mode][k] + both[1][mode][k] for k in ("time_s", "wait_s")} for mode in MODES})
    return pairs


def lines() -> Iterator[dict]:
    scene = prepared("rooms")
    with tempfile.TemporaryDirectory(prefix="odin-bench-") as temporary:
        pairs = measure(scene, Path(temporary))
    common = {"scene": "rooms", "ranks": RANKS, "batch": BATCH, "views": VIEWS, "pairs": PAIRS, "segment": SEGMENT}
    speed = [pair["sync"]["time_s"] / pair["quality"]["time_s"] for pair in pairs]
    hidden = [1.0 - pair["quality"]["wait_s"] / pair["sync"]["wait_s"] for pair in pairs]
    bound = [pair["sync"]["time_s"] / (pair["sync"]["time_s"] - pair["sync"]["wait_s"] / RANKS) for pair in pairs]
    yield line("quality_over_sync", statistics.median(speed), "x", 0.99, all=speed, **common)
    yield line("hidden_wait_of_sync", statistics.median(hidden), "share", 1 / 3, all=hidden, **common)
    # if no rank ever waited
    yield note("zero_wait_bound_over_sync", statistics.median(bound), "x", **common)


def main() -> None:
    for record in lines():
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    if "RANK" in os.environ:
        run_worker(AlternatingTrainer)
    else:
        sys.exit(main())
