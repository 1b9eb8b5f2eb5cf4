"""What a reader (COLMAP, transforms.json) hands on: posed views with their source files and cameras, and points.

A capture is as the data set says: cameras may be distorted and may have another size than the files. `rectify` turns
it into the pinhole views of a `Scene`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from odin.data._pycolmap import pycolmap

ROTATION_TOLERANCE = 1e-3  # largest entry of |R R^T - 1| and largest |det R - 1| of an acceptable pose


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SourceView:
    """One registered image."""

    name: str  # path relative to the image folder, with forward slashes: the view's identity everywhere
    camera: pycolmap.Camera  # any COLMAP camera model, at the camera file's own size
    viewmat: np.ndarray  # [4, 4] float64, world to camera, OpenCV axes
    is_test: bool | None = None  # None: the data set says nothing


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Capture:
    """Legend: V views, P points."""

    kind: str  # "colmap" or "transforms"
    origin: dict[str, str]  # which parts of the data set were read, relative to it
    image_root: Path
    views: tuple[SourceView, ...]  # V, sorted by name
    points: np.ndarray  # [P, 3] float64, world units
    colors: np.ndarray  # [P, 3] uint8
    tracks: tuple[np.ndarray, ...]  # V arrays of ascending indices into points, int32
    num_images_on_disk: int
    provided_factor: float = 1.0  # the F of an images_F folder in use
    skipped: tuple[str, ...] = ()  # frames left out because their files do not exist
    warnings: tuple[str, ...] = ()


def check_names(names: list[str], where: Path | str) -> None:
    """Raise ValueError where two views share a name, or a name is no path inside the image folder."""
    seen: set[str] = set()
    for name in names:
        path = PurePosixPath(name)
        if not name or path.is_absolute() or ".." in path.parts:
            raise ValueError(f"{where}: image name {name!r} must be a path inside the image folder.")
        if name in seen:
            raise ValueError(f"{where}: two views are called {name!r}. Names must be unique.")
        seen.add(name)


def check_poses(names: list[str], matrices: np.ndarray, where: Path | str) -> None:
    """Raise ValueError unless every matrix ([V, 4, 4]) is finite and rigid, naming the frames that are not.

    Rigid: the 3x3 block is orthonormal with determinant +1, within `ROTATION_TOLERANCE`.
    """
    if not len(matrices):
        return
    broken = ~np.isfinite(matrices).all(axis=(1, 2))
    if broken.any():
        raise ValueError(
            f"{where}: {broken.sum()} of {len(matrices)} poses hold NaN or infinite values: {_list(names, broken)}"
        )
    rotations = matrices[:, :3, :3]
    deviation = np.abs(rotations @ rotations.transpose(0, 2, 1) - np.eye(3)).max(axis=(1, 2))
    determinants = np.linalg.det(rotations)
    broken = (deviation > ROTATION_TOLERANCE) | (np.abs(determinants - 1) > ROTATION_TOLERANCE)
    if broken.any():
        first = int(np.flatnonzero(broken)[0])
        raise ValueError(
            f"{where}: {broken.sum()} of {len(matrices)} poses are not rigid: {_list(names, broken)}. The 3x3 block "
            f"must be orthonormal with determinant +1; that of {names[first]!r} has {determinants[first]:.3g}. "
            "Remove a scale or mirroring from the rotations first (and give the translations the same unit)."
        )


def check_points(points: np.ndarray, where: Path | str) -> None:
    """Raise ValueError unless every point ([P, 3]) is finite, as float32 too."""
    with np.errstate(over="ignore"):
        broken = ~np.isfinite(points.astype(np.float32)).all(axis=1)
    if broken.any():
        raise ValueError(
            f"{where}: {broken.sum()} of {len(points)} points hold NaN or infinite coordinates. Remove them."
        )


def _list(names: list[str], mask: np.ndarray, limit: int = 5) -> str:
    chosen = [names[i] for i in np.flatnonzero(mask)]
    rest = f" and {len(chosen) - limit} more" if len(chosen) > limit else ""
    return ", ".join(chosen[:limit]) + rest
