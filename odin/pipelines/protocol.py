"""What a pipeline is, and how one is found by name."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Protocol

import numpy as np

from odin.data.scene import Scene
from odin.pipelines.preset import Preset
from odin.primitives.primitive_set import PrimitiveSet
from odin.primitives.row_update import AdamSettings
from odin.rendering.interface import Gaussians, RenderSettings, SplatGradients, Splats

ENTRY_POINTS = "odin.pipelines"


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """How long a run is. Counted in views seen, so that runs with other batches stay comparable."""

    views: int
    batch: int

    @property
    def num_steps(self) -> int:
        return -(-self.views // self.batch)

    def seen(self, step: int) -> int:
        """Views seen after `step` steps."""
        return step * self.batch

    def crosses(self, step: int, every_views: int) -> bool:
        """True at the step in which the number of views seen passes a multiple of `every_views`."""
        return self.seen(step) // every_views > self.seen(step - 1) // every_views


@dataclass(frozen=True, kw_only=True, slots=True)
class StructuralChange:
    """What a structural step did, for the log: all counts of primitives."""

    step: int
    duplicated: int = 0
    split: int = 0
    pruned: int = 0
    held_back: int = 0  # candidates for growth that the cap left out
    opacity_reset: bool = False
    num_gs: int = 0


class Pipeline(Protocol):
    """Everything that distinguishes one method from another. Stateless: all state is in the `PrimitiveSet`."""

    name: str
    presets: dict[str, Preset]

    def initialize(self, scene: Scene, preset: Preset, seed: int) -> PrimitiveSet: ...

    def adam(self, scene: Scene, preset: Preset, budget: Budget) -> AdamSettings: ...

    def render_settings(self, preset: Preset, budget: Budget, step: int) -> RenderSettings:
        """Settings for the units of `step`; those of the last step are those of the finished model."""
        ...

    def structural_steps(self, preset: Preset, budget: Budget) -> tuple[int, ...]:
        """Steps after which `restructure` runs, ascending; never the last step."""
        ...

    def restructure(
        self, primitives: PrimitiveSet, scene: Scene, preset: Preset, budget: Budget, step: int, seed: int
    ) -> tuple[PrimitiveSet, StructuralChange]:
        """The set after the structural change, in global Morton order. All rows are at version `step`."""
        ...

    def activate(self, ids: np.ndarray, rows: np.ndarray, out: Gaussians) -> None:
        """Copy rows `ids` [n] into the unit's own buffers, activated."""
        ...

    def row_gradients(
        self,
        ids: np.ndarray,
        gaussians: Gaussians,
        gradients: Gaussians,
        splats: Splats,
        splat_gradients: SplatGradients,
        screen_scale: tuple[float, float],
        out_ids: np.ndarray,
        out_gradients: np.ndarray,
    ) -> tuple[int, int]:
        """Gradients with respect to rows, compacted: touched rows first, then rows only seen.

        Returns (number of rows seen, number of rows touched).
        """
        ...


def get_pipeline(name: str) -> Pipeline:
    """The pipeline registered under `name`; ValueError listing the registered names otherwise."""
    from odin.pipelines.gs3d import GaussianSplatting

    found: dict[str, Pipeline] = {GaussianSplatting.name: GaussianSplatting()}
    if name in found:
        return found[name]
    shipped = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if name in shipped:
        return shipped[name].load()()
    raise ValueError(f"pipeline {name!r} is not known; allowed: {', '.join(sorted({*found, *shipped}))}.")


def get_preset(pipeline: Pipeline, name: str) -> Preset:
    if name not in pipeline.presets:
        raise ValueError(
            f"preset {name!r} is not known for pipeline {pipeline.name}; "
            f"allowed: {', '.join(sorted(pipeline.presets))}."
        )
    return pipeline.presets[name]
