"""Renders a whole model from one camera: evaluation, pictures, comparisons."""

from __future__ import annotations

import numpy as np

from odin.data.scene import Camera
from odin.pipelines.preset import Preset
from odin.pipelines.protocol import Budget, Pipeline
from odin.primitives.primitive_set import PrimitiveSet
from odin.rendering.interface import Renderer
from odin.training.unit import UnitRunner


class ModelRenderer:
    """Image [3, H, W] of a camera; the settings are those that the run's last step trained with."""

    def __init__(
        self, pipeline: Pipeline, preset: Preset, budget: Budget, primitives: PrimitiveSet, renderer: Renderer,
        background: np.ndarray,
    ) -> None:  # fmt: skip
        self._runner = UnitRunner(pipeline, preset, renderer, background)
        self._settings = pipeline.render_settings(preset, budget, budget.num_steps)
        self._runner.read(np.arange(len(primitives), dtype=np.int32), primitives.rows)

    def __call__(self, camera: Camera) -> np.ndarray:
        self._runner.project(camera, self._settings)
        return self._runner.compose().colors.copy()
