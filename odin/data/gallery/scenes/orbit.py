"""Orbit: a glossy knot on a plinth among small things, seen from two rings of cameras, with a far city around.

The usual object-centred capture: nearly every pair of views shares points.
"""

from __future__ import annotations

import numpy as np

from odin.data.gallery import textures
from odin.data.gallery.description import Bulb, Description, Lamp, Surface, look_at
from odin.data.gallery.meshes import Mesh, box, merge, quad, sphere, tube

DEFAULT_VIEWS = 48
_RINGS = ((3.0, 1.35, 0.75), (2.7, 2.4, 0.65))  # radius, height and height of the target, metres
_LOWER_SHARE = 0.58  # of the views, on the first ring
_SKY_RADIUS_M = 40.0


def describe(num_views: int, seed: int) -> Description:
    """The scene with `num_views` cameras. Its surfaces depend on the seed alone."""
    rng = np.random.default_rng([seed, 1])
    return Description(
        surfaces=(*_middle(rng), *_surroundings(rng)),
        lamp=Lamp(mesh=sphere((0, 0, 0), _SKY_RADIUS_M, inside=True, lowest=-0.05), radiance=textures.sky(rng)),
        bulb=Bulb(position=(14.0, -10.0, 22.0), intensity=(1500.0, 1420.0, 1280.0)),
        camtoworlds=_cameras(num_views, np.random.default_rng([seed, 2])),
        fov_x_deg=58.0,
        exposure=1.6,
        num_points=6000,
        samples_per_pixel=12,
        max_depth=3,
    )


def _middle(rng: np.random.Generator) -> list[Surface]:
    angle = np.linspace(0, 2 * np.pi, 160, endpoint=False)
    trefoil = 0.2 * np.stack(
        [np.sin(angle) + 2 * np.sin(2 * angle), np.cos(angle) - 2 * np.cos(2 * angle), -np.sin(3 * angle)], 1
    )  # [160, 3]
    surfaces = [
        Surface(
            name="knot",
            mesh=tube(trefoil + [0, 0, 1.02], 0.13, pictures=5),
            texture=textures.photo("coffee.png"),
            roughness=0.25,
        ),
        Surface(
            name="ball", mesh=sphere((-0.8, -0.8, 0.28), 0.28), texture=textures.photo("color.png"), roughness=0.25
        ),
        Surface(
            name="plinth",
            mesh=box((-0.6, -0.6, 0), (0.6, 0.6, 0.5), picture_m=0.9),
            texture=textures.bricks((0.66, 0.52, 0.42)),
        ),
    ]
    crates = ((1.35, 0.3, 0.42, "chelsea.png"), (-0.95, 1.2, 0.5, "astronaut.png"), (0.25, -1.35, 0.38, "ihc.png"))
    for index, (x, y, side, name) in enumerate(crates):
        mesh = box((x - side / 2, y - side / 2, 0), (x + side / 2, y + side / 2, side))
        surfaces.append(Surface(name=f"crate{index}", mesh=mesh, texture=textures.photo(name)))
    return surfaces


def _surroundings(rng: np.random.Generator) -> list[Surface]:
    fronts: list[list[Mesh]] = [[], [], []]
    num_houses = 15
    for house in range(num_houses):
        angle = 2 * np.pi * (house + rng.uniform(-0.2, 0.2)) / num_houses
        distance, half, height = (rng.uniform(9, 12.5), rng.uniform(1.2, 2.2), rng.uniform(1.8, 4.5))
        x, y = distance * np.cos(angle), distance * np.sin(angle)
        fronts[house % 3].append(box((x - half, y - half, 0), (x + half, y + half, height), picture_m=4.0))
    looks = (
        textures.facade(rng, (0.72, 0.55, 0.44)),
        textures.facade(rng, (0.70, 0.70, 0.66)),
        textures.bricks((0.66, 0.44, 0.37)),
    )
    near = 7.0
    far = [
        quad((-60, near, 0), (120, 0, 0), (0, 53, 0), picture_m=12),
        quad((-60, -60, 0), (120, 0, 0), (0, 53, 0), picture_m=12),
        quad((-60, -near, 0), (53, 0, 0), (0, 2 * near, 0), picture_m=12),
        quad((near, -near, 0), (53, 0, 0), (0, 2 * near, 0), picture_m=12),
    ]
    lawn = quad((-near, -near, 0), (2 * near, 0, 0), (0, 2 * near, 0), picture_m=3.5)
    return [
        Surface(name="lawn", mesh=lawn, texture=textures.tinted("grass.png", (0.40, 0.50, 0.26), contrast=1.1)),
        Surface(name="plain", mesh=merge(far), texture=textures.plaster(rng, (0.52, 0.50, 0.40), num_patches=4)),
        *(
            Surface(name=f"houses{index}", mesh=merge(meshes), texture=look)
            for index, (meshes, look) in enumerate(zip(fronts, looks, strict=True))
        ),
    ]


def _cameras(num_views: int, rng: np.random.Generator) -> np.ndarray:
    """Two rings, each closed whatever the number of views. [V, 4, 4]"""
    lower = round(_LOWER_SHARE * num_views)
    poses = []
    for ring, (count, (radius, height, target)) in enumerate(zip((lower, num_views - lower), _RINGS, strict=True)):
        for index in range(count):
            angle = 2 * np.pi * (index + 0.5 * ring) / count
            wave = 0.1 * np.sin(3 * angle)
            aim = (*rng.normal(0, 0.08, 2), target)
            poses.append(look_at((radius * np.cos(angle), radius * np.sin(angle), height + wave), aim))
    return np.stack(poses)
