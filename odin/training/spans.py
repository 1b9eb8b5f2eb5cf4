"""Where a rank's time goes: spans on the rank's own monotonic clock, written as JSON lines."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class SpanLog:
    """Spans in memory until `flush` appends them to the rank's file. Never compares clocks of two ranks."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pending: list[tuple[str, int, int | None, float, float]] = []
        self._origin = time.perf_counter()
        self.totals_s: dict[str, float] = {}

    @contextmanager
    def span(self, name: str, step: int, unit: int | None = None) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, step, unit, start, time.perf_counter())

    def add(self, name: str, step: int, unit: int | None, start: float, end: float) -> None:
        """`start` and `end` are readings of `time.perf_counter`."""
        self._pending.append((name, step, unit, start - self._origin, end - start))
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
