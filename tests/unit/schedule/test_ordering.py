"""The order: its invariants for any input, and its worth where the answer is known."""

import itertools

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from odin.schedule.build import predict
from odin.schedule.ordering import OrderWeights, epoch_permutations, order_views, slot_separation


def _random_inputs(num_views, seed):
    generator = np.random.default_rng(seed)
    conflict = generator.random((num_views, num_views)) * (generator.random((num_views, num_views)) < 0.5)
    likeness = np.triu(generator.random((num_views, num_views)), 1)
    return sp.csr_matrix(conflict), sp.csr_matrix(likeness + likeness.T), generator.uniform(0.5, 2.0, num_views)


@st.composite
def _cases(draw):
    num_views = draw(st.integers(1, 24))
    train_views = np.array(sorted(draw(st.sets(st.integers(0, num_views - 1), min_size=1))), np.int32)
    return {
        "num_views": num_views,
        "train_views": train_views,
        "batch": draw(st.integers(1, len(train_views))),
        "num_steps": draw(st.integers(1, 40)),
        "seed": draw(st.integers(0, 2**31)),
        "ordering": draw(st.sampled_from(["greedy", "random"])),
        "pool": draw(st.sampled_from([None, 1, 3, 8])),
    }


def _order(case):
    arguments = {name: value for name, value in case.items() if name != "num_views"}
    return order_views(*_random_inputs(case["num_views"], case["seed"]), **arguments)


@settings(max_examples=150, deadline=None)
@given(_cases())
def test_invariants_of_every_order(case):
    views = _order(case)
    num_train = len(case["train_views"])
    assert views.shape == (case["num_steps"], case["batch"]) and views.dtype == np.int32
    for batch in views:
        assert len(set(batch.tolist())) == case["batch"]
    sequence = views.ravel()
    for first in range(0, len(sequence), num_train):
        epoch = sequence[first : first + num_train].tolist()
        assert len(set(epoch)) == len(epoch)
        if len(epoch) == num_train:
            assert sorted(epoch) == case["train_views"].tolist()
    np.testing.assert_array_equal(views, _order(case))


