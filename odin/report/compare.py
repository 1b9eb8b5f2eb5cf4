"""Numbers that compare two rows: speed-up, hidden wait and whether two models are the same bits.

Pure. All are paired: seed by seed, or step by step inside one pair of runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from odin.report.groups import Cell, Group
from odin.report.records import RunRecord

# Below this share of training time, a baseline's wait is scheduling noise and a ratio to it says nothing.
MIN_BASELINE_WAIT_SHARE = 0.005


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A point estimate with its percentile bootstrap interval."""

    value: float
    low: float
    high: float
    level: float  # coverage, 0.95 for 95 %
    num_pairs: int


def total_wait_s(run: RunRecord) -> float:
    """Critical-path wait: time in which a rank had nothing it was allowed to run, summed over ranks."""
    return sum(run.wait_s)


def speedup(group: Group, baseline: Group | None, reason: str = "") -> Cell:
    """Median over common seeds of samples/s divided by the baseline's with the same seed."""
    pairs = _paired(group, baseline, lambda run: run.samples_per_s)
    if isinstance(pairs, str):
        return Cell(value=None, reason=reason or pairs)
    return Cell(value=median(ours / theirs for ours, theirs in pairs))


#: Modes in which every rank waits for all others at every step.
BARRIER_MODES = ("ddp", "sync")


def hidden_wait(group: Group, baseline: Group | None, reason: str = "") -> Cell:
    """Median over common seeds of 1 - wait / wait of the baseline with the same seed. Negative where there is more.

    None where the baseline waits less than `MIN_BASELINE_WAIT_SHARE` of its training time.
    """
    if group.first.mode in BARRIER_MODES and baseline is not None and baseline.first.mode != "ddp":
        return Cell(value=None, reason=f"{group.first.mode} waits at a barrier itself: it hides nothing")
    pairs = _paired(group, baseline, total_wait_s)
    if isinstance(pairs, str):
        return Cell(value=None, reason=reason or pairs)
    assert baseline is not None
    share = median(run.mean_wait_share for run in baseline.runs)
    if share < MIN_BASELINE_WAIT_SHARE or any(theirs <= 0 for _, theirs in pairs):
        return Cell(
            value=None,
            reason=f"{baseline.first.mode} waits {100 * share:.2g} % of its time, under "
            f"{100 * MIN_BASELINE_WAIT_SHARE:g} %: nothing to hide",
        )
    return Cell(value=median(1.0 - ours / theirs for ours, theirs in pairs))


def hidden_wait_interval(
    waits_s: Sequence[float] | Mapping[int, float],
    baseline_waits_s: Sequence[float] | Mapping[int, float],
    *,
    seed: int = 0,
    num_resamples: int = 2000,
    level: float = 0.95,
) -> Interval:
    """1 - sum of waits / sum of the baseline's, with a percentile bootstrap over pairs (Efron 1979).

    Both by seed or by step: sequences of equal length, or mappings with the same keys. Pairs are drawn with
    replacement by a generator with `seed`, hence the same numbers each time. Neighbouring steps are not independent, so
    an interval over the steps of one run is narrower than one over seeds.

    Raises ValueError where the pairs do not match, there are fewer than two, or the baseline never waits.
    """
    if isinstance(waits_s, Mapping) and isinstance(baseline_waits_s, Mapping):
        if waits_s.keys() != baseline_waits_s.keys():
            odd = sorted(waits_s.keys() ^ baseline_waits_s.keys())
            raise ValueError(f"waits cannot be paired: {len(odd)} keys in one only ({odd[:5]}).")
        keys = sorted(waits_s)
        waits_s, baseline_waits_s = [waits_s[k] for k in keys], [baseline_waits_s[k] for k in keys]
    ours, theirs = np.asarray(list(waits_s), np.float64), np.asarray(list(baseline_waits_s), np.float64)  # [n]
    if ours.shape != theirs.shape or len(ours) < 2:
        raise ValueError(f"{len(ours)} waits and {len(theirs)} of the baseline: equal numbers of two or more needed.")
    if theirs.sum() <= 0:
        raise ValueError("the baseline never waits: there is nothing to hide.")
    draws = np.random.default_rng(seed).integers(len(ours), size=(num_resamples, len(ours)))
    sums = theirs[draws].sum(axis=1)
    ratios = 1.0 - ours[draws].sum(axis=1)[sums > 0] / sums[sums > 0]
    low, high = np.quantile(ratios, [(1 - level) / 2, (1 + level) / 2])
    return Interval(
        value=float(1.0 - ours.sum() / theirs.sum()),
        low=float(low),
        high=float(high),
        level=level,
        num_pairs=len(ours),
    )


def model_mark(group: Group, sync: Group | None) -> str:
    """Short hash of the model (of the lowest seed), and whether all common seeds give the bits of `sync`.

    "1a2b3c4d = sync" where they do. Quality-first promises those bits, so only there a difference is marked.
    """
    mark = group.first.model_sha256[:8] + (f" +{len(group.seeds) - 1} seeds" if len(group.seeds) > 1 else "")
    if sync is None or group.first.mode == "sync":
        return mark
    hashes = [{(run.seed, run.model_sha256) for run in g.runs} for g in (group, sync)]
    common = set(group.seeds) & set(sync.seeds)
    if not common:
        return mark
    ours, theirs = ({pair for pair in found if pair[0] in common} for found in hashes)
    if ours == theirs:
        return f"{mark} = sync"
    return f"{mark} != sync" if group.first.mode == "quality" else mark


def _paired(group: Group, baseline: Group | None, measure) -> list[tuple[float, float]] | str:
    """(ours, the baseline's) of every common seed, or why there is none."""
    if baseline is None:
        return "no baseline"
    ours, theirs = group.by_seed(measure), baseline.by_seed(measure)
    common = sorted(ours.keys() & theirs.keys())
    return [(ours[seed], theirs[seed]) for seed in common] or f"no seed in common with {baseline.first.mode}"
