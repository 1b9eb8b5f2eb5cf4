"""Figures from run records and spans. Each function returns a matplotlib figure; `save` writes it.

Drawn without a display. Colours are those of Okabe and Ito (2008), which stay apart for colour-blind readers; waits are
hatched too, so that they show in print.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from odin.report.compare import Interval
from odin.report.groups import Group, Measure, group_runs
from odin.report.records import RunRecord, load_runs, require_quality
from odin.report.spans import OTHER, Span, aligned, read_spans, totals

# category: colour, in the order in which stacks are drawn
CATEGORY_COLORS = {
    "read rows": "#F0E442",
    "render": "#0072B2",
    "backward": "#56B4E9",
    "exchange": "#E69F00",
    "row update": "#009E73",
    "structure": "#CC79A7",
    OTHER: "#BBBBBB",
    "wait": "#FFFFFF",
}
WAIT_HATCH = "////"
_MODE_COLORS = ("#000000", "#999999", "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
_KNOWN_MODES = ("ddp", "grendel", "sync", "quality", "throughput")
WIDTH_IN = 7.2  # a page's text width
DPI = 200
FONT_PT = 9


def save(figure: Figure, path: Path) -> Path:
    """Write the figure in the format of the path's suffix; PNG and PDF without dates, so that bytes repeat."""
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}.get(path.suffix, {"Software": None})
    figure.savefig(path, dpi=DPI, metadata=metadata)
    return path


