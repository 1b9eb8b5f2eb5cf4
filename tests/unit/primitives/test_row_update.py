import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from odin.primitives.primitive_set import COLUMNS, GRAD2D, ROW_FLOATS, fresh
from odin.primitives.row_update import (
    ABSENT,
    SEEN_ONLY,
    AdamSettings,
    advance,
    advance_idle,
    index_gradients,
    step_table,
)

RATES = {"means": 1.6e-4, "quats": 1e-3, "scales": 5e-3, "opacities": 5e-2, "sh0": 2.5e-3, "shN": 1.25e-4}


def adam(batch=1, **changes):
    return AdamSettings(**{"learning_rates": RATES, "means_decay": 0.01, "batch": batch} | changes)


def random_set(num, seed):
    rng = np.random.default_rng(seed)
    rows = np.zeros((num, ROW_FLOATS), np.float32)
    rows[:, :59] = rng.normal(size=(num, 59))
    return fresh(rows)


class Ring:
    """All steps' gradients at once (a ring as long as the run), to drive `advance` by hand."""

    def __init__(self, num_steps, batch, num, seed, density=0.3):
        rng = np.random.default_rng(seed)
        self.at = np.full((num_steps + 1, batch, num), ABSENT, np.int32)
        self.gradients = np.zeros((num_steps + 1, batch, num, ROW_FLOATS), np.float32)
        self.ids = {}
        for step in range(1, num_steps + 1):
            for b in range(batch):
                ids = np.flatnonzero(rng.random(num) < density).astype(np.int32)
                touched = len(ids) // 2
                self.gradients[step, b, :touched, :60] = rng.normal(size=(touched, 60)) * 10.0 ** rng.integers(-6, 3)
                self.gradients[step, b, :touched, GRAD2D] = np.abs(self.gradients[step, b, :touched, GRAD2D])
                assert index_gradients(ids, len(ids), touched, step, np.zeros(num, np.int64), self.at[step, b]) == -1
                self.ids[step, b] = ids


def run(primitives, ring, num_steps, table, order):
    for target, ids in order:
        ids = np.ascontiguousarray(ids, np.int32)
        advance(primitives, ids, len(ids), target, 0, ring.at, ring.gradients, table)
    everything = np.arange(len(primitives), dtype=np.int32)
    advance(primitives, everything, len(everything), num_steps, 0, ring.at, ring.gradients, table)
    return primitives


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.lists(st.integers(0, 10), max_size=12))
def test_deferred_steps_give_the_bits_of_every_step(seed, batch, targets):
    num, num_steps = 17, 10
    table = step_table(adam(batch), num_steps)
    ring = Ring(num_steps, batch, num, seed)
    every_step = [(t, np.arange(num)) for t in range(1, num_steps + 1)]
    rng = np.random.default_rng(seed)
    some = [(t, np.flatnonzero(rng.random(num) < 0.5)) for t in targets]
    a = run(random_set(num, seed), ring, num_steps, table, every_step)
    b = run(random_set(num, seed), ring, num_steps, table, some)
    for name, array in a.arrays().items():
        assert array.tobytes() == b.arrays()[name].tobytes(), name


def test_idle_steps_below_flushed_match_steps_without_gradient():
    num_steps, table = 40, step_table(adam(4), 40)
    a, b = random_set(9, 1), random_set(9, 1)
    for p in (a, b):
        p.exp_avg[:5] = 0.1
        p.exp_avg_sq[:5] = 0.01
    ring = Ring(num_steps, 1, 9, 0, density=0.0)
    run(a, ring, num_steps, table, [])
    advance_idle(b, num_steps, table)
    assert a.rows.tobytes() == b.rows.tobytes() and a.exp_avg.tobytes() == b.exp_avg.tobytes()
    assert (b.version == num_steps).all()


def test_a_gradient_whose_square_underflows_still_moves_the_row_when_idle():
    table = step_table(adam(1), 30)
    at = np.full((31, 1, 2), ABSENT, np.int32)
    at[1, 0] = 0
    gradients = np.zeros((31, 1, 1, ROW_FLOATS), np.float32)
    gradients[1, 0, 0, :59] = 1e-24
    ids = np.arange(2, dtype=np.int32)
    at_once, in_two = (fresh(np.zeros((2, ROW_FLOATS), np.float32)) for _ in range(2))
    advance(at_once, ids, 2, 30, 0, at, gradients, table)
    advance(in_two, ids, 2, 1, 0, at, gradients, table)
    assert (in_two.exp_avg_sq == 0).all() and (in_two.exp_avg[:, :59] != 0).all()
    early = in_two.rows.copy()
    advance_idle(in_two, 30, table)
    assert at_once.rows.tobytes() == in_two.rows.tobytes()
    assert early.tobytes() != in_two.rows.tobytes()


def test_agrees_with_torch_adam_within_rounding():
    num, num_steps = 50, 30
    config = adam(1, means_decay=1.0)
    table = step_table(config, num_steps)
    ring = Ring(num_steps, 1, num, 3, density=1.0)
    ours = run(random_set(num, 3), ring, num_steps, table, [])
    start = random_set(num, 3)
    params = {k: torch.nn.Parameter(torch.tensor(start.rows[:, c])) for k, c in COLUMNS.items()}
    optimizer = torch.optim.Adam([{"params": [params[k]], "lr": RATES[k]} for k in COLUMNS], eps=1e-15)
    for step in range(1, num_steps + 1):
        for name, cols in COLUMNS.items():
            at = ring.at[step, 0]
            gradient = np.zeros((num, cols.stop - cols.start), np.float32)
            gradient[at >= 0] = ring.gradients[step, 0, at[at >= 0]][:, cols]
            params[name].grad = torch.tensor(gradient)
        optimizer.step()
    for name, cols in COLUMNS.items():
        np.testing.assert_allclose(ours.rows[:, cols], params[name].detach().numpy(), rtol=2e-5, atol=2e-6)


