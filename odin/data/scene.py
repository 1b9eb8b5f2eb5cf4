"""A scene: posed views, their images, surface points and which view saw which point.

Legend: V views, P points, T track entries (one per point and view that saw it).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Camera:
    """A pinhole camera as the renderers take it (OpenCV axes: x right, y down, z forward).

    Pixel (column i, row j) has its centre at (i + 0.5, j + 0.5); the principal point need not be the
    image's centre.
    """

    viewmat: np.ndarray  # [4, 4] float64, world to camera
    K: np.ndarray  # [3, 3] float64, pixels
    width: int
    height: int

    @property
    def position(self) -> np.ndarray:
        """Camera centre in world units, from the float64 inverse of the view matrix. [3]"""
        return np.linalg.inv(self.viewmat)[:3, 3]


@dataclass(frozen=True, kw_only=True, slots=True)
class Protocol:
    """How the images a model is trained and judged on came to be. Rows of a table must agree on it."""

    source: str  # "colmap", "transforms" or "gallery"
    factor: float  # image size divided by the camera file's size, as 1 / factor
    resize: str  # "none", "provided" (the data set's own smaller images) or "area"
    undistorted: bool
    split: str  # rule for the test views, e.g. "index % 8 == 0"
    background: tuple[float, float, float]  # linear mix under transparent pixels, 0..1


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Scene:
    """Views sorted by their name, which is the image's path relative to the image folder."""

    name: str
    names: tuple[str, ...]  # V
    image_root: Path
    image_files: tuple[str, ...]  # V, relative to image_root
    widths: np.ndarray  # [V] int32, pixels
    heights: np.ndarray  # [V] int32, pixels
    Ks: np.ndarray  # [V, 3, 3] float64, pixels
    viewmats: np.ndarray  # [V, 4, 4] float64, world to camera
    is_test: np.ndarray  # [V] bool
    points: np.ndarray  # [P, 3] float32, world units
    colors: np.ndarray  # [P, 3] uint8
    track_offsets: np.ndarray  # [V + 1] int64: view v saw track_points[track_offsets[v]:track_offsets[v + 1]]
    track_points: np.ndarray  # [T] int32, ascending within a view
    protocol: Protocol

    @property
    def num_views(self) -> int:
        return len(self.names)

    @property
    def train_views(self) -> np.ndarray:
        """Indices of the training views, ascending. int32"""
        return np.flatnonzero(~self.is_test).astype(np.int32)

    @property
    def test_views(self) -> np.ndarray:
        """Indices of the test views, ascending. int32"""
        return np.flatnonzero(self.is_test).astype(np.int32)

    def camera(self, view: int) -> Camera:
        return Camera(
            viewmat=self.viewmats[view], K=self.Ks[view], width=int(self.widths[view]), height=int(self.heights[view])
        )

    def tracks(self, view: int) -> np.ndarray:
        """Points that view saw. [<=P] int32"""
        return self.track_points[self.track_offsets[view] : self.track_offsets[view + 1]]

    @property
    def extent(self) -> float:
        """Scene scale of 3DGS: 1.1 times the largest distance of a *training* camera from their mean centre.

        Where all training cameras stand in one place, the median distance of the points to it, or 1 without points.
        """
        centres = np.stack([self.camera(int(v)).position for v in self.train_views])
        middle = centres.mean(0)
        extent = float(1.1 * np.linalg.norm(centres - middle, axis=1).max())
        if extent > 1e-6:
            return extent
        spread = float(np.median(np.linalg.norm(self.points - middle, axis=1))) if len(self.points) else 0.0
        return spread if spread > 1e-6 else 1.0
