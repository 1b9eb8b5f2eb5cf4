"""Scenes and primitive sets made in memory for the pipelines' tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from odin.data.scene import Protocol, Scene
from odin.primitives.primitive_set import NUM_PARAMETERS, PrimitiveSet, fresh, pack

WIDTH, HEIGHT, FOCAL_PX = 61, 45, 55.0


def made_scene(points, colors=None, *, radius: float = 2.0, num_views: int = 4) -> Scene:
    """Training cameras on a circle that look at the origin, so that the extent is 1.1 times the radius."""
    points = np.asarray(points, np.float32).reshape(-1, 3)
    viewmats = np.tile(np.eye(4), (num_views, 1, 1))
    for view in range(num_views):
        angle = 2 * np.pi * view / num_views
        forward = -np.array([np.cos(angle), np.sin(angle), 0.0])
        rotation = np.stack([np.cross(forward, [0.0, 0.0, 1.0]), [0.0, 0.0, -1.0], forward])
        viewmats[view, :3, :3], viewmats[view, :3, 3] = rotation, rotation @ forward * radius
    names = tuple(f"{view}.png" for view in range(num_views))
    K = np.array([[FOCAL_PX, 0, WIDTH / 2], [0, FOCAL_PX, HEIGHT / 2], [0, 0, 1]])
    return Scene(
        name="made",
        names=names,
        image_root=Path("images"),
        image_files=names,
        widths=np.full(num_views, WIDTH, np.int32),
        heights=np.full(num_views, HEIGHT, np.int32),
        Ks=np.tile(K, (num_views, 1, 1)),
        viewmats=viewmats,
        is_test=np.zeros(num_views, bool),
        points=points,
        colors=np.full((len(points), 3), 128, np.uint8) if colors is None else np.asarray(colors, np.uint8),
        track_offsets=np.zeros(num_views + 1, np.int64),
        track_points=np.zeros(0, np.int32),
        protocol=Protocol(
            source="gallery", factor=1.0, resize="none", undistorted=False, split="none", background=(0.0, 0.0, 0.0)
        ),
    )


def random_primitives(num: int, extent: float, *, step: int, seed: int = 0, next_id: int | None = None) -> PrimitiveSet:
    """Primitives on both sides of every threshold of the paper's densification, with optimizer state."""
    rng = np.random.default_rng(seed)
    largest = extent * 10.0 ** rng.uniform(-3, -0.4, (num, 1))  # thresholds: 0.01 and 0.1 of the extent
    primitives = fresh(
        pack(
            {
                "means": rng.normal(size=(num, 3)),
                "quats": rng.normal(size=(num, 4)) * 3,
                "scales": np.log(largest * rng.uniform(0.05, 1, (num, 3))),
                "opacities": rng.normal(-4, 2, num),  # threshold: -5.3
                "sh0": rng.normal(size=(num, 3)),
                "shN": rng.normal(size=(num, 45)),
            }
        ),
        version=step,
    )
    primitives.exp_avg[:, :NUM_PARAMETERS] = rng.normal(size=(num, NUM_PARAMETERS))
    primitives.exp_avg_sq[:, :NUM_PARAMETERS] = rng.uniform(size=(num, NUM_PARAMETERS))
    views = rng.integers(0, 20, num)
    primitives.stats[:, 0] = views * 2e-4 * np.exp(rng.normal(size=num))
    primitives.stats[:, 1] = views
    primitives.next_id = num if next_id is None else next_id
    return primitives
