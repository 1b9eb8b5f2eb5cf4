"""Processes that each work through some of the views: spawned, single-threaded and gone when the call returns."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import signal
import traceback
from collections.abc import Callable, Sequence
from typing import Any

_STOP_WAIT_S = 10.0


def for_each_view(
    start: Callable[[Any], Callable[[int], Any]],
    argument: Any,
    views: Sequence[int],
    *,
    processes: int,
    on_result: Callable[[int, Any], None],
) -> None:
    """Call `on_result(view, result)` for every view, in the order in which results arrive.

    Each process calls `start(argument)` once and the function that it returns once for each of its views. `start`
    must be a module's function and everything passed must pickle. Whatever ends the call early, an error in a worker
    (RuntimeError with its traceback), in `on_result` or an interrupt, ends all the processes first.
    """
    context = multiprocessing.get_context("spawn")
    num_workers = min(processes, len(views))
    workers = []
    receivers: dict[multiprocessing.connection.Connection, int] = {}
    try:
        for worker in range(num_workers):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(
                target=_work, args=(start, argument, list(views[worker::num_workers]), sender), daemon=True
            )
            process.start()
            sender.close()  # or the end of a worker would not be seen
            workers.append(process)
            receivers[receiver] = len(views[worker::num_workers])
        while receivers:
            for receiver in multiprocessing.connection.wait(list(receivers)):
                _take(receiver, receivers, on_result)
    finally:
        for process in workers:
            process.terminate()
        for process in workers:
            process.join(_STOP_WAIT_S)


def _take(
    receiver: multiprocessing.connection.Connection,
    open_results: dict[multiprocessing.connection.Connection, int],
    on_result: Callable[[int, Any], None],
) -> None:
    """Pass on one message; forget the worker once all its results are in."""
    try:
        view, result, error = receiver.recv()
    except EOFError:
        raise RuntimeError(
            f"a gallery worker ended with {open_results[receiver]} views to go; was it killed for memory? "
            "Run the same command again to continue, with fewer processes"
        ) from None
    if error:
        raise RuntimeError(f"a gallery worker failed at view {view}:\n{error}")
    open_results[receiver] -= 1
    if open_results[receiver] == 0:
        del open_results[receiver]
        receiver.close()
    on_result(view, result)


def _work(
    start: Callable[[Any], Callable[[int], Any]],
    argument: Any,
    views: list[int],
    sender: multiprocessing.connection.Connection,
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt reaches the parent, which ends its workers
    view = views[0]
    try:
        function = start(argument)
        for view in views:
            sender.send((view, function(view), None))
    except BrokenPipeError:
        return  # the parent is gone
    except Exception:  # whatever it is, the parent raises it
        sender.send((view, None, traceback.format_exc()))
