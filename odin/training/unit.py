"""One unit: read the rows of a scope into private buffers, render them, and turn the loss into row gradients.

The buffers are private so that later updates of the rows cannot reach a backward pass in flight.
Legend: n rows of the unit's scope.
"""

from __future__ import annotations

import numpy as np

from odin.data.scene import Camera
from odin.pipelines.preset import Preset
from odin.pipelines.protocol import Pipeline
from odin.rendering.interface import Gaussians, Image, PreparedTarget, Renderer, RenderSettings, Splats


class UnitRunner:
    """Runs one unit at a time, in four steps: read, project, backward, write."""

    def __init__(self, pipeline: Pipeline, preset: Preset, renderer: Renderer, background: np.ndarray) -> None:
        self._pipeline = pipeline
        self._preset = preset
        self._renderer = renderer
        self._background = background
        self._buffers = _allocate(0)

    def read(self, ids: np.ndarray, rows: np.ndarray) -> None:
        """Copy rows `ids` [n] of `rows` [N, 64], activated."""
        num = len(ids)
        if len(self._buffers.means) < num:
            self._buffers = _allocate(num + num // 4)
        b = self._buffers
        self._ids = ids
        self._gaussians = Gaussians(
            means=b.means[:num], quats=b.quats[:num], scales=b.scales[:num], opacities=b.opacities[:num], sh=b.sh[:num]
        )
        self._pipeline.activate(ids, rows, self._gaussians)

    def project(self, camera: Camera, settings: RenderSettings) -> Splats:
        self._camera = camera
        self._splats = self._renderer.project(self._gaussians, camera, settings)
        return self._splats

    def compose(self) -> Image:
        return self._renderer.compose(self._splats, self._camera, self._background)

    def backward(self, image: Image, target: PreparedTarget, share: float) -> float:
        """Loss against `target`; gradients of `share` times the loss are kept for `write`."""
        loss, gradient = self._renderer.loss(image.colors, target, self._preset.ssim_weight)
        np.multiply(gradient, np.float32(share), out=gradient)
        self._splat_gradients = self._renderer.compose_backward(gradient)
        self._gradients = self._renderer.project_backward(self._splat_gradients)
        self._share = share
        return loss

    def write(self, out_ids: np.ndarray, out_gradients: np.ndarray) -> tuple[int, int]:
        """Row gradients into `out_ids` [>= n] and `out_gradients` [>= n, 64]; (rows seen, rows touched)."""
        # densification looks at the gradient of the view's own loss, not of its share of the batch's
        scale = (0.5 * self._camera.width / self._share, 0.5 * self._camera.height / self._share)
        return self._pipeline.row_gradients(
            self._ids, self._gaussians, self._gradients, self._splats, self._splat_gradients, scale,
            out_ids, out_gradients,
        )  # fmt: skip


def _allocate(num: int) -> Gaussians:
    return Gaussians(
        means=np.empty((num, 3), np.float32),
        quats=np.empty((num, 4), np.float32),
        scales=np.empty((num, 3), np.float32),
        opacities=np.empty(num, np.float32),
        sh=np.empty((num, 16, 3), np.float32),
    )
