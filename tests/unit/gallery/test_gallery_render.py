"""Rendered pixels against known points: the camera convention and the depth maps."""

from __future__ import annotations

import numpy as np
import pytest

from odin.data.gallery import surface
from odin.data.gallery.description import Description, Surface, intrinsics, look_at
from odin.data.gallery.meshes import quad

WIDTH, HEIGHT, FOV_DEG = 96, 72, 60.0
CAMERA = look_at((0.4, -5, 1.2), (0.1, 0, 0.3))


def plain(colour: int) -> np.ndarray:
    return np.full((1, 1, 3), colour, np.uint8)


def scene_of(*surfaces: Surface) -> Description:
    return Description(
        surfaces=surfaces,
        sky=(1.0, 1.0, 1.0),
        camtoworlds=CAMERA[None],
        fov_x_deg=FOV_DEG,
        exposure=1.0,
        num_points=100,
        samples_per_pixel=64,
        max_depth=2,
    )


@pytest.fixture
def renderer_class() -> type:
    pytest.importorskip("mitsuba", reason="the gallery needs odin[gallery]")
    from odin.data.gallery.render import Renderer

    return Renderer


@pytest.mark.parametrize("point", [(0.0, 0.0, 0.0), (-1.7, 0.5, 1.4), (1.5, -0.5, -0.6)])
def test_a_marker_appears_where_its_point_projects(renderer_class: type, point: tuple[float, float, float]) -> None:
    """The brightness lost to a small dark marker under a white sky has its centre where the point projects."""
    half = 0.12
    right, down = CAMERA[:3, 0] * 2 * half, CAMERA[:3, 1] * 2 * half
    marker = Surface(name="marker", mesh=quad(np.array(point) - right / 2 + down / 2, right, -down), texture=plain(0))
    picture = renderer_class(scene_of(marker), width=WIDTH, height=HEIGHT).picture(0, 1).astype(float)[..., 0]
    # Undo sRGB and the tone curve, so that a pixel half covered counts half.
    srgb = picture / 255
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    covered = np.clip(1 - linear / (1 - linear), 0, 1)
    covered[covered < 0.02] = 0  # rounding of the sky to eight bits
    rows, columns = np.mgrid[:HEIGHT, :WIDTH] + 0.5
    centre = np.array([(covered * columns).sum(), (covered * rows).sum()]) / covered.sum()
    pixels, _ = surface.project(np.array([point]), CAMERA, intrinsics(FOV_DEG, WIDTH, HEIGHT))
    np.testing.assert_allclose(centre, pixels[0], atol=0.1)


def test_geometry_is_what_pixel_centres_hit(renderer_class: type) -> None:
    ground = Surface(name="ground", mesh=quad((-9, -9, -1), (18, 0, 0), (0, 18, 0)), texture=plain(128))
    geometry = renderer_class(scene_of(ground), width=WIDTH, height=HEIGHT).geometry(0)
    hit = geometry.depths > 0
    assert 0.3 < hit.mean() < 0.8
    rows, columns = np.mgrid[:HEIGHT, :WIDTH] + 0.5
    pixels, depths = surface.project(geometry.positions[hit], CAMERA, intrinsics(FOV_DEG, WIDTH, HEIGHT))
    np.testing.assert_allclose(pixels, np.stack([columns[hit], rows[hit]], 1), atol=1e-2)
    np.testing.assert_allclose(geometry.depths[hit], depths, rtol=1e-6)
    np.testing.assert_allclose(geometry.positions[hit][:, 2], -1, atol=1e-5)
    np.testing.assert_allclose(np.abs(geometry.normals[hit]), np.broadcast_to([0, 0, 1], (hit.sum(), 3)), atol=1e-6)


def test_a_point_behind_a_wall_is_not_seen(renderer_class: type) -> None:
    wall = Surface(name="wall", mesh=quad((-1, 0, -1), (2, 0, 0), (0, 0, 2)), texture=plain(128))
    renderer = renderer_class(scene_of(wall), width=WIDTH, height=HEIGHT)
    points = np.array([[0.0, 0.0, 0.0], [0.0, 0.2, 0.0], [2.5, 0.2, 0.0]])  # on it, behind it, beside it
    assert renderer.sees(0, points).tolist() == [True, False, True]
