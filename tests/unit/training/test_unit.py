"""One unit on the CPU renderer: gradients against gsplat's reference functions and finite differences, and bits."""

import numpy as np
import oracle
import pytest
import torch
from rendering_scenes import camera
from rendering_scenes import gaussians as random_gaussians

from odin.pipelines.gs3d import GaussianSplatting
from odin.pipelines.preset import PAPER
from odin.pipelines.protocol import Budget
from odin.primitives.primitive_set import COLUMNS, GRAD2D, fresh, pack
from odin.primitives.row_update import ABSENT, AdamSettings, advance, index_gradients, step_table
from odin.rendering.cpu.renderer import CpuRenderer
from odin.rendering.interface import Gaussians, RenderSettings
from odin.training.render import ModelRenderer
from odin.training.unit import UnitRunner

PIPELINE = GaussianSplatting()
BACKGROUND = np.array([0.2, 0.5, 0.1], np.float32)
SETTINGS = RenderSettings()
CAMERA = camera()


def random_rows(num, seed=0):
    g = random_gaussians(num, seed=seed)
    return pack(
        {
            "means": g.means,
            "quats": g.quats,
            "scales": np.log(g.scales),
            "opacities": np.log(g.opacities / (1 - g.opacities)),
            "sh0": g.sh[:, 0],
            "shN": g.sh[:, 1:],
        }
    )


