"""The plan file: everything that is decided before training starts.

Steps are numbered from 1, as the row update's bias correction counts them; row s - 1 of an array belongs to
step s. Legend: S steps, B views of a step, K steps of look-back.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

PLAN_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Plan:
    """Batches in the order in which gradients are summed, and what the scheduler expects of them."""

    scene: str
    scene_sha256: str  # of the scene file the plan was made for
    seed: int
    ranks: int
    ordering: str  # "greedy" or "random"
    balance: bool  # ranks chosen by predicted cost (within the batch) instead of by position
    structural_steps: tuple[int, ...]  # steps after which primitives may appear, vanish or move in memory
    views: np.ndarray  # [S, B] int32, indices into the scene's views; order = order of summation
    rank_of: np.ndarray  # [S, B] int16
    costs: np.ndarray  # [S, B] float32, predicted relative cost of the unit
    conflicts: np.ndarray  # [S, K] float32, predicted share of a unit's scope that other ranks' units of step s - k hold
    windows: np.ndarray  # [n, 2] int32, first and last step of each overlap window
    phases: np.ndarray  # [n, 2] int32, first and last step between structural changes

    @property
    def num_steps(self) -> int:
        return self.views.shape[0]

    @property
    def batch(self) -> int:
        return self.views.shape[1]
