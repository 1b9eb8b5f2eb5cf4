"""Rows to activated Gaussians and back, against torch; the screen gradient against gsplat."""

import numpy as np
import pytest
import torch
from gsplat.strategy import DefaultStrategy
from pipeline_scenes import HEIGHT, WIDTH

from odin.pipelines.gs3d import GaussianSplatting
from odin.primitives.primitive_set import COLUMNS, GRAD2D
from odin.rendering.interface import Gaussians, SplatGradients, Splats

PIPELINE = GaussianSplatting()
FIELDS = ("means", "quats", "scales", "opacities", "sh")


def random_rows(num, seed=0):
    rng = np.random.default_rng(seed)
    rows = np.zeros((num, 64), np.float32)
    rows[:, :59] = rng.normal(size=(num, 59)) * 3
    return rows


def buffers(num, fill=np.nan):
    shapes = {"means": (num, 3), "quats": (num, 4), "scales": (num, 3), "opacities": (num,), "sh": (num, 16, 3)}
    return Gaussians(**{name: np.full(shape, fill, np.float32) for name, shape in shapes.items()})


def activate(ids, rows):
    out = buffers(len(ids))
    PIPELINE.activate(np.asarray(ids, np.int32), rows, out)
    return out


class Unit:
    """Random upstream gradients of a unit that reads rows `ids`."""

    def __init__(self, ids, rows, seed=1):
        rng = np.random.default_rng(seed)
        num = len(ids)
        self.ids, self.gaussians = np.asarray(ids, np.int32), activate(ids, rows)
        self.gradients = buffers(num)
        for name in FIELDS:
            array = getattr(self.gradients, name)
            array[:] = rng.normal(size=array.shape)
        radii = np.repeat(rng.integers(0, 3, (num, 1)), 2, axis=1).astype(np.int32)
        touched = np.where(radii[:, 0] > 0, rng.integers(0, 4, num), 0).astype(np.int32)
        zeros = np.zeros((num, 3), np.float32)
        self.splats = Splats(
            radii=radii, means2d=zeros[:, :2], depths=zeros[:, 0], conics=zeros, opacities=zeros[:, 0], colors=zeros
        )
        self.splat_gradients = SplatGradients(
            means2d=rng.normal(size=(num, 2)).astype(np.float32) * (touched[:, None] > 0),
            conics=zeros, opacities=zeros[:, 0], colors=zeros, touched=touched,
        )  # fmt: skip

    def take(self, index):
        """The same unit with only some of its rows, in another order."""
        part = object.__new__(Unit)
        part.ids = self.ids[index]
        for name in ("gaussians", "gradients", "splats", "splat_gradients"):
            whole = getattr(self, name)
            arrays = {f: np.ascontiguousarray(getattr(whole, f)[index]) for f in whole.__dataclass_fields__}
            setattr(part, name, type(whole)(**arrays))
        return part

    def row_gradients(self, scale=(1.0, 1.0)):
        num = len(self.ids)
        ids, gradients = np.full(num, -7, np.int32), np.full((num, 64), np.nan, np.float32)
        seen, touched = PIPELINE.row_gradients(
            self.ids, self.gaussians, self.gradients, self.splats, self.splat_gradients, scale, ids, gradients
        )
        return ids, gradients, seen, touched


def test_activation_is_torchs():
    rows = random_rows(40)
    ids = np.random.default_rng(2).permutation(40)[:25]
    out, read = activate(ids, rows), torch.tensor(rows[ids])
    np.testing.assert_array_equal(out.means, read[:, COLUMNS["means"]])
    np.testing.assert_array_equal(out.quats, read[:, COLUMNS["quats"]])
    np.testing.assert_allclose(out.scales, torch.exp(read[:, COLUMNS["scales"]]), rtol=3e-7)
    np.testing.assert_allclose(out.opacities, torch.sigmoid(read[:, 10]), rtol=3e-7)
    np.testing.assert_array_equal(out.sh.reshape(25, 48), read[:, 11:59])


def test_activation_of_extreme_rows_is_what_a_limit_would_be():
    rows = random_rows(3)
    rows[:, 7], rows[:, 10] = (-200, 200, 0), (-200, 200, 0)
    out = activate(range(3), rows)
    np.testing.assert_array_equal(out.scales[:, 0], np.array([0, np.inf, 1], np.float32))
    np.testing.assert_array_equal(out.opacities, np.array([0, 1, 0.5], np.float32))


