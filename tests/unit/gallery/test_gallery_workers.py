"""Worker processes: results, errors and that none outlives the call."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable

import pytest

from odin.data.gallery.workers import for_each_view


def start_adding(offset: int) -> Callable[[int], int]:
    return lambda view: view + offset


def start_failing(bad_view: int) -> Callable[[int], int]:
    def work(view: int) -> int:
        if view == bad_view:
            raise OSError("no space left on the moon")
        return view

    return work


def start_dying(bad_view: int) -> Callable[[int], int]:
    def work(view: int) -> int:
        if view == bad_view:
            os.kill(os.getpid(), signal.SIGKILL)
        return view

    return work


def start_sleeping(seconds: float) -> Callable[[int], int]:
    def work(view: int) -> int:
        time.sleep(0 if view == 0 else seconds)
        return view

    return work


@pytest.fixture(autouse=True)
def no_process_left():
    yield
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("processes", [1, 2])
def test_every_view_is_reported_once(processes: int) -> None:
    results: dict[int, int] = {}
    for_each_view(start_adding, 10, [5, 2, 9], processes=processes, on_result=results.__setitem__)
    assert results == {5: 15, 2: 12, 9: 19}


def test_no_views_need_no_worker() -> None:
    for_each_view(start_adding, 10, [], processes=2, on_result=lambda view, result: pytest.fail("called"))


def test_an_error_comes_with_its_traceback() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)failed at view 3.*no space left on the moon"):
        for_each_view(start_failing, 3, range(6), processes=2, on_result=lambda view, result: None)


def test_a_killed_worker_is_noticed() -> None:
    with pytest.raises(RuntimeError, match="ended with 2 views to go"):
        for_each_view(start_dying, 1, range(3), processes=1, on_result=lambda view, result: None)


def test_an_interrupt_ends_workers_that_are_busy() -> None:
    def interrupt(view: int, result: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        for_each_view(start_sleeping, 300.0, range(4), processes=2, on_result=interrupt)
