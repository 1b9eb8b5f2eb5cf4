"""Random starting points for captures without any, and how many points the training views see."""

from __future__ import annotations

import numpy as np

NUM_RANDOM_POINTS = 5000
_ROUNDS = 50  # of drawing until enough points are seen; about 2 % acceptance suffices


def seen_by_any(
    points: np.ndarray, viewmats: np.ndarray, Ks: np.ndarray, widths: np.ndarray, heights: np.ndarray
) -> np.ndarray:
    """Which points ([P, 3]) lie in front of some view ([V, ...]) and project into its image. [P] bool"""
    seen = np.zeros(len(points), bool)
    for viewmat, K, width, height in zip(viewmats, Ks, widths, heights, strict=True):
        local = points @ viewmat[:3, :3].T + viewmat[:3, 3]
        in_front = local[:, 2] > 1e-9
        depth = np.where(in_front, local[:, 2], 1.0)
        x = local[:, 0] / depth * K[0, 0] + K[0, 2]
        y = local[:, 1] / depth * K[1, 1] + K[1, 2]
        seen |= in_front & (x >= 0) & (x <= width) & (y >= 0) & (y <= height)
    return seen


def random_points(
    viewmats: np.ndarray, Ks: np.ndarray, widths: np.ndarray, heights: np.ndarray, *, num: int, seed: int
) -> np.ndarray:
    """Uniform points inside the camera bounds that some view sees. [num, 3] float32

    The camera bounds are the cube around the mean camera centre whose half side is the largest distance of a camera
    from it (1 where all cameras share one centre). Where the views see next to nothing of the cube, the rest is filled
    with points that none of them sees.
    """
    centres = np.linalg.inv(viewmats)[:, :3, 3]
    middle = centres.mean(axis=0)
    half_side = float(np.linalg.norm(centres - middle, axis=1).max()) or 1.0
    rng = np.random.default_rng(seed)
    chosen, num_chosen = [], 0
    for _ in range(_ROUNDS):
        drawn = middle + rng.uniform(-half_side, half_side, size=(num, 3))
        accepted = drawn[seen_by_any(drawn, viewmats, Ks, widths, heights)]
        chosen.append(accepted)
        num_chosen += len(accepted)
        if num_chosen >= num:
            break
    return np.concatenate([*chosen, drawn])[:num].astype(np.float32)
