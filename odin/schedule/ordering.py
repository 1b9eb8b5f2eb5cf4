"""The data order: which views make each step, in which order.

Every epoch visits every training view once; epochs follow each other in one sequence that is cut into batches. The
order starts from seeded permutations and moves views a bounded distance, so that views that conflict are not rendered
on different ranks in neighbouring steps.

**The order does not know the number of ranks**, so the same command trains the same model, to the bit, on any number.
It weighs *slots* instead: slots b and c of a batch count as different ranks in proportion to the power-of-two numbers
of ranks that would part them (`slot_separation`).
Legend: V views, n training views, S steps, B views of a step, K steps of look-back, E epochs, C candidates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numba import njit

from odin.schedule.csr import csr_arrays, csr_entry

ORDERINGS = ("greedy", "random")
_MAX_SWEEPS = 8  # of swaps within a batch; two or three suffice


@dataclass(frozen=True, kw_only=True, slots=True)
class OrderWeights:
    """What the greedy order pays for, in shares of a scope. Zero but for `keep_place` gives the random order."""

    depth: int = 1  # steps looked back; what is outstanding at W = 2 is nearly always of the step before
    decay: float = 0.5  # weight of step t - k is decay ** (k - 1)
    cross_rank: float = 1.0  # scope that units on other ranks held in the last K steps
    same_rank: float = 0.1  # gain: scope that units of the own rank held
    within_step: float = 0.5  # track overlap with views already in the batch: look-alikes should not share one
    same_step: float = 1.0  # scope conflict of a batch's views on different ranks: their next readers would meet both
    balance: float = 0.1  # relative distance of the cost from the mean of the batch so far
    keep_place: float = (
        0.2  # times the places it would be brought forward, in pools: moves must pay, or order stays random
    )


def order_views(
    conflict: sp.csr_matrix,
    locality: sp.csr_matrix,
    costs: np.ndarray,
    *,
    train_views: np.ndarray,
    num_steps: int,
    batch: int,
    seed: int,
    ordering: str = "greedy",
    pool: int | None = None,
    weights: OrderWeights | None = None,
) -> np.ndarray:
    """Views of every step: [S, B] int32, indices into the scene's views.

    conflict [V, V]: share of the row's scope that the column's scope holds. locality [V, V]: likeness. costs [V].
    The views of a batch are chosen one by one, then arranged over its slots. A view moves at most `pool` places and a
    batch from its place in the epoch's permutation (by default 16 batches, at least 64 views; never less than one
    batch), and no batch holds a view twice, also where it spans two epochs.

    Raises ValueError where batch, num_steps, pool or ordering is out of range.
    """
    check_batch(batch, len(train_views))
    if num_steps < 1:
        raise ValueError(f"order_views: num_steps = {num_steps}, allowed is 1 or more")
    if ordering not in ORDERINGS:
        raise ValueError(f"order_views: ordering = {ordering!r}, allowed are {', '.join(map(repr, ORDERINGS))}")
    pool = max(64, 16 * batch) if pool is None else pool
    if pool < 1:
        raise ValueError(f"order_views: pool = {pool}, allowed is 1 or more")
    if ordering == "random":
        pool, weights = 1, OrderWeights(cross_rank=0.0, same_rank=0.0, within_step=0.0, same_step=0.0, balance=0.0)
    weights = weights or OrderWeights()
    permutations = epoch_permutations(train_views, num_epochs(num_steps, batch, len(train_views)), seed)
    apart = slot_separation(batch)
    past_weights = weights.cross_rank * apart - weights.same_rank * (1.0 - apart)
    decay = weights.decay ** np.arange(weights.depth)
    views = np.empty((num_steps, batch), np.int32)
    _order(
        permutations,
        csr_arrays(conflict),
        csr_arrays(locality),
        np.asarray(costs, np.float64) / max(float(np.mean(costs)), 1e-30),
        past_weights,
        decay,
        weights.within_step,
        weights.same_step * apart,
        weights.balance,
        weights.keep_place,
        pool,
        views,
    )
    return views


def check_batch(batch: int, num_train: int) -> None:
    """ValueError unless a batch of different views can be drawn."""
    if not 1 <= batch <= num_train:
        raise ValueError(
            f"batch = {batch}, but the scene has {num_train} training views and a batch holds each view at most once: "
            f"allowed are 1 to {num_train}; choose a smaller batch or hold out fewer test views"
        )


def num_epochs(num_steps: int, batch: int, num_train: int) -> int:
    """Epochs begun in so many steps; the last may be partial."""
    return -(-num_steps * batch // num_train)


def epoch_permutations(train_views: np.ndarray, epochs: int, seed: int) -> np.ndarray:
    """The seeded order that each epoch starts from. [E, n] int32"""
    generator = np.random.Generator(np.random.PCG64(seed))
    return np.stack([generator.permutation(np.asarray(train_views, np.int32)) for _ in range(epochs)])


def slot_separation(batch: int) -> np.ndarray:
    """How surely two slots of a batch lie on different ranks: [B, B] float64 in 0..1, zero diagonal.

    The share of W in {2, 4, 8, ..., <= B} for which the default assignment (slot * W // B) parts the two. A single
    slot counts as apart from itself: with several ranks, steps of one view go round them.
    """
    rank_counts = [1 << i for i in range(1, batch.bit_length()) if 1 << i <= batch]
    if not rank_counts:
        return np.ones((batch, batch))
    slots = np.arange(batch)
    apart = [np.not_equal.outer(slots * ranks // batch, slots * ranks // batch) for ranks in rank_counts]
    return np.mean(apart, axis=0)


@njit(cache=True)
def _refill(permutation, head, pool, birth, size):
    """Fills the pool with the oldest views not yet in it; returns the new head and size. birth = place in the epoch."""
    while size < pool.shape[0] and head < permutation.shape[0]:
        pool[size], birth[size] = permutation[head], head
        size += 1
        head += 1
    return head, size


@njit(cache=True)
def _past_overlap(conflict, pool, size, views, step, slot_weights, decay, score):
    """score [C, B]: weighted share of each candidate's scope that the last K steps hold, per slot it might take."""
    num_slots = slot_weights.shape[0]
    for i in range(size):
        score[i, :] = 0.0
        for k in range(min(decay.shape[0], step)):
            for other in range(num_slots):
                held = decay[k] * csr_entry(conflict, pool[i], views[step - 1 - k, other])
                if held != 0.0:
                    for slot in range(num_slots):
                        score[i, slot] += slot_weights[slot, other] * held


@njit(cache=True)
def _choose(pool, birth, size, free, batch_so_far, placed, past, within, batch_cost, costs, balance, keep_place):
    """Index of the best candidate for the next slot; ties go to the oldest."""
    slot = batch_so_far.shape[0]
    best, best_score = -1, np.inf
    for i in range(size):
        if not free[i]:
            continue
        repeated = False
        for other in batch_so_far:
            repeated = repeated or other == pool[i]
        if repeated:
            continue
        if placed - birth[i] >= pool.shape[0]:
            return i  # has waited as long as it may
        score = past[i, slot] + within[i] + keep_place * birth[i] / pool.shape[0]
        if slot > 0:
            score += balance * abs(costs[pool[i]] - batch_cost / slot)
        if score < best_score:
            best, best_score = i, score
    return best


@njit(cache=True)
def _compact(pool, birth, free, size):
    """Removes the placed candidates, keeping the order of age; returns the new size."""
    kept = 0
    for i in range(size):
        if free[i]:
            pool[kept], birth[kept] = pool[i], birth[i]
            kept += 1
    return kept


@njit(cache=True)
def _arrange(conflict, batch_views, past, pair_weights, first, last):
    """Swaps views of one batch between slots first..last - 1 while that lowers overlap with the past plus, weighted by
    how far their slots are apart, conflict with each other. past [B, B]: of view i in slot j; moves with the views."""
    batch = batch_views.shape[0]
    shared = np.zeros((batch, batch))
    for a in range(batch):
        for b in range(a):
            both = csr_entry(conflict, batch_views[a], batch_views[b]) + csr_entry(
                conflict, batch_views[b], batch_views[a]
            )
            shared[a, b] = shared[b, a] = both
    for _ in range(_MAX_SWEEPS):
        improved = False
        for a in range(first, last):
            for b in range(a + 1, last):
                change = past[a, b] + past[b, a] - past[a, a] - past[b, b]
                for c in range(batch):
                    if c != a and c != b:
                        change += (pair_weights[b, c] - pair_weights[a, c]) * (shared[a, c] - shared[b, c])
                if change < -1e-9:
                    improved = True
                    batch_views[a], batch_views[b] = batch_views[b], batch_views[a]
                    for c in range(batch):
                        past[a, c], past[b, c] = past[b, c], past[a, c]
                    for c in range(batch):
                        if c != a and c != b:
                            shared[a, c], shared[b, c] = shared[b, c], shared[a, c]
                            shared[c, a], shared[c, b] = shared[a, c], shared[b, c]
        if not improved:
            return


@njit(cache=True)
def _order(
    permutations,
    conflict,
    locality,
    costs,
    slot_weights,
    decay,
    within_weight,
    pair_weights,
    balance,
    keep_place,
    max_pool,
    views,
):
    """Fills views [S, B]: each batch slot by slot with the candidate of the least score, then arranged."""
    num_steps, batch = views.shape
    num_views = permutations.shape[1]
    capacity = min(max(max_pool, batch), num_views)  # a batch never runs out of candidates that it does not hold yet
    pool, birth = np.empty(capacity, np.int32), np.empty(capacity, np.int64)
    free = np.empty(capacity, np.bool_)
    past, within, chosen_past = np.empty((capacity, batch)), np.empty(capacity), np.empty((batch, batch))
    epoch, head, size, placed = 0, 0, 0, 0  # placed: views of this epoch that have their place
    for step in range(num_steps):
        batch_cost, epoch_start, refresh = 0.0, 0, True
        for slot in range(batch):
            if placed == num_views:
                epoch, head, size, placed = epoch + 1, 0, 0, 0
                epoch_start, refresh = slot, True
            if refresh:
                size = _compact(pool, birth, free, size) if placed > 0 else 0
                head, size = _refill(permutations[epoch], head, pool, birth, size)
                free[:size] = True
                _past_overlap(conflict, pool, size, views, step, slot_weights, decay, past)
                for i in range(size):
                    within[i] = 0.0
                    for other in range(slot):
                        within[i] += within_weight * csr_entry(locality, pool[i], views[step, other])
                refresh = False
            best = _choose(
                pool,
                birth,
                size,
                free,
                views[step, :slot],
                placed,
                past,
                within,
                batch_cost,
                costs,
                balance,
                keep_place,
            )
            view = pool[best]
            views[step, slot] = view
            chosen_past[slot] = past[best]
            free[best] = False
            placed += 1
            batch_cost += costs[view]
            for i in range(size):
                within[i] += within_weight * csr_entry(locality, pool[i], view)
        # A slot before the end of an epoch and one after it belong to different epochs: nothing may cross.
        _arrange(conflict, views[step], chosen_past, pair_weights, 0, epoch_start)
        _arrange(conflict, views[step], chosen_past, pair_weights, epoch_start, batch)
