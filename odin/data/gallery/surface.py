"""Surface points, which views see them and where: the sparse model that a capture would have reconstructed.

Pure functions; rays are cast by `odin.data.gallery.render`.
Legend: V views, P points, M candidates of one view, N observations of one view.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

NOISE_PX = 0.3  # standard deviation of an observation along each axis, as good feature matching has
_MIN_COSINE = 0.17  # of the angle between ray and normal: features are not found at more grazing angles (80 degrees)
_MIN_DEPTH_M = 0.05
_MAX_POINTS_SHARE = 1 / 8  # of a view's pixels that may become points
_SKY_DISTANCE = 8.0  # multiples of a view's median depth from which points become rare


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SurfacePoints:
    """Points on the scene's surfaces with what is known of them there."""

    positions: np.ndarray  # [P, 3] float64, metres
    normals: np.ndarray  # [P, 3] float64
    colors: np.ndarray  # [P, 3] uint8


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Observations:
    """The points that one view sees, ascending, and the pixels where it sees them."""

    points: np.ndarray  # [N] int64
    pixels: np.ndarray  # [N, 2] float64, x and y; pixel centres lie at + 0.5


def draw_points(
    positions: np.ndarray,
    normals: np.ndarray,
    depths: np.ndarray,
    picture: np.ndarray,
    num_points: int,
    rng: np.random.Generator,
) -> SurfacePoints:
    """Up to `num_points` points behind pixels of one view, drawn without repetition.

    positions and normals [H, W, 3] and depths [H, W] describe what pixel centres hit (depth 0: nothing); colours are
    the picture's [H, W, 3]. Nearly featureless far surfaces such as the sky are drawn with a chance that falls with
    the square of their depth, as reconstructions have few points there.
    """
    hit = np.flatnonzero(depths.ravel() > 0)
    depth = depths.ravel()[hit].astype(np.float64)
    num_points = min(num_points, int(depths.size * _MAX_POINTS_SHARE), len(hit))
    chosen = np.empty(0, np.int64)
    if num_points > 0:
        chosen = np.sort(rng.choice(hit, num_points, replace=False))
        far = _SKY_DISTANCE * np.median(depth)
        keep = rng.random(num_points) < (far / depths.ravel()[chosen]) ** 2
        chosen = chosen[keep]
    return SurfacePoints(
        positions=positions.reshape(-1, 3)[chosen].astype(np.float64),
        normals=normals.reshape(-1, 3)[chosen].astype(np.float64),
        colors=picture.reshape(-1, 3)[chosen],
    )


def join(parts: list[SurfacePoints]) -> SurfacePoints:
    """All parts' points, in order."""
    return SurfacePoints(
        positions=np.concatenate([part.positions for part in parts]),
        normals=np.concatenate([part.normals for part in parts]),
        colors=np.concatenate([part.colors for part in parts]),
    )


def project(points: np.ndarray, camtoworld: np.ndarray, K: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pixels [P, 2] and depths [P] of world points [P, 3], float64; pixels mean nothing where the depth is <= 0."""
    world_to_camera = np.linalg.inv(camtoworld)
    local = points @ world_to_camera[:3, :3].T + world_to_camera[:3, 3]  # [P, 3]
    depths = local[:, 2]
    safe = np.where(depths > 0, depths, 1.0)[:, None]
    return local[:, :2] / safe * [K[0, 0], K[1, 1]] + [K[0, 2], K[1, 2]], depths


def candidates(
    points: SurfacePoints, camtoworld: np.ndarray, K: np.ndarray, width: int, height: int
) -> tuple[np.ndarray, np.ndarray]:
    """Points inside the view's frustum that it does not see too much edge-on: indices [M] and exact pixels [M, 2]."""
    pixels, depths = project(points.positions, camtoworld, K)
    rays = points.positions - camtoworld[:3, 3]
    cosines = np.abs((rays * points.normals).sum(1)) / np.linalg.norm(rays, axis=1)
    inside = (depths > _MIN_DEPTH_M) & _inside(pixels, width, height)
    chosen = np.flatnonzero(inside & (cosines > _MIN_COSINE))
    return chosen, pixels[chosen]


def observe(points: np.ndarray, pixels: np.ndarray, width: int, height: int, rng: np.random.Generator) -> Observations:
    """Noisy observations of the visible points [M] at exact pixels [M, 2]; those that leave the image are dropped."""
    noisy = pixels + rng.normal(0, NOISE_PX, pixels.shape)
    inside = _inside(noisy, width, height)
    return Observations(points=points[inside], pixels=noisy[inside])


def write_model(
    folder: Path,
    names: list[str],
    camtoworlds: np.ndarray,
    K: np.ndarray,
    size: tuple[int, int],
    points: SurfacePoints,
    observations: list[Observations],
) -> int:
    """Write a COLMAP model of one PINHOLE camera; points seen by fewer than two views are left out.

    Image ids are 1 + view, in the order of `names` [V]; camtoworlds [V, 4, 4], K [3, 3], size is width and height.
    Returns the number of points written.
    """
    from odin.data._pycolmap import pycolmap

    num_seen = np.bincount(np.concatenate([seen.points for seen in observations]), minlength=len(points.positions))
    kept = num_seen >= 2
    model = pycolmap.Reconstruction()
    model.add_camera_with_trivial_rig(
        pycolmap.Camera(
            camera_id=1, model="PINHOLE", width=size[0], height=size[1], params=[K[0, 0], K[1, 1], K[0, 2], K[1, 2]]
        )
    )
    tracks: dict[int, pycolmap.Track] = {int(point): pycolmap.Track() for point in np.flatnonzero(kept)}
    for view, (name, seen) in enumerate(zip(names, observations, strict=True)):
        shown = kept[seen.points]
        viewmat = np.linalg.inv(camtoworlds[view])
        image = pycolmap.Image(name=name, keypoints=seen.pixels[shown], camera_id=1, image_id=view + 1)
        model.add_image_with_trivial_frame(image, pycolmap.Rigid3d(viewmat[:3]))
        for index, point in enumerate(seen.points[shown]):
            tracks[int(point)].add_element(view + 1, index)
    for point, track in tracks.items():
        model.add_point3D(points.positions[point], track, points.colors[point])
    model.update_point_3d_errors()
    folder.mkdir(parents=True, exist_ok=True)
    model.write_binary(str(folder))
    return len(tracks)


def _inside(pixels: np.ndarray, width: int, height: int) -> np.ndarray:
    return (pixels >= 0).all(1) & (pixels < [width, height]).all(1)
