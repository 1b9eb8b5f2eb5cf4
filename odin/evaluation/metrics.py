"""Image metrics, each with one fixed definition: PSNR, SSIM and, where its weights are at hand, LPIPS.

Images are float, linear in 0..1, channels first: [3, H, W]. The range of the data is always 1 (a library that guesses
it from the data type or from the image's own extremes gives other, non-comparable numbers).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from skimage.metrics import structural_similarity

# 10 log10(1 / mse) of images that differ by float32 rounding only; identical images would be infinite, which neither
# JSON nor a mean can hold.
MAX_PSNR_DB = 120.0
SSIM_SIGMA_PX = 1.5
# skimage cuts the Gaussian at 3.5 sigma: radius int(3.5 * 1.5 + 0.5) = 5, so a window is 11 pixels wide.
MIN_SSIM_SIZE_PX = 11

DEFINITIONS = {
    "range": [0.0, 1.0],
    "renders": "float, clipped to the range, not rounded to 8 bits",
    "psnr": f"10 log10(1 / mean squared error over pixels and channels), dB, at most {MAX_PSNR_DB:g}",
    "ssim": "skimage structural_similarity: Gaussian window, sigma 1.5, 11 pixels, no padding; data_range 1",
}


def check_image(image: np.ndarray, what: str) -> None:
    """Raises ValueError where `image` is not a finite float image [3, H, W] within 0..1; `what` names it."""
    if image.ndim != 3 or image.shape[0] != 3 or 0 in image.shape:
        raise ValueError(f"{what}: shape {image.shape}, expected [3, H, W].")
    if not np.issubdtype(image.dtype, np.floating):
        raise ValueError(f"{what}: {image.dtype} values, expected floats in 0..1 (divide by the bit depth's maximum).")
    num_bad = int(np.count_nonzero(~np.isfinite(image)))
    if num_bad:
        raise ValueError(f"{what}: {num_bad} of {image.size} values are NaN or infinite. The model has diverged.")
    if image.min() < 0.0 or image.max() > 1.0:
        raise ValueError(f"{what}: values {image.min():.4g}..{image.max():.4g}, expected 0..1.")


def psnr(image: np.ndarray, target: np.ndarray) -> float:
    """Peak signal-to-noise ratio for a peak of 1, from the mean squared error over all pixels and channels. dB"""
    _check_pair(image, target)
    mse = float(np.mean(np.square(image.astype(np.float64) - target.astype(np.float64))))
    floor = 10.0 ** (-MAX_PSNR_DB / 10.0)
    return float(-10.0 * np.log10(max(mse, floor)))


def ssim(image: np.ndarray, target: np.ndarray) -> float:
    """Structural similarity of Wang et al. 2004, eq. 13, with their Gaussian window (sigma 1.5) and constants.

    Population covariances (`use_sample_covariance=False`), mean over the pixels whose window lies inside the image and
    over channels. The 3DGS code pads with zeros and torchmetrics by reflection, and both count the border too: expect
    differences in the third decimal. Raises ValueError for images smaller than the window (`MIN_SSIM_SIZE_PX`).
    """
    _check_pair(image, target)
    height, width = image.shape[1:]
    if min(height, width) < MIN_SSIM_SIZE_PX:
        raise ValueError(
            f"SSIM needs images of at least {MIN_SSIM_SIZE_PX} x {MIN_SSIM_SIZE_PX} pixels (its Gaussian window), got "
            f"{width} x {height}. Use a smaller resize factor for this scene."
        )
    return float(
        structural_similarity(
            image.astype(np.float64),
            target.astype(np.float64),
            data_range=1.0,
            gaussian_weights=True,
            sigma=SSIM_SIGMA_PX,
            use_sample_covariance=False,
            channel_axis=0,
        )
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class LpipsWeights:
    """A TorchScript file that maps two image batches [1, 3, H, W] to one distance, and what it holds.

    Odin never downloads it. Made once, where there is a network, with the `lpips` package:
    ``torch.jit.trace(lpips.LPIPS(net="vgg").eval(), (x, y)).save("lpips_vgg.pt")`` for x, y of [1, 3, 64, 64].
    """

    path: Path
    sha256: str
    net: str  # "vgg" or "alex": their numbers are not comparable
    version: str  # of the linear layers, "0.1" in the `lpips` package
    input_range: tuple[float, float] = (-1.0, 1.0)  # what the network expects; images in 0..1 are mapped to it


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Lpips:
    """LPIPS (Zhang et al. 2018) through weights that were checked, or none and the reason why not."""

    distance: Callable[[np.ndarray, np.ndarray], float] | None
    weights: LpipsWeights | None
    reason: str | None  # why there is no distance

    def describe(self) -> dict | None:
        """What a metrics file says of the weights."""
        if self.weights is None or self.distance is None:
            return None
        w = self.weights
        return {"net": w.net, "version": w.version, "input_range": list(w.input_range), "sha256": w.sha256}


def load_lpips(weights: LpipsWeights | None, *, device: str = "cpu") -> Lpips:
    """Check and load the weights. Call it before training starts: it takes a second and finds every problem.

    Absent weights give a `Lpips` without a distance but with the reason. Raises ValueError where the file is there but
    has another hash, is no TorchScript module, or does not give one distance that vanishes for equal images.
    """
    if weights is None:
        return Lpips(distance=None, weights=None, reason="no LPIPS weights configured")
    if not weights.path.is_file():
        return Lpips(distance=None, weights=weights, reason=f"LPIPS weights not found: {weights.path.name}")
    found = _sha256(weights.path)
    if found != weights.sha256.lower():
        raise ValueError(
            f"{weights.path}: sha256 {found}, expected {weights.sha256}. This is not the file configured: put the "
            "right one there, or correct the configuration."
        )
    distance = _torchscript_distance(weights, device)
    probe = np.random.default_rng(0).random((3, 64, 64)).astype(np.float32)
    same, other = distance(probe, probe), distance(probe, 1.0 - probe)
    if not (abs(same) < 1e-5 < other):
        raise ValueError(
            f"{weights.path}: not an LPIPS network: it gives {same:.3g} for equal images (expected 0) and {other:.3g} "
            "for different ones (expected more)."
        )
    return Lpips(distance=distance, weights=weights, reason=None)


def _torchscript_distance(weights: LpipsWeights, device: str) -> Callable[[np.ndarray, np.ndarray], float]:
    import torch  # here, since evaluation without LPIPS needs no torch

    try:
        network = torch.jit.load(str(weights.path), map_location=device).eval()
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"{weights.path}: not a TorchScript module ({str(error).splitlines()[0]}).") from error
    low, high = weights.input_range

    def batch(image: np.ndarray) -> torch.Tensor:
        scaled = np.ascontiguousarray(image, np.float32) * np.float32(high - low) + np.float32(low)
        return torch.from_numpy(scaled)[None].to(device)  # [1, 3, H, W]

    def distance(image: np.ndarray, target: np.ndarray) -> float:
        try:
            with torch.no_grad():
                value = network(batch(image), batch(target))
        except RuntimeError as error:
            height, width = image.shape[1:]
            raise ValueError(
                f"{weights.path}: the LPIPS network fails on images of {width} x {height} pixels "
                f"({str(error).strip().splitlines()[-1]})."
            ) from error
        if value.numel() != 1 or not bool(torch.isfinite(value).all()):
            raise ValueError(f"{weights.path}: expected one finite distance, got shape {tuple(value.shape)}.")
        return float(value)

    return distance


def _check_pair(image: np.ndarray, target: np.ndarray) -> None:
    if image.shape != target.shape or image.ndim != 3:
        raise ValueError(f"image {image.shape} and target {target.shape} must have the same shape [3, H, W].")


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
