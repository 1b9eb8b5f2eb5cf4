"""Renders as PNG files, and side-by-side pictures of target, render and error.

A view's relative path is its identity here too: ``cam0/0001.png`` and ``cam1/0001.png`` become two files, and so do
``a.jpg`` and ``a.png``, since ``.png`` is added to the whole name.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import matplotlib
import numpy as np
from PIL import Image

ERROR_GAIN = 4.0  # an error of 0.25 (64 of 255) is already the brightest colour
_GAP_PX = 4


def picture_path(folder: Path, name: str) -> Path:
    """File of a view's picture: ``folder/<name>.png``. Raises ValueError for a name that leads out of the folder."""
    relative = PurePosixPath(name)
    if relative.is_absolute() or ".." in relative.parts or not relative.parts:
        raise ValueError(f"view name {name!r} is not a path inside the image folder.")
    return folder / relative.parent / (relative.name + ".png")


def to_uint8(image: np.ndarray) -> np.ndarray:
    """[3, H, W] float in 0..1 to [H, W, 3] uint8, rounded to nearest."""
    return np.round(np.clip(image, 0.0, 1.0).transpose(1, 2, 0) * 255.0).astype(np.uint8)


def save_render(folder: Path, name: str, image: np.ndarray) -> Path:
    """Write image [3, H, W] as an 8-bit PNG and return its path."""
    return _save(picture_path(folder, name), to_uint8(image))


def save_comparison(folder: Path, name: str, image: np.ndarray, target: np.ndarray) -> Path:
    """Write target | render | error side by side; the error is the mean over channels, times `ERROR_GAIN`."""
    error = np.abs(image - target).mean(axis=0)  # [H, W]
    colored = matplotlib.colormaps["inferno"](np.clip(ERROR_GAIN * error, 0.0, 1.0))[..., :3]
    gap = np.full((image.shape[1], _GAP_PX, 3), 255, np.uint8)
    parts = [to_uint8(target), gap, to_uint8(image), gap, to_uint8(colored.transpose(2, 0, 1))]
    return _save(picture_path(folder, name), np.concatenate(parts, axis=1))


def _save(path: Path, pixels: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path
