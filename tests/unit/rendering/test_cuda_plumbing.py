"""The CUDA renderer's own code, with gsplat's CUDA functions replaced by gsplat's torch references on the CPU.

What this cannot show is whether the kernels do what the references do: tests/gpu compares them on a GPU.
"""

import gsplat
import numpy as np
import oracle
import pytest
import torch
from gsplat.cuda import _torch_impl as reference
from rendering_scenes import FIELDS, camera, gaussians

from odin.rendering.cpu.renderer import CpuRenderer
from odin.rendering.cuda import CudaRenderer
from odin.rendering.interface import Gaussians, RenderSettings

BACKGROUND = np.array([0.2, 0.5, 0.1])
SPLAT_FIELDS = ("means2d", "conics", "opacities", "colors")


def project(means, covars, quats, scales, viewmats, Ks, width, height, *, opacities, calc_compensations, **settings):
    """gsplat.fully_fused_projection by its reference; rows outside the view are garbage, as on the GPU."""
    covars, _ = reference._quat_scale_to_covar_preci(quats, scales, True, False)
    radii, *results = reference._fully_fused_projection(
        means, covars, viewmats, Ks, width, height, calc_compensations=calc_compensations, **settings
    )
    factor = results[-1] if calc_compensations else 1.0
    radii[(opacities * factor < 1 / 255).expand(radii.shape[:2])] = 0
    hidden = radii[..., 0] <= 0
    garbage = [
        None if r is None else torch.where(hidden.reshape(hidden.shape + (1,) * (r.dim() - 2)), torch.nan, r)
        for r in results
    ]
    return (radii, *garbage)


def spherical_harmonics(degree, directions, coefficients, masks):
    colors = reference._spherical_harmonics(degree, directions, coefficients)
    return torch.where(masks[:, None], colors, torch.nan)


def rasterize(means2d, conics, colors, opacities, width, height, tile_size, offsets, flatten_ids, backgrounds):
    """gsplat.rasterize_to_pixels by its reference; the order of splats is taken from the tile lists."""
    tiles_y, tiles_x = offsets.shape[-2:]
    assert (tiles_x - 1) * tile_size < width <= tiles_x * tile_size
    assert (tiles_y - 1) * tile_size < height <= tiles_y * tile_size
    listed = torch.zeros(means2d.shape[1], dtype=torch.int32)
    listed[flatten_ids.long()] = 1
    depth_rank = torch.zeros(means2d.shape[1])
    depth_rank[rasterize.depth_order] = torch.arange(len(rasterize.depth_order)).float()
    rows, pixels = oracle.contributing_pairs(
        means2d[0], conics[0], opacities[0], depth_rank, listed[:, None], width, height
    )
    image, alphas = reference.accumulate(
        means2d, conics, opacities, colors, rows, pixels, torch.zeros_like(rows), width, height
    )
    return image + backgrounds[:, None, None] * (1 - alphas), alphas


def isect_tiles(means2d, radii, depths, tile_size, tiles_x, tiles_y):
    rasterize.depth_order = torch.argsort(depths[0], stable=True)
    return reference._isect_tiles(means2d, radii, depths, tile_size, tiles_x, tiles_y)


@pytest.fixture
def renderer(monkeypatch):
    oracle.install_nerfacc_stand_in()
    monkeypatch.setattr(gsplat, "fully_fused_projection", project)
    monkeypatch.setattr(gsplat, "spherical_harmonics", spherical_harmonics)
    monkeypatch.setattr(gsplat, "isect_tiles", isect_tiles)
    monkeypatch.setattr(gsplat, "isect_offset_encode", reference._isect_offset_encode)
    monkeypatch.setattr(gsplat, "rasterize_to_pixels", rasterize)
    return CudaRenderer(device="cpu")


