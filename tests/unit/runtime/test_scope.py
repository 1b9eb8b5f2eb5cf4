"""Scopes hold every row that the renderer draws, whatever admissible updates happened in between."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odin.data.scene import Camera
from odin.pipelines.gaussian_rows import activate_rows
from odin.primitives.primitive_set import ROW_FLOATS, fresh
from odin.primitives.row_update import AdamSettings, advance, step_table
from odin.rendering.cpu.renderer import CpuRenderer
from odin.rendering.interface import Gaussians, RenderSettings
from odin.runtime.bitset import list_members, num_words
from odin.runtime.scope import ScopeIndex, view_planes

NUM, STEPS = 700, 30
RATES = {"means": 0.05, "quats": 1e-2, "scales": 0.05, "opacities": 0.2, "sh0": 2.5e-3, "shN": 1e-4}


def random_rows(rng):
    rows = np.zeros((NUM, ROW_FLOATS), np.float32)
    rows[:, :3] = rng.normal(size=(NUM, 3)) * rng.choice([0.5, 3.0, 20.0])
    rows[:, 3:7] = rng.normal(size=(NUM, 4))
    rows[:, 7:10] = rng.normal(-3, 1.5, size=(NUM, 3))
    rows[:, 10] = rng.normal(-2, 3, size=NUM)
    return rows


def random_camera(rng):
    rotation, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    rotation *= np.linalg.det(rotation)
    viewmat = np.eye(4)
    viewmat[:3, :3], viewmat[:3, 3] = rotation, rng.normal(size=3) * [1, 1, 3]
    width, height = int(rng.integers(5, 200)), int(rng.integers(5, 200))
    focal = rng.uniform(0.3, 3) * width
    centre = rng.uniform(0.2, 0.8, 2) * [width, height]
    K = np.array([[focal, 0, centre[0]], [0, focal * rng.uniform(0.8, 1.2), centre[1]], [0, 0, 1]])
    return Camera(viewmat=viewmat, K=K, width=width, height=height)


def scope(index, planes, num=NUM):
    """Bits and ascending ids of a view's scope."""
    bits, ids = np.zeros(num_words(num), np.uint64), np.empty(num, np.int32)
    index.select(planes, bits)
    return bits, ids[: list_members(bits, ids)]


def drawn(rows, camera):
    """Rows with a positive radius."""
    n = len(rows)
    g = Gaussians(
        means=np.empty((n, 3), np.float32), quats=np.empty((n, 4), np.float32), scales=np.empty((n, 3), np.float32),
        opacities=np.empty(n, np.float32), sh=np.empty((n, 16, 3), np.float32),
    )  # fmt: skip
    activate_rows(np.arange(n, dtype=np.int32), rows, g.means, g.quats, g.scales, g.opacities, g.sh)
    splats = CpuRenderer().project(g, camera, RenderSettings(sh_degree=0))
    return np.flatnonzero(splats.radii[:, 0] > 0)


def gradients(rng, kind, batch, b1, b2):
    """Gradient histories [STEPS + 1, NUM, 64]: random ones, and the growing ones that move rows furthest."""
    g = np.zeros((STEPS + 1, 1, NUM, ROW_FLOATS), np.float32)
    direction = np.sign(rng.normal(size=(NUM, 59)))
    for step in range(1, STEPS + 1):
        if kind == "growing":
            g[step, 0, :, :59] = direction * 1e-8 * (b2 / b1) ** step
        else:
            g[step, 0, :, :59] = rng.normal(size=(NUM, 59))
    return g


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["growing", "random"]), st.integers(0, 8), st.integers(0, 12))
def test_scope_holds_every_drawn_row_after_any_admissible_updates(seed, kind, lag, idle):
    """Rows are held at random versions; the scope must hold for the rows as they are at the target version."""
    rng = np.random.default_rng(seed)
    config = AdamSettings(learning_rates=RATES, means_decay=1.0, batch=4)
    table = step_table(config, STEPS)
    at = np.zeros((STEPS + 1, 1, NUM), np.int32)
    at[:, 0] = np.arange(NUM)
    everything = np.arange(NUM, dtype=np.int32)
    history = gradients(rng, kind, 4, *config.betas)
    flushed, target = STEPS - 8, STEPS - 8 + lag
    # the last `idle` steps up to `flushed` brought no gradient, so rows may lag behind `flushed`
    at[flushed - idle + 1 : flushed + 1] = -1
    held = fresh(random_rows(rng))
    advance(held, everything, NUM, flushed - idle, 0, at, history, table)
    some = np.flatnonzero(rng.random(NUM) < 0.5).astype(np.int32)
    advance(held, some, len(some), int(rng.integers(flushed - idle, target + 1)), 0, at, history, table)
    index = ScopeIndex(held, table)
    index.refresh(flushed=flushed, target=target)
    camera = random_camera(rng)
    planes = view_planes(camera, RenderSettings())
    bits, ids = scope(index, planes)
    index.narrow(planes, bits, flushed=flushed, target=target)
    narrow = np.empty(NUM, np.int32)
    narrow = narrow[: list_members(bits, narrow)]
    assert set(narrow.tolist()) <= set(ids.tolist())
    for version in {target, max(flushed, target - 2)}:
        later = held.take(everything)
        advance(later, everything, NUM, version, 0, at, history, table)
        seen = drawn(later.rows, camera)
        assert set(seen) <= set(narrow.tolist())