@settings(max_examples=60, deadline=None)
@given(_cases())
def test_no_view_moves_further_than_the_pool(case):
    views = _order(case)
    num_train = len(case["train_views"])
    pool = case["pool"] or max(64, 16 * case["batch"])
    allowed = max(1 if case["ordering"] == "random" else pool, case["batch"]) + case["batch"]
    epochs = -(-views.size // num_train)
    for epoch, permutation in enumerate(epoch_permutations(case["train_views"], epochs, case["seed"])):
        visited = views.ravel()[epoch * num_train : (epoch + 1) * num_train].tolist()
        place = {view: i for i, view in enumerate(permutation.tolist())}
        assert all(abs(place[view] - i) <= allowed for i, view in enumerate(visited))


def test_random_order_is_the_seeded_permutation():
    train_views = np.arange(12, dtype=np.int32)
    views = order_views(
        *_random_inputs(12, 0), train_views=train_views, num_steps=6, batch=4, seed=5, ordering="random"
    )
    np.testing.assert_array_equal(views.ravel(), epoch_permutations(train_views, 2, 5).ravel())


def test_other_seeds_give_other_orders():
    orders = {
        order_views(
            *_random_inputs(12, 0), train_views=np.arange(12), num_steps=6, batch=4, seed=seed, ordering=ordering
        ).tobytes()
        for seed in range(4)
        for ordering in ("greedy", "random")
    }
    assert len(orders) == 8


def test_the_global_random_state_is_neither_read_nor_changed():
    np.random.seed(1)
    before = np.random.get_state()[1].copy()
    first = order_views(*_random_inputs(9, 0), train_views=np.arange(9), num_steps=9, batch=2, seed=1)
    np.testing.assert_array_equal(np.random.get_state()[1], before)
    np.random.seed(2)
    second = order_views(*_random_inputs(9, 0), train_views=np.arange(9), num_steps=9, batch=2, seed=1)
    np.testing.assert_array_equal(first, second)


def test_slot_separation_counts_the_rank_numbers_that_part_two_slots():
    np.testing.assert_array_equal(slot_separation(1), [[1.0]])
    np.testing.assert_array_equal(slot_separation(2), [[0, 1], [1, 0]])
    np.testing.assert_array_equal(slot_separation(4), [[0, 0.5, 1, 1], [0.5, 0, 1, 1], [1, 1, 0, 0.5], [1, 1, 0.5, 0]])
    assert slot_separation(8)[0].tolist() == [0, 1 / 3, 2 / 3, 2 / 3, 1, 1, 1, 1]
    assert slot_separation(3)[0].tolist() == [0, 0, 1]  # two ranks: slots 0 and 1 together


def test_slots_keep_to_their_cluster(scenes):
    """With two clusters and batches of two, each slot stays with one cluster: no conflict is left but at the ends."""
    prediction = predict(scenes.two_clusters(views_each=8))
    views = order_views(
        prediction.conflict,
        prediction.locality,
        prediction.costs,
        train_views=np.arange(16),
        num_steps=8,
        batch=2,
        seed=0,
    )
    assert len(set((views[:, 0] % 2).tolist())) == 1
    assert len(set((views[:, 1] % 2).tolist())) == 1
    assert views[0, 0] % 2 != views[0, 1] % 2


def test_lookalikes_do_not_share_a_batch():
    likeness = np.zeros((8, 8))
    likeness[::2, 1::2][np.diag_indices(4)] = likeness[1::2, ::2][np.diag_indices(4)] = 1.0  # pairs 0-1, 2-3, ...
    empty = sp.csr_matrix((8, 8))
    views = order_views(
        empty, sp.csr_matrix(likeness), np.ones(8), train_views=np.arange(8), num_steps=40, batch=2, seed=0
    )
    full_choice = views[np.arange(40) % 4 < 3]  # the last batch of an epoch has no choice left
    assert (full_choice[:, 0] // 2 != full_choice[:, 1] // 2).all()


def test_balance_brings_equal_costs_together():
    costs = np.tile([1.0, 3.0], 8)
    empty = sp.csr_matrix((16, 16))
    spread = {}
    for balance in (0.0, 1.0):
        views = order_views(
            *(empty, empty, costs),
            train_views=np.arange(16),
            num_steps=40,
            batch=2,
            seed=0,
            weights=OrderWeights(balance=balance),
        )
        spread[balance] = np.abs(np.diff(costs[views], axis=1)).mean()
    assert spread[1.0] == 0.0 < spread[0.0]


def _cross_slot_conflict(views, conflict):
    """What the order minimises with K = 1 and batches of two, summed over steps."""
    return sum(conflict[views[s, b], views[s - 1, 1 - b]] for s in range(1, len(views)) for b in (0, 1))


def test_greedy_against_brute_force_on_six_views():
    """Over 40 random instances of one epoch (720 orders each) greedy gets well over half of the possible gain."""
    weights = OrderWeights(depth=1, same_rank=0.0, within_step=0.0, balance=0.0, keep_place=0.0)
    orders = [np.array(order).reshape(3, 2) for order in itertools.permutations(range(6))]
    gains = []
    for seed in range(40):
        conflict, locality, costs = _random_inputs(6, seed)
        values = [_cross_slot_conflict(order, conflict.toarray()) for order in orders]
        views = order_views(
            conflict, locality, costs, train_views=np.arange(6), num_steps=3, batch=2, seed=seed, weights=weights
        )
        greedy = _cross_slot_conflict(views, conflict.toarray())
        assert greedy >= min(values) - 1e-9
        gains.append((np.mean(values) - greedy) / (np.mean(values) - min(values)))
    assert np.mean(gains) > 0.5, f"mean share of the possible gain: {np.mean(gains):.2f}"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch": 9}, "batch = 9, but the scene has 8 training views"),
        ({"batch": 0}, "allowed are 1 to 8"),
        ({"num_steps": 0}, "num_steps = 0"),
        ({"ordering": "sorted"}, "allowed are 'greedy', 'random'"),
        ({"pool": 0}, "pool = 0"),
    ],
)
def test_refusals_say_what_is_allowed(change, words):
    arguments = {"train_views": np.arange(8), "num_steps": 3, "batch": 2, "seed": 0} | change
    with pytest.raises(ValueError) as error:
        order_views(*_random_inputs(8, 0), **arguments)
    assert words in str(error.value)
