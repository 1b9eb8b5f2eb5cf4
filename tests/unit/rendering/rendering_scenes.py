"""Small random scenes and cameras for the renderers' tests."""

from __future__ import annotations

import numpy as np

from odin.data.scene import Camera
from odin.rendering.interface import Gaussians

FIELDS = ("means", "quats", "scales", "opacities", "sh")


def look_at(position, target=(0.0, 0.0, 0.0), up=(0.0, 0.0, 1.0)) -> np.ndarray:
    """World-to-camera matrix, OpenCV axes. [4, 4]"""
    position = np.asarray(position, np.float64)
    forward = np.asarray(target, np.float64) - position
    forward /= np.linalg.norm(forward)
    right = np.cross(forward, up)
    right /= np.linalg.norm(right)
    viewmat = np.eye(4)
    viewmat[:3, :3] = np.stack([right, np.cross(forward, right), forward])
    viewmat[:3, 3] = -viewmat[:3, :3] @ position
    return viewmat


def camera(width=61, height=45, *, principal=None, fov_deg=50.0, position=(2.5, -1.9, 1.2)) -> Camera:
    """A camera whose principal point may lie anywhere (a fraction of the image's size)."""
    focal = 0.5 * width / np.tan(np.radians(fov_deg) / 2)
    px, py = principal if principal is not None else (0.5, 0.5)
    K = np.array([[focal, 0, px * width], [0, 1.1 * focal, py * height], [0, 0, 1]])
    # rounded to float32 so that both float types see the same camera
    viewmat = look_at(position).astype(np.float32).astype(np.float64)
    return Camera(viewmat=viewmat, K=K.astype(np.float32).astype(np.float64), width=width, height=height)


def gaussians(num: int, *, seed: int = 0, num_sh: int = 16, dtype=np.float64) -> Gaussians:
    """Gaussians in a ball, some large, some nearly opaque, some too faint to be drawn; values exact in float32."""
    rng = np.random.default_rng(seed)
    arrays = {
        "means": rng.normal(size=(num, 3)) * 0.7,
        "quats": rng.normal(size=(num, 4)),
        "scales": np.exp(rng.normal(-2.8, 0.7, (num, 3))),
        "opacities": 1 / (1 + np.exp(-rng.normal(0.5, 2.5, num))),
        "sh": rng.normal(0, 0.3, (num, num_sh, 3)),
    }
    return Gaussians(**{name: arrays[name].astype(np.float32).astype(dtype) for name in FIELDS})


def rows_of(g: Gaussians, rows) -> Gaussians:
    return Gaussians(**{name: getattr(g, name)[rows].copy() for name in FIELDS})
