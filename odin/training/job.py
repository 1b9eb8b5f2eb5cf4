"""A job: everything a rank needs to train, loaded and checked once, before the clock starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from odin.data.scene import Scene
from odin.data.scene_io import load_scene
from odin.pipelines.preset import Preset
from odin.pipelines.protocol import Pipeline, get_pipeline
from odin.primitives.row_update import StepTable, step_table
from odin.schedule.plan import Plan
from odin.schedule.plan_io import load_plan
from odin.training.options import TrainOptions, file_sha256, identity


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Job:
    options: TrainOptions
    scene: Scene
    plan: Plan
    pipeline: Pipeline
    preset: Preset
    table: StepTable
    identity: str
    scene_sha256: str
    plan_sha256: str

    @property
    def background(self) -> np.ndarray:
        return np.asarray(self.scene.protocol.background, np.float32)

    @property
    def restructuring(self) -> frozenset[int]:
        return frozenset(self.plan.structural_steps)

    def segments(self, after: int) -> list[tuple[int, int]]:
        """Stretches (first, last) of steps above `after` that end at a barrier.

        Barriers are structural steps, checkpoints and the last step.
        """
        every = self.options.checkpoint_every
        ends = {self.plan.num_steps, *self.restructuring}
        if every:
            ends.update(range(every, self.plan.num_steps, every))
        ordered = sorted(end for end in ends if end > after)
        return list(zip([after + 1, *(end + 1 for end in ordered)], ordered, strict=False))


def load_job(options: TrainOptions) -> Job:
    """Load scene and plan and check that they and the options agree. Raises ValueError saying what does not."""
    options.validate()
    scene_dir = Path(options.scene_dir)
    scene = load_scene(scene_dir)
    scene_sha256 = file_sha256(scene_dir / "scene.npz")
    plan = load_plan(Path(options.plan), scene, scene_sha256=scene_sha256)
    pipeline = get_pipeline(options.pipeline)
    preset = options.resolve_preset()
    budget = options.budget
    if preset.cap is not None and len(scene.points) > preset.cap:
        raise ValueError(
            f"{scene.name}: {len(scene.points)} points are more than the cap of {preset.cap} primitives. Raise the cap "
            "(--cap) or give fewer points."
        )
    structural = pipeline.structural_steps(preset, budget)
    for agrees, what in (
        (plan.batch == options.batch, f"has batch {plan.batch}, this run needs {options.batch}"),
        (plan.ranks == options.ranks, f"has ranks {plan.ranks}, this run needs {options.ranks}"),
        (plan.num_steps == budget.num_steps, f"has steps {plan.num_steps}, this run needs {budget.num_steps}"),
        (
            plan.structural_steps == structural,
            f"changes structure at {len(plan.structural_steps)} other steps than the {len(structural)} of pipeline "
            f"{options.pipeline!r} with preset {options.preset!r}",
        ),
    ):
        if not agrees:
            raise ValueError(
                f"{options.plan}: the plan {what}. Run `odin schedule` with the options of this run, or leave --plan "
                "out."
            )
    plan_sha256 = file_sha256(Path(options.plan))
    return Job(
        options=options,
        scene=scene,
        plan=plan,
        pipeline=pipeline,
        preset=preset,
        table=step_table(pipeline.adam(scene, preset, budget), budget.num_steps),
        identity=identity(options, scene_sha256=scene_sha256, plan_sha256=plan_sha256),
        scene_sha256=scene_sha256,
        plan_sha256=plan_sha256,
    )
