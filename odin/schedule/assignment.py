"""Which rank renders which view of a batch. Never changes the batch itself: ranks decide who works, not what is learnt.

Legend: V views, S steps, B views of a step, W ranks, K steps of look-back.
"""

from __future__ import annotations

import logging

import numpy as np
import scipy.sparse as sp
from numba import njit

from odin.schedule.csr import csr_arrays, csr_entry

_LOG = logging.getLogger(__name__)
MAX_EXACT_BATCH = 8  # larger batches are assigned greedily
MAX_RANKS = 32767  # int16


def assign_ranks(
    views: np.ndarray,
    ranks: int,
    costs: np.ndarray,
    conflict: sp.csr_matrix,
    *,
    balance: bool,
    depth: int = 4,
    slack: float = 1.02,
) -> np.ndarray:
    """Rank of every unit: [S, B] int16, for views [S, B], costs [V] and conflict [V, V].

    By default contiguous slots: slot * W // B. With `balance`, within each batch the assignment with the least
    predicted load of the fullest rank, where load runs over the last `depth` steps so that no rank stays behind, and
    every rank has B // W or one more unit. Assignments up to `slack` times the best load are decided by the overlap
    with what the rank rendered in the step before: more slack keeps more of the order's locality. Exact up to 8
    views, largest first beyond. With more ranks than views, units go round the ranks and some rest in each step.

    Raises ValueError for a number of ranks outside 1..32767.
    """
    num_steps, batch = views.shape
    if not 1 <= ranks <= MAX_RANKS:
        raise ValueError(f"ranks = {ranks}, allowed are 1 to {MAX_RANKS}")
    if ranks > batch:
        _LOG.warning(
            "%d ranks share batches of %d views: %d ranks rest in every step, in turn; a batch of %d or more uses all",
            *(ranks, batch, ranks - batch, ranks),
        )
        return (np.arange(num_steps * batch) % ranks).reshape(num_steps, batch).astype(np.int16)
    if not balance or ranks == 1:
        slots = (np.arange(batch) * ranks // batch).astype(np.int16)
        return np.tile(slots, (num_steps, 1))
    rank_of = np.empty((num_steps, batch), np.int16)
    _balance(
        views,
        np.asarray(costs, np.float64),
        csr_arrays(conflict),
        ranks,
        depth,
        slack,
        batch <= MAX_EXACT_BATCH,
        rank_of,
    )
    return rank_of


@njit(cache=True)
def _balance(views, costs, conflict, ranks, depth, slack, exact, rank_of):
    """Fills rank_of [S, B] step by step."""
    num_steps, batch = views.shape
    history = np.zeros((depth, ranks))  # load of each rank in the last steps; row step % depth is the present one
    overlap = np.zeros((batch, ranks))
    unit_costs = np.empty(batch)
    choice = np.empty(batch, np.int64)
    for step in range(num_steps):
        history[step % depth, :] = 0.0
        loads = history.sum(axis=0)
        for b in range(batch):
            unit_costs[b] = costs[views[step, b]]
            overlap[b, :] = 0.0
            if step > 0:
                for c in range(batch):
                    overlap[b, rank_of[step - 1, c]] += csr_entry(conflict, views[step, b], views[step - 1, c])
        by_cost = np.argsort(-unit_costs, kind="mergesort")
        _largest_first(by_cost, unit_costs, loads, overlap, slack, choice)
        if exact:
            limit = _search(by_cost, unit_costs, loads, overlap, np.inf, choice)
            _search(by_cost, unit_costs, loads, overlap, limit * slack, choice)
        for b in range(batch):
            rank_of[step, b] = choice[b]
            history[step % depth, choice[b]] += unit_costs[b]


@njit(cache=True)
def _largest_first(by_cost, unit_costs, loads, overlap, slack, choice):
    """Dearest unit first, each to the least loaded rank that still has room; ties to the most overlap."""
    batch, ranks = overlap.shape
    load, units = loads.copy(), np.zeros(ranks, np.int64)
    extra = batch % ranks  # ranks that may take one unit more than batch // ranks
    for b in by_cost:
        best = -1
        for r in range(ranks):
            if units[r] >= batch // ranks and (units[r] > batch // ranks or extra == 0):
                continue
            if best >= 0 and abs(load[r] - load[best]) <= (slack - 1.0) * unit_costs[b]:
                better = overlap[b, r] > overlap[b, best]
            else:
                better = best < 0 or load[r] < load[best]
            if better:
                best = r
        choice[b] = best
        load[best] += unit_costs[b]
        units[best] += 1
        if units[best] > batch // ranks:
            extra -= 1


@njit(cache=True)
def _search(by_cost, unit_costs, loads, overlap, limit, choice):
    """Depth-first over all assignments; returns the load of the fullest rank in the one written to `choice`.

    With an infinite limit: the assignment whose fullest rank has the least load, or `choice` as it is where none is
    better. With a finite one: among those that keep to it, the assignment with the most overlap.
    """
    batch, ranks = overlap.shape
    by_load = np.isinf(limit)
    load, units = loads.copy(), np.zeros(ranks, np.int64)
    extra = batch % ranks
    tried = np.full(batch, -1, np.int64)  # rank of the unit at each depth of the search
    best_load, best_overlap, gained = np.inf, -1.0, 0.0
    lower_bound = max(loads.max() + unit_costs.min(), (loads.sum() + unit_costs.sum()) / ranks)  # each rank gets a unit
    if by_load:  # start from the assignment that `choice` holds
        start = loads.copy()
        for b in range(batch):
            start[choice[b]] += unit_costs[b]
        best_load = start.max()
    most_left = np.zeros(batch + 1)  # overlap that units from this depth on could still gain
    for i in range(batch - 1, -1, -1):
        most_left[i] = most_left[i + 1] + overlap[by_cost[i]].max()
    i = 0
    while i >= 0 and not (by_load and best_load <= lower_bound):
        b = by_cost[i]
        if tried[i] >= 0:  # take the unit back before trying its next rank
            r = tried[i]
            if units[r] > batch // ranks:
                extra += 1
            units[r] -= 1
            load[r] -= unit_costs[b]
            gained -= overlap[b, r]
        placed = False
        for r in range(tried[i] + 1, ranks):
            if units[r] > batch // ranks or (units[r] == batch // ranks and extra == 0):
                continue
            if load[r] + unit_costs[b] > limit or (by_load and load[r] + unit_costs[b] >= best_load):
                continue
            if not by_load and gained + overlap[b, r] + most_left[i + 1] <= best_overlap:
                continue
            units[r] += 1
            if units[r] > batch // ranks:
                extra -= 1
            load[r] += unit_costs[b]
            gained += overlap[b, r]
            tried[i] = r
            placed = True
            break
        if not placed:
            tried[i] = -1
            i -= 1
        elif i + 1 < batch:
            i += 1
        elif not by_load or load.max() < best_load:
            best_load, best_overlap = load.max(), gained
            for j in range(batch):
                choice[by_cost[j]] = tried[j]
    return best_load
