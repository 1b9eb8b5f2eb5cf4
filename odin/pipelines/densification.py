"""3DGS densification (Kerbl et al. 2023, section 5) by the rules of gsplat's default strategy.

Decisions are per row and use only what every rank has at a structural step; samples come from the counter-based
generator. So the result is the same on every rank and for any number of ranks.
"""

from __future__ import annotations

import numpy as np

from odin.pipelines.preset import Preset
from odin.primitives.morton import morton_order
from odin.primitives.primitive_set import COLUMNS, PrimitiveSet, concatenate, fresh
from odin.primitives.random import normals


def rotation_matrices(quats: np.ndarray) -> np.ndarray:
    """Rotation matrices [n, 3, 3] of quaternions wxyz [n, 4] that need not be normalised."""
    w, x, y, z = (quats / np.maximum(np.linalg.norm(quats, axis=1, keepdims=True), 1e-12)).T
    return np.stack(
        [
            np.stack([1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)], -1),
            np.stack([2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)], -1),
            np.stack([2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)], -1),
        ],
        axis=1,
    )


def growth_candidates(primitives: PrimitiveSet, preset: Preset) -> tuple[np.ndarray, int]:
    """Rows to grow, ascending, and how many the cap left out.

    A row grows where its screen-space gradient, averaged over the views that saw it, exceeds the threshold. Each
    adds one primitive; under a cap those with the largest gradients come first, ties by row id.
    """
    mean = primitives.stats[:, 0].astype(np.float64) / np.maximum(primitives.stats[:, 1], 1)
    rows = np.flatnonzero(mean > preset.grow_grad2d)
    if preset.cap is None:
        return rows, 0
    room = max(preset.cap - len(primitives), 0)
    by_gradient = np.lexsort((primitives.row_ids[rows], -mean[rows]))
    return np.sort(rows[by_gradient[:room]]), max(len(rows) - room, 0)


def split_children(parents: PrimitiveSet, step: int, seed: int) -> np.ndarray:
    """Rows of the two children of each parent, drawn from the parent's Gaussian, 1.6 times smaller. [2 n, 64]"""
    noise = normals(seed, step, parents.row_ids, 6).reshape(-1, 2, 3)
    scales = np.exp(parents.column("scales").astype(np.float64))
    axes = rotation_matrices(parents.column("quats").astype(np.float64)) * scales[:, None, :]
    children = []
    for child in range(2):
        rows = parents.rows.copy()
        rows[:, COLUMNS["means"]] += np.einsum("nij,nj->ni", axes, noise[:, child].astype(np.float64))
        rows[:, COLUMNS["scales"]] = np.log(scales / 1.6)
        children.append(rows)
    return np.concatenate(children)


def grow(
    primitives: PrimitiveSet, preset: Preset, extent: float, step: int, seed: int
) -> tuple[PrimitiveSet, int, int, int]:
    """Duplicate small and split large candidates. Returns the set and the numbers duplicated, split, held back."""
    candidates, held_back = growth_candidates(primitives, preset)
    largest = np.exp(primitives.column("scales")[candidates]).max(1, initial=0.0)
    small = largest <= preset.grow_scale3d * extent
    copies = primitives.rows[candidates[small]]
    parents = candidates[~small]
    children = split_children(primitives.take(parents), step, seed)
    kept = primitives.take(np.setdiff1d(np.arange(len(primitives)), parents))
    new = fresh(np.concatenate([copies, children]), first_id=primitives.next_id, version=step)
    return concatenate(kept, new), int(small.sum()), len(parents), held_back


def prune(primitives: PrimitiveSet, preset: Preset, extent: float, *, large_too: bool) -> tuple[PrimitiveSet, int]:
    """Remove nearly transparent rows and, where asked, rows larger than a share of the scene."""
    logit = np.log(preset.prune_opacity / (1 - preset.prune_opacity))
    gone = primitives.column("opacities")[:, 0] < logit
    if large_too:
        gone |= np.exp(primitives.column("scales")).max(1, initial=0.0) > preset.prune_scale3d * extent
    return primitives.take(np.flatnonzero(~gone)), int(gone.sum())


def reset_opacities(primitives: PrimitiveSet, preset: Preset) -> None:
    """Cap opacities at twice the pruning threshold and forget their moments, in place."""
    ceiling = 2 * preset.prune_opacity
    cols = COLUMNS["opacities"]
    primitives.rows[:, cols] = np.minimum(primitives.rows[:, cols], np.float32(np.log(ceiling / (1 - ceiling))))
    primitives.exp_avg[:, cols] = 0
    primitives.exp_avg_sq[:, cols] = 0


def sorted_by_morton(primitives: PrimitiveSet) -> PrimitiveSet:
    """Rows in Morton order of their means, so that a block of rows is a small box in space."""
    return primitives.take(morton_order(primitives.column("means")))