def write_figures(runs: Iterable[Path], out: Path) -> tuple[Path, ...]:
    """Draw every figure that the runs in or below the given folders have data for, as PNG files.

    ``throughput`` and ``psnr`` for each pipeline; ``time-split`` and ``gantt`` (its steps from the middle of the run)
    for each scene and setting whose runs kept spans, with the lowest seed of each mode. Names carry the pipeline, the
    scene, the ranks and the batch. Raises ValueError for runs that cannot be compared.
    """
    records = load_runs(runs)
    paths: list[Path] = []
    for pipeline, kind in sorted({(run.pipeline, run.kind) for run in records}):
        name = pipeline if kind == "measured" else f"{pipeline}-{kind}"
        chosen = [run for run in records if (run.pipeline, run.kind) == (pipeline, kind)]
        paths.append(save(samples_figure(chosen), out / f"throughput-{name}.png"))
        if all(run.quality is not None for run in chosen):
            paths.append(save(psnr_figure(chosen), out / f"psnr-{name}.png"))
        for groups in _with_spans(group_runs(chosen)):
            first = groups[0].first
            tail = f"{name}-{first.scene}-w{first.ranks}-b{first.batch}.png"
            labelled = [(_row_name(g, groups), read_spans(g.first.path, num_ranks=g.first.ranks)) for g in groups]
            split = [(label, spans, g.first.train_s) for (label, spans), g in zip(labelled, groups, strict=True)]
            paths.append(save(time_split(split, kind=kind), out / f"time-split-{tail}"))
            middle = max(1, first.steps // 2 - 1)
            paths.append(save(gantt(labelled, first_step=middle, kind=kind), out / f"gantt-{tail}"))
    return tuple(paths)


def _with_spans(groups: Sequence[Group]) -> list[list[Group]]:
    """Rows of one scene, preset, ranks, batch and number of images that kept spans, together."""
    together: dict[tuple, list[Group]] = {}
    for g in groups:
        if (g.first.path / "spans").is_dir():
            together.setdefault((g.first.scene, *g.column[:-2]), []).append(g)
    return list(together.values())


def gantt(
    runs: Sequence[tuple[str, Sequence[Span]]], *, first_step: int, num_steps: int = 4, kind: str = "measured"
) -> Figure:
    """What each rank did during a few steps: one panel for each (label, spans), one bar row for each rank.

    Small numbers at the ticks are the steps: a rank that is ahead of the others shows a later one.
    Panels share the scale of time, in ms from the first span shown, so that shorter means faster. Ranks must
    share a clock. Raises ValueError where a run has no span in these steps.
    """
    steps = range(first_step, first_step + num_steps)
    shown = []
    for label, spans in runs:
        inside = aligned([span for span in spans if span.step in steps])
        if not inside:
            raise ValueError(f"{label}: no spans in steps {steps.start}..{steps.stop - 1}.")
        shown.append((label, inside))
    ranks = [1 + max(span.rank for span in spans) for _, spans in shown]
    height_in = 0.7 + sum(0.36 * n + 0.3 for n in ranks)
    figure, axes = _panels(len(shown), 1, height_in=height_in, ratios=ranks, sharex=True)
    for axis, (label, spans), num_ranks in zip(axes, shown, ranks, strict=True):
        _draw_ranks(axis, spans)
        axis.set_yticks(range(num_ranks), [f"rank {rank}" for rank in range(num_ranks)])
        axis.set_ylim(num_ranks - 0.5, -0.6)
        axis.set_title(label, loc="left", fontsize=FONT_PT, fontweight="bold", pad=5)
        axis.tick_params(axis="y", length=0)
        axis.spines[["top", "right", "left"]].set_visible(False)
    end_ms = 1e3 * max(span.end_s for _, spans in shown for span in spans)
    for axis in axes:
        axis.set_xlim(0, end_ms * 1.005)
        axis.tick_params(axis="x", labelbottom=axis is axes[-1])
    axes[-1].set_xlabel(f"time since the start of step {first_step} (ms, {kind})", fontsize=FONT_PT)
    present = {span.category for _, spans in shown for span in spans}
    _legend(figure, _category_patches(c for c in CATEGORY_COLORS if c in present))
    return figure


def samples_figure(records: Iterable[RunRecord]) -> Figure:
    """Samples/s, a panel for each scene and a bar for each mode: medians over seeds, whiskers slowest to fastest."""
    groups = group_runs(records)
    figure, axes = _scene_panels(groups, lambda run: run.samples_per_s, labels="{:.3g}", bars=True)
    for axis in axes:
        axis.set_ylim(0, 1.12 * axis.dataLim.y1)
    figure.supylabel(f"samples/s ({groups[0].first.kind})", fontsize=FONT_PT)
    return figure


def psnr_figure(records: Iterable[RunRecord]) -> Figure:
    """Test PSNR, a panel for each scene, as points with the range over seeds: bars from 0 would hide every difference.

    All panels span the same number of dB, so that a height means the same everywhere. Raises ValueError for runs that
    were not evaluated.
    """
    groups = group_runs(require_quality(records))
    figure, axes = _scene_panels(groups, lambda run: run.judged.psnr, labels="{:.2f}", bars=False)
    span_db = max(0.1, 1.5 * max(axis.dataLim.height for axis in axes))
    for axis in axes:
        middle = (axis.dataLim.y0 + axis.dataLim.y1) / 2
        axis.set_ylim(middle - 0.5 * span_db, middle + 0.5 * span_db)
    figure.supylabel(f"test PSNR (dB, {groups[0].first.kind})", fontsize=FONT_PT)
    return figure


def time_split(runs: Sequence[tuple[str, Sequence[Span], float]], *, kind: str = "measured") -> Figure:
    """Where the ranks' time goes: one stacked bar for each (label, spans, training time in s), mean over ranks.

    What no span covers is "other", so that a bar is as long as the training time.
    """
    figure, (axis,) = _panels(1, 1, height_in=0.75 + 0.36 * len(runs))
    splits = [split_by_category(spans, train_s) for _, spans, train_s in runs]
    used = [c for c in CATEGORY_COLORS if any(split.get(c, 0.0) > 0 for split in splits)]
    longest_s = max(sum(split.values()) for split in splits)
    for row, split in enumerate(splits):
        left = 0.0
        for category in used:
            value = split.get(category, 0.0)
            if value <= 0:
                continue
            axis.barh(row, value, left=left, height=0.68, **_style(category))
            share = value / sum(split.values())
            if category == "wait":  # what the figure is about: always readable, beside the bar
                axis.text(left + value, row, f" {share:.1%} wait", va="center", fontsize=FONT_PT - 2)
            elif value > 0.055 * longest_s:
                color = "white" if category in ("render", "row update") else "black"
                axis.text(
                    left + value / 2, row, f"{share:.0%}", ha="center", va="center", fontsize=FONT_PT - 2, color=color
                )
            left += value
    axis.set_yticks(range(len(runs)), [label for label, _, _ in runs])
    axis.invert_yaxis()
    axis.set_xlim(0, longest_s * 1.11)
    axis.set_xlabel(f"training time, mean over ranks (s, {kind}); shares of each bar", fontsize=FONT_PT)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0)
    _legend(figure, _category_patches(used))
    return figure


