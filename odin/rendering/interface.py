"""What a renderer is. Split at the splats because the sharded layout sends those between ranks.

Everything is NumPy at this border, float32 or float64 throughout, images planar ([3, H, W]).
Legend: N primitives, K SH coefficients (1, 4, 9 or 16), H and W the image's height and width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from odin.data.scene import Camera


@dataclass(frozen=True, kw_only=True, slots=True)
class RenderSettings:
    """gsplat's names and defaults."""

    sh_degree: int = 3
    eps2d: float = 0.3  # added to the diagonal of the 2D covariance, square pixels
    near_plane: float = 0.01
    far_plane: float = 1e10
    antialiased: bool = False  # opacity times sqrt(det before eps2d / det after)


@dataclass(kw_only=True, slots=True, eq=False)
class Gaussians:
    """Activated primitives, or (same shapes) gradients with respect to them."""

    means: np.ndarray  # [N, 3]
    quats: np.ndarray  # [N, 4] wxyz, not necessarily normalised
    scales: np.ndarray  # [N, 3]
    opacities: np.ndarray  # [N]
    sh: np.ndarray  # [N, K, 3]


@dataclass(kw_only=True, slots=True, eq=False)
class Splats:
    """Projected primitives. Row i belongs to primitive i; radii 0 marks what cannot touch the image."""

    radii: np.ndarray  # [N, 2] int32, pixels
    means2d: np.ndarray  # [N, 2] pixels
    depths: np.ndarray  # [N]
    conics: np.ndarray  # [N, 3] xx, xy, yy of the inverse 2D covariance
    opacities: np.ndarray  # [N] after the antialiasing factor
    colors: np.ndarray  # [N, 3] max(SH + 0.5, 0)


@dataclass(kw_only=True, slots=True, eq=False)
class SplatGradients:
    """Gradients with respect to `Splats`, and how many pixels each splat contributed to."""

    means2d: np.ndarray  # [N, 2]
    conics: np.ndarray  # [N, 3]
    opacities: np.ndarray  # [N]
    colors: np.ndarray  # [N, 3]
    touched: np.ndarray  # [N] int32, contributing pixels; rows with 0 have zero gradient


@dataclass(kw_only=True, slots=True, eq=False)
class Image:
    colors: np.ndarray  # [3, H, W], background included
    alphas: np.ndarray  # [H, W]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PreparedTarget:
    """A target image with whatever one backend keeps for it (`extra`: moments on the CPU, a tensor on CUDA)."""

    image: np.ndarray  # [3, H, W]
    extra: tuple[Any, ...]


class Renderer(Protocol):
    """Stateful only in its buffers: what a method returns is valid until the next `project` on the same object.

    The order of calls for one view is project, compose, [loss,] compose_backward, project_backward.
    """

    name: str

    def project(self, gaussians: Gaussians, camera: Camera, settings: RenderSettings) -> Splats: ...

    def compose(self, splats: Splats, camera: Camera, background: np.ndarray) -> Image: ...

    def compose_backward(self, grad_colors: np.ndarray, grad_alphas: np.ndarray | None = None) -> SplatGradients:
        """grad_colors [3, H, W], grad_alphas [H, W], for the image composed last."""
        ...

    def project_backward(self, grads: SplatGradients) -> Gaussians:
        """Gradients with respect to the activated primitives projected last."""
        ...

    def prepare_target(self, target: np.ndarray) -> PreparedTarget:
        """What `loss` can work out from the target alone, for callers that keep it per view."""
        ...

    def loss(
        self, image: np.ndarray, target: np.ndarray | PreparedTarget, ssim_weight: float
    ) -> tuple[float, np.ndarray]:
        """(1 - w) L1 + w (1 - SSIM) over planar images, and its gradient with respect to `image` ([3, H, W])."""
        ...
