"""PSNR and SSIM against hand values and a second implementation; LPIPS weights are checked before they are used."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torchmetrics.functional.image import peak_signal_noise_ratio, structural_similarity_index_measure

from odin.evaluation.metrics import MAX_PSNR_DB, LpipsWeights, load_lpips, psnr, ssim

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


def torchmetrics_ssim(image: np.ndarray, target: np.ndarray, data_range: float | None) -> float:
    """Mean over pixels whose window lies inside the image: torchmetrics itself pads and counts the border too."""
    _, full = structural_similarity_index_measure(
        torch.from_numpy(image).double()[None],
        torch.from_numpy(target).double()[None],
        sigma=1.5,
        data_range=data_range,
        return_full_image=True,
    )
    return float(full[..., 5:-5, 5:-5].mean())


def images(height: int = 24, width: int = 31, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    target = rng.random((3, height, width)).astype(np.float32)
    return np.clip(target + 0.1 * rng.normal(size=target.shape), 0, 1).astype(np.float32), target


def test_psnr_by_hand() -> None:
    target = np.full((3, 2, 2), 0.5, np.float32)
    image = target.copy()
    image[0] += 0.25  # 4 of 12 values off by 1/4: mse 1/48
    assert psnr(image, target) == pytest.approx(10 * math.log10(48), abs=1e-12)
    assert psnr(target + np.float32(0.125), target) == pytest.approx(20 * math.log10(8), abs=1e-12)


def test_psnr_of_equal_images_is_the_documented_ceiling() -> None:
    image, _ = images()
    assert psnr(image, image) == MAX_PSNR_DB == 120.0
    assert ssim(image, image) == 1.0


@pytest.mark.parametrize(("height", "width"), [(24, 31), (11, 11), (64, 48)])
def test_agrees_with_torchmetrics(height: int, width: int) -> None:
    image, target = images(height, width, seed=height)
    pair = torch.from_numpy(image)[None], torch.from_numpy(target)[None]
    assert psnr(image, target) == pytest.approx(float(peak_signal_noise_ratio(*pair, data_range=1.0)), abs=1e-4)
    assert ssim(image, target) == pytest.approx(torchmetrics_ssim(image, target, 1.0), abs=1e-9)


def test_ssim_takes_the_range_as_one_even_for_dim_images() -> None:
    # Guessing the range from the data (0.2 here) would make the constants 25 times smaller.
    image, target = images()
    image, target = 0.2 * image, 0.2 * target
    assert ssim(image, target) == pytest.approx(torchmetrics_ssim(image, target, 1.0), abs=1e-9)
    assert abs(ssim(image, target) - torchmetrics_ssim(image, target, None)) > 1e-3


@pytest.mark.parametrize("size", [(10, 40), (40, 10), (6, 6)])
def test_ssim_names_its_smallest_size(size: tuple[int, int]) -> None:
    image, target = images(*size)
    with pytest.raises(ValueError, match=f"at least 11 x 11 pixels .* got {size[1]} x {size[0]}"):
        ssim(image, target)


def test_shapes_must_agree() -> None:
    image, target = images()
    with pytest.raises(ValueError, match="same shape"):
        psnr(image, target[:, :-1])


class Distance(torch.nn.Module):
    """Stands in for LPIPS: mean absolute difference of what it is given."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x - y).abs().mean().reshape(1, 1, 1, 1)


class NotADistance(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x + y).mean()


def weights_of(module: torch.nn.Module, path: Path) -> LpipsWeights:
    torch.jit.script(module).save(str(path))
    return LpipsWeights(path=path, sha256=hashlib.sha256(path.read_bytes()).hexdigest(), net="vgg", version="0.1")


def test_lpips_maps_images_to_the_networks_range(tmp_path: Path) -> None:
    lpips = load_lpips(weights_of(Distance(), tmp_path / "d.pt"))
    image, target = images()
    # [0, 1] becomes [-1, 1]: differences double.
    assert lpips.distance(image, target) == pytest.approx(2 * np.abs(image - target).mean(), rel=1e-5)
    assert lpips.reason is None
    described = lpips.describe()
    assert described["net"] == "vgg" and described["version"] == "0.1" and described["input_range"] == [-1.0, 1.0]


def test_lpips_without_weights_has_a_reason(tmp_path: Path) -> None:
    assert load_lpips(None).reason == "no LPIPS weights configured"
    absent = LpipsWeights(path=tmp_path / "none.pt", sha256="0" * 64, net="vgg", version="0.1")
    lpips = load_lpips(absent)
    assert lpips.distance is None and lpips.describe() is None
    assert lpips.reason == "LPIPS weights not found: none.pt"


def test_lpips_refuses_wrong_weights(tmp_path: Path) -> None:
    good = weights_of(Distance(), tmp_path / "d.pt")
    with pytest.raises(ValueError, match=f"sha256 {good.sha256}, expected {'a' * 64}"):
        load_lpips(replace(good, sha256="a" * 64))
    with pytest.raises(ValueError, match="not an LPIPS network"):
        load_lpips(weights_of(NotADistance(), tmp_path / "n.pt"))
    text = tmp_path / "text.pt"
    text.write_text("not a module")
    with pytest.raises(ValueError, match=r"text\.pt: not a TorchScript module"):
        load_lpips(replace(good, path=text, sha256=hashlib.sha256(text.read_bytes()).hexdigest()))