def test_statistics_count_views_and_add_screen_gradients_in_batch_order():
    table = step_table(adam(2), 2)
    p = random_set(3, 0)
    at = np.full((4, 2, 3), ABSENT, np.int32)
    gradients = np.zeros((4, 2, 3, ROW_FLOATS), np.float32)
    gradients[1, 0, 0, GRAD2D], gradients[1, 1, 0, GRAD2D], gradients[2, 1, 0, GRAD2D] = 0.5, 0.25, 2.0
    at[1, 0, 1] = at[1, 1, 1] = at[2, 1, 1] = 0
    at[2, 0, 2] = SEEN_ONLY
    ids = np.arange(3, dtype=np.int32)
    advance(p, ids, 3, 2, 0, at, gradients, table)
    np.testing.assert_array_equal(p.stats, [[0, 0], [2.75, 3], [0, 1]])
    assert (p.exp_avg[:, GRAD2D] == 0).all()


def test_a_gradient_for_a_row_already_advanced_is_reported():
    version = np.array([0, 5, 4], np.int64)
    at = np.full(3, ABSENT, np.int32)
    assert index_gradients(np.array([0, 2, 1], np.int32), 3, 3, 5, version, at) == 1


def test_batch_rule_is_grendels():
    config = adam(4)
    assert config.betas == (0.9**4, 0.999**4)
    assert config.effective_eps == pytest.approx(0.5e-15)
    rates = config.rates(10)
    assert rates[1, 10] == pytest.approx(0.1) and rates[1, 0] == pytest.approx(3.2e-4)
    assert rates[10, 0] == pytest.approx(3.2e-4 * 0.01 ** (9 / 10))
    table = step_table(config, 3)
    assert table.step_sizes[2, 3] == np.float32(2e-3 / (1 - 0.9**8))


def test_betas_without_a_bound_are_refused():
    with pytest.raises(ValueError, match="beta1"):
        step_table(adam(1, beta1=0.99, beta2=0.9), 3)


@pytest.mark.parametrize("batch", [1, 4, 16])
@pytest.mark.parametrize("growth", ["worst", "constant", "impulse", "random"])
def test_movement_bound_holds_for_growing_gradients(batch, growth):
    """The worst case grows by b2 / b1 a step; random walks never come near it."""
    num_steps, start = 60, 20
    config = adam(batch, means_decay=1.0)
    table = step_table(config, num_steps)
    b1, b2 = config.betas
    rng = np.random.default_rng(0)
    p = fresh(np.zeros((1, ROW_FLOATS), np.float32))
    at = np.zeros((num_steps + 1, 1, 1), np.int32)
    gradients = np.zeros((num_steps + 1, 1, 1, ROW_FLOATS), np.float32)
    for s in range(1, num_steps + 1):
        value = {
            "worst": 1e-10 * (b2 / b1) ** s,
            "constant": 1.0,
            "impulse": float(s == num_steps // 2),
            "random": rng.normal() * 10.0 ** rng.uniform(-3, 3),
        }[growth]
        gradients[s, 0, 0, :59] = value
    ids = np.zeros(1, np.int32)
    largest = 0.0
    before = p.rows.copy()
    for s in range(1, num_steps + 1):
        advance(p, ids, 1, s, 0, at, gradients, table)
        for column, lane in enumerate((0, 7, 10)):
            moved = abs(float(p.rows[0, lane] - before[0, lane]))
            bound = table.reach[s, column] - table.reach[s - 1, column]
            assert moved <= bound, (s, lane)
            if s > start:
                largest = max(largest, moved / bound)
        before = p.rows.copy()
    if growth == "worst":
        assert largest > 0.9  # the bound is tight, so a looser formula would be noticed
    rest = p.rows.copy()
    advance_idle(p, num_steps, table)
    assert p.rows.tobytes() == rest.tobytes()


def test_idle_bound_holds_after_the_worst_history():
    num_steps, busy = 400, 100
    config = adam(1, means_decay=1.0)
    table = step_table(config, num_steps)
    b1, b2 = config.betas
    at = np.full((num_steps + 1, 1, 1), ABSENT, np.int32)
    at[1 : busy + 1] = 0
    gradients = np.zeros((num_steps + 1, 1, 1, ROW_FLOATS), np.float32)
    gradients[1 : busy + 1, 0, 0, :59] = (1e-10 * (b2 / b1) ** np.arange(1, busy + 1))[:, None]
    p = fresh(np.zeros((1, ROW_FLOATS), np.float32))
    ids = np.zeros(1, np.int32)
    advance(p, ids, 1, busy, 0, at, gradients, table)
    before = p.rows.copy()
    advance(p, ids, 1, num_steps, 0, at, gradients, table)
    for column, lane in enumerate((0, 7, 10)):
        moved = abs(float(p.rows[0, lane] - before[0, lane]))
        assert moved <= table.idle_reach[column]
        assert math.isfinite(moved) and moved > 0.3 * table.idle_reach[column]
