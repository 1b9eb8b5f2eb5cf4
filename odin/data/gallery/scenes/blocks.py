"""Blocks: houses on a grid of streets, seen from the air along a serpentine of cameras with strong overlap.

Textures are coarse, since a pixel covers about 0.7 m of ground at the default width and finer detail would only teach
a model noise.
"""

from __future__ import annotations

import numpy as np

from odin.data.gallery import textures
from odin.data.gallery.description import Description, Sun, Surface, look_at, spread
from odin.data.gallery.meshes import Mesh, box, merge, quad

DEFAULT_VIEWS = 100
_PITCH_M, _ROAD_M, _KERB_M = 30.0, 8.0, 0.3
_NUM_BLOCKS, _MARGIN_BLOCKS = (6, 4)  # blocks along a side under the cameras, and around them
_FLIGHT_HEIGHT_M = 90.0
_TILTS_DEG = (3.0, 25.0, 25.0, 25.0, 25.0)  # straight down, then forwards, left, back and right
_NUM_ROOFS, _NUM_FRONTS = 4, 4


def describe(num_views: int, seed: int) -> Description:
    """The scene with `num_views` cameras spread over the same area. Its surfaces depend on the seed alone."""
    return Description(
        surfaces=_city(np.random.default_rng([seed, 1])),
        sun=Sun(direction=(-0.5, 0.35, -0.9), irradiance=(2.2, 2.1, 1.85)),
        sky=(0.62, 0.68, 0.78),
        camtoworlds=_cameras(num_views, np.random.default_rng([seed, 2])),
        fov_x_deg=62.0,
        exposure=1.7,
        num_points=8000,
        samples_per_pixel=12,
        max_depth=3,
    )


def _city(rng: np.random.Generator) -> tuple[Surface, ...]:
    pavements: list[Mesh] = []
    parks: list[Mesh] = []
    roofs: list[list[Mesh]] = [[] for _ in range(_NUM_ROOFS)]
    fronts: list[list[Mesh]] = [[] for _ in range(_NUM_FRONTS)]
    for column in range(-_MARGIN_BLOCKS, _NUM_BLOCKS + _MARGIN_BLOCKS):
        for row in range(-_MARGIN_BLOCKS, _NUM_BLOCKS + _MARGIN_BLOCKS):
            low = np.array([column * _PITCH_M + _ROAD_M / 2, row * _PITCH_M + _ROAD_M / 2])
            size = _PITCH_M - _ROAD_M
            pavements.append(box((*low, 0), (*(low + size), _KERB_M), picture_m=14.0))
            if rng.random() < 0.15:
                parks.append(quad((*(low + 1), _KERB_M + 0.1), (size - 2, 0, 0), (0, size - 2, 0), picture_m=20.0))
                continue
            for house_low, house_high in _lots(low + 1, size - 2, int(rng.integers(3))):
                height = float(np.clip(rng.lognormal(2.4, 0.4), 5, 28))
                front, roof = (int(rng.integers(_NUM_FRONTS)), int(rng.integers(_NUM_ROOFS)))
                fronts[front].append(box((*house_low, _KERB_M), (*house_high, height), picture_m=22.0, faces="sides"))
                roofs[roof].append(box((*house_low, height), (*house_high, height + 0.6), picture_m=24.0))
                hut = house_low + 1 + rng.random(2) * (house_high - house_low - 5)
                roofs[(roof + 1) % _NUM_ROOFS].append(
                    box((*hut, height + 0.6), (*(hut + [3.5, 3.0]), height + 3.0), picture_m=24.0)
                )
    edge = (_NUM_BLOCKS + _MARGIN_BLOCKS) * _PITCH_M
    start = -_MARGIN_BLOCKS * _PITCH_M - 300
    road = quad((start, start, 0), (edge - start + 300, 0, 0), (0, edge - start + 300, 0), picture_m=40.0)
    return _dress(rng, road, pavements, parks, roofs, fronts)


def _lots(low: np.ndarray, size: float, kind: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Lower and upper corner [2] of each house on a block: one, two or three of them."""
    cuts = (((0, 0, 1, 1),), ((0, 0, 0.5, 1), (0.5, 0, 1, 1)), ((0, 0, 0.5, 0.5), (0.5, 0, 1, 0.5), (0, 0.5, 1, 1)))[
        kind
    ]
    gap = 0.5
    return [
        (low + size * np.array([left, near]) + gap, low + size * np.array([right, far]) - gap)
        for left, near, right, far in cuts
    ]


def _dress(
    rng: np.random.Generator,
    road: Mesh,
    pavements: list[Mesh],
    parks: list[Mesh],
    roofs: list[list[Mesh]],
    fronts: list[list[Mesh]],
) -> tuple[Surface, ...]:
    coarse = 96  # texels of a photograph on a surface: about four a metre
    roof_colours = ((0.64, 0.40, 0.33), (0.66, 0.66, 0.64), (0.42, 0.45, 0.50), (0.68, 0.60, 0.47))
    front_looks = (
        textures.facade(rng, (0.76, 0.60, 0.48)),
        textures.facade(rng, (0.72, 0.72, 0.68)),
        textures.facade(rng, (0.60, 0.66, 0.72)),
        textures.bricks((0.68, 0.48, 0.41), max_texels=coarse),
    )
    grass = textures.tinted("grass.png", (0.38, 0.50, 0.28), contrast=0.9, max_texels=coarse)
    surfaces = [
        Surface(name="road", mesh=road, texture=textures.plaster(rng, (0.40, 0.41, 0.44), num_patches=4)),
        Surface(name="pavement", mesh=merge(pavements), texture=textures.plaster(rng, (0.62, 0.60, 0.57))),
        Surface(name="park", mesh=merge(parks), texture=grass),
    ]
    for index, (meshes, colour) in enumerate(zip(roofs, roof_colours, strict=True)):
        look = textures.plaster(rng, colour, contrast=0.8, num_patches=4)
        surfaces.append(Surface(name=f"roof{index}", mesh=merge(meshes), texture=look))
    for index, (meshes, look) in enumerate(zip(fronts, front_looks, strict=True)):
        surfaces.append(Surface(name=f"front{index}", mesh=merge(meshes), texture=look))
    return tuple(surfaces)


def _cameras(num_views: int, rng: np.random.Generator) -> np.ndarray:
    """A serpentine over the area; the gimbal takes five directions in turn. [V, 4, 4]"""
    area = _NUM_BLOCKS * _PITCH_M
    num_lines = max(1, round(num_views**0.5))
    poses = []
    for line, count in enumerate(spread(num_views, num_lines)):
        y = (line + 0.5) / num_lines * area
        for index in range(count):
            x = (index + 0.5) / count * area
            x = x if line % 2 == 0 else area - x
            position = np.array([x, y, _FLIGHT_HEIGHT_M]) + rng.normal(0, (1.5, 1.5, 2.0))
            turn = (2 * line + index) % len(_TILTS_DEG)
            reach = position[2] * np.tan(np.radians(_TILTS_DEG[turn]))
            azimuth = np.pi / 2 * turn + rng.normal(0, 0.2)
            target = (position[0] + reach * np.cos(azimuth), position[1] + reach * np.sin(azimuth), 0.0)
            poses.append(look_at(position, target, up=(0, 1, 0)))
    return np.stack(poses)
