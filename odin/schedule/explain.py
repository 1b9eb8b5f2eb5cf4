"""A page about a plan, for people: what it does, and what is predicted of it next to random order."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from odin.data.scene import Scene
from odin.schedule.build import Prediction, measure_plan, predict
from odin.schedule.plan import Plan

_WIDTH = 46  # of the first column


def explain(plan: Plan, scene: Scene, *, prediction: Prediction | None = None, num_steps: int = 3) -> str:
    """Size, windows, predictions next to those of random order, the first `num_steps` steps and as many bad ones."""
    prediction = prediction or predict(scene)
    share = prediction.scopes.num_points[plan.epoch_views].mean() / prediction.scopes.total_points
    lines = [
        f"plan of {plan.scene}: {plan.num_steps} steps of {plan.batch} views on {plan.ranks} ranks, {plan.ordering} "
        f"order, {'balanced ranks, ' if plan.balance else ''}seed {plan.seed}",
        f"  {plan.views.size / len(plan.epoch_views):.2f} epochs of {len(plan.epoch_views)} training views; "
        f"{len(plan.structural_steps)} structural changes",
        f"  {_windows(plan)}",
        f"  a view's scope holds {share:.0%} of the {prediction.scopes.total_points} points on average",
        "",
        f"{'predicted, means':{_WIDTH}s} {'plan':>10s} {'random':>10s}",
        *_rows(plan, prediction),
        "shares from 0 (nothing in common: units may overlap) to 1 (all of it: a unit waits)",
        "",
        "the first steps (rank: views)",
    ]
    lines += [_step_line(plan, scene, step) for step in range(1, min(num_steps, plan.num_steps) + 1)]
    worst = np.argsort(-plan.conflicts[:, 0], kind="stable")[:num_steps] + 1
    lines += ["the steps with most predicted conflict with the step before"]
    lines += [_step_line(plan, scene, int(step)) for step in worst]
    return "\n".join(lines)


def _windows(plan: Plan) -> str:
    lengths = plan.windows[:, 1] - plan.windows[:, 0] + 1
    if lengths.max() == 1:
        return "no overlap is planned: each step conflicts with the one before"
    shared = lengths[lengths > 1]
    return (
        f"{shared.sum() / plan.num_steps:.0%} of the steps may overlap with others, in {len(shared)} windows of up to "
        f"{lengths.max()} steps"
    )


def _rows(plan: Plan, prediction: Prediction) -> Iterator[str]:
    measures = plan.measures or measure_plan(plan, prediction)

    def row(text: str, measure: str, statistic: str = "mean") -> str:
        values = [measures[measure][side][statistic] for side in ("plan", "random")]
        return f"{text:{_WIDTH}s} " + " ".join(f"{value:10.3f}" for value in values)

    for kind in ("scopes", "tracks"):
        for steps in range(1, plan.depth + 1):
            text = f"share of {kind} held by other ranks, {steps} back"
            yield row(text, f"cross-rank conflict, {kind}, {steps} back")
    yield row("share of scopes held by the own rank, 1 back", "same-rank overlap, scopes, 1 back")
    yield row("share of scopes held by others of the step", "within-step overlap, scopes")
    yield row("largest cost of a rank / mean, of a step", "imbalance, largest / mean rank cost", "per step")
    yield row("largest cost of a rank / mean, of the plan", "imbalance, largest / mean rank cost", "whole plan")
    yield row("places that a view moved within its epoch", "places moved in the epoch")


def _step_line(plan: Plan, scene: Scene, step: int) -> str:
    units = [
        f"{rank}: " + ", ".join(scene.names[v] for v in plan.views[step - 1][plan.rank_of[step - 1] == rank])
        for rank in np.unique(plan.rank_of[step - 1])
    ]
    return f"  {step:5d}  conflict {plan.conflicts[step - 1, 0]:.3f}  " + "; ".join(units)
