"""What a plan is expected to be worth: predicted conflicts, overlaps, balance and how far views were moved.

Shares are taken on sets (blocks or tracks) and exact: what several other units hold counts once.
Legend: V views, M blocks or points, S steps, B views of a step, K steps of look-back, W ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numba import njit

from odin.schedule.ordering import epoch_permutations, num_epochs

HIGH_CONFLICT = 0.05
Statistics = dict[str, float]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Shares:
    """Shares, 0..1, of each unit's scope."""

    cross_rank: np.ndarray  # [S, B, K] float32, held by units of other ranks k + 1 steps before
    same_rank: np.ndarray  # [S, B] float32, held by units of the own rank one step before
    within_step: np.ndarray  # [S, B] float32, held by other units of the same step


def held_shares(incidence: sp.csr_matrix, views: np.ndarray, rank_of: np.ndarray, depth: int) -> Shares:
    """Shares of what the units of a plan read that other units hold.

    incidence [V, M]: a stored entry says that the view holds the block, its value how much of it the view reads.
    """
    num_steps, batch = views.shape
    shares = Shares(
        cross_rank=np.zeros((num_steps, batch, depth), np.float32),
        same_rank=np.zeros((num_steps, batch), np.float32),
        within_step=np.zeros((num_steps, batch), np.float32),
    )
    incidence = sp.csr_matrix(incidence)
    _held_shares(
        incidence.indptr,
        incidence.indices,
        incidence.data.astype(np.float32),
        views,
        rank_of,
        incidence.shape[1],
        shares.cross_rank,
        shares.same_rank,
        shares.within_step,
    )
    return shares


def conflict_statistics(cross_rank: np.ndarray) -> dict[str, Statistics]:
    """Mean, 99th percentile and share of units above 0.05, by step distance, of shares [S, B, K]."""
    statistics = {}
    for k in range(cross_rank.shape[2]):
        shares = cross_rank[k + 1 :, :, k]  # the first steps have no step so far before them
        if shares.size:
            statistics[f"{k + 1} back"] = {
                "mean": _rounded(shares.mean(dtype=np.float64)),
                "p99": _rounded(np.quantile(shares, 0.99)),
                f"above {HIGH_CONFLICT}": _rounded((shares > HIGH_CONFLICT).mean()),
            }
    return statistics


def imbalance(rank_of: np.ndarray, costs: np.ndarray, ranks: int) -> Statistics:
    """Largest by mean predicted cost of a rank, per step and over the whole plan. rank_of, costs [S, B].

    Ranks at work are counted, so a plan with more ranks than views is not charged for those that rest.
    """
    num_steps, batch = rank_of.shape
    cells = (np.arange(num_steps)[:, None] * ranks + rank_of).ravel()
    loads = np.bincount(cells, costs.ravel(), num_steps * ranks).reshape(num_steps, ranks)
    per_step = loads.max(axis=1) / (loads.sum(axis=1) / min(ranks, batch))
    total = loads.sum(axis=0)
    return {"per step": _rounded(per_step.mean()), "whole plan": _rounded(total.max() / total.mean())}


def displacement(views: np.ndarray, train_views: np.ndarray, seed: int) -> Statistics:
    """How many places views were moved from the seeded permutation of their epoch."""
    batch, num_train = views.shape[1], len(train_views)
    permutations = epoch_permutations(train_views, num_epochs(len(views), batch, num_train), seed)
    place = np.empty(int(train_views.max()) + 1, np.int64)
    sequence = views.ravel()
    moved = []
    for epoch, permutation in enumerate(permutations):
        place[permutation] = np.arange(num_train)
        visited = sequence[epoch * num_train : (epoch + 1) * num_train]
        moved.append(np.abs(place[visited] - np.arange(len(visited))))
    distances = np.concatenate(moved)
    return {"mean": _rounded(distances.mean()), "max": float(distances.max())}


def distinct_batches(views: np.ndarray) -> int:
    """Number of different batches as sets of views."""
    return len(np.unique(np.sort(views, axis=1), axis=0))


def _rounded(value: float) -> float:
    """Four decimals: what a header can be read by."""
    return round(float(value), 4)


@njit(cache=True)
def _held_shares(indptr, indices, values, views, rank_of, num_blocks, cross_rank, same_rank, within_step):
    """Walks the steps with, per block: who held it in each of the last K steps, and when each rank last held it."""
    num_steps, batch = views.shape
    depth = cross_rank.shape[2]
    nobody, several = -1, -2
    holder = np.full((num_blocks, depth), nobody, np.int32)  # a rank, `nobody` or `several`; column step % depth
    last_held = np.full((num_blocks, rank_of.max() + 1), -2, np.int32)
    num_holding = np.zeros(num_blocks, np.int32)  # units of the present step
    cross = np.empty(depth, np.float32)
    for step in range(num_steps):
        for b in range(batch):
            for e in range(indptr[views[step, b]], indptr[views[step, b] + 1]):
                num_holding[indices[e]] += 1
        for b in range(batch):
            rank, view = rank_of[step, b], views[step, b]
            total, same, within = np.float32(0.0), np.float32(0.0), np.float32(0.0)
            cross[:] = 0.0
            for e in range(indptr[view], indptr[view + 1]):
                block, value = indices[e], values[e]
                total += value
                if last_held[block, rank] == step - 1:
                    same += value
                if num_holding[block] > 1:
                    within += value
                for column in range(depth):
                    owner = holder[block, column]
                    if owner != nobody and owner != rank:
                        cross[column] += value
            if total == 0.0:
                continue
            same_rank[step, b], within_step[step, b] = same / total, within / total
            for k in range(min(depth, step)):
                cross_rank[step, b, k] = cross[(step - 1 - k) % depth] / total
        present = step % depth
        holder[:, present] = nobody
        for b in range(batch):
            rank = rank_of[step, b]
            for e in range(indptr[views[step, b]], indptr[views[step, b] + 1]):
                block = indices[e]
                owner = holder[block, present]
                if owner == nobody:
                    holder[block, present] = rank
                elif owner != rank:
                    holder[block, present] = several
                last_held[block, rank] = step
                num_holding[block] = 0
