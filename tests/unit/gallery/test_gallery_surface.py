"""Surface points and observations, without rendering."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from odin.data.gallery import surface
from odin.data.gallery.description import intrinsics, look_at

WIDTH, HEIGHT = 40, 30
K = intrinsics(90.0, WIDTH, HEIGHT)


def points_at(*positions: tuple[float, float, float], normal: tuple[float, float, float] = (0, -1, 0)):
    positions = np.array(positions, np.float64)
    return surface.SurfacePoints(
        positions=positions,
        normals=np.broadcast_to(np.array(normal, np.float64), positions.shape),
        colors=np.full((len(positions), 3), 100, np.uint8),
    )


def test_project_known_points() -> None:
    pixels, depths = surface.project(
        np.array([[0, 0, 0], [1, 0, 0], [0, 0, 1], [0, -8, 0]]), look_at((0, -4, 0), (0, 0, 0)), K
    )
    np.testing.assert_allclose(pixels[:3], [[20, 15], [25, 15], [20, 10]], atol=1e-12)
    np.testing.assert_allclose(depths, [4, 4, 4, -4], atol=1e-12)


def test_candidates_leave_out_behind_outside_and_edge_on() -> None:
    camera = look_at((0, -4, 0), (0, 0, 0))
    found, pixels = surface.candidates(points_at((0, 0, 0), (0, -8, 0), (9, 0, 0), (1, 0, 0)), camera, K, WIDTH, HEIGHT)
    assert found.tolist() == [0, 3]
    np.testing.assert_allclose(pixels, [[20, 15], [25, 15]], atol=1e-12)
    edge_on, _ = surface.candidates(points_at((0, 0, 0), normal=(1, 0, 0)), camera, K, WIDTH, HEIGHT)
    assert len(edge_on) == 0


def test_observations_stay_in_the_image_and_keep_the_noise() -> None:
    rng = np.random.default_rng(0)
    exact = rng.uniform(0, [WIDTH, HEIGHT], (20_000, 2))
    seen = surface.observe(np.arange(20_000), exact, WIDTH, HEIGHT, rng)
    assert (seen.pixels >= 0).all() and (seen.pixels < [WIDTH, HEIGHT]).all()
    assert 0 < 20_000 - len(seen.points) < 1_000
    inner = ((exact > 3) & (exact < [WIDTH - 3, HEIGHT - 3])).all(1)
    at = np.isin(seen.points, np.flatnonzero(inner))
    assert np.std(seen.pixels[at] - exact[seen.points[at]]) == pytest.approx(surface.NOISE_PX, rel=0.02)


def test_draw_points_takes_pixels_that_hit_something() -> None:
    grid = np.stack(np.meshgrid(np.arange(WIDTH), np.arange(HEIGHT)), -1)
    positions = np.concatenate([grid, np.ones((HEIGHT, WIDTH, 1))], -1).astype(float)
    depths = np.ones((HEIGHT, WIDTH), np.float32)
    depths[:, 20:] = 0
    picture = np.repeat(grid[..., :1], 3, -1).astype(np.uint8)
    drawn = surface.draw_points(positions, positions * 0 + [0, 0, 1], depths, picture, 50, np.random.default_rng(0))
    assert len(drawn.positions) == 50 == len(np.unique(drawn.positions, axis=0))
    assert drawn.positions[:, 0].max() < 20
    np.testing.assert_array_equal(drawn.colors[:, 0], drawn.positions[:, 0])
    none = surface.draw_points(positions, positions, depths * 0, picture, 50, np.random.default_rng(0))
    assert len(none.positions) == 0


def test_far_points_are_rare() -> None:
    depths = np.ones((200, 200), np.float32)
    depths[:90] = 80.0  # ten times the distance that counts as far: one in a hundred is kept
    positions = np.repeat(depths[..., None], 3, -1)
    picture = np.zeros((200, 200, 3), np.uint8)
    drawn = surface.draw_points(positions, positions, depths, picture, 5_000, np.random.default_rng(0))
    num_far = int((drawn.positions[:, 0] > 1).sum())
    assert 5 < num_far < 50


def test_model_holds_what_two_views_saw(tmp_path: Path) -> None:
    from odin.data._pycolmap import pycolmap

    cameras = np.stack([look_at((0, -4, 0), (0, 0, 0)), look_at((1, -4, 0), (0, 0, 0))])
    points = points_at((0, 0, 0), (1, 0, 0), (0, 0, 1))
    observations = []
    for camera, chosen in zip(cameras, ([0, 2], [0, 1, 2]), strict=True):
        pixels, _ = surface.project(points.positions[chosen], camera, K)
        observations.append(surface.Observations(points=np.array(chosen), pixels=pixels))
    num_points = surface.write_model(
        tmp_path / "0", ["a.png", "b.png"], cameras, K, (WIDTH, HEIGHT), points, observations
    )
    model = pycolmap.Reconstruction(str(tmp_path / "0"))
    assert num_points == 2 == len(model.points3D)  # the point that one view saw is left out
    assert sorted(tuple(point.xyz) for point in model.points3D.values()) == [(0, 0, 0), (0, 0, 1)]
    assert all(point.error < 1e-9 and point.track.length() == 2 for point in model.points3D.values())
    assert model.cameras[1].model.name == "PINHOLE"
    np.testing.assert_allclose(model.cameras[1].params, [20, 20, 20, 15])
    np.testing.assert_allclose(model.images[2].cam_from_world().matrix(), np.linalg.inv(cameras[1])[:3], atol=1e-12)
    assert [model.images[index].name for index in (1, 2)] == ["a.png", "b.png"]
