"""A run directory: what was asked, what came out, and what a killed run needs to go on.

run.json        options and identity, written before training
checkpoints/    the last two checkpoints
spans/          one JSON-lines file a rank
model.ply       the trained primitives
summary.json    times and counts; written last, so its presence means that the run is complete
"""

from __future__ import annotations

import math
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np

from odin.data.jsonio import read_json, write_json
from odin.primitives.ply import save_ply
from odin.primitives.primitive_set import PrimitiveSet
from odin.training.job import Job
from odin.training.options import IDENTITY_OPTIONS, TrainOptions

RUN_VERSION = 1


class RunDir:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.record = path / "run.json"
        self.summary = path / "summary.json"
        self.model = path / "model.ply"
        self.checkpoints = path / "checkpoints"
        self.spans = path / "spans"

    def failure(self, rank: int) -> Path:
        return self.path / f"failure-rank{rank}.json"

    @property
    def complete(self) -> bool:
        return self.summary.exists() and self.model.exists()

    def begin(self, job: Job, *, data: str) -> bool:
        """Record what this folder is for; False where it holds the finished run already.

        Raises ValueError where the folder holds another run: nothing is overwritten.
        """
        options = job.options
        record = {
            "version": RUN_VERSION,
            "identity": job.identity,
            "scene": job.scene.name,
            "data": data,
            "scene_sha256": job.scene_sha256,
            "plan_sha256": job.plan_sha256,
            "steps": job.plan.num_steps,
            "balance": job.plan.balance,
            "ordering": job.plan.ordering,
            "num_train_views": len(job.scene.train_views),
            "num_test_views": len(job.scene.test_views),
            "preset_values": asdict(job.preset),
            **asdict(options),
        }
        if self.record.exists():
            before = read_json(self.record)
            if before.get("identity") != job.identity:
                raise ValueError(
                    f"{self.path} holds another run: {_differences(before, record)}. "
                    "Train into a new folder, or delete this one yourself."
                )
            if self.complete:
                return False
        self.path.mkdir(parents=True, exist_ok=True)
        for stale in self.path.glob("failure-rank*.json"):
            stale.unlink()
        write_json(self.record, record)
        return True

    def load_options(self) -> TrainOptions:
        """Raises ValueError where the record is of another version of odin."""
        record = read_json(self.record)
        missing = [field.name for field in fields(TrainOptions) if field.name not in record]
        if missing:
            raise ValueError(
                f"{self.record}: {', '.join(missing)} missing; another version of odin wrote it. Train into a new "
                "folder."
            )
        return TrainOptions(**{field.name: record[field.name] for field in fields(TrainOptions)})

    def map_progress(self, world: int) -> np.ndarray:
        """The step that each rank is in, [W] int64, shared between the ranks and whoever watches them."""
        path = self.path / "progress.bin"
        if not path.exists() or path.stat().st_size != 8 * world:
            with open(path, "ab") as file:
                file.truncate(8 * world)
        return np.memmap(path, np.int64, "r+", shape=(world,))

    def publish(
        self, job: Job, primitives: PrimitiveSet, *, wall_s: float, per_rank: list[dict], transport: str,
        final_loss: float, resumed_from: int | None, renderer: str,
    ) -> None:  # fmt: skip
        """Write the model and, last, the summary. All times are measured, in seconds."""
        save_ply(self.model, primitives)
        train_s = max(rank["train_s"] for rank in per_rank)
        views = job.options.budget.num_steps * job.options.batch
        write_json(
            self.summary,
            {
                "version": RUN_VERSION,
                "kind": "measured",
                "samples_per_s": views / train_s,
                "wall_s": wall_s,
                "train_s": train_s,
                "wait_s": [rank["wait_s"] for rank in per_rank],
                "wait_share": [rank["wait_s"] / train_s for rank in per_rank],
                "spans_s": [rank["totals_s"] for rank in per_rank],
                "num_gs": len(primitives),
                "model_sha256": primitives.sha256(),
                "steps": job.plan.num_steps,
                "views": views,
                "ranks": job.options.ranks,
                # a rank that ran no unit since the resumption knows no loss
                "final_loss": final_loss if math.isfinite(final_loss) else None,
                "transport": transport,
                "renderer": renderer,
                "resumed_from": resumed_from,
            },
        )


def _differences(there: dict, here: dict) -> str:
    """What of two records decides the model and differs, at most six entries. Operational options do not count."""
    names = (*IDENTITY_OPTIONS, "scene", "scene_sha256", "plan_sha256")
    pairs = [(name, there.get(name), here[name]) for name in names]
    constants = there.get("preset_values", {})
    pairs += [(f"preset's {name}", constants.get(name), value) for name, value in here["preset_values"].items()]
    differing = [f"{name} ({before} there, {now} here)" for name, before, now in pairs if before != now]
    return ", ".join(differing[:6]) or "another version of odin wrote it"
