"""Ranks: defaults, exact balance against brute force, and more ranks than views."""

import itertools

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from odin.schedule.assignment import assign_ranks


def _batches(num_steps, batch, num_views, seed):
    generator = np.random.default_rng(seed)
    views = np.stack([generator.permutation(num_views)[:batch] for _ in range(num_steps)]).astype(np.int32)
    return views, generator.uniform(0.5, 2.0, num_views), sp.csr_matrix(generator.random((num_views, num_views)))


@pytest.mark.parametrize(
    ("batch", "ranks", "expected"),
    [(4, 1, [0, 0, 0, 0]), (4, 2, [0, 0, 1, 1]), (4, 4, [0, 1, 2, 3]), (5, 2, [0, 0, 0, 1, 1]), (3, 2, [0, 0, 1])],
)
def test_default_is_contiguous_slots(batch, ranks, expected):
    rank_of = assign_ranks(*_one(batch, ranks), balance=False)
    assert rank_of.dtype == np.int16 and rank_of.tolist() == [expected] * 3


def _one(batch, ranks):
    views, costs, conflict = _batches(3, batch, 8, 0)
    return views, ranks, costs, conflict


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 11), st.integers(1, 6), st.integers(0, 1000), st.integers(1, 4))
def test_balanced_ranks_have_equal_numbers_of_units(batch, ranks, seed, depth):
    ranks = min(ranks, batch)
    views, costs, conflict = _batches(6, batch, 12, seed)
    rank_of = assign_ranks(views, ranks, costs, conflict, balance=True, depth=depth)
    for step in rank_of:
        units = np.bincount(step, minlength=ranks)
        assert len(units) == ranks and units.max() - units.min() <= 1
    again = assign_ranks(views, ranks, costs, conflict, balance=True, depth=depth)
    np.testing.assert_array_equal(rank_of, again)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 6), st.integers(2, 3), st.integers(0, 1000))
def test_exact_balance_is_within_two_percent_of_brute_force(batch, ranks, seed):
    ranks = min(ranks, batch)
    views, costs, conflict = _batches(1, batch, 12, seed)
    rank_of = assign_ranks(views, ranks, costs, conflict, balance=True)[0]
    sizes = sorted(np.bincount(np.arange(batch) % ranks))
    best = min(
        np.bincount(choice, costs[views[0]], ranks).max()
        for choice in itertools.product(range(ranks), repeat=batch)
        if sorted(np.bincount(choice, minlength=ranks)) == sizes
    )
    assert best - 1e-9 <= np.bincount(rank_of, costs[views[0]], ranks).max() <= 1.02 * best + 1e-9


def test_load_is_balanced_over_the_window():
    """Views of cost 3 and 1 on two ranks: whoever had the dear one in a step gets the cheap one in the next."""
    costs = np.array([3.0, 1.0])
    views = np.tile(np.array([[0, 1]], np.int32), (4, 1))
    rank_of = assign_ranks(views, 2, costs, sp.csr_matrix((2, 2)), balance=True, depth=2)
    dear = rank_of[:, 0].tolist()
    assert dear in ([0, 1, 0, 1], [1, 0, 1, 0])


def test_equal_balance_keeps_views_with_what_the_rank_rendered_before():
    costs = np.ones(4)
    conflict = np.zeros((4, 4))
    conflict[2, 1] = conflict[3, 0] = 1.0  # view 2 reads what 1 wrote, 3 what 0 wrote
    views = np.array([[0, 1], [2, 3]], np.int32)
    rank_of = assign_ranks(views, 2, costs, sp.csr_matrix(conflict), balance=True)
    assert rank_of[1, 0] == rank_of[0, 1] and rank_of[1, 1] == rank_of[0, 0]


def test_more_ranks_than_views_take_turns_and_say_so(caplog):
    views, costs, conflict = _batches(6, 2, 8, 0)
    rank_of = assign_ranks(views, 3, costs, conflict, balance=True)
    assert rank_of.tolist() == [[0, 1], [2, 0], [1, 2]] * 2
    assert len(caplog.records) == 1 and "1 ranks rest in every step" in caplog.text


@pytest.mark.parametrize("ranks", [0, -1, 40000])
def test_refusals(ranks):
    views, costs, conflict = _batches(2, 2, 8, 0)
    with pytest.raises(ValueError, match=f"ranks = {ranks}, allowed are 1 to 32767"):
        assign_ranks(views, ranks, costs, conflict, balance=False)
