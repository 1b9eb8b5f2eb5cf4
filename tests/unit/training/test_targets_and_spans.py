"""Targets are decoded once while they fit; spans survive a killed run."""

import json

import numpy as np
import pytest

from odin.rendering.interface import PreparedTarget
from odin.training.spans import SpanLog
from odin.training.targets import TargetStore

SIZE = 3 * 4 * 5 * 4  # bytes of one image, and of each of the two moments


class Images:
    """Images of 3 x 4 x 5 floats that count how often they were decoded."""

    def __init__(self):
        self.loaded = []

    def load(self, view):
        self.loaded.append(view)
        return np.full((3, 4, 5), view, np.float64)

    def store(self, **options):
        def prepare(image):
            return PreparedTarget(image=image, extra=(image + 1, image + 2, "no array"))

        return TargetStore(self.load, prepare, **options)


def test_a_target_is_decoded_once_and_prepared_as_float32():
    images = Images()
    store = images.store()
    first = store[3]
    assert store[3] is first and images.loaded == [3]
    assert first.image.dtype == np.float32 and (first.image == 3).all() and first.image.flags.c_contiguous


def test_what_does_not_fit_is_decoded_again_and_still_right():
    """The limit counts the image and what is prepared with it: two targets fit here, a third does not."""
    images = Images()
    store = images.store(max_bytes=2 * 3 * SIZE)
    for view in (0, 1, 2, 0, 1, 2, 2):
        assert (store[view].image == view).all()
    assert images.loaded == [0, 1, 2, 2, 2]


def test_a_store_without_room_keeps_nothing():
    images = Images()
    store = images.store(max_bytes=3 * SIZE - 1)
    assert [float(store[view].image[0, 0, 0]) for view in (7, 7)] == [7.0, 7.0]
    assert images.loaded == [7, 7]


def test_preloading_decodes_each_view_once_and_stops_where_it_is_full():
    images = Images()
    store = images.store(max_bytes=2 * 3 * SIZE + 5)
    store.preload(range(10))
    assert images.loaded == [0, 1, 2]  # that the third does not fit shows only when it is there
    store.preload([0, 1])
    assert images.loaded == [0, 1, 2]


# Spans


def spans_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_spans_are_summed_and_written_once(tmp_path):
    path = tmp_path / "spans" / "rank0.jsonl"
    log = SpanLog(path)
    log.flush()
    assert not path.exists()
    log.add("render", 1, 0, 10.0, 10.25)
    log.add("render", 2, 1, 11.0, 11.5)
    log.add("scope", 2, None, 11.5, 11.75)
    log.flush()
    log.flush()
    assert spans_of(path) == [
        {"name": "render", "step": 1, "unit": 0, "start_s": 10.0, "dur_s": 0.25},
        {"name": "render", "step": 2, "unit": 1, "start_s": 11.0, "dur_s": 0.5},
        {"name": "scope", "step": 2, "unit": None, "start_s": 11.5, "dur_s": 0.25},
    ]
    assert log.totals_s == {"render": 0.75, "scope": 0.25}


def test_a_span_that_ends_in_an_error_is_noted(tmp_path):
    log = SpanLog(tmp_path / "rank0.jsonl")
    with pytest.raises(RuntimeError), log.span("render", 4, 2):
        raise RuntimeError
    log.flush()
    (span,) = spans_of(tmp_path / "rank0.jsonl")
    assert (span["name"], span["step"], span["unit"]) == ("render", 4, 2) and span["dur_s"] >= 0


def test_a_resumed_run_forgets_the_steps_it_does_again_and_counts_the_rest(tmp_path):
    path = tmp_path / "rank0.jsonl"
    log = SpanLog(path)
    for step in range(1, 6):
        log.add("wait", step, 0, float(step), step + 0.5)
    log.flush()
    with open(path, "a") as file:
        file.write('{"name": "wait", "step": 6, "un')  # the run was killed here
    resumed = SpanLog(path)
    resumed.keep_until(3)
    assert resumed.totals_s == {"wait": 1.5}
    resumed.add("wait", 4, 0, 20.0, 20.25)
    resumed.flush()
    assert [(span["step"], span["start_s"]) for span in spans_of(path)] == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 20.0)]
    assert resumed.totals_s == {"wait": 1.75}


def test_a_run_without_spans_has_nothing_to_keep(tmp_path):
    log = SpanLog(tmp_path / "rank0.jsonl")
    log.keep_until(10)
    assert log.totals_s == {} and not (tmp_path / "rank0.jsonl").exists()