def test_an_activated_row_does_not_depend_on_its_company():
    rows = random_rows(200)
    together = activate(np.arange(200), rows)
    rng = np.random.default_rng(0)
    for size in (1, 3, 8, 61):
        ids = rng.permutation(200)[:size]
        alone = activate(ids, rows)
        for name in FIELDS:
            assert getattr(alone, name).tobytes() == getattr(together, name)[ids].tobytes(), name


def test_gradients_are_torchs_through_the_activations():
    ids, rows = np.arange(3, 90, 2), random_rows(100)
    unit = Unit(ids, rows)
    out_ids, out, _, touched = unit.row_gradients()
    leaf = torch.tensor(rows[ids], dtype=torch.float64, requires_grad=True)
    activated = [leaf[:, :3], leaf[:, 3:7], leaf[:, 7:10].exp(), leaf[:, 10].sigmoid(), leaf[:, 11:59]]
    upstream = [torch.tensor(getattr(unit.gradients, name), dtype=torch.float64) for name in FIELDS]
    upstream[4] = upstream[4].reshape(len(ids), 48)
    torch.autograd.backward(activated, upstream)
    expected = leaf.grad.numpy()[np.searchsorted(ids, out_ids[:touched])]
    assert touched > 20
    np.testing.assert_allclose(out[:touched, :59], expected[:, :59], rtol=2e-6, atol=1e-7)


def test_touched_rows_come_first_then_rows_only_seen():
    ids, rows = np.arange(3, 90, 2), random_rows(100)
    unit = Unit(ids, rows)
    out_ids, out, seen, touched = unit.row_gradients()
    visible, hit = unit.splats.radii[:, 0] > 0, unit.splat_gradients.touched > 0
    np.testing.assert_array_equal(out_ids[:touched], ids[hit])
    np.testing.assert_array_equal(out_ids[touched:seen], ids[visible & ~hit])
    assert 0 < touched < seen < len(ids)
    # nothing is written beyond what is counted; spare floats of written rows hold the norm and zeros
    assert (out_ids[seen:] == -7).all() and np.isnan(out[touched:]).all()
    assert np.isfinite(out[:touched]).all() and (out[:touched, GRAD2D + 1 :] == 0).all()


def test_a_row_gradient_does_not_depend_on_its_company():
    unit = Unit(np.arange(100), random_rows(100))
    ids, whole, _, touched = unit.row_gradients((30.5, 22.5))
    of = dict(zip(ids[:touched].tolist(), map(bytes, whole[:touched]), strict=True))
    for seed in range(4):
        index = np.sort(np.random.default_rng(seed).permutation(100)[:37])
        part_ids, part, _, num = unit.take(index).row_gradients((30.5, 22.5))
        assert num > 5
        for row_id, row in zip(part_ids[:num].tolist(), part[:num], strict=True):
            assert of[row_id] == row.tobytes()


def test_a_unit_without_visible_rows_delivers_nothing():
    unit = Unit(np.arange(5), random_rows(5))
    unit.splats.radii[:] = 0
    assert unit.row_gradients()[2:] == (0, 0)
    assert Unit(np.arange(0), random_rows(5)).row_gradients()[2:] == (0, 0)


@pytest.mark.parametrize("batch", [1, 3])
def test_screen_gradients_and_counts_are_gsplats(batch):
    """Each unit differentiates its share 1 / B of the batch's loss, as gsplat's mean over cameras does."""
    num, rows = 60, random_rows(60)
    units = [Unit(np.arange(num), rows, seed) for seed in range(batch)]
    share = np.float32(1 / batch)
    ours = np.zeros((num, 2), np.float32)
    for unit in units:
        unit.splat_gradients.means2d *= share
        scale = (0.5 * WIDTH / share, 0.5 * HEIGHT / share)
        ids, out, seen, touched = unit.row_gradients(scale)
        ours[ids[:touched], 0] += out[:touched, GRAD2D]
        ours[ids[:seen], 1] += 1
    means2d = torch.zeros(batch, num, 2, requires_grad=True)
    means2d.grad = torch.tensor(np.stack([unit.splat_gradients.means2d for unit in units]))
    info = {
        "width": WIDTH, "height": HEIGHT, "n_cameras": batch, "gaussian_ids": None, "means2d": means2d,
        "radii": torch.tensor(np.stack([unit.splats.radii for unit in units])),
    }  # fmt: skip
    state = {"grad2d": None, "count": None}
    DefaultStrategy()._update_state({"means": torch.zeros(num, 3)}, state, info)
    np.testing.assert_allclose(ours[:, 0], state["grad2d"], rtol=1e-6)
    np.testing.assert_array_equal(ours[:, 1], state["count"])
    assert ours[:, 1].max() == batch and ours[:, 0].max() > 1
