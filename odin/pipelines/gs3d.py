"""3DGS (Kerbl et al. 2023): EWA splats, L1 + SSIM, dense Adam, default densification."""

from __future__ import annotations

import math

import numpy as np
from scipy.spatial import cKDTree

from odin.data.scene import Scene
from odin.pipelines import densification
from odin.pipelines.gaussian_rows import activate_rows, compact_gradients
from odin.pipelines.preset import PAPER, SMALL, Preset
from odin.pipelines.protocol import Budget, StructuralChange
from odin.primitives.primitive_set import PrimitiveSet, fresh, pack
from odin.primitives.random import normals
from odin.primitives.row_update import AdamSettings
from odin.rendering.interface import Gaussians, RenderSettings, SplatGradients, Splats

SH_C0 = 0.28209479177387814  # Y_0^0
MIN_DISTANCE = 1e-7  # world units: coinciding points, or a single camera, must not start with a scale of 0


def neighbour_distances(points: np.ndarray, fallback: float) -> np.ndarray:
    """Root mean square distance of each point to its three nearest neighbours (fewer where there are fewer). [P]

    A single point has no neighbour: `fallback`, in world units. Never below `MIN_DISTANCE`.
    """
    num_neighbours = min(3, len(points) - 1)
    if num_neighbours == 0:
        return np.full(len(points), max(fallback, MIN_DISTANCE))
    distances, _ = cKDTree(points).query(points, k=num_neighbours + 1)
    return np.maximum(np.sqrt((distances[:, 1:] ** 2).mean(1)), MIN_DISTANCE)


class GaussianSplatting:
    name = "3dgs"
    presets = {"paper": PAPER, "small": SMALL}

    def initialize(self, scene: Scene, preset: Preset, seed: int) -> PrimitiveSet:
        num = len(scene.points)
        if num == 0:
            raise ValueError(
                f"{scene.name}: the scene has no point to start from. Prepare it again: points are drawn then."
            )
        points = scene.points.astype(np.float64)
        scales = neighbour_distances(points, 0.1 * scene.extent) * preset.init_scale
        parameters = {
            "means": scene.points,
            "quats": normals(seed, 0, np.arange(num), 4),
            "scales": np.repeat(np.log(scales)[:, None], 3, axis=1),
            "opacities": np.full(num, math.log(preset.init_opacity / (1 - preset.init_opacity))),
            "sh0": (scene.colors / 255.0 - 0.5) / SH_C0,
            "shN": np.zeros((num, 45)),
        }
        start = densification.sorted_by_morton(fresh(pack(parameters)))
        start.row_ids[:] = np.arange(num)
        if preset.cap is not None and num > preset.cap:
            raise ValueError(
                f"{scene.name}: {num} points are more than the cap of preset {preset.name!r} ({preset.cap}). "
                "Raise the cap (--cap) or give fewer points."
            )
        return start

    def adam(self, scene: Scene, preset: Preset, budget: Budget) -> AdamSettings:
        return AdamSettings(
            learning_rates={
                "means": preset.lr_means * scene.extent,
                "quats": preset.lr_quats,
                "scales": preset.lr_scales,
                "opacities": preset.lr_opacities,
                "sh0": preset.lr_sh0,
                "shN": preset.lr_shN,
            },
            means_decay=preset.lr_means_decay,
            batch=budget.batch,
        )

    def render_settings(self, preset: Preset, budget: Budget, step: int) -> RenderSettings:
        degree = min(preset.sh_degree, budget.seen(max(step - 1, 0)) // preset.sh_degree_every_views)
        return RenderSettings(sh_degree=degree, near_plane=preset.near_plane)

    def structural_steps(self, preset: Preset, budget: Budget) -> tuple[int, ...]:
        return tuple(
            step
            for step in range(1, budget.num_steps)
            if self._refines(preset, budget, step) or self._resets(preset, budget, step)
        )

    def _refines(self, preset: Preset, budget: Budget, step: int) -> bool:
        seen = budget.seen(step)
        return (
            seen > preset.refine_start_views
            and seen < preset.refine_stop_share * budget.views
            and budget.crosses(step, preset.refine_every_views)
        )

    def _resets(self, preset: Preset, budget: Budget, step: int) -> bool:
        # gsplat stops resetting where it stops refining: a late reset could not be made good (1.5.3 never resets at
        # all, by a slip of operator precedence: gsplat pull request 776)
        seen = budget.seen(step)
        return seen < preset.refine_stop_share * budget.views and budget.crosses(step, preset.reset_every_views)

    def restructure(
        self, primitives: PrimitiveSet, scene: Scene, preset: Preset, budget: Budget, step: int, seed: int
    ) -> tuple[PrimitiveSet, StructuralChange]:
        assert (primitives.version == step).all(), f"step {step}: a row is not at the structural step's version"
        primitives.check_finite(step)
        duplicated = split = pruned = held_back = 0
        if self._refines(preset, budget, step):
            extent = scene.extent
            grown, duplicated, split, held_back = densification.grow(primitives, preset, extent, step, seed)
            large_too = budget.seen(step) > preset.reset_every_views
            primitives, pruned = densification.prune(grown, preset, extent, large_too=large_too)
            primitives.stats[:] = 0
        resets = self._resets(preset, budget, step)
        if resets:
            densification.reset_opacities(primitives, preset)
        if len(primitives) == 0:
            raise ValueError(
                f"step {step}: pruning removed all {pruned} primitives (opacity below {preset.prune_opacity} or scale "
                f"above {preset.prune_scale3d} of the scene). Check the cameras and images, or lower the thresholds."
            )
        primitives = densification.sorted_by_morton(primitives)
        primitives.check()
        return primitives, StructuralChange(
            step=step,
            duplicated=duplicated,
            split=split,
            pruned=pruned,
            held_back=held_back,
            opacity_reset=resets,
            num_gs=len(primitives),
        )

    def activate(self, ids: np.ndarray, rows: np.ndarray, out: Gaussians) -> None:
        activate_rows(ids, rows, out.means, out.quats, out.scales, out.opacities, out.sh)

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
        return compact_gradients(
            ids, splats.radii, splat_gradients.touched, gaussians.scales, gaussians.opacities, splat_gradients.means2d,
            np.float32(screen_scale[0]), np.float32(screen_scale[1]),
            gradients.means, gradients.quats, gradients.scales, gradients.opacities, gradients.sh,
            out_ids, out_gradients,
        )  # fmt: skip
