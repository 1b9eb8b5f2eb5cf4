"""Whole plans: worth against random order, independence of ranks, and measures against plain Python."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odin.schedule.build import make_plan, predict, with_ranks
from odin.schedule.explain import explain
from odin.schedule.measures import displacement, held_shares, imbalance
from odin.schedule.validation import validate_plan

SHA = "0" * 64


@pytest.fixture(scope="module")
def clusters(scenes):
    scene = scenes.two_clusters(views_each=12)
    return scene, predict(scene)


def _plan(clusters, **changes):
    scene, prediction = clusters
    arguments = {"scene_sha256": SHA, "batch": 4, "ranks": 2, "num_steps": 60, "seed": 1, "prediction": prediction}
    return make_plan(scene, **(arguments | changes))


def _same(a, b):
    for field in dataclasses.fields(a):
        left, right = getattr(a, field.name), getattr(b, field.name)
        if isinstance(left, np.ndarray):
            np.testing.assert_array_equal(left, right, err_msg=field.name, strict=True)
        else:
            assert left == right, field.name


def test_greedy_beats_random_clearly_on_two_clusters(clusters):
    measures = _plan(clusters, num_steps=200).measures
    for distance in ("1 back", "2 back"):
        sides = measures[f"cross-rank conflict, scopes, {distance}"]
        assert sides["random"]["mean"] > 0.6
        assert sides["plan"]["mean"] < 0.25 * sides["random"]["mean"]
    overlap = measures["same-rank overlap, scopes, 1 back"]
    assert overlap["plan"]["mean"] > overlap["random"]["mean"]
    assert measures["places moved in the epoch"]["plan"]["mean"] > 0


def test_windows_open_where_clusters_are_kept_apart(clusters):
    greedy, random = (_plan(clusters, num_steps=200, ordering=ordering) for ordering in ("greedy", "random"))
    assert len(greedy.windows) < 0.6 * len(random.windows)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9), st.integers(1, 12), st.integers(0, 99), st.booleans(), st.sampled_from(["greedy", "random"]))
def test_batches_do_not_depend_on_the_number_of_ranks(clusters, batch, ranks, seed, balance, ordering):
    arguments = {"batch": batch, "seed": seed, "ordering": ordering, "num_steps": 12, "structural_steps": (5, 8)}
    one = _plan(clusters, ranks=1, **arguments)
    many = _plan(clusters, ranks=ranks, balance=balance, **arguments)
    np.testing.assert_array_equal(one.views, many.views)
    validate_plan(many, clusters[0], SHA)
    _same(many, with_ranks(one, ranks, clusters[0], balance=balance, prediction=clusters[1]))
    assert (one.conflicts == 0).all() and (many.rank_of < ranks).all()


def test_the_same_arguments_give_the_same_plan(clusters):
    _same(_plan(clusters), _plan((clusters[0], predict(clusters[0]))))


def test_conflicts_by_hand(clusters):
    """All views of one ball hold all of it, so a unit's share is 1 where another rank had its ball, else 0."""
    plan = _plan(clusters, ordering="random", num_steps=20)
    cluster = plan.views % 2
    for step in range(20):
        for k in range(1, min(4, step) + 1):
            held = [
                any(
                    cluster[step - k, c] == cluster[step, b] and plan.rank_of[step - k, c] != plan.rank_of[step, b]
                    for c in range(4)
                )
                for b in range(4)
            ]
            assert plan.conflicts[step, k - 1] == pytest.approx(np.mean(held))


def test_shares_equal_set_arithmetic(scenes):
    scene = scenes.line_of_views(12)
    incidence = predict(scene).scopes.incidence
    generator = np.random.default_rng(0)
    views = np.stack([generator.permutation(12)[:3] for _ in range(9)]).astype(np.int32)
    rank_of = np.stack([generator.permutation(3) for _ in range(9)]).astype(np.int16)
    shares = held_shares(incidence, views, rank_of, 2)
    sets = [dict(zip(incidence[v].indices.tolist(), incidence[v].data.tolist(), strict=True)) for v in range(12)]

    def share(view, others):
        held = set().union(*(sets[other] for other in others))
        return sum(points for block, points in sets[view].items() if block in held) / sum(sets[view].values())

    for s in range(2, 9):
        for b in range(3):
            view, rank = views[s, b], rank_of[s, b]
            for k in (1, 2):
                assert shares.cross_rank[s, b, k - 1] == pytest.approx(
                    share(view, views[s - k][rank_of[s - k] != rank]), abs=1e-5
                )
            assert shares.same_rank[s, b] == pytest.approx(share(view, views[s - 1][rank_of[s - 1] == rank]), abs=1e-5)
            assert shares.within_step[s, b] == pytest.approx(share(view, np.delete(views[s], b)), abs=1e-5)


def test_imbalance_and_displacement_by_hand():
    rank_of = np.array([[0, 0, 1, 1], [0, 0, 1, 1]])
    costs = np.array([[1.0, 1, 3, 3], [3.0, 3, 1, 1]])
    assert imbalance(rank_of, costs, 2) == {"per step": 1.5, "whole plan": 1.0}
    order = np.random.Generator(np.random.PCG64(0)).permutation(np.arange(4, dtype=np.int32))
    moved = order[[1, 0, 2, 3]].reshape(2, 2)
    assert displacement(moved, np.arange(4), 0) == {"mean": 0.5, "max": 1.0}


def test_structural_steps_cut_phases_and_windows(clusters):
    plan = _plan(clusters, ranks=1, num_steps=10, structural_steps=(3, 7, 10, 50))
    assert plan.structural_steps == (3, 7)
    assert plan.phases.tolist() == [[1, 3], [4, 7], [8, 10]]
    assert plan.windows.tolist() == [[1, 3], [4, 7], [8, 10]]


def test_explain_names_views_and_both_orders(clusters):
    scene, prediction = clusters
    text = explain(_plan(clusters), scene, prediction=prediction)
    assert "60 steps of 4 views on 2 ranks" in text and "random" in text
    assert scene.names[int(_plan(clusters).views[0, 0])] in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch": 25}, "the scene has 24 training views"),
        ({"ranks": 0}, "ranks = 0"),
        ({"num_steps": 0}, "num_steps = 0"),
        ({"depth": 0}, "depth = 0"),
        ({"seed": -1}, "seed = -1"),
        ({"structural_steps": (4, 2)}, "ascending"),
    ],
)
def test_refusals(clusters, changes, words):
    with pytest.raises(ValueError) as error:
        _plan(clusters, **changes)
    assert words in str(error.value)