def split_by_category(spans: Iterable[Span], train_s: float) -> dict[str, float]:
    """Mean over ranks of the seconds in each category of `CATEGORY_COLORS`; the rest of `train_s` is "other"."""
    by_rank: dict[int, dict[str, float]] = {}
    spans = list(spans)
    category_of = {span.name: span.category for span in spans}
    for rank, names in totals(spans).items():
        by_rank[rank] = dict.fromkeys(CATEGORY_COLORS, 0.0)
        for name, seconds in names.items():
            by_rank[rank][category_of[name]] += seconds
        by_rank[rank][OTHER] += max(0.0, train_s - sum(names.values()))
    return {category: float(np.mean([by_rank[rank][category] for rank in by_rank])) for category in CATEGORY_COLORS}


def interval_figure(rows: Sequence[tuple[str, Interval]], *, label: str) -> Figure:
    """Estimates with their bootstrap intervals, one line each; `label` names the quantity."""
    figure, (axis,) = _panels(1, 1, height_in=0.75 + 0.3 * len(rows))
    for row, (_, interval) in enumerate(rows):
        axis.plot([interval.low, interval.high], [row, row], color="#0072B2", linewidth=2.5, solid_capstyle="butt")
        axis.plot(interval.value, row, "o", color="black", markersize=5)
    axis.axvline(0, color="#999999", linewidth=0.8)
    axis.set_yticks(range(len(rows)), [name for name, _ in rows])
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.set_xlabel(f"{label} ({rows[0][1].level:.0%} bootstrap interval)", fontsize=FONT_PT)
    axis.spines[["top", "right"]].set_visible(False)
    return figure


