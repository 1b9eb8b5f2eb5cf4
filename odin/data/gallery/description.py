"""What a gallery scene consists of, as plain values: surfaces, lights and cameras. Nothing here renders.

Axes: z is up; lengths are metres. Colours of textures are sRGB, light is linear.
Legend: V views, H and W of a texture in texels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from odin.data.gallery.meshes import Mesh, Vector


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Surface:
    """A mesh and what it looks like."""

    name: str  # unique within a scene
    mesh: Mesh
    texture: np.ndarray  # [H, W, 3] uint8, sRGB
    roughness: float | None = None  # of a glossy coat; None: matt


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Lamp:
    """A mesh that shines from its outer side."""

    mesh: Mesh
    radiance: np.ndarray  # [H, W, 3] float32, linear


@dataclass(frozen=True, kw_only=True, slots=True)
class Sun:
    """Light from infinitely far away."""

    direction: tuple[float, float, float]  # the way the light travels
    irradiance: tuple[float, float, float]  # linear


@dataclass(frozen=True, kw_only=True, slots=True)
class Bulb:
    """Light from a point: the sun of a scene that lies inside its lamp, which would shade a `Sun`."""

    position: tuple[float, float, float]
    intensity: tuple[float, float, float]  # power per solid angle, linear


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Description:
    """A whole scene. It has at most one lamp: with several, results came to depend on memory addresses."""

    surfaces: tuple[Surface, ...]
    lamp: Lamp | None = None
    sun: Sun | None = None
    bulb: Bulb | None = None
    sky: tuple[float, float, float] | None = None  # radiance of all directions that hit nothing
    camtoworlds: np.ndarray  # [V, 4, 4] float64, OpenCV axes
    fov_x_deg: float
    exposure: float  # factor from radiance to what the tone curve takes
    num_points: int  # surface points to draw, before those seen by one view alone are dropped
    samples_per_pixel: int  # a product of two like numbers suits the sampler best
    max_depth: int  # longest light path, in segments


def intrinsics(fov_x_deg: float, width: int, height: int) -> np.ndarray:
    """Pinhole matrix with square pixels and the principal point in the middle. [3, 3] float64, pixels"""
    focal_px = width / 2 / np.tan(np.radians(fov_x_deg) / 2)
    return np.array([[focal_px, 0, width / 2], [0, focal_px, height / 2], [0, 0, 1]])


def look_at(position: Vector, target: Vector, up: Vector = (0.0, 0.0, 1.0)) -> np.ndarray:
    """Camera to world for a camera at `position` that looks at `target`; x right, y down, z forward. [4, 4] float64"""
    position = np.asarray(position, np.float64)
    forward = np.asarray(target, np.float64) - position
    forward /= np.linalg.norm(forward)
    right = np.cross(forward, up)
    right /= np.linalg.norm(right)
    camtoworld = np.eye(4)
    camtoworld[:3, 0], camtoworld[:3, 1], camtoworld[:3, 2] = (right, np.cross(forward, right), forward)
    camtoworld[:3, 3] = position
    return camtoworld


def spread(num_views: int, num_groups: int) -> list[int]:
    """How many of the views each group gets, as evenly as possible."""
    return [num_views // num_groups + (group < num_views % num_groups) for group in range(num_groups)]
