"""Which runs may stand in one table row, which row is whose baseline, and what may be averaged.

Pure. A *group* is one setting of one scene: its runs differ in their seed alone. Paired numbers (speed-up, hidden
wait) are formed seed by seed, then their median is taken.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from odin.report.records import RunRecord

Measure = Callable[[RunRecord], float]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Group:
    """Runs of one setting of one scene, by seed."""

    runs: tuple[RunRecord, ...]
    variant: str  # options that tell it from others of its mode, "depth=2 balance=false"; "" where there is one only

    @property
    def first(self) -> RunRecord:
        return self.runs[0]

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted({run.seed for run in self.runs}))

    @property
    def column(self) -> tuple:
        """What a row has in common with its fellows over scenes."""
        return (*_setting(self.first)[1:], self.first.mode, self.variant)

    def values(self, measure: Measure) -> list[float]:
        return [measure(run) for run in self.runs]

    def by_seed(self, measure: Measure) -> dict[int, float]:
        """Median over the repeats of each seed."""
        return {seed: median(measure(run) for run in self.runs if run.seed == seed) for seed in self.seeds}


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """A number, or none and the reason why."""

    value: float | None
    reason: str | None = None


def group_runs(records: Iterable[RunRecord]) -> tuple[Group, ...]:
    """Groups in order of scene, pipeline, preset, ranks, batch, images seen, mode and variant.

    Raises ValueError where records cannot stand in one table (`check_comparable`).
    """
    records = list(records)
    check_comparable(records)
    by_setting: dict[tuple, list[RunRecord]] = defaultdict(list)
    for run in records:
        by_setting[(*_setting(run), run.mode, _frozen(run.options))].append(run)
    # An option is worth naming where it differs between groups that else look the same, in any scene.
    alike: dict[tuple, list[Mapping[str, Any]]] = defaultdict(list)
    for runs in by_setting.values():
        alike[(*_setting(runs[0]), runs[0].mode)].append(runs[0].options)
    named: dict[tuple, set[str]] = defaultdict(set)
    for (_, *column), options in alike.items():
        named[tuple(column)] |= _differing(options)
    groups = []
    for runs in by_setting.values():
        keys = named[(*_setting(runs[0])[1:], runs[0].mode)]
        variant = " ".join(f"{key}={_shown(runs[0].options.get(key))}" for key in sorted(keys))
        groups.append(Group(runs=tuple(sorted(runs, key=lambda r: (r.seed, str(r.path)))), variant=variant))
    return tuple(sorted(groups, key=lambda g: (*_setting(g.first), _MODE_RANK.get(g.first.mode, 99), *g.column[-2:])))


_MODE_RANK = {mode: rank for rank, mode in enumerate(("ddp", "grendel", "sync", "quality", "throughput"))}


def check_comparable(records: Sequence[RunRecord]) -> None:
    """Raises ValueError listing what makes the records incomparable.

    All must be of one kind and use the same metric definitions; runs of one scene must share the scene's data, the
    protocol (source, factor, resize, ...) and the test views.
    """
    if not records:
        raise ValueError("no runs to tabulate.")
    kinds = {run.kind for run in records}
    if len(kinds) > 1:
        listed = "; ".join(f"{kind}: {next(r.name for r in records if r.kind == kind)}" for kind in sorted(kinds))
        raise ValueError(f"runs of different kinds never share a table ({listed}). Make one table of each kind.")
    problems: list[str] = []
    firsts: dict[str, RunRecord] = {}
    for run in records:
        first = firsts.setdefault(run.scene, run)
        if run.scene_sha256 != first.scene_sha256:
            problems.append(f"{run.name} was trained on other scene data than {first.name}")
    judged = [run for run in records if run.quality is not None]
    firsts = {}
    for run in judged:
        first = firsts.setdefault(run.scene, run)
        ours, theirs = run.judged.protocol, first.judged.protocol
        for key in sorted(ours.keys() | theirs.keys()):
            if ours.get(key) != theirs.get(key):
                problems.append(f"{run.name} has {key} {ours.get(key)!r}, {first.name} has {theirs.get(key)!r}")
        if run.judged.test_names != first.judged.test_names:
            problems.append(
                f"{run.name} has {len(run.judged.test_names)} test views, {first.name} "
                f"{len(first.judged.test_names)}, not the same ones"
            )
    problems += _definition_problems(judged)
    if problems:
        raise ValueError(f"runs that cannot stand in one table: {'; '.join(problems)}.")


def baseline_of(group: Group, groups: Iterable[Group], mode: str) -> tuple[Group | None, str]:
    """The row of `mode` to compare with, or None and the reason.

    It must agree in scene, pipeline, preset, ranks, batch and images seen. Where several do, they must be told apart by
    options that the group has too ("balance", say).
    """
    candidates = [g for g in groups if g.first.mode == mode and _setting(g.first) == _setting(group.first)]
    if len(candidates) > 1:
        keys = _differing([g.first.options for g in candidates])
        same = [g for g in candidates if all(g.first.options.get(k) == group.first.options.get(k) for k in keys)]
        if len(same) != 1:
            return None, f"{len(candidates)} {mode} rows to choose from"
        candidates = same
    if not candidates:
        return None, f"no {mode} run with the same ranks, batch and images seen"
    return candidates[0], ""


def mean_problems(groups: Sequence[Group], scenes: Sequence[str] | None = None) -> list[str]:
    """Why no mean over scenes may be formed; empty where it may.

    Every column (mode, variant, ranks, ...) must have every scene: those listed, or those that any column has.
    Protocols must agree but for `factor`, which belongs to a scene (and is the same in all its rows anyway).
    """
    wanted = sorted(scenes) if scenes is not None else sorted({g.first.scene for g in groups})
    have: dict[tuple, set[str]] = defaultdict(set)
    for g in groups:
        have[g.column].add(g.first.scene)
    problems = []
    for column, found in have.items():
        missing = [scene for scene in wanted if scene not in found]
        if missing:
            problems.append(f"{_column_name(column)} lacks {', '.join(missing)}")
        unknown = sorted(found - set(wanted))
        if unknown:
            problems.append(f"{_column_name(column)} has {', '.join(unknown)}, not on the list of scenes")
    protocols: dict[tuple, str] = {}
    for g in groups:
        if g.first.quality is not None:
            shared = {key: value for key, value in g.first.judged.protocol.items() if key != "factor"}
            protocols.setdefault(_frozen(shared), g.first.scene)
    if len(protocols) > 1:
        listed = "; ".join(f"{scene}: " + ", ".join(f"{k}={_shown(v)}" for k, v in p) for p, scene in protocols.items())
        problems.append(f"protocols differ between scenes ({listed})")
    return problems


def _definition_problems(judged: Sequence[RunRecord]) -> list[str]:
    """Metric definitions must agree in the whole table; LPIPS weights where LPIPS is there."""
    seen: dict[str, tuple[Any, RunRecord]] = {}
    problems = []
    for run in judged:
        for key, value in run.judged.definitions.items():
            if key == "lpips" and value is None:
                continue
            first_value, first = seen.setdefault(key, (value, run))
            if value != first_value:
                problems.append(f"{run.name} defines {key} as {value}, {first.name} as {first_value}")
    return problems


def _setting(run: RunRecord) -> tuple:
    return (run.scene, run.pipeline, run.preset, run.ranks, run.batch, run.views, run.steps)


def _column_name(column: tuple) -> str:
    pipeline, _, ranks, batch, views, _, mode, variant = column
    return f"{pipeline}/{mode}{' ' + variant if variant else ''} (ranks {ranks}, batch {batch}, {views} images)"


def _frozen(values: Mapping[str, Any]) -> tuple:
    return tuple(sorted((key, tuple(v) if isinstance(v, list) else v) for key, v in values.items()))


def _differing(options: Sequence[Mapping[str, Any]]) -> set[str]:
    keys = set().union(*options)
    return {key for key in keys if len({repr(o.get(key)) for o in options}) > 1}


def _shown(value: Any) -> str:
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