def _scene_panels(
    groups: Sequence[Group], measure: Measure, *, labels: str, bars: bool
) -> tuple[Figure, Sequence[Axes]]:
    """A panel with its own scale for each scene, one bar or point for each row of it. Missing rows leave a gap."""
    scenes = list(dict.fromkeys(g.first.scene for g in groups))
    names = {g.column: _row_name(g, groups) for g in groups}
    colors = _row_colors(names)
    per_line = min(len(scenes), max(1, 16 // len(names)))
    num_lines = -(-len(scenes) // per_line)
    figure, axes = _panels(num_lines, per_line, height_in=0.5 + 2.0 * num_lines)
    for axis, scene in zip(axes, scenes, strict=False):
        for index, (column, name) in enumerate(names.items()):
            for g in (g for g in groups if g.column == column and g.first.scene == scene):
                _draw_row(axis, index, g, measure, color=colors[name], label=labels, bar=bars)
        axis.set_title(scene, fontsize=FONT_PT)
        axis.set_xlim(-0.6, len(names) - 0.4)
        axis.set_xticks([])
        axis.yaxis.set_major_locator(MaxNLocator(nbins=5))
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", color="#DDDDDD", linewidth=0.6)
        axis.set_axisbelow(True)
    for axis in axes[len(scenes) :]:
        axis.set_visible(False)
    _legend(figure, [Patch(facecolor=colors[name], label=name) for name in names.values()])
    return figure, axes[: len(scenes)]


def _draw_row(axis: Axes, x: int, group: Group, measure: Measure, *, color: str, label: str, bar: bool) -> None:
    values = group.values(measure)
    middle = float(np.median(list(group.by_seed(measure).values())))
    if bar:
        axis.bar(x, middle, 0.86, color=color)
    else:
        axis.plot(x, middle, "o", color=color, markersize=5)
    if len(values) > 1:
        axis.plot([x, x], [min(values), max(values)], color="#D55E00" if bar else color, linewidth=1.4)
    axis.annotate(
        label.format(middle),
        (x, max(values)),
        xytext=(0, 2 if bar else 5),
        textcoords="offset points",
        ha="center",
        fontsize=FONT_PT - 2.5,
    )


def _row_name(group: Group, groups: Sequence[Group]) -> str:
    """Mode, and whatever else tells the figure's rows apart."""
    run = group.first
    parts = [run.mode]
    for value, get in (
        (run.pipeline, lambda r: r.pipeline),
        (run.preset, lambda r: r.preset),
        (f"W={run.ranks}", lambda r: r.ranks),
        (f"B={run.batch}", lambda r: r.batch),
        (f"{run.views:,} images", lambda r: r.views),
    ):
        if len({get(g.first) for g in groups}) > 1:
            parts.append(value)
    return " ".join([*parts, group.variant]).strip()


def _row_colors(names: Mapping[tuple, str]) -> dict[str, str]:
    """Known modes keep their colour from figure to figure, as long as one row of each is there."""
    modes = [column[-2] for column in names]
    if len(set(modes)) == len(modes) and set(modes) <= set(_KNOWN_MODES):
        return {name: _MODE_COLORS[_KNOWN_MODES.index(column[-2])] for column, name in names.items()}
    return {name: _MODE_COLORS[index % len(_MODE_COLORS)] for index, name in enumerate(names.values())}


def _draw_ranks(axis: Axes, spans: Sequence[Span]) -> None:
    """Bars of all spans, and a black tick where a rank turns to a later step."""
    starts_ms: dict[tuple[int, int], float] = {}
    for span in spans:
        if span.dur_s > 0:
            axis.barh(span.rank, 1e3 * span.dur_s, left=1e3 * span.start_s, height=0.74, **_style(span.category))
        key = (span.rank, span.step)
        starts_ms[key] = min(1e3 * span.start_s, starts_ms.get(key, np.inf))
    for (rank, step), start_ms in starts_ms.items():
        axis.plot([start_ms, start_ms], [rank - 0.5, rank + 0.42], color="black", linewidth=1.1, clip_on=False)
        axis.annotate(
            str(step), (start_ms, rank - 0.5), xytext=(1.5, -0.5), textcoords="offset points", va="center",
            fontsize=FONT_PT - 3,
        )  # fmt: skip


def _style(category: str) -> dict:
    if category == "wait":
        return {"facecolor": "white", "edgecolor": "#D55E00", "hatch": WAIT_HATCH, "linewidth": 0.5}
    return {"facecolor": CATEGORY_COLORS[category], "edgecolor": "white", "linewidth": 0.3}


def _category_patches(categories: Iterable[str]) -> list[Patch]:
    return [Patch(label=category, **_style(category)) for category in categories]


def _legend(figure: Figure, handles: Sequence[Patch]) -> None:
    """Above the panels, in as few lines as fit (about 84 characters each, with the handles), evenly filled."""
    num_lines = -(-sum(len(str(handle.get_label())) + 6 for handle in handles) // 84)
    figure.legend(
        handles=handles,
        loc="outside upper center",
        ncols=-(-len(handles) // num_lines),
        frameon=False,
        fontsize=FONT_PT,
        columnspacing=1.2,
        handlelength=1.6,
    )


def _panels(
    num_lines: int, per_line: int, *, height_in: float, ratios: Sequence[float] | None = None, sharex: bool = False
) -> tuple[Figure, list[Axes]]:
    """A figure of its own, outside pyplot's list, so that many can be made in one process."""
    figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(num_lines, per_line, squeeze=False, height_ratios=ratios, sharex=sharex).ravel()
    for axis in axes:
        axis.tick_params(labelsize=FONT_PT - 1)
    return figure, list(axes)
