"""Where a rank's time goes: spans on the rank's own monotonic clock, written as JSON lines."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class SpanLog:
    """Spans in memory until `flush` appends them to the rank's file.

    Starts are raw readings of `time.perf_counter`: the ranks of one host share it, those of several do not.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pending: list[tuple[str, int, int | None, float, float]] = []
        self.totals_s: dict[str, float] = {}

    def keep_until(self, step: int) -> None:
        """Drop what the file says of steps after `step`, which a resumed run does again; count the rest."""
        if not self._path.exists():
            return
        kept = []
        for line in self._path.read_text().splitlines():
            try:
                span = json.loads(line)
            except ValueError:  # the last line of a killed run
                continue
            if span["step"] <= step:
                kept.append(line + "\n")
                self.totals_s[span["name"]] = self.totals_s.get(span["name"], 0.0) + span["dur_s"]
        self._path.write_text("".join(kept))

    @contextmanager
    def span(self, name: str, step: int, unit: int | None = None) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, step, unit, start, time.perf_counter())

    def add(self, name: str, step: int, unit: int | None, start: float, end: float) -> None:
        """`start` and `end` are readings of `time.perf_counter`."""
        self._pending.append((name, step, unit, start, end - start))
        self.totals_s[name] = self.totals_s.get(name, 0.0) + (end - start)

    def flush(self) -> None:
        if not self._pending:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path, "a") as file:
            for name, step, unit, start, duration in self._pending:
                record = {
                    "name": name,
                    "step": step,
                    "unit": unit,
                    "start_s": round(start, 7),
                    "dur_s": round(duration, 7),
                }
                file.write(json.dumps(record) + "\n")
        self._pending.clear()