def test_scope_is_not_everything():
    """A scope that held all rows would pass the test above."""
    rng = np.random.default_rng(0)
    table = step_table(AdamSettings(learning_rates=RATES, means_decay=1.0, batch=4), STEPS)
    inside = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        rows = random_rows(rng)
        rows[:, 7:10] = -5
        held = fresh(rows)
        index = ScopeIndex(held, table)
        index.refresh(flushed=0, target=0)
        camera = random_camera(rng)
        _, ids = scope(index, view_planes(camera, RenderSettings()))
        inside.append((len(ids), len(drawn(rows, camera))))
    held, seen = np.sum(inside, axis=0)
    assert seen <= held <= 1.3 * seen + 20


def test_rows_too_faint_to_be_drawn_are_left_out_until_they_may_brighten():
    rows = np.zeros((1, ROW_FLOATS), np.float32)
    rows[0, 2], rows[0, 3], rows[0, 7:10], rows[0, 10] = 5, 1, -2, -8
    table = step_table(AdamSettings(learning_rates=RATES, means_decay=1.0, batch=4), STEPS)
    camera = Camera(viewmat=np.eye(4), K=np.array([[50.0, 0, 20], [0, 50, 20], [0, 0, 1]]), width=40, height=40)
    planes = view_planes(camera, RenderSettings())
    index = ScopeIndex(fresh(rows), table)
    index.refresh(flushed=0, target=0)
    assert len(scope(index, planes, 1)[1]) == 0
    index.refresh(flushed=0, target=STEPS)
    assert len(scope(index, planes, 1)[1]) == 1


@pytest.mark.parametrize("num", [0, 1, 127, 128, 129])
def test_any_number_of_rows(num):
    rows = np.zeros((num, ROW_FLOATS), np.float32)
    rows[:, 2], rows[:, 3], rows[:, 10] = 5, 1, 3
    table = step_table(AdamSettings(learning_rates=RATES, means_decay=1.0, batch=4), STEPS)
    camera = Camera(viewmat=np.eye(4), K=np.array([[50.0, 0, 20], [0, 50, 20], [0, 0, 1]]), width=40, height=40)
    index = ScopeIndex(fresh(rows), table)
    index.refresh(flushed=0, target=0)
    assert scope(index, view_planes(camera, RenderSettings()), num)[1].tolist() == list(range(num))


def test_rows_that_are_not_finite_do_no_harm_to_their_neighbours():
    rows = np.zeros((64, ROW_FLOATS), np.float32)
    rows[:, 2], rows[:, 3], rows[:, 10] = 5, 1, 3
    rows[7, 0], rows[8, 7:10], rows[9, 10], rows[10, 7:10] = np.nan, np.nan, np.nan, 100
    table = step_table(AdamSettings(learning_rates=RATES, means_decay=1.0, batch=4), STEPS)
    camera = Camera(viewmat=np.eye(4), K=np.array([[50.0, 0, 20], [0, 50, 20], [0, 0, 1]]), width=40, height=40)
    index = ScopeIndex(fresh(rows), table)
    index.refresh(flushed=0, target=0)
    assert set(range(64)) - {7, 8, 9} <= set(scope(index, view_planes(camera, RenderSettings()), 64)[1].tolist())
