"""Result tables from run records: one row for each scene, pipeline and mode, medians over seeds.

Every table is of one kind (measured, emulated or simulated), says so in its last column, and carries what a row
depends on: world size, images per step, images seen, seeds. Raw numbers go to CSV; Markdown rounds them by `FORMATS`:
PSNR 2 decimals, SSIM and LPIPS 3, samples/s 3 significant digits, speed-ups 2 decimals, shares in percent with 1,
counts with thousands separators. Where seeds or repeats differ, "median (min..max)". A missing number is "n/a" with a
footnote, never 0.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, geometric_mean, median
from typing import Any

import pandas as pd
from tabulate import tabulate

from odin.evaluation.protocol import KINDS
from odin.report.compare import hidden_wait, model_mark, speedup
from odin.report.groups import Cell, Group, Measure, baseline_of, group_runs, mean_problems
from odin.report.records import RunRecord, load_runs, require_quality

MEAN = "mean"

FORMATS: dict[str, Callable[[Any], str]] = {
    "images": "{:,}".format,
    "psnr": "{:.2f}".format,
    "ssim": "{:.3f}".format,
    "lpips": "{:.3f}".format,
    "num_gs": "{:,.0f}".format,
    "samples_per_s": lambda value: f"{value:#.3g}".rstrip(".") if value < 1000 else f"{value:,.0f}",
    "speedup_ddp": "{:.2f}x".format,
    "speedup_sync": "{:.2f}x".format,
    "wait_share": "{:.1%}".format,
    "hidden_wait_sync": "{:.1%}".format,
    "hidden_wait_ddp": "{:.1%}".format,
}
HEADERS = {
    "psnr": "PSNR (dB)",
    "ssim": "SSIM",
    "lpips": "LPIPS",
    "num_gs": "Gaussians",
    "samples_per_s": "samples/s",
    "speedup_ddp": "speed-up vs ddp",
    "speedup_sync": "speed-up vs sync",
    "wait_share": "wait share",
    "hidden_wait_sync": "hidden wait vs sync",
    "hidden_wait_ddp": "hidden wait vs ddp",
}
_KEYS = ("scene", "pipeline", "preset", "mode", "variant", "ranks", "batch", "images", "seeds", "runs")
_QUALITY = ("psnr", "ssim", "lpips", "num_gs", "model", "kind")
_THROUGHPUT = (
    *("samples_per_s", "speedup_ddp", "speedup_sync", "wait_share", "hidden_wait_sync", "hidden_wait_ddp"),
    *("num_gs", "model", "kind"),
)
# Left out of Markdown, and said below the table, where every row has the same.
_COLLAPSIBLE = ("preset", "variant")


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """Median over runs with the extremes."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Table:
    """Rows of plain values, `Cell`s and `Spread`s, by column name."""

    columns: tuple[str, ...]
    rows: tuple[dict[str, Any], ...]
    notes: tuple[str, ...]

    def to_markdown(self) -> str:
        """GitHub table, footnotes below it. Ends with a newline."""
        footnotes: dict[str, str] = {}
        hidden = [c for c in _COLLAPSIBLE if len({row[c] for row in self.rows}) == 1]
        columns = [c for c in self.columns if c not in hidden]
        body = [[_cell_text(column, row[column], footnotes) for column in columns] for row in self.rows]
        numeric = [c in FORMATS or c in ("ranks", "batch", "seeds", "runs") for c in columns]
        text = tabulate(
            body,
            headers=[HEADERS.get(c, c) for c in columns],
            tablefmt="github",
            colalign=["right" if n else "left" for n in numeric],
            disable_numparse=True,
        )
        notes = [f"{c}: {self.rows[0][c]}" for c in hidden if self.rows[0][c]]
        notes += [f"{mark} {reason}" for reason, mark in footnotes.items()]
        return text + "\n" + "".join(f"\n- {note}" for note in (*notes, *self.notes)) + "\n"

    def to_csv(self) -> str:
        """Raw numbers; spreads as three columns, missing numbers empty with their reasons in ``notes``."""
        return pd.DataFrame([self._csv_row(row) for row in self.rows]).to_csv(index=False, lineterminator="\n")

    def _csv_row(self, row: dict[str, Any]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        reasons = []
        spread_columns = {c for r in self.rows for c in self.columns if isinstance(r[c], Spread)}
        for column in self.columns:
            value = row[column]
            if isinstance(value, Cell) and value.value is None:
                reasons.append(f"{column}: {value.reason}")
            out[column] = _raw(value.value) if isinstance(value, (Cell, Spread)) else value
            if column in spread_columns:
                out[f"{column}_min"] = _raw(value.low) if isinstance(value, Spread) else None
                out[f"{column}_max"] = _raw(value.high) if isinstance(value, Spread) else None
        return out | {"notes": "; ".join(reasons)}

    def write(self, folder: Path, name: str) -> tuple[Path, Path]:
        """Write ``name.md`` and ``name.csv`` into the folder, each whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for suffix, text in ((".md", self.to_markdown()), (".csv", self.to_csv())):
            path = folder / (name + suffix)
            temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
            temporary.write_text(text, encoding="utf-8")
            os.replace(temporary, path)
            paths.append(path)
        return paths[0], paths[1]


def write_tables(runs: Iterable[Path], out: Path) -> tuple[Path, ...]:
    """Write ``quality`` and ``throughput`` as .md and .csv for all runs in or below the given folders.

    Measured runs give files of these names; emulated and simulated ones ``quality-emulated`` and so on, never in one
    table with others. Simulated runs have no model, hence no quality. Raises ValueError as the tables do.
    """
    records = load_runs(runs)
    paths: list[Path] = []
    for kind in sorted({run.kind for run in records}, key=KINDS.index):
        of_kind = [run for run in records if run.kind == kind]
        suffix = "" if kind == "measured" else f"-{kind}"
        if kind != "simulated":
            paths += quality_table(of_kind).write(out, f"quality{suffix}")
        paths += throughput_table(of_kind).write(out, f"throughput{suffix}")
    return tuple(paths)


def quality_table(
    records: Iterable[RunRecord], *, scenes: Sequence[str] | None = None, mean: bool | None = None
) -> Table:
    """Image quality.

    scenes: those a mean over scenes must cover; by default, all that any row has.
    mean: True adds mean rows or raises ValueError listing what stands against them (`mean_problems`); None adds them
    where nothing does and else says why not below the table; False leaves them out.

    Raises ValueError for runs that cannot stand in one table, or that were not evaluated.
    """
    groups = group_runs(require_quality(records))
    rows = [_keys(g) | _quality_cells(g, baseline_of(g, groups, "sync")[0]) for g in groups]
    return _table((*_KEYS, *_QUALITY), groups, rows, scenes, mean)


def throughput_table(
    records: Iterable[RunRecord], *, scenes: Sequence[str] | None = None, mean: bool | None = None
) -> Table:
    """Speed and waits; arguments and errors as `quality_table`. Means of speed-ups over scenes are geometric."""
    groups = group_runs(records)
    rows = [_keys(g) | _throughput_cells(g, groups) for g in groups]
    return _table((*_KEYS, *_THROUGHPUT), groups, rows, scenes, mean)


def _table(columns, groups: Sequence[Group], rows: list[dict], scenes, mean: bool | None) -> Table:
    notes = []
    wanted = set(scenes) if scenes is not None else {g.first.scene for g in groups}
    if mean is not False and (mean or len(wanted) > 1):
        problems = mean_problems(groups, scenes)
        if problems and mean:
            raise ValueError(f"no mean over scenes can be formed: {'; '.join(problems)}.")
        if problems:
            notes.append(f"no mean over scenes: {'; '.join(problems)}")
        else:
            rows = rows + _mean_rows(columns, groups, rows)
    return Table(columns=tuple(columns), rows=tuple(rows), notes=tuple(notes))


def _keys(group: Group) -> dict[str, Any]:
    run = group.first
    return {
        "scene": run.scene,
        "pipeline": run.pipeline,
        "preset": run.preset,
        "mode": run.mode,
        "variant": group.variant,
        "ranks": run.ranks,
        "batch": run.batch,
        "images": run.views,
        "seeds": len(group.seeds),
        "runs": len(group.runs),
        "kind": run.kind,
    }


def _quality_cells(group: Group, sync: Group | None) -> dict[str, Any]:
    without = [run.judged for run in group.runs if run.judged.lpips is None]
    if without:
        part = "" if len(without) == len(group.runs) else f" ({len(without)} of {len(group.runs)} runs)"
        lpips: Cell | Spread = Cell(value=None, reason=f"{without[0].lpips_reason}{part}")
    else:
        lpips = _spread(group, _lpips)
    return {
        "psnr": _spread(group, lambda run: run.judged.psnr),
        "ssim": _spread(group, lambda run: run.judged.ssim),
        "lpips": lpips,
        "num_gs": _spread(group, lambda run: run.num_gs),
        "model": model_mark(group, sync),
    }


def _lpips(run: RunRecord) -> float:
    value = run.judged.lpips
    assert value is not None, run.name
    return value


def _throughput_cells(group: Group, groups: Sequence[Group]) -> dict[str, Any]:
    ddp, no_ddp = baseline_of(group, groups, "ddp")
    sync, no_sync = baseline_of(group, groups, "sync")
    return {
        "samples_per_s": _spread(group, lambda run: run.samples_per_s),
        "speedup_ddp": speedup(group, ddp, no_ddp),
        "speedup_sync": speedup(group, sync, no_sync),
        "wait_share": _spread(group, lambda run: run.mean_wait_share),
        "hidden_wait_sync": hidden_wait(group, sync, no_sync),
        "hidden_wait_ddp": hidden_wait(group, ddp, no_ddp),
        "num_gs": _spread(group, lambda run: run.num_gs),
        "model": model_mark(group, sync),
    }


def _mean_rows(columns: Sequence[str], groups: Sequence[Group], rows: Sequence[dict]) -> list[dict]:
    """One row for each column of the evaluation: arithmetic means of the scenes' medians, geometric for speed-ups."""
    out: dict[tuple, list[dict]] = {}
    for group, row in zip(groups, rows, strict=True):
        out.setdefault(group.column, []).append(row)
    means = []
    for members in out.values():
        seeds, runs = ({row[key] for row in members} for key in ("seeds", "runs"))
        mean = members[0] | {"scene": MEAN, "model": ""}
        mean["seeds"], mean["runs"] = (f"{min(n)}..{max(n)}" if len(n) > 1 else min(n) for n in (seeds, runs))
        for column in columns:
            if isinstance(members[0][column], (Cell, Spread)):
                mean[column] = _mean_cell([row[column] for row in members], column.startswith("speedup"))
        means.append(mean)
    return means


def _mean_cell(cells: Sequence[Cell | Spread], is_ratio: bool) -> Cell:
    there = [cell.value for cell in cells if cell.value is not None]
    if len(there) < len(cells):
        reasons = {cell.reason for cell in cells if isinstance(cell, Cell) and cell.value is None}
        common = reasons.pop() if len(reasons) == 1 and not there else None
        return Cell(value=None, reason=common or f"there for {len(there)} of {len(cells)} scenes only")
    return Cell(value=geometric_mean(there) if is_ratio else fmean(there))


def _spread(group: Group, measure: Measure) -> Spread:
    """Median over seeds of the medians over each seed's repeats; extremes over all runs."""
    values = group.values(measure)
    return Spread(value=median(group.by_seed(measure).values()), low=min(values), high=max(values))


def _raw(value: float | None) -> str:
    """The shortest text that reads back as the same number; whole numbers without a point."""
    if value is None:
        return ""
    return str(int(value)) if float(value).is_integer() and abs(value) >= 1000 else repr(float(value))


def _cell_text(column: str, value: Any, footnotes: dict[str, str]) -> str:
    """Text of a cell; `footnotes` maps reasons to their marks and grows."""
    shown = FORMATS.get(column, str)
    if isinstance(value, Cell) and value.value is None:
        mark = footnotes.setdefault(value.reason or "unknown reason", f"({len(footnotes) + 1})")
        return f"n/a {mark}"
    if isinstance(value, Cell):
        return shown(value.value)
    if isinstance(value, Spread):
        low, high = shown(value.low), shown(value.high)
        return shown(value.value) if low == high else f"{shown(value.value)} ({low}..{high})"
    return shown(value)
