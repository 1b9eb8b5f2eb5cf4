"""gsplat's CUDA kernels against the CPU renderer. Needs a GPU and gsplat's compiled extension."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "rendering"))

from rendering_scenes import FIELDS, camera, gaussians

from odin.rendering.cpu.renderer import CpuRenderer
from odin.rendering.cuda import CudaRenderer
from odin.rendering.interface import RenderSettings

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]

# Fast intrinsics on the GPU, and pixels near a threshold that fall on the other side of it.
RELATIVE_L2 = 1e-3


def one_pass(renderer, g, cam, settings):
    rng = np.random.default_rng(0)
    image = renderer.compose(renderer.project(g, cam, settings), cam, np.array([0.2, 0.5, 0.1]))
    colors, alphas = image.colors.copy(), image.alphas.copy()
    grads = renderer.compose_backward(rng.normal(size=colors.shape), rng.normal(size=alphas.shape))
    return {
        "colors": colors,
        "alphas": alphas,
        "touched": grads.touched > 0,
        "gaussians": renderer.project_backward(grads),
    }


def relative(a, b):
    return np.linalg.norm(a.astype(np.float64) - b) / max(np.linalg.norm(b.astype(np.float64)), 1e-30)


@pytest.mark.parametrize("antialiased", [False, True])
@pytest.mark.parametrize(("size", "principal"), [((61, 45), None), ((5, 3), None), ((64, 48), (0.3, 0.7))])
@pytest.mark.parametrize("degree", [0, 3])
def test_agrees_with_the_cpu_renderer(antialiased, size, principal, degree):
    g, cam = gaussians(500, dtype=np.float32), camera(*size, principal=principal)
    settings = RenderSettings(antialiased=antialiased, sh_degree=degree)
    got, expected = one_pass(CudaRenderer(), g, cam, settings), one_pass(CpuRenderer(), g, cam, settings)
    assert relative(got["colors"], expected["colors"]) <= RELATIVE_L2
    assert relative(got["alphas"], expected["alphas"]) <= RELATIVE_L2
    assert (got["touched"] != expected["touched"]).mean() <= 0.01
    for name in FIELDS:
        assert relative(getattr(got["gaussians"], name), getattr(expected["gaussians"], name)) <= RELATIVE_L2, name


@pytest.mark.parametrize("num", [0, 5])
def test_nothing_visible(num):
    g, cam = gaussians(num, dtype=np.float32), camera(9, 7)
    g.means += 100 * cam.position.astype(np.float32)
    result = one_pass(CudaRenderer(), g, cam, RenderSettings())
    assert not result["touched"].any()
    assert not result["alphas"].any()


def test_loss_agrees_with_the_cpu_renderer():
    image, target = np.random.default_rng(0).random((2, 3, 45, 61)).astype(np.float32)
    loss, gradient = CudaRenderer().loss(image, target, 0.2)
    expected, expected_gradient = CpuRenderer().loss(image, target, 0.2)
    assert loss == pytest.approx(expected, rel=1e-4)
    assert relative(gradient, expected_gradient) <= RELATIVE_L2
