"""What a user sees while a command runs: notes, warnings and progress, all on stderr."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

_LINES = 10  # of a whole command, where the output is no terminal
_MIN_PAUSE_S = 2.0  # between two such lines
_T = TypeVar("_T")
_END = object()


class _PlainFormatter(logging.Formatter):
    """The message alone; from warnings upwards with the level before it."""

    def format(self, record: logging.LogRecord) -> str:
        message = super().format(record)
        return message if record.levelno < logging.WARNING else f"{record.levelname.lower()}: {message}"


class _Stderr(logging.StreamHandler):
    """Each message once, to what `sys.stderr` is when it comes: a progress bar puts itself in between."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self._seen: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        if (message := record.getMessage()) not in self._seen:
            self._seen.add(message)
            super().emit(record)

    @property
    def stream(self) -> Any:  # type: ignore[override]
        return sys.stderr


def show_notes() -> None:
    """Print what the package `odin` logs, from INFO upwards. Other packages' loggers stay as they are."""
    handler = _Stderr()
    handler.setFormatter(_PlainFormatter())
    logger = logging.getLogger("odin")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False


class Progress:
    """A bar on a terminal, else a line every tenth of the way; on stderr.

    what: what is counted, "step".
    total: how many of them; may come later, with `__call__`.
    """

    def __init__(self, what: str, total: int = 0) -> None:
        self._what, self._total = what, total
        self._bar: Any = None
        self._name = ""
        self._printed, self._printed_at = 0, -_MIN_PAUSE_S
        self._stack = ExitStack()

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            self._bar = self._stack.enter_context(_bar())
            self._task = self._bar.add_task(f"{self._what}s", total=self._total or None)
            if sys.stdout.isatty():
                self._stack.enter_context(_catch_output(self._print_above))
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def __call__(self, done: int, total: int | None = None) -> None:
        self._total = total or self._total
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=self._total, description=self._name or f"{self._what}s")
            return
        tenth, now = done * _LINES // self._total, time.monotonic()
        if tenth > self._printed and (done == self._total or now - self._printed_at >= _MIN_PAUSE_S):
            self._printed, self._printed_at = tenth, now
            name = f"{self._name}: " if self._name else ""
            print(f"{name}{self._what} {done} of {self._total}", file=sys.stderr, flush=True)

    def named(self, name: str, done: int) -> None:
        """Progress of one of several parts, each with the whole number of steps."""
        if name != self._name:
            self._name, self._printed = name, 0
        self(done)

    def _print_above(self, line: str) -> None:
        self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)


def silently(items: Iterable[_T]) -> Iterator[_T]:
    """The items, without what child processes print on stdout while each is made."""
    iterator = iter(items)
    while True:
        with _catch_output(_drop):
            item = next(iterator, _END)
        if item is _END:
            return
        yield item  # type: ignore[misc]


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # What goes to a file must not be drawn into the terminal.
    return Progress(
        *columns,
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=sys.stdout.isatty(),
        refresh_per_second=4,  # drawing takes time from the ranks
    )


def _drop(line: str) -> None:
    """Print nothing."""


@contextmanager
def _catch_output(write: Callable[[str], None]) -> Iterator[None]:
    """Hand each line that child processes print on stdout to `write`, which runs in a thread."""
    sys.stdout.flush()
    before = os.dup(1)
    reading, writing = os.pipe()
    os.dup2(writing, 1)
    os.close(writing)
    reader = threading.Thread(target=_read_lines, args=(reading, write), daemon=True)
    reader.start()
    try:
        yield
    finally:
        os.dup2(before, 1)
        os.close(before)
        reader.join(timeout=5.0)  # it ends with the last process that holds the other end


def _read_lines(descriptor: int, write: Callable[[str], None]) -> None:
    with os.fdopen(descriptor, errors="replace") as lines:
        for line in lines:
            write(line.rstrip("\n"))