def one_pass(renderer, g, cam, settings, grad_alphas=True):
    rng = np.random.default_rng(0)
    splats = renderer.project(g, cam, settings)
    image = renderer.compose(splats, cam, BACKGROUND)
    grad = rng.normal(size=(3, cam.height, cam.width))
    splat_grads = renderer.compose_backward(grad, rng.normal(size=image.alphas.shape) if grad_alphas else None)
    return splats, image, splat_grads, renderer.project_backward(splat_grads)


def close(a, b):
    assert a.shape == b.shape
    assert a.dtype == b.dtype
    np.testing.assert_allclose(a, b, rtol=0, atol=2e-5 * max(np.abs(b).max(initial=0), 1e-6))


@pytest.mark.parametrize("antialiased", [False, True])
@pytest.mark.parametrize("grad_alphas", [False, True])
@pytest.mark.parametrize("degree", [0, 3])
def test_agrees_with_the_cpu_renderer(renderer, antialiased, grad_alphas, degree):
    g, cam = gaussians(150, seed=4, dtype=np.float32), camera(37, 21, principal=(0.4, 0.6))
    settings = RenderSettings(antialiased=antialiased, sh_degree=degree)
    splats, image, splat_grads, grads = one_pass(renderer, g, cam, settings, grad_alphas)
    splats_cpu, image_cpu, splat_grads_cpu, grads_cpu = one_pass(CpuRenderer(), g, cam, settings, grad_alphas)
    close(image.colors, image_cpu.colors)
    close(image.alphas, image_cpu.alphas)
    both = (splats.radii > 0).all(1) & (splats_cpu.radii > 0).all(1)
    assert 0 < both.sum() < 150
    for name in SPLAT_FIELDS:
        close(getattr(splats, name)[both], getattr(splats_cpu, name)[both])
        close(getattr(splat_grads, name), getattr(splat_grads_cpu, name))
    np.testing.assert_array_equal(splat_grads.touched, splat_grads_cpu.touched > 0)
    for name in FIELDS:
        close(getattr(grads, name), getattr(grads_cpu, name))


def test_splats_from_elsewhere(renderer):
    """The sharded layout: splats are projected by one object and composed by another."""
    g, cam, settings = gaussians(80, seed=1, dtype=np.float32), camera(20, 20), RenderSettings()
    own = renderer.compose(renderer.project(g, cam, settings), cam, BACKGROUND).colors
    splats = CpuRenderer().project(g, cam, settings)
    renderer.project(gaussians(3, dtype=np.float32), cam, settings)
    close(renderer.compose(splats, cam, BACKGROUND).colors, own)


@pytest.mark.parametrize("num", [0, 5])
def test_nothing_visible(renderer, num):
    g, cam = gaussians(num, dtype=np.float32), camera(9, 7)
    g.means += 100 * cam.position.astype(np.float32)
    _, image, splat_grads, grads = one_pass(renderer, g, cam, RenderSettings())
    np.testing.assert_array_equal(image.colors, np.broadcast_to(np.float32(BACKGROUND)[:, None, None], (3, 7, 9)))
    assert not splat_grads.touched.any()
    for name in Gaussians.__slots__:
        assert getattr(grads, name).shape == getattr(g, name).shape
        assert not getattr(grads, name).any()


def test_loss_agrees_with_the_cpu_renderer():
    rng = np.random.default_rng(0)
    image, target = rng.random((2, 3, 18, 25)).astype(np.float32)
    cuda, cpu = CudaRenderer(device="cpu"), CpuRenderer()
    loss, gradient = cuda.loss(image, target, 0.2)
    loss_cpu, gradient_cpu = cpu.loss(image, target, 0.2)
    assert loss == pytest.approx(loss_cpu, rel=1e-5)
    close(gradient, gradient_cpu)
    assert cuda.loss(image, cuda.prepare_target(target), 0.2)[0] == loss
    with pytest.raises(ValueError, match="target"):
        cuda.loss(image, target[:, :5], 0.2)
