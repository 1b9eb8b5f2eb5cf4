"""Phases and windows by hand, and as a partition for any input."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odin.schedule.windows import make_phases, make_windows


def test_structural_steps_end_phases():
    assert make_phases(10, ()).tolist() == [[1, 10]]
    assert make_phases(10, (3, 4)).tolist() == [[1, 3], [4, 4], [5, 10]]
    assert make_phases(10, (10, 12)).tolist() == [[1, 10]]


@pytest.mark.parametrize("steps", [(0,), (3, 3), (5, 2), (-1, 4)])
def test_structural_steps_must_ascend_from_one(steps):
    with pytest.raises(ValueError, match="expected ascending step numbers from 1 on"):
        make_phases(10, steps)


def test_windows_by_hand():
    conflicts = np.zeros((10, 3), np.float32)
    conflicts[4, 0] = 0.5  # step 5 needs step 4
    conflicts[7, 1] = 0.5  # step 8 needs step 6
    phases = make_phases(10, (2,))
    # 1-2 phase; 3-4, cut by the conflict of 5 with 4; 5-7 full; 8 needs 6, which is over, so 8-10
    assert make_windows(conflicts, phases).tolist() == [[1, 2], [3, 4], [5, 7], [8, 10]]
    assert make_windows(np.ones((3, 4), np.float32), make_phases(3, ())).tolist() == [[1, 1], [2, 2], [3, 3]]


def test_a_conflict_two_steps_back_cuts():
    conflicts = np.zeros((4, 4), np.float32)
    conflicts[2, 1] = 0.5  # step 3 needs step 1
    assert make_windows(conflicts, make_phases(4, ())).tolist() == [[1, 2], [3, 4]]


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 40), st.integers(1, 5), st.integers(0, 10**6), st.sets(st.integers(1, 40)))
def test_windows_are_a_partition_within_phases(num_steps, depth, seed, structural):
    conflicts = np.random.default_rng(seed).random((num_steps, depth)).astype(np.float32)
    phases = make_phases(num_steps, tuple(sorted(structural)))
    windows = make_windows(conflicts, phases, threshold=0.6)
    assert [s for first, last in windows for s in range(first, last + 1)] == list(range(1, num_steps + 1))
    for first, last in windows.tolist():
        assert last - first < depth
        assert ((phases[:, 0] <= first) & (last <= phases[:, 1])).sum() == 1
        for step in range(first, last + 1):
            assert (conflicts[step - 1, : step - first] <= 0.6).all()
