"""What every rank did when: reading span files, totals by name, and one trace for Chrome's or Perfetto's viewer.

A span is one line of ``RUN/spans/rank<r>.jsonl``. Its times come from the monotonic clock of its rank: ranks of one
host share that clock, ranks of different hosts do not, so only durations may be compared between hosts.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from odin.data.jsonio import write_json

# Names that training writes, in the order of a unit's way, as the categories that figures show.
CATEGORIES = {
    "scope": "read rows",
    "gather": "read rows",
    "render": "render",
    "backward": "backward",
    "exchange": "exchange",
    "row_update": "row update",
    "structure": "structure",
    "wait": "wait",
}
OTHER = "other"
_THREADS = {"wait": (1, "wait"), "exchange": (2, "communication")}
_COMPUTE = (0, "compute")
_FILE = re.compile(r"rank(\d+)\.jsonl")


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """One piece of work, or one wait, of one rank."""

    rank: int
    name: str
    step: int
    unit: int | None
    start_s: float  # monotonic clock of the rank
    dur_s: float

    @property
    def end_s(self) -> float:
        return self.start_s + self.dur_s

    @property
    def category(self) -> str:
        return CATEGORIES.get(self.name, OTHER)


def read_spans(run_dir: Path, *, num_ranks: int | None = None) -> tuple[Span, ...]:
    """All spans of a run, by rank and start.

    Raises ValueError naming file and line for a broken line, and where files of `num_ranks` ranks are not all there.
    """
    files = {int(m.group(1)): p for p in (run_dir / "spans").glob("rank*.jsonl") if (m := _FILE.fullmatch(p.name))}
    if num_ranks is not None and sorted(files) != list(range(num_ranks)):
        raise ValueError(f"{run_dir / 'spans'}: files of ranks {sorted(files)}, expected 0..{num_ranks - 1}.")
    if not files:
        raise ValueError(f"{run_dir / 'spans'}: no rank<r>.jsonl files. Train with spans switched on.")
    spans = [span for rank, path in files.items() for span in _read_rank(path, rank)]
    return tuple(sorted(spans, key=lambda span: (span.rank, span.start_s)))


def totals(spans: Iterable[Span]) -> dict[int, dict[str, float]]:
    """Seconds by rank and span name."""
    sums: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for span in spans:
        sums[span.rank][span.name] += span.dur_s
    return {rank: dict(sorted(sums[rank].items())) for rank in sorted(sums)}


def wait_by_step(spans: Iterable[Span]) -> dict[int, float]:
    """Seconds waited in each step, summed over ranks; steps without a wait are there with 0."""
    waits: dict[int, float] = defaultdict(float)
    for span in spans:
        waits[span.step] += span.dur_s if span.name == "wait" else 0.0
    return dict(sorted(waits.items()))


def aligned(spans: Sequence[Span], *, common_clock: bool = True) -> tuple[Span, ...]:
    """The same spans with time 0 at the first start: of all ranks, or of each rank where clocks are not shared."""
    if not spans:
        return ()
    first: dict[int, float] = {}
    for span in spans:
        first[span.rank] = min(span.start_s, first.get(span.rank, math.inf))
    zero = min(first.values())
    return tuple(replace(s, start_s=s.start_s - (zero if common_clock else first[s.rank])) for s in spans)


def chrome_trace(spans: Sequence[Span], *, common_clock: bool = True) -> dict[str, Any]:
    """Trace Event Format: a process for each rank, threads for compute, waits and communication. Times in us."""
    events: list[dict[str, Any]] = []
    seen: set[tuple[int, int]] = set()
    for span in aligned(spans, common_clock=common_clock):
        tid, thread = _THREADS.get(span.name, _COMPUTE)
        if (span.rank, tid) not in seen:
            seen.add((span.rank, tid))
            events += [
                {
                    "ph": "M",
                    "name": "process_name",
                    "pid": span.rank,
                    "tid": tid,
                    "args": {"name": f"rank {span.rank}"},
                },
                {"ph": "M", "name": "thread_name", "pid": span.rank, "tid": tid, "args": {"name": thread}},
            ]
        arguments = {"step": span.step} if span.unit is None else {"step": span.step, "unit": span.unit}
        events.append(
            {
                "ph": "X",
                "name": span.name,
                "cat": span.category,
                "pid": span.rank,
                "tid": tid,
                "ts": round(span.start_s * 1e6, 3),
                "dur": round(span.dur_s * 1e6, 3),
                "args": arguments,
            }
        )
    return {"displayTimeUnit": "ms", "traceEvents": events}


def write_trace(path: Path, spans: Sequence[Span], *, common_clock: bool = True) -> None:
    """Write the trace for chrome://tracing or ui.perfetto.dev."""
    write_json(path, chrome_trace(spans, common_clock=common_clock))


def _read_rank(path: Path, rank: int) -> Iterable[Span]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            raw = json.loads(line)
            unit = raw.get("unit")
            span = Span(
                rank=rank,
                name=str(raw["name"]),
                step=int(raw["step"]),
                unit=None if unit is None else int(unit),
                start_s=float(raw["start_s"]),
                dur_s=float(raw["dur_s"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}:{number}: not a span ({type(error).__name__}: {error}).") from error
        if not (math.isfinite(span.start_s) and 0 <= span.dur_s < math.inf):
            raise ValueError(
                f"{path}:{number}: start {span.start_s}, duration {span.dur_s}: must be finite, not negative."
            )
        yield span
