"""A picture of a plan: the views from above, with what they share, and what is predicted of the first steps."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
import scipy.sparse as sp
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from odin.data.scene import Scene
from odin.schedule.build import Prediction, predict
from odin.schedule.plan import Plan

_SHOWN_STEPS = 60
_STRONGEST_EDGES = 6  # drawn per view
_MIN_LOCALITY = 0.02


def draw_plan(plan: Plan, scene: Scene, path: str | Path, *, prediction: Prediction | None = None) -> None:
    """Writes a picture (by the suffix of `path`: png, pdf, svg): left the view graph from above, edges by locality;
    right predicted conflicts by step distance, and windows, phases and ranks of the first 60 steps."""
    prediction = prediction or predict(scene)
    figure = Figure(figsize=(13.0, 6.0), layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=(1.0, 1.5), height_ratios=(1.4, 1.0))
    _draw_views(figure.add_subplot(grid[:, 0]), plan, scene, prediction.locality)
    conflict_axes = figure.add_subplot(grid[0, 1])
    _draw_conflicts(conflict_axes, plan)
    _draw_ranks(figure.add_subplot(grid[1, 1], sharex=conflict_axes), plan)
    figure.suptitle(
        f"{plan.scene}, predicted: {plan.ordering} order, batches of {plan.batch}, {plan.ranks} ranks, seed {plan.seed}"
    )
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def top_view(scene: Scene) -> np.ndarray:
    """Camera positions in the plane in which they spread most: seen from above for most captures. [V, 2] world units"""
    positions = np.stack([scene.camera(view).position for view in range(scene.num_views)])
    centred = positions - positions.mean(axis=0)
    axes = np.linalg.svd(centred, full_matrices=True)[2][:2]  # [2, 3]
    axes *= np.sign(np.take_along_axis(axes, np.abs(axes).argmax(axis=1)[:, None], axis=1))  # sign is arbitrary: fix it
    return centred @ axes.T


def _draw_views(axes: Axes, plan: Plan, scene: Scene, locality: sp.csr_matrix) -> None:
    """Views as dots coloured by the rank that renders them most; edges by Jaccard index."""
    places = top_view(scene)
    edges, weights = _strongest_edges(locality)
    axes.add_collection(
        LineCollection(
            [places[list(edge)] for edge in edges],
            colors=[(0.25, 0.25, 0.25, alpha) for alpha in np.clip(weights, 0.04, 0.8)],
            linewidths=0.3 + 2.0 * weights,
            zorder=1,
        )
    )
    visits = np.zeros((scene.num_views, plan.ranks))
    np.add.at(visits, (plan.views.ravel(), plan.rank_of.ravel()), 1.0)
    colors = _rank_colors(plan.ranks)
    train = plan.epoch_views
    axes.scatter(*places[train].T, c=colors[visits[train].argmax(axis=1)], s=28, zorder=2, edgecolors="black", lw=0.4)
    other = np.setdiff1d(np.arange(scene.num_views), train)
    axes.scatter(*places[other].T, facecolors="white", edgecolors="gray", s=18, zorder=2, label="test views")
    for rank in range(min(plan.ranks, 10)):
        axes.scatter([], [], color=colors[rank], s=28, label=f"mostly on rank {rank}")
    axes.autoscale_view()
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_title("views from above, edges by shared tracks (Jaccard)", fontsize=10)
    axes.set_xlabel("world units")
    axes.legend(fontsize=7, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.08))


def _draw_conflicts(axes: Axes, plan: Plan) -> None:
    """Conflicts by step distance, over bands for windows and lines at structural changes."""
    last = min(plan.num_steps, _SHOWN_STEPS)
    for i, (first, end) in enumerate(plan.windows.tolist()):
        if first <= last:
            shade = ("#cfe3f5", "#e7f1fa")[i % 2] if end > first else "#f3f3f3"
            axes.axvspan(first - 0.5, min(end, last) + 0.5, color=shade, lw=0, zorder=0)
    for end in plan.phases[:-1, 1].tolist():
        if end < last:
            axes.axvline(end + 0.5, color="black", lw=1.0, ls="--")
    steps = np.arange(1, last + 1)
    for k in range(plan.depth):
        known = steps > k + 1  # the first steps have none so far before them
        axes.plot(
            steps[known],
            plan.conflicts[:last, k][known],
            color=matplotlib.colormaps["viridis"](k / plan.depth),
            lw=1.6 if k == 0 else 0.8,
            marker="." if k == 0 else None,
            label=f"with {k + 1} step{'s' * (k > 0)} before",
        )
    axes.set_ylim(-0.02, 1.2)  # room for the legend
    axes.set_yticks(np.linspace(0.0, 1.0, 6))
    axes.set_xlim(0.5, last + 0.5)
    axes.set_ylabel("share of a scope held\nby other ranks")
    axes.set_title("predicted conflict; blue: overlap windows, gray: none, dashed: structural change", fontsize=10)
    axes.legend(fontsize=7, ncols=plan.depth, loc="upper right")


def _draw_ranks(axes: Axes, plan: Plan) -> None:
    """Rank of every slot of the shown steps."""
    last = min(plan.num_steps, _SHOWN_STEPS)
    colors = _rank_colors(plan.ranks)
    steps, slots = np.meshgrid(np.arange(1, last + 1), np.arange(plan.batch), indexing="ij")
    axes.scatter(steps.ravel(), slots.ravel(), c=colors[plan.rank_of[:last].ravel()], marker="s", s=12)
    if last <= 64 and plan.batch <= 8:
        for step in range(last):
            for slot in range(plan.batch):
                axes.text(step + 1, slot + 0.22, int(plan.views[step, slot]), fontsize=5, ha="center", va="bottom")
    axes.set_ylim(-0.6, plan.batch - 0.2)
    axes.set_xlabel("step")
    axes.set_ylabel("slot of the batch")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title("views (numbers) and their ranks (colours)", fontsize=10)


def _strongest_edges(locality: sp.csr_matrix) -> tuple[list[tuple[int, int]], np.ndarray]:
    """Each view's strongest edges, each pair once, weakest first so that strong ones are drawn on top."""
    found: dict[tuple[int, int], float] = {}
    for view in range(locality.shape[0]):
        row = slice(locality.indptr[view], locality.indptr[view + 1])
        neighbours, weights = locality.indices[row], locality.data[row]
        for i in np.argsort(-weights, kind="stable")[:_STRONGEST_EDGES]:
            if weights[i] >= _MIN_LOCALITY:
                found[min(view, int(neighbours[i])), max(view, int(neighbours[i]))] = float(weights[i])
    ordered = sorted(found, key=lambda edge: found[edge])
    return ordered, np.array([found[edge] for edge in ordered])


def _rank_colors(ranks: int) -> np.ndarray:
    """[W, 4]: ten distinct ones, then a continuous scale."""
    if ranks <= 10:
        return matplotlib.colormaps["tab10"](np.arange(ranks))
    return matplotlib.colormaps["turbo"](np.linspace(0.0, 1.0, ranks))
