"""Small scenes made in memory, as one session fixture `scenes` of functions."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from odin.data.scene import Protocol, Scene

WIDTH, HEIGHT, FOCAL_PX = 60, 40, 50.0


def look_at(position: np.ndarray, target: np.ndarray) -> np.ndarray:
    """World-to-camera matrix, OpenCV axes, world z up. [4, 4]"""
    forward = (target - position) / np.linalg.norm(target - position)
    right = np.cross(forward, [0.0, 0.0, 1.0])
    right /= np.linalg.norm(right)
    rotation = np.stack([right, np.cross(forward, right), forward])
    viewmat = np.eye(4)
    viewmat[:3, :3], viewmat[:3, 3] = rotation, -rotation @ position
    return viewmat


def make_scene(
    viewmats: np.ndarray, points: np.ndarray, tracks: list[np.ndarray], *, name: str = "made", test_every: int = 0
) -> Scene:
    num_views = len(viewmats)
    index = np.arange(num_views)
    return Scene(
        name=name,
        names=tuple(f"{view:03d}.png" for view in range(num_views)),
        image_root=Path("images"),
        image_files=tuple(f"{view:03d}.png" for view in range(num_views)),
        widths=np.full(num_views, WIDTH, np.int32),
        heights=np.full(num_views, HEIGHT, np.int32),
        Ks=np.tile([[FOCAL_PX, 0.0, WIDTH / 2], [0.0, FOCAL_PX, HEIGHT / 2], [0.0, 0.0, 1.0]], (num_views, 1, 1)),
        viewmats=np.asarray(viewmats, np.float64),
        is_test=index % test_every == 0 if test_every else np.zeros(num_views, bool),
        points=points.astype(np.float32),
        colors=np.zeros((len(points), 3), np.uint8),
        track_offsets=np.concatenate([[0], np.cumsum([len(seen) for seen in tracks])]).astype(np.int64),
        track_points=np.concatenate([*tracks, np.zeros(0, np.int32)]).astype(np.int32),
        protocol=Protocol(
            source="gallery",
            factor=1.0,
            resize="none",
            undistorted=False,
            split=f"index % {test_every} == 0" if test_every else "none",
            background=(0.0, 0.0, 0.0),
        ),
    )


def two_clusters(views_each: int = 8, points_each: int = 150, test_every: int = 0) -> Scene:
    """Two balls of points, far apart, each with a ring of cameras; views alternate between them.

    No camera of one ring has anything of the other ball in its frustum; every camera holds its whole ball.
    """
    generator = np.random.Generator(np.random.PCG64(3))
    centres = np.array([[-100.0, 0.0, 0.0], [100.0, 0.0, 0.0]])
    points = np.concatenate([centre + 0.5 * generator.uniform(-1, 1, (points_each, 3)) for centre in centres])
    viewmats, tracks = [], []
    for view in range(2 * views_each):
        # Looking along y, so that the other ball is beside the camera and not behind what it looks at.
        swing = 0.4 * (view // 2) / views_each - 0.2
        centre = centres[view % 2]
        viewmats.append(look_at(centre + 4.0 * np.array([np.sin(swing), np.cos(swing), 0.2]), centre))
        first = (view % 2) * points_each + view // 2
        tracks.append(np.arange(first, first + points_each // 2, dtype=np.int32))
    return make_scene(np.stack(viewmats), points, tracks, name="two_clusters", test_every=test_every)


def line_of_views(num_views: int = 10, test_every: int = 0) -> Scene:
    """Cameras along a wall of points: neighbours overlap, distant ones do not. One point column per 0.1 units."""
    grid = np.stack(np.meshgrid(np.arange(-1.0, num_views, 0.1), np.arange(-0.5, 0.5, 0.25), indexing="ij"), -1)
    x, z = grid.reshape(-1, 2).T
    points = np.stack([x, np.zeros_like(x), z], axis=1)
    viewmats, tracks = [], []
    for view in range(num_views):
        position = np.array([view, -1.5, 0.0])
        viewmats.append(look_at(position, position + np.array([0.0, 1.0, 0.0])))
        tracks.append(np.flatnonzero(np.abs(x - view) < 0.6).astype(np.int32))
    return make_scene(np.stack(viewmats), points, tracks, name="line", test_every=test_every)


@pytest.fixture(scope="session")
def scenes() -> SimpleNamespace:
    return SimpleNamespace(
        look_at=look_at,
        make_scene=make_scene,
        two_clusters=two_clusters,
        line_of_views=line_of_views,
        width=WIDTH,
        height=HEIGHT,
        focal_px=FOCAL_PX,
    )
