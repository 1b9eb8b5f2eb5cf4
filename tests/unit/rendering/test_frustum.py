"""No drawn primitive ever fails the side tests, also when it has moved and grown as announced."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rendering_scenes import camera, gaussians, look_at

from odin.data.scene import Camera
from odin.rendering.cpu.renderer import CpuRenderer
from odin.rendering.frustum import reach, rounding_shift, side_planes
from odin.rendering.interface import Gaussians, RenderSettings

NUM = 300
RENDERERS = {np.float32: CpuRenderer(np.float32), np.float64: CpuRenderer(np.float64)}


def random_camera(rng: np.random.Generator) -> Camera:
    """Any size, field of view (20 to 130 degrees) and principal point, up to one image beyond the image."""
    width, height = rng.integers(4, 200, 2)
    fx, fy = 0.5 * np.array([width, height]) / np.tan(np.radians(rng.uniform(10, 65, 2)))
    cx, cy = rng.choice([0.5, 0.5, rng.uniform(-1.0, 2.0)], 2) * (width, height)
    viewmat = look_at(rng.normal(size=3) * rng.choice([0.1, 1.0, 10.0]), target=rng.normal(size=3) * 0.1)
    K = np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1]])
    return Camera(viewmat=viewmat, K=K, width=int(width), height=int(height))


def random_gaussians(rng: np.random.Generator, cam: Camera, spread: float, size: float) -> Gaussians:
    """Needles to balloons; half around the origin, half close to the edges of the view, some close to the camera."""
    g = gaussians(NUM, seed=int(rng.integers(2**31)), num_sh=1)
    g.means *= spread
    depth = np.exp(rng.uniform(np.log(0.011), 3, NUM // 2))
    pixel = rng.uniform(-0.5, 1.5, (NUM // 2, 2)) * (cam.width, cam.height)
    rays = (pixel - cam.K[:2, 2]) / (cam.K[0, 0], cam.K[1, 1])
    in_camera = np.c_[rays, np.ones(NUM // 2)] * depth[:, None]
    g.means[: NUM // 2] = (in_camera - cam.viewmat[:3, 3]) @ cam.viewmat[:3, :3]
    g.scales = np.exp(rng.normal(np.log(size), 1.5, (NUM, 3)))
    g.opacities[rng.random(NUM) < 0.3] = 1.0
    return g


def drawn(g: Gaussians, cam: Camera, dtype, antialiased=False) -> np.ndarray:
    rendering = RenderSettings(sh_degree=0, antialiased=antialiased)
    return RENDERERS[dtype].project(g, cam, rendering).radii[:, 0].copy() > 0


scenes = {
    "seed": st.integers(0, 2**31 - 1),
    "spread": st.sampled_from([0.1, 1.0, 5.0]),
    "size": st.sampled_from([1e-4, 1e-2, 0.3, 3.0, 100.0]),
}


@settings(max_examples=150, deadline=None)
@given(**scenes, antialiased=st.booleans())
@example(seed=0, spread=1.0, size=3.0, antialiased=False)
def test_every_drawn_row_passes(seed, spread, size, antialiased):
    rng = np.random.default_rng(seed)
    cam = random_camera(rng)
    g = random_gaussians(rng, cam, spread, size)
    planes = side_planes(cam, RenderSettings())
    tight, loose = reach(g.scales, g.opacities), reach(g.scales)
    assert (tight <= loose * (1 + 1e-12)).all()
    exact = drawn(g, cam, np.float64, antialiased)
    assert planes.may_touch(g.means, tight)[exact].all()
    assert planes.may_touch(g.means, loose)[exact].all()
    rounded = drawn(g, cam, np.float32, antialiased)
    assert planes.may_touch(g.means, tight, rounding_shift(g.means, cam))[rounded].all()


@settings(max_examples=100, deadline=None)
@given(**scenes, shift=st.sampled_from([1e-3, 0.05, 1.0]), growth=st.sampled_from([0.0, 0.1, 1.0]))
def test_rows_drawn_after_moving_and_growing_pass_where_they_were(seed, spread, size, shift, growth):
    rng = np.random.default_rng(seed)
    cam = random_camera(rng)
    g = random_gaussians(rng, cam, spread, size)
    step = rng.normal(size=(NUM, 3))
    step *= (shift * rng.choice([1.0, rng.random()], NUM) / np.linalg.norm(step, axis=1))[:, None]
    opacity_before = g.opacities * rng.uniform(0.5, 1.0, NUM)
    moved = Gaussians(
        means=g.means + step,
        quats=rng.normal(size=(NUM, 4)),
        scales=g.scales * np.exp(growth * rng.choice([-1.0, 1.0], (NUM, 3))),
        opacities=np.minimum(1.0, 2.0 * opacity_before),
        sh=g.sh,
    )
    planes = side_planes(cam, RenderSettings())
    announced = reach(g.scales * np.exp(growth), np.minimum(1.0, 2.0 * opacity_before))
    passes = planes.may_touch(g.means, announced, shift * (1 + 1e-12))
    assert passes[drawn(moved, cam, np.float64)].all()


def test_the_test_is_not_vacuous():
    """On an ordinary view it keeps little more than what is drawn."""
    cam = camera(160, 120, position=(1.2, -0.9, 0.5))
    g = gaussians(4000, seed=3, num_sh=1)
    g.scales *= 0.2
    visible = drawn(g, cam, np.float64)
    kept = side_planes(cam, RenderSettings()).may_touch(g.means, reach(g.scales, g.opacities))
    assert kept[visible].all()
    assert 500 < visible.sum() < kept.sum() < 1.15 * visible.sum() < 3000


@pytest.mark.parametrize("principal", [(0.5, 0.5), (0.2, 0.9)])
def test_known_planes(principal):
    """A camera at the origin that looks along z: coefficients by hand."""
    cam = camera(100, 80, principal=principal)
    cam = Camera(viewmat=np.eye(4), K=cam.K, width=100, height=80)
    planes = side_planes(cam, RenderSettings(eps2d=0.0, near_plane=0.5))
    (fx, cx), (fy, cy) = (cam.K[0, 0], cam.K[0, 2]), (cam.K[1, 1], cam.K[1, 2])
    expected = [
        [fx, 0, -(100 - cx + 1.01), 0],
        [-fx, 0, -(cx + 1.01), 0],
        [0, fy, -(80 - cy + 1.01), 0],
        [0, -fy, -(cy + 1.01), 0],
        [0, 0, -1, 0.5],
    ]
    np.testing.assert_allclose(planes.coefficients, expected, rtol=1e-12)
    lim_x = (max(cx, 100 - cx) + 15) / fx
    np.testing.assert_allclose(planes.reach_factors[:2], fx * np.sqrt(1 + lim_x**2), rtol=1e-12)
    assert planes.reach_factors[4] == 0.0
    np.testing.assert_allclose(planes.shift_factors[0], np.hypot(fx, 100 - cx + 1.01), rtol=1e-12)
    assert planes.shift_factors[4] == 1.0


def test_faint_rows_never_pass():
    planes = side_planes(camera(), RenderSettings())
    reaches = reach(np.full((3, 3), 5.0), np.array([1 / 256, 1 / 255, 0.9]))
    assert reaches[0] == -1.0
    assert planes.may_touch(np.zeros((3, 3)), reaches, 1.0).tolist() == [False, True, True]
    assert planes.may_touch(np.zeros((0, 3)), np.zeros(0)).shape == (0,)
