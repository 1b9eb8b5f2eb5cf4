"""Writers of tiny inputs for the readers under test."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pycolmap
from PIL import Image

CORNER = np.array([0.3, -0.2, 0.1])  # a known point that every test camera sees


def ring_pose(index: int, count: int = 12) -> np.ndarray:
    """World to camera matrix of a camera 4 units from the origin that looks at it. [4, 4]"""
    angle = 2 * np.pi * index / count
    position = np.array([4 * np.cos(angle), 0.5, 4 * np.sin(angle)])
    forward = -position / np.linalg.norm(position)
    right = np.cross(forward, [0.0, 1.0, 0.0])
    right /= np.linalg.norm(right)
    viewmat = np.eye(4)
    viewmat[:3, :3] = np.stack([right, np.cross(forward, right), forward])
    viewmat[:3, 3] = -viewmat[:3, :3] @ position
    return viewmat


def write_image(path: Path, width: int, height: int, seed: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, size=(height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def build_model(
    names: Sequence[str],
    *,
    camera: pycolmap.Camera | None = None,
    points: np.ndarray | None = None,
    poses: Sequence[np.ndarray] | None = None,
) -> pycolmap.Reconstruction:
    """A model in which every image sees every point."""
    camera = camera or pycolmap.Camera(model="PINHOLE", width=16, height=12, params=[14.0, 15.0, 8.0, 6.5])
    camera.camera_id = 1
    points = np.stack([CORNER, -CORNER, CORNER * 0.5]) if points is None else points
    poses = poses or [ring_pose(index) for index in range(len(names))]
    model = pycolmap.Reconstruction()
    model.add_camera_with_trivial_rig(camera)
    for index, name in enumerate(names):
        pose = pycolmap.Rigid3d(pycolmap.Rotation3d(poses[index][:3, :3]), poses[index][:3, 3])
        pixels = [camera.img_from_cam(pose * point) for point in points]
        pixels = np.array([(-1, -1) if pixel is None else pixel for pixel in pixels]).reshape(-1, 2)
        image = pycolmap.Image(name=name, keypoints=pixels, camera_id=1, image_id=index + 1)
        model.add_image_with_trivial_frame(image, pose)
    for number, point in enumerate(points):
        point_id = model.add_point3D(point, pycolmap.Track(), np.array([number, 100, 200], np.uint8))
        for index in range(len(names)):
            model.add_observation(point_id, pycolmap.TrackElement(index + 1, number))
    return model


def write_model(model: pycolmap.Reconstruction, path: Path, *, text: bool = False) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    if text:
        model.write_text(str(path))
    else:
        model.write_binary(str(path))
    return path


def opengl_pose(viewmat: np.ndarray) -> np.ndarray:
    """Camera to world with OpenGL axes, from a world to camera matrix with OpenCV axes."""
    return np.linalg.inv(viewmat) @ np.diag([1.0, -1.0, -1.0, 1.0])
