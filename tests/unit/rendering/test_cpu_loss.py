"""L1 + SSIM against torch's convolutions and autograd in double precision."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from odin.rendering.cpu.renderer import CpuRenderer


def reference(image, target, weight):
    """(1 - w) L1 + w (1 - SSIM) with a zero-padded 11 x 11 window, and its gradient, by autograd in float64."""
    a = torch.tensor(image, dtype=torch.float64, requires_grad=True)
    b = torch.tensor(target, dtype=torch.float64)
    taps = torch.exp(-((torch.arange(11, dtype=torch.float64) - 5) ** 2) / (2 * 1.5**2))
    taps = taps / taps.sum()
    window = (taps[:, None] * taps[None, :]).expand(3, 1, 11, 11)

    def blur(x):
        return F.conv2d(x[None], window, padding=5, groups=3)[0]

    m1, m2 = blur(a), blur(b)
    s1, s2, s12 = blur(a * a) - m1 * m1, blur(b * b) - m2 * m2, blur(a * b) - m1 * m2
    ssim = ((2 * m1 * m2 + 1e-4) * (2 * s12 + 9e-4)) / ((m1 * m1 + m2 * m2 + 1e-4) * (s1 + s2 + 9e-4))
    loss = (1 - weight) * (a - b).abs().mean() + weight * (1 - ssim.mean())
    loss.backward()
    return loss.item(), a.grad.numpy()


def images(height, width, seed=0):
    rng = np.random.default_rng(seed)
    target = rng.random((3, height, width))
    return np.clip(target + 0.1 * rng.normal(size=target.shape), 0, 1), target


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 2e-5)])
@pytest.mark.parametrize("size", [(45, 61), (3, 5), (7, 7), (1, 1), (11, 4), (16, 24)])
@pytest.mark.parametrize("weight", [0.0, 0.2, 1.0])
def test_value_and_gradient(dtype, tolerance, size, weight):
    image, target = (x.astype(np.float32).astype(dtype) for x in images(*size))
    expected, expected_gradient = reference(image, target, weight)
    loss, gradient = CpuRenderer(dtype).loss(image, target, weight)
    assert gradient.dtype == dtype
    assert loss == pytest.approx(expected, rel=tolerance)
    assert np.abs(gradient - expected_gradient).max() <= tolerance * np.abs(expected_gradient).max()


def test_prepared_target_gives_the_same_bits_and_survives_other_calls():
    renderer = CpuRenderer()
    image, target = (x.astype(np.float32) for x in images(20, 30))
    prepared = renderer.prepare_target(target)
    loss, gradient = renderer.loss(image, target, 0.2)
    gradient = gradient.copy()
    renderer.loss(*(x.astype(np.float32) for x in images(40, 10, seed=1)), 0.2)
    loss_prepared, gradient_prepared = renderer.loss(image, prepared, 0.2)
    assert loss_prepared == loss
    assert gradient_prepared.tobytes() == gradient.tobytes()


def test_equal_images_have_zero_loss():
    """In float64; SSIM is 1 everywhere and its gradient vanishes."""
    image, _ = images(16, 16)
    loss, gradient = CpuRenderer(np.float64).loss(image, image, 0.2)
    assert loss == pytest.approx(0.0, abs=1e-12)
    assert np.abs(gradient).max() <= 1e-12


def test_shapes_must_agree():
    with pytest.raises(ValueError, match=r"image has shape \(3, 8, 8\), target \(3, 8, 9\)"):
        CpuRenderer().loss(np.zeros((3, 8, 8)), np.zeros((3, 8, 9)), 0.2)
