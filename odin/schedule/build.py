"""From a scene to a plan: predict, order, assign, cut into windows, measure.

    prediction = predict(scene)
    plan = make_plan(scene, scene_sha256=..., batch=4, ranks=2, num_steps=1000, seed=0)

Legend: V views, M blocks, S steps, B views of a step, K steps of look-back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp

from odin.data.scene import Scene
from odin.schedule.assignment import assign_ranks
from odin.schedule.costs import predict_costs
from odin.schedule.locality import locality_graph, track_matrix
from odin.schedule.measures import (
    Shares,
    Statistics,
    conflict_statistics,
    displacement,
    distinct_batches,
    held_shares,
    imbalance,
)
from odin.schedule.ordering import check_batch, order_views
from odin.schedule.plan import Plan
from odin.schedule.scopes import Scopes, conflict_graph, predict_scopes
from odin.schedule.windows import make_phases, make_windows

DEPTH = 4  # K of the paper
#: Predicted scopes rest on a few thousand points with guessed sizes. In the gallery's `rooms`, three of four pairs that
#: are predicted to share less than this turned out to share no primitive at all.
NEGLIGIBLE_SHARE = 0.02


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Prediction:
    """All that a schedule knows of a scene. Independent of batch, ranks, steps and seed: make it once per scene."""

    scopes: Scopes
    conflict: sp.csr_matrix  # [V, V] float32, share of the row's scope that the column's scope holds
    locality: sp.csr_matrix  # [V, V] float32, Jaccard index of track sets
    tracks: sp.csr_matrix  # [V, P] float32 ones
    costs: np.ndarray  # [V] float32, 1 for the mean training view


def predict(scene: Scene) -> Prediction:
    """Scopes, conflicts, locality and costs of all views of a scene."""
    scopes = predict_scopes(scene)
    return Prediction(
        scopes=scopes,
        conflict=conflict_graph(scopes),
        locality=locality_graph(scene, scopes),
        tracks=track_matrix(scene),
        costs=predict_costs(scene, scopes),
    )


def blocking(conflict: sp.csr_matrix) -> sp.csr_matrix:
    """Which units would have to wait for which others, as far as can be predicted: 1 above NEGLIGIBLE_SHARE, else 0.

    In an exact mode one shared row is enough to wait, so the order has to look for views that share nothing; among
    views that share something, less is hardly better.
    """
    blocked = conflict.copy()
    blocked.data = (blocked.data > NEGLIGIBLE_SHARE).astype(np.float32)
    blocked.eliminate_zeros()
    return blocked


def make_plan(
    scene: Scene,
    *,
    scene_sha256: str,
    batch: int,
    ranks: int,
    num_steps: int,
    seed: int,
    structural_steps: tuple[int, ...] = (),
    depth: int = DEPTH,
    ordering: str = "greedy",
    balance: bool = False,
    prediction: Prediction | None = None,
) -> Plan:
    """The schedule of a training run: pure in its arguments, the same for the same ones.

    `views` depends on the scene, batch, num_steps, seed and ordering; never on ranks, balance or the machine.
    Raises ValueError where a number is out of range (batch, ranks, num_steps, depth, structural_steps, ordering).
    """
    train_views = scene.train_views
    check_batch(batch, len(train_views))
    if not 1 <= depth <= 64:
        raise ValueError(f"make_plan: depth = {depth}, allowed are 1 to 64 steps of look-back")
    if seed < 0:
        raise ValueError(f"make_plan: seed = {seed}, allowed is 0 or more")
    phases = make_phases(num_steps, structural_steps)
    prediction = prediction or predict(scene)
    views = order_views(
        blocking(prediction.conflict),
        prediction.locality,
        prediction.costs,
        train_views=train_views,
        num_steps=num_steps,
        batch=batch,
        seed=seed,
        ordering=ordering,
    )
    plan = Plan(
        scene=scene.name,
        scene_sha256=scene_sha256,
        seed=seed,
        ranks=ranks,
        ordering=ordering,
        balance=balance,
        structural_steps=tuple(step for step in structural_steps if step < num_steps),
        views=views,
        rank_of=np.zeros(views.shape, np.int16),
        costs=prediction.costs[views],
        conflicts=np.zeros((num_steps, depth), np.float32),
        windows=phases,
        phases=phases,
        train_views=train_views,
    )
    return with_ranks(plan, ranks, scene, balance=balance, prediction=prediction)


def with_ranks(
    plan: Plan,
    ranks: int,
    scene: Scene,
    *,
    balance: bool | None = None,
    prediction: Prediction | None = None,
) -> Plan:
    """The same batches on another number of ranks: ranks, conflicts, windows and measures change, nothing else."""
    prediction = prediction or predict(scene)
    balance = plan.balance if balance is None else balance
    rank_of = assign_ranks(plan.views, ranks, prediction.costs, prediction.conflict, balance=balance, depth=plan.depth)
    shares = held_shares(prediction.scopes.incidence, plan.views, rank_of, plan.depth)
    conflicts = shares.cross_rank.mean(axis=1)  # [S, K]
    plan = replace(
        plan,
        ranks=ranks,
        balance=balance,
        rank_of=rank_of,
        conflicts=conflicts,
        windows=make_windows(conflicts, plan.phases),
    )
    return replace(plan, measures=measure_plan(plan, prediction, shares))


def measure_plan(
    plan: Plan, prediction: Prediction, shares: Shares | None = None
) -> Mapping[str, Mapping[str, Statistics]]:
    """Measures of a plan next to those of random order with the same seed, batch, ranks and balance."""
    random_views = plan.views
    random_ranks = plan.rank_of
    if plan.ordering != "random":
        random_views = order_views(
            prediction.conflict,
            prediction.locality,
            prediction.costs,
            train_views=plan.epoch_views,
            num_steps=plan.num_steps,
            batch=plan.batch,
            seed=plan.seed,
            ordering="random",
        )
        random_ranks = assign_ranks(
            random_views,
            plan.ranks,
            prediction.costs,
            prediction.conflict,
            balance=plan.balance,
            depth=plan.depth,
        )
    sides = {
        "plan": _measure(plan, plan.views, plan.rank_of, prediction, shares),
        "random": _measure(plan, random_views, random_ranks, prediction),
    }
    return {name: {side: values[name] for side, values in sides.items()} for name in sides["plan"]}


def _measure(
    plan: Plan, views: np.ndarray, rank_of: np.ndarray, prediction: Prediction, shares: Shares | None = None
) -> dict[str, Statistics]:
    """The measures of one order, each with its statistics."""
    shares = shares or held_shares(prediction.scopes.incidence, views, rank_of, plan.depth)
    on_tracks = held_shares(prediction.tracks, views, rank_of, plan.depth)
    measures: dict[str, Statistics] = {}
    for kind, cross_rank in (("scopes", shares.cross_rank), ("tracks", on_tracks.cross_rank)):
        for distance, statistics in conflict_statistics(cross_rank).items():
            measures[f"cross-rank conflict, {kind}, {distance}"] = statistics
    measures["same-rank overlap, scopes, 1 back"] = (
        {"mean": round(float(shares.same_rank[1:].mean()), 4)} if len(views) > 1 else {"mean": 0.0}
    )
    measures["within-step overlap, scopes"] = {"mean": round(float(shares.within_step.mean()), 4)}
    measures["within-step overlap, tracks"] = {"mean": round(float(on_tracks.within_step.mean()), 4)}
    measures["imbalance, largest / mean rank cost"] = imbalance(rank_of, prediction.costs[views], plan.ranks)
    measures["places moved in the epoch"] = displacement(views, plan.epoch_views, plan.seed)
    measures["distinct batches"] = {"count": float(distinct_batches(views)), "of": float(len(views))}
    return measures
