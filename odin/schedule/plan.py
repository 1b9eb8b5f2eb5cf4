"""The plan file: everything that is decided before training starts.

Steps are numbered from 1, as the row update's bias correction counts them; row s - 1 of an array belongs to
step s. Legend: S steps, B views of a step, K steps of look-back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
    conflicts: (
        np.ndarray
    )  # [S, K] float32, predicted share of a unit's scope that other ranks' units of step s - k hold
    windows: np.ndarray  # [n, 2] int32, first and last step of each overlap window; every step is in one, of <= K steps
    phases: np.ndarray  # [n, 2] int32, first and last step between structural changes; every step is in one
    train_views: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))  # ascending; empty: those of `views`
    measures: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    # what was predicted of it: measure -> "plan" or "random" (same seed) -> statistic -> value; see measures.py

    @property
    def num_steps(self) -> int:
        return self.views.shape[0]

    @property
    def batch(self) -> int:
        return self.views.shape[1]

    @property
    def depth(self) -> int:
        """K: how many steps back conflicts are predicted, and the most steps that a window has."""
        return self.conflicts.shape[1]

    @property
    def epoch_views(self) -> np.ndarray:
        """The views of one epoch, ascending. int32"""
        return self.train_views if len(self.train_views) else np.unique(self.views).astype(np.int32)