def random_target(seed=3):
    """Smooth, so that few pixels sit on the kink of the absolute difference."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[: CAMERA.height, : CAMERA.width] / 20.0
    return np.stack([0.5 + 0.4 * np.sin(x + rng.normal()) * np.cos(y + c) for c in range(3)]).astype(np.float32)


class Unit:
    """A runner and what it wrote for rows `ids`."""

    def __init__(self, rows, ids, *, share=1.0, runner=None, view=CAMERA):
        self.runner = runner or UnitRunner(PIPELINE, PAPER, CpuRenderer(), BACKGROUND)
        self.ids = np.asarray(ids, np.int32)
        self.runner.read(self.ids, rows)
        self.radii = self.runner.project(view, SETTINGS).radii.copy()
        image = self.runner.compose()
        self.image = image.colors.copy()
        renderer = self.runner._renderer
        target = renderer.prepare_target(random_target())
        self.image_gradient = np.float32(share) * renderer.loss(self.image, target, PAPER.ssim_weight)[1]
        self.loss = self.runner.backward(image, target, share)
        self.out_ids = np.full(len(ids), -7, np.int32)
        self.gradients = np.full((len(ids), 64), np.nan, np.float32)
        self.seen, self.touched = self.runner.write(self.out_ids, self.gradients)

    def delivered(self):
        seen, touched = self.seen, self.touched
        return self.out_ids[:seen].tobytes(), self.gradients[:touched].tobytes(), seen, touched

    def dense(self, num):
        dense = np.zeros((num, 64), np.float32)
        dense[self.out_ids[: self.touched]] = self.gradients[: self.touched]
        return dense


def test_a_superset_of_the_visible_rows_gives_the_bits_of_all_rows():
    rows = random_rows(300)
    whole = Unit(rows, np.arange(300), share=0.25)
    visible = np.flatnonzero(whole.radii[:, 0] > 0)
    assert 20 < whole.touched <= whole.seen == len(visible) < 300
    for seed in range(4):
        some = np.random.default_rng(seed).random(300) < 0.2 * seed
        some[visible] = True
        part = Unit(rows, np.flatnonzero(some), share=0.25)
        assert part.delivered() == whole.delivered()
        assert part.image.tobytes() == whole.image.tobytes() and part.loss == whole.loss


def test_buffers_of_an_earlier_unit_leave_no_trace():
    rows, others = random_rows(80), random_rows(300, seed=5)
    runner = UnitRunner(PIPELINE, PAPER, CpuRenderer(), BACKGROUND)
    runner.read(np.arange(300, dtype=np.int32), others)
    runner.project(camera(width=90, height=70), SETTINGS)
    runner.compose()
    assert Unit(rows, np.arange(80), runner=runner).delivered() == Unit(rows, np.arange(80)).delivered()


def test_rows_may_change_after_they_were_read():
    """An update that comes in between must not reach the backward pass in flight."""
    rows = random_rows(80)
    expected = Unit(rows, np.arange(80)).delivered()

    class Interrupted(GaussianSplatting):
        def activate(self, ids, given, out):
            super().activate(ids, given, out)
            given[:] = np.nan

    runner = UnitRunner(Interrupted(), PAPER, CpuRenderer(), BACKGROUND)
    assert Unit(rows, np.arange(80), runner=runner).delivered() == expected
    assert np.isnan(rows).all()


def test_row_gradients_are_those_of_gsplats_reference_functions():
    num, share = 120, 0.25
    rows = random_rows(num, seed=2)
    unit = Unit(rows, np.arange(num), share=share)
    leaf = torch.tensor(rows, dtype=torch.float64, requires_grad=True)
    activated = {
        "means": leaf[:, :3],
        "quats": leaf[:, 3:7],
        "scales": leaf[:, 7:10].exp(),
        "opacities": leaf[:, 10].sigmoid(),
        "sh": leaf[:, 11:59].reshape(num, 16, 3),
    }
    inputs = Gaussians(**{name: value.detach().numpy() for name, value in activated.items()})
    result = oracle.render(inputs, CAMERA, SETTINGS, BACKGROUND)
    np.testing.assert_allclose(unit.image, result.colors.detach(), atol=2e-5)
    np.testing.assert_array_equal(np.sort(unit.out_ids[: unit.touched]), np.flatnonzero(result.touched))
    result.colors.backward(torch.tensor(unit.image_gradient, dtype=torch.float64))
    torch.autograd.backward(list(activated.values()), [result.inputs[name].grad for name in activated])
    ours, theirs = unit.dense(num), leaf.grad.numpy()
    for name, cols in COLUMNS.items():
        size = np.abs(theirs[:, cols]).max()
        assert size > 0
        np.testing.assert_allclose(ours[:, cols], theirs[:, cols], rtol=2e-3, atol=2e-5 * size, err_msg=name)
    # the screen gradient is that of the view's own loss, whatever the unit's share of the batch
    means2d = result.splats["means2d"].grad.numpy() / share
    norm = np.hypot(means2d[:, 0] * CAMERA.width / 2, means2d[:, 1] * CAMERA.height / 2)
    np.testing.assert_allclose(ours[:, GRAD2D], norm, rtol=2e-3, atol=2e-5 * norm.max())


def test_gradients_agree_with_finite_differences_of_the_loss():
    num = 120
    rows = random_rows(num, seed=2)
    gradients = Unit(rows, np.arange(num)).dense(num)
    step = {"means": 2e-3, "quats": 1e-2, "scales": 1e-2, "opacities": 2e-2, "sh0": 2e-2, "shN": 2e-2}
    for name, cols in COLUMNS.items():
        largest = np.argsort(-np.abs(gradients[:, cols]), axis=None)[:3]
        for row, lane in zip(*np.unravel_index(largest, gradients[:, cols].shape), strict=True):
            losses = []
            for sign in (1, -1):
                moved = rows.copy()
                moved[row, cols.start + lane] += sign * step[name]
                losses.append(Unit(moved, np.arange(num)).loss)
            slope = (losses[0] - losses[1]) / (2 * step[name])
            assert slope == pytest.approx(gradients[row, cols.start + lane], rel=0.03), (name, row, lane)


def test_shares_of_a_batch_scale_the_gradients_but_not_the_screen_norm():
    rows = random_rows(80)
    whole, half = Unit(rows, np.arange(80)), Unit(rows, np.arange(80), share=0.5)
    assert whole.loss == half.loss
    np.testing.assert_allclose(half.dense(80)[:, :59], 0.5 * whole.dense(80)[:, :59], rtol=1e-5, atol=1e-12)
    np.testing.assert_allclose(half.dense(80)[:, GRAD2D], whole.dense(80)[:, GRAD2D], rtol=1e-5)


def test_a_unit_that_sees_nothing_delivers_nothing():
    rows = random_rows(20)
    rows[:, :3] += 100.0
    unit = Unit(rows, np.arange(20))
    assert (unit.seen, unit.touched) == (0, 0) and np.isfinite(unit.loss)
    np.testing.assert_array_equal(unit.image, np.broadcast_to(BACKGROUND[:, None, None], unit.image.shape))
    assert Unit(rows, np.arange(0)).loss == unit.loss


def test_one_to_three_primitives_train():
    for num in (1, 2, 3):
        rows = random_rows(num, seed=num)
        rows[:, :3] *= 0.2
        rows[:, 7:10], rows[:, 10] = np.log(0.3), 0.0
        primitives = fresh(rows)
        rates = {"means": 1e-3, "quats": 1e-3, "scales": 5e-3, "opacities": 5e-2, "sh0": 2e-2, "shN": 1e-3}
        table = step_table(AdamSettings(learning_rates=rates, means_decay=1.0), 30)
        ids, losses = np.arange(num, dtype=np.int32), []
        for step in range(1, 31):
            unit = Unit(primitives.rows, ids)
            losses.append(unit.loss)
            at = np.full((2, 1, num), ABSENT, np.int32)
            late = index_gradients(unit.out_ids, unit.seen, unit.touched, step, primitives.version, at[step % 2, 0])
            assert late == -1
            gradients = np.zeros((2, 1, num, 64), np.float32)
            gradients[step % 2, 0] = unit.gradients
            advance(primitives, ids, num, step, step - 1, at, gradients, table)
        primitives.check_finite(30)
        assert losses[-1] < losses[0] - 0.01
        np.testing.assert_array_equal(primitives.stats[:, 1], 30)


def test_a_model_is_rendered_as_the_last_step_saw_it():
    """The paper's degree is 3 from view 3000 on; a shorter run ends, and is judged, with a lower one."""
    primitives = fresh(random_rows(80))
    images = {}
    for views in (1000, 1001, 30_000):
        render = ModelRenderer(PIPELINE, PAPER, Budget(views=views, batch=1), primitives, CpuRenderer(), BACKGROUND)
        images[views] = render(CAMERA)
        first = images[views].copy()
        render(camera(width=33, height=20))
        np.testing.assert_array_equal(images[views], first)  # a copy: later renders leave it alone
    for views, degree in ((1000, 0), (1001, 1), (30_000, 3)):
        runner = UnitRunner(PIPELINE, PAPER, CpuRenderer(), BACKGROUND)
        runner.read(np.arange(80, dtype=np.int32), primitives.rows)
        runner.project(CAMERA, RenderSettings(sh_degree=degree))
        np.testing.assert_array_equal(images[views], runner.compose().colors)
    assert not np.array_equal(images[1000], images[1001])
