"""Triangle meshes with texture coordinates: the shapes that the gallery's scenes are put together from.

Axes: z is up; lengths are metres. Texture coordinates run right (u) and down (v) through the picture, one unit a
picture, and repeat beyond it.
Legend: N vertices, F faces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Vector = Sequence[float] | np.ndarray


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Mesh:
    """Faces wind counter-clockwise when seen from their outer side."""

    positions: np.ndarray  # [N, 3] float32, metres
    uvs: np.ndarray  # [N, 2] float32, pictures
    faces: np.ndarray  # [F, 3] uint32
    normals: np.ndarray | None = None  # [N, 3] float32 unit vectors for smooth shading; None: flat faces

    @property
    def num_faces(self) -> int:
        return len(self.faces)


def merge(meshes: Sequence[Mesh]) -> Mesh:
    """One mesh of several, all flat or all smooth."""
    smooth = [mesh.normals is not None for mesh in meshes]
    assert meshes and all(smooth) == any(smooth), "merge takes at least one mesh, all flat or all smooth"
    starts = np.cumsum([0] + [len(mesh.positions) for mesh in meshes[:-1]])
    return Mesh(
        positions=np.concatenate([mesh.positions for mesh in meshes]),
        uvs=np.concatenate([mesh.uvs for mesh in meshes]),
        faces=np.concatenate([mesh.faces + np.uint32(start) for mesh, start in zip(meshes, starts, strict=True)]),
        normals=np.concatenate([mesh.normals for mesh in meshes]) if all(smooth) else None,
    )


def quad(corner: Vector, right: Vector, up: Vector, *, picture_m: float | None = None) -> Mesh:
    """A flat parallelogram that shows its picture upright when seen from the side `right x up` points to.

    `corner` is the lower left corner and `right` and `up` are the edges that leave it. The picture repeats every
    `picture_m` metres, or fills the quad once when that is None.
    """
    corner, right, up = (np.asarray(vector, np.float64) for vector in (corner, right, up))
    columns = 1.0 if picture_m is None else float(np.linalg.norm(right)) / picture_m
    rows = 1.0 if picture_m is None else float(np.linalg.norm(up)) / picture_m
    return Mesh(
        positions=np.array([corner, corner + right, corner + right + up, corner + up], np.float32),
        uvs=np.array([(0, 1), (columns, 1), (columns, 1 - rows), (0, 1 - rows)], np.float32),
        faces=np.array([(0, 1, 2), (0, 2, 3)], np.uint32),
    )


def box(low: Vector, high: Vector, *, picture_m: float | None = None, faces: str = "sides top") -> Mesh:
    """An upright box between two corners; `faces` names which of sides, top and bottom it has."""
    (x0, y0, z0), (x1, y1, z1) = low, high
    width, depth, height = x1 - x0, y1 - y0, z1 - z0
    up = (0, 0, height)
    quads = []
    if "sides" in faces:
        quads.append(quad((x0, y0, z0), (width, 0, 0), up, picture_m=picture_m))
        quads.append(quad((x1, y0, z0), (0, depth, 0), up, picture_m=picture_m))
        quads.append(quad((x1, y1, z0), (-width, 0, 0), up, picture_m=picture_m))
        quads.append(quad((x0, y1, z0), (0, -depth, 0), up, picture_m=picture_m))
    if "top" in faces:
        quads.append(quad((x0, y0, z1), (width, 0, 0), (0, depth, 0), picture_m=picture_m))
    if "bottom" in faces:
        quads.append(quad((x0, y1, z0), (width, 0, 0), (0, -depth, 0), picture_m=picture_m))
    return merge(quads)


def sphere(centre: Vector, radius: float, *, pictures: float = 1.0, inside: bool = False, lowest: float = -1.0) -> Mesh:
    """A smooth sphere under a longitude-latitude picture, of which it shows `pictures` copies around.

    With `inside` it is seen from within, and it ends where the height over the centre is `lowest` radii.
    """
    polar = np.linspace(0, np.arccos(lowest), 33)  # from the zenith down
    azimuth = np.linspace(0, 2 * np.pi, 65)
    down, around = np.meshgrid(polar, azimuth, indexing="ij")  # [33, 65]
    outward = np.stack([np.sin(down) * np.cos(around), np.sin(down) * np.sin(around), np.cos(down)], -1)
    uvs = np.stack([around / (2 * np.pi) * pictures, down / np.pi], -1)
    return _grid(np.asarray(centre) + radius * outward, -outward if inside else outward, uvs, flip=inside)


def tube(path: np.ndarray, radius: float, *, pictures: float) -> Mesh:
    """A smooth tube around a closed path [M, 3] (first point not repeated), `pictures` copies of its picture long."""
    path = np.concatenate([path, path[:1]])
    tangents = np.roll(path[:-1], -1, 0) - np.roll(path[:-1], 1, 0)
    tangents = np.concatenate([tangents, tangents[:1]])
    tangents /= np.linalg.norm(tangents, axis=1, keepdims=True)
    side = np.cross(tangents, [0.0, 0.0, 1.0])  # the path must nowhere be vertical
    side /= np.linalg.norm(side, axis=1, keepdims=True)
    other = np.cross(tangents, side)
    angles = np.linspace(0, 2 * np.pi, 25)[None, :, None]
    outward = np.cos(angles) * side[:, None] + np.sin(angles) * other[:, None]  # [M + 1, 25, 3]
    along, around = np.meshgrid(np.linspace(0, pictures, len(path)), np.linspace(0, 1, 25), indexing="ij")
    return _grid(path[:, None] + radius * outward, outward, np.stack([along, around], -1), flip=True)


def _grid(positions: np.ndarray, normals: np.ndarray, uvs: np.ndarray, *, flip: bool) -> Mesh:
    """A smooth mesh over a parametric surface sampled on a grid: positions and normals [R, C, 3], uvs [R, C, 2]."""
    rows, columns = positions.shape[:2]
    index = np.arange(rows * columns, dtype=np.uint32).reshape(rows, columns)
    a, b, c, d = (part.ravel() for part in (index[:-1, :-1], index[1:, :-1], index[1:, 1:], index[:-1, 1:]))
    faces = np.concatenate([np.stack([a, b, c], 1), np.stack([a, c, d], 1)])
    return Mesh(
        positions=positions.reshape(-1, 3).astype(np.float32),
        uvs=uvs.reshape(-1, 2).astype(np.float32),
        faces=np.ascontiguousarray(faces[:, ::-1]) if flip else faces,
        normals=normals.reshape(-1, 3).astype(np.float32),
    )
