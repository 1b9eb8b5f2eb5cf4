"""The CPU renderer against gsplat's reference functions: image, alpha, touched counts and every gradient."""

import numpy as np
import oracle
import pytest
import torch
from rendering_scenes import FIELDS, camera, gaussians, rows_of

from odin.rendering.cpu.renderer import CpuRenderer
from odin.rendering.interface import RenderSettings

TOLERANCE = {np.float64: 1e-12, np.float32: 1e-5}
SPLAT_FIELDS = ("means2d", "conics", "opacities", "colors")
BACKGROUND = np.array([0.2, 0.5, 0.1])


def difference(got, expected) -> float:
    """Largest absolute difference relative to the largest expected value."""
    expected = np.asarray(expected, np.float64)
    return float(np.abs(np.asarray(got, np.float64) - expected).max() / max(np.abs(expected).max(), 1e-30))


def assert_agrees(g, cam, settings, dtype, background=BACKGROUND, seed=0):
    rng = np.random.default_rng(seed)
    grad_colors = rng.normal(size=(3, cam.height, cam.width))
    grad_alphas = rng.normal(size=(cam.height, cam.width))
    expected = oracle.render(g, cam, settings, background)
    loss = (expected.colors * torch.from_numpy(grad_colors)).sum()
    (loss + (expected.alphas * torch.from_numpy(grad_alphas)).sum()).backward()

    renderer = CpuRenderer(dtype)
    splats = renderer.project(g, cam, settings)
    image = renderer.compose(splats, cam, background)
    splat_grads = renderer.compose_backward(grad_colors, grad_alphas)
    grads = renderer.project_backward(splat_grads)
    tolerance = TOLERANCE[dtype]
    assert image.colors.dtype == grads.sh.dtype == dtype
    assert difference(image.colors, expected.colors.detach()) <= tolerance
    assert difference(image.alphas, expected.alphas.detach()) <= tolerance
    np.testing.assert_array_equal(splat_grads.touched, expected.touched)
    for name in SPLAT_FIELDS:
        assert difference(getattr(splat_grads, name), expected.splats[name].grad) <= tolerance, name
    for name in FIELDS:
        assert difference(getattr(grads, name), expected.inputs[name].grad) <= tolerance, name


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("antialiased", [False, True])
def test_agrees_with_gsplat_reference(dtype, antialiased):
    assert_agrees(gaussians(400), camera(), RenderSettings(antialiased=antialiased), dtype)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_sh_degrees(dtype, degree):
    """Also with more coefficients stored than the degree in use needs: those get zero gradient."""
    settings = RenderSettings(sh_degree=degree)
    for num_sh in {(degree + 1) ** 2, 16}:
        assert_agrees(gaussians(60, seed=degree, num_sh=num_sh), camera(24, 17), settings, dtype)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("size", [(5, 3), (7, 7), (8, 1), (1, 9), (33, 16)])
def test_image_sizes_that_are_no_multiple_of_a_chunk(dtype, size):
    assert_agrees(gaussians(80, seed=3), camera(*size), RenderSettings(), dtype)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("principal", [(0.1, 0.9), (-0.3, 0.5), (0.5, 1.4)])
def test_principal_point_off_centre_or_outside(dtype, principal):
    assert_agrees(gaussians(150, seed=5), camera(40, 30, principal=principal), RenderSettings(), dtype)


def test_large_splats_past_the_jacobian_clamp():
    """Centres beyond 1.3 times the field of view, still visible: the clamp's own derivative."""
    g = gaussians(200, seed=8)
    g.means *= 2.0
    g.scales *= 4.0
    assert_agrees(g, camera(40, 30, position=(0.9, -0.6, 0.4), fov_deg=35.0), RenderSettings(), np.float64)


def test_project_values_agree_with_gsplat_reference():
    g, cam, settings = gaussians(300, seed=2), camera(), RenderSettings()
    expected = oracle.render(g, cam, settings, BACKGROUND).splats
    splats = CpuRenderer(np.float64).project(g, cam, settings)
    visible = splats.radii[:, 0] > 0
    # gsplat's CUDA kernel bounds the radius by the opacity too, its torch reference does not
    assert not (visible & (expected["radii"].numpy()[:, 0] == 0)).any()
    assert (splats.radii[visible] <= expected["radii"].numpy()[visible]).all()
    for name in ("depths", *SPLAT_FIELDS):
        np.testing.assert_allclose(
            getattr(splats, name)[visible], expected[name].detach().numpy()[visible], rtol=1e-11, atol=1e-12
        )
    for name in ("depths", *SPLAT_FIELDS):
        assert not getattr(splats, name)[~visible].any()


def test_a_subset_of_the_rows_gives_the_same_bits():
    """Rows that cannot touch the image may be left out without changing a bit of image or gradients."""
    g, cam, settings = gaussians(500, seed=4, dtype=np.float32), camera(40, 30), RenderSettings()
    rng = np.random.default_rng(1)
    grad = rng.normal(size=(3, 30, 40)).astype(np.float32)

    def run(part):
        renderer = CpuRenderer()
        splats = renderer.project(part, cam, settings)
        image = renderer.compose(splats, cam, BACKGROUND)
        grads = renderer.project_backward(renderer.compose_backward(grad))
        return splats.radii[:, 0] > 0, image.colors, grads

    visible, image, grads = run(g)
    rows = np.flatnonzero(visible)
    assert 0 < len(rows) < 500
    _, image_of_part, grads_of_part = run(rows_of(g, rows))
    assert image.tobytes() == image_of_part.tobytes()
    for name in FIELDS:
        assert getattr(grads, name)[rows].tobytes() == getattr(grads_of_part, name).tobytes()


def test_equal_depths_are_composed_in_row_order():
    g, cam = gaussians(2, seed=0), camera(16, 16)
    g.means[:] = 0.0
    g.scales[:] = 0.4
    g.opacities[:] = 0.6
    g.sh[:] = 0.0
    g.sh[:, 0] = [[1.5, -1.5, -1.5], [-1.5, 1.5, -1.5]]  # red in front by its row, green behind
    renderer = CpuRenderer()
    image = renderer.compose(renderer.project(g, cam, RenderSettings()), cam, np.zeros(3)).colors
    assert image[0, 8, 8] > 2 * image[1, 8, 8] > 0


def test_compose_backward_can_be_repeated_and_is_linear():
    g, cam = gaussians(100, seed=6), camera(20, 20)
    renderer = CpuRenderer(np.float64)
    renderer.compose(renderer.project(g, cam, RenderSettings()), cam, BACKGROUND)
    grad = np.random.default_rng(0).normal(size=(3, 20, 20))
    first = renderer.compose_backward(grad).conics.copy()
    np.testing.assert_allclose(renderer.compose_backward(2 * grad).conics, 2 * first, rtol=1e-12)


def test_buffers_grow_and_shrink_with_the_calls():
    """Neither rows nor images of an earlier call leak into a later one."""
    renderer, settings = CpuRenderer(), RenderSettings(sh_degree=1)

    def run(r, num, size):
        cam = camera(*size)
        image = r.compose(r.project(gaussians(num, num_sh=4, dtype=np.float32), cam, settings), cam, BACKGROUND)
        return image.colors.tobytes() + r.project_backward(r.compose_backward(image.colors)).means.tobytes()

    for num, size in [(50, (20, 20)), (200, (33, 9)), (10, (9, 33)), (0, (5, 5)), (200, (20, 20))]:
        assert run(renderer, num, size) == run(CpuRenderer(), num, size)
