"""Presets: all constants of a training recipe. Intervals are counted in views seen, as Grendel-GS counts them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """Defaults are those of the 3DGS paper and of gsplat's `DefaultStrategy` for one view a step."""

    name: str
    init_opacity: float = 0.1
    init_scale: float = 1.0  # times the root mean square distance to the three nearest points
    lr_means: float = 1.6e-4  # times the scene's extent
    lr_means_decay: float = 0.01
    lr_quats: float = 1e-3
    lr_scales: float = 5e-3
    lr_opacities: float = 5e-2
    lr_sh0: float = 2.5e-3
    lr_shN: float = 1.25e-4
    ssim_weight: float = 0.2
    near_plane: float = 0.01  # world units
    sh_degree: int = 3
    sh_degree_every_views: int = 1000
    refine_start_views: int = 500
    refine_stop_share: float = 0.5  # of the budget
    refine_every_views: int = 100
    reset_every_views: int = 3000
    grow_grad2d: float = 2e-4  # mean screen-space gradient norm, in half image sizes
    grow_scale3d: float = 0.01  # of the scene's extent: below duplicate, above split
    prune_opacity: float = 0.005
    prune_scale3d: float = 0.1  # of the scene's extent, after the first opacity reset
    cap: int | None = None  # largest number of primitives; the candidates with the largest gradients grow first


PAPER = Preset(name="paper")

#: For images of some hundred pixels and budgets of some thousand views. At this size the paper's threshold grows
#: more primitives than the images have pixels, so it is higher and there is a cap. No opacity reset: a budget this
#: short does not make it good (docs/log.md).
SMALL = Preset(
    name="small",
    sh_degree_every_views=250,
    refine_start_views=150,
    refine_every_views=100,
    reset_every_views=6000,
    grow_grad2d=6e-4,
    cap=20_000,
)
