"""Fixtures shared by all tests: real captures where they exist, and a small procedural scene that always does."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from PIL import Image

# Properties are about values, not about time: a busy machine must not fail them.
settings.register_profile("odin", deadline=None)
settings.load_profile("odin")

TINY_VIEWS = 24
TINY_POINTS = 300
TINY_WIDTH, TINY_HEIGHT = 48, 36
TINY_FOCAL_PX = 44.0


@pytest.fixture(scope="session")
def captures() -> Path:
    """Folder of real captures: `ODIN_CAPTURES`, or `shared/data` beside the repository. Skips where absent."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("ODIN_CAPTURES", default))
    if not folder.is_dir():
        pytest.skip(f"no folder of captures at {folder} (set ODIN_CAPTURES to one)")
    return folder


@pytest.fixture(scope="session")
def tiny_scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """COLMAP folder (images/, sparse/0/) of 24 views, 48 x 36 pixels, on a ring around 300 coloured balls."""
    return write_tiny_scene(tmp_path_factory.mktemp("tiny_scene"))


@pytest.fixture(scope="session")
def tiny_prepared(tiny_scene: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny scene as `odin prepare` leaves it: a folder for `odin.data.scene_io.load_scene`."""
    from odin.data.prepare import prepare

    out = tmp_path_factory.mktemp("tiny_prepared") / "tiny"
    prepare(str(tiny_scene), out)
    return out


def write_tiny_scene(folder: Path) -> Path:
    """Paint discs of known 3D points back to front and write images, cameras and exact tracks with pycolmap."""
    import pycolmap

    rng = np.random.default_rng(7)
    directions = rng.normal(size=(TINY_POINTS, 3))
    radii = rng.uniform(0.55, 1.0, size=(TINY_POINTS, 1))
    points = directions / np.linalg.norm(directions, axis=1, keepdims=True) * radii  # [P, 3]
    # Colours vary smoothly with position, so that a few primitives already explain most of an image.
    colors = np.clip(127 + 110 * np.sin(3 * points + [0.0, 2.0, 4.0]), 0, 255).astype(np.uint8)  # [P, 3]

    model = pycolmap.Reconstruction()
    parameters = [TINY_FOCAL_PX, TINY_FOCAL_PX, TINY_WIDTH / 2, TINY_HEIGHT / 2]
    model.add_camera_with_trivial_rig(
        pycolmap.Camera(camera_id=1, model="PINHOLE", width=TINY_WIDTH, height=TINY_HEIGHT, params=parameters)
    )
    (folder / "images").mkdir()
    observations: list[tuple[int, int, int]] = []  # image id, index of the 2D point, point
    for view in range(TINY_VIEWS):
        angle = 2 * np.pi * view / TINY_VIEWS
        position = 3.2 * np.array([np.cos(angle), 0.35 * np.sin(2 * angle), np.sin(angle)])
        rotation = _look_at_origin(position)
        pixels, owners, means2d = _paint_discs(points, colors, rotation, -rotation @ position)
        name = f"ring_{view:02d}.png"
        Image.fromarray(pixels).save(folder / "images" / name)
        visible = np.unique(owners[owners >= 0])
        pose = pycolmap.Rigid3d(pycolmap.Rotation3d(rotation), -rotation @ position)
        image = pycolmap.Image(name=name, keypoints=means2d[visible], camera_id=1, image_id=view + 1)
        model.add_image_with_trivial_frame(image, pose)
        observations += [(view + 1, index, int(point)) for index, point in enumerate(visible)]
    ids = [model.add_point3D(point, pycolmap.Track(), color) for point, color in zip(points, colors, strict=True)]
    for image_id, index, point in observations:
        model.add_observation(ids[point], pycolmap.TrackElement(image_id, index))
    (folder / "sparse" / "0").mkdir(parents=True)
    model.write_binary(str(folder / "sparse" / "0"))
    return folder


def _look_at_origin(position: np.ndarray) -> np.ndarray:
    """World to camera rotation with OpenCV axes whose z axis points at the origin. [3, 3]"""
    forward = -position / np.linalg.norm(position)
    right = np.cross(forward, [0.0, 1.0, 0.0])
    right /= np.linalg.norm(right)
    return np.stack([right, np.cross(forward, right), forward])


def _paint_discs(
    points: np.ndarray, colors: np.ndarray, rotation: np.ndarray, translation: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Image [H, W, 3] uint8, the point that owns each pixel [H, W] (-1: background), projections [P, 2]."""
    camera_points = points @ rotation.T + translation  # [P, 3]
    depths = camera_points[:, 2]
    means2d = TINY_FOCAL_PX * camera_points[:, :2] / depths[:, None] + [TINY_WIDTH / 2, TINY_HEIGHT / 2]
    columns, rows = np.meshgrid(np.arange(TINY_WIDTH) + 0.5, np.arange(TINY_HEIGHT) + 0.5)
    pixels = np.zeros((TINY_HEIGHT, TINY_WIDTH, 3), np.uint8)
    owners = np.full((TINY_HEIGHT, TINY_WIDTH), -1)
    for point in np.argsort(-depths):
        disc_px = 0.16 * TINY_FOCAL_PX / depths[point]
        inside = np.hypot(columns - means2d[point, 0], rows - means2d[point, 1]) < disc_px
        pixels[inside] = colors[point]
        owners[inside] = point
    return pixels, owners, means2d
