"""Rooms: six furnished rooms in two rows of three, joined by doors, with photographs on the walls.

Most pairs of views lie in different rooms and share no point: the scene on which scopes differ most.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from odin.data.gallery import textures
from odin.data.gallery.description import Description, Lamp, Surface, look_at, spread
from odin.data.gallery.meshes import Mesh, box, merge, quad, sphere

DEFAULT_VIEWS = 72
_COLUMNS, _ROWS = 3, 2
NUM_ROOMS = _COLUMNS * _ROWS
_SIDE_M, _HEIGHT_M, _HALF_WALL_M = 4.0, 2.6, 0.08
_DOOR_WIDTH_M, _DOOR_HEIGHT_M = 1.0, 2.1


@dataclass(frozen=True, kw_only=True, slots=True)
class _Wall:
    """One inner face of a room: it starts at `start` and runs along `along` to the right for one who looks at it."""

    start: tuple[float, float]
    along: tuple[float, float]  # unit vector; the face looks towards (along_y, -along_x)
    length: float
    door: bool

    def place(self, right: float, up: float, off: float = 0.0) -> np.ndarray:
        """World point `right` metres along the face, `up` above the floor, `off` in front of the face. [3]"""
        (x, y), (dx, dy) = self.start, self.along
        return np.array([x + right * dx + off * dy, y + right * dy - off * dx, up])


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Look:
    """Textures of one room, and the photograph on its ornament."""

    wallpaper: np.ndarray
    floor: np.ndarray
    furniture: np.ndarray
    cover: str


def describe(num_views: int, seed: int) -> Description:
    """The scene with `num_views` cameras, shared out evenly among the rooms. Surfaces depend on the seed alone."""
    rng = np.random.default_rng([seed, 1])
    surfaces = [surface for room, look in enumerate(_looks(rng)) for surface in _room(room, look, rng)]
    surfaces.append(_woodwork(rng))
    return Description(
        surfaces=tuple(surfaces),
        lamp=_ceiling(rng),
        camtoworlds=_cameras(num_views, np.random.default_rng([seed, 2])),
        fov_x_deg=78.0,
        exposure=5.6,
        num_points=7200,
        samples_per_pixel=20,
        max_depth=3,
    )


def _corner(room: int) -> tuple[float, float]:
    return room % _COLUMNS * _SIDE_M, room // _COLUMNS * _SIDE_M


def _walls(room: int) -> list[_Wall]:
    """South, east, north and west face of a room. Rows are joined inside, and with each other in the last column."""
    column, row = room % _COLUMNS, room // _COLUMNS
    x0, y0 = _corner(room)
    x0, y0 = x0 + _HALF_WALL_M, y0 + _HALF_WALL_M
    length = _SIDE_M - 2 * _HALF_WALL_M
    x1, y1 = x0 + length, y0 + length
    between_rows = column == _COLUMNS - 1
    return [
        _Wall(start=(x1, y0), along=(-1, 0), length=length, door=between_rows and row > 0),
        _Wall(start=(x1, y1), along=(0, -1), length=length, door=column < _COLUMNS - 1),
        _Wall(start=(x0, y1), along=(1, 0), length=length, door=between_rows and row < _ROWS - 1),
        _Wall(start=(x0, y0), along=(0, 1), length=length, door=column > 0),
    ]


def _room(room: int, look: _Look, rng: np.random.Generator) -> list[Surface]:
    x, y = _corner(room)
    inner = _SIDE_M  # the floor runs under the walls and so through the doors
    walls = [piece for wall in _walls(room) for piece in _wall_pieces(wall)]
    pictures = [
        Surface(name=f"picture{room}_{index}", mesh=_picture(wall, middle, name), texture=textures.photo(name))
        for index, (wall, middle, name) in enumerate(_hangings(room))
    ]
    middle_x, middle_y = (x + _SIDE_M / 2 + rng.uniform(-0.15, 0.15), y + _SIDE_M / 2 + rng.uniform(-0.15, 0.15))
    return [
        Surface(name=f"walls{room}", mesh=merge(walls), texture=look.wallpaper),
        Surface(
            name=f"floor{room}", mesh=quad((x, y, 0), (inner, 0, 0), (0, inner, 0), picture_m=2.0), texture=look.floor
        ),
        Surface(name=f"furniture{room}", mesh=merge(_furniture(x, y, middle_x, middle_y)), texture=look.furniture),
        _ornament(room, middle_x, middle_y, look.cover),
        *pictures,
    ]


def _looks(rng: np.random.Generator) -> list[_Look]:
    """How each room looks."""
    wallpapers = (
        textures.bricks((0.86, 0.70, 0.62), contrast=0.8),
        textures.plaster(rng, (0.72, 0.80, 0.70), contrast=0.4, num_patches=4),
        textures.plaster(rng, (0.80, 0.73, 0.56), contrast=0.3, num_patches=8),
        textures.tiles(rng, (0.74, 0.78, 0.88), (0.60, 0.66, 0.80), num_tiles=4),
        textures.tiles(rng, (0.86, 0.83, 0.74), (0.70, 0.78, 0.81), num_tiles=8),
        textures.bricks((0.80, 0.80, 0.86), contrast=0.8),
    )
    floors = (
        textures.planks(rng, (0.58, 0.40, 0.26)),
        textures.tiles(rng, (0.78, 0.78, 0.75), (0.42, 0.44, 0.48)),
        textures.tinted("gravel.png", (0.58, 0.52, 0.46), contrast=0.7, max_texels=64),
        textures.planks(rng, (0.50, 0.38, 0.30), num_rows=10),
        textures.tinted("grass.png", (0.60, 0.38, 0.36), contrast=0.8),
        textures.tiles(rng, (0.70, 0.52, 0.42), (0.58, 0.40, 0.32), num_tiles=5),
    )
    furniture = (
        textures.planks(rng, (0.62, 0.48, 0.34)),
        textures.tinted("grass.png", (0.42, 0.50, 0.70), contrast=0.7),
        textures.planks(rng, (0.50, 0.40, 0.34)),
        textures.plaster(rng, (0.72, 0.62, 0.44)),
        textures.tinted("gravel.png", (0.50, 0.62, 0.50), contrast=0.7),
        textures.tiles(rng, (0.74, 0.42, 0.36), (0.76, 0.70, 0.62)),
    )
    covers = ("color.png", "retina.jpg", "coffee.png", "chelsea.png", "ihc.png", "moon.png")
    return [
        _Look(wallpaper=wallpaper, floor=floor, furniture=cloth, cover=cover)
        for wallpaper, floor, cloth, cover in zip(wallpapers, floors, furniture, covers, strict=True)
    ]


def _furniture(x: float, y: float, middle_x: float, middle_y: float) -> list[Mesh]:
    """A table in the middle, a cupboard and a bench in two corners."""
    table = [box((middle_x - 0.5, middle_y - 0.35, 0.66), (middle_x + 0.5, middle_y + 0.35, 0.72), picture_m=1.0,
                 faces="sides top bottom")]  # fmt: skip
    for dx in (-0.46, 0.4):
        for dy in (-0.31, 0.25):
            corner = np.array([middle_x + dx, middle_y + dy, 0])
            table.append(box(corner, corner + [0.06, 0.06, 0.66], picture_m=1.0, faces="sides"))
    edge, far = _HALF_WALL_M, _SIDE_M - _HALF_WALL_M
    cupboard = box((x + far - 0.45, y + edge, 0), (x + far, y + edge + 0.7, 1.0), picture_m=1.0)
    bench = box((x + edge, y + far - 0.5, 0), (x + edge + 0.9, y + far, 0.42), picture_m=1.0)
    return [*table, cupboard, bench]


def _ornament(room: int, x: float, y: float, cover: str) -> Surface:
    """A ball or a box on the table, under a photograph."""
    if room % 2 == 0:
        mesh, roughness = sphere((x, y, 0.72 + 0.17), 0.17, pictures=2), 0.25
    else:
        mesh, roughness = (box((x - 0.16, y - 0.16, 0.72), (x + 0.16, y + 0.16, 1.04)), None)
    return Surface(name=f"ornament{room}", mesh=mesh, texture=textures.photo(cover), roughness=roughness)


def _wall_pieces(wall: _Wall) -> list[Mesh]:
    pieces = [(0.0, wall.length, 0.0, _HEIGHT_M)]
    if wall.door:
        left, right = ((wall.length - _DOOR_WIDTH_M) / 2, (wall.length + _DOOR_WIDTH_M) / 2)
        pieces = [
            (0.0, left, 0.0, _HEIGHT_M),
            (right, wall.length, 0.0, _HEIGHT_M),
            (left, right, _DOOR_HEIGHT_M, _HEIGHT_M),
        ]
    return [
        quad(wall.place(left, low), wall.place(right, low) - wall.place(left, low), (0, 0, high - low), picture_m=2.2)
        for left, right, low, high in pieces
    ]


def _hangings(room: int) -> list[tuple[_Wall, float, str]]:
    """Each picture of a room: its wall, the middle along it in metres and the photograph."""
    hangings = []
    for face, wall in enumerate(_walls(room)):
        for index, middle in enumerate((0.75,) if wall.door else (0.26 * wall.length, 0.74 * wall.length)):
            name = textures.PICTURES[(room * 7 + face * 2 + index) % len(textures.PICTURES)]
            hangings.append((wall, middle, name))
    return hangings


def _picture(wall: _Wall, middle: float, name: str, border: float = 0.0) -> Mesh:
    """A quad on the wall for a photograph, or with a border for its frame; the middle is 1.5 m above the floor."""
    height, width = np.array(textures.photo(name).shape[:2]) / max(textures.photo(name).shape)  # longer side: 1 m
    off = 0.03 if border == 0 else 0.02
    left, low = middle - width / 2 - border, 1.5 - height / 2 - border
    corner = wall.place(left, low, off)
    right = wall.place(left + width + 2 * border, low, off) - corner
    return quad(corner, right, (0, 0, height + 2 * border), picture_m=0.4 if border else None)


def _woodwork(rng: np.random.Generator) -> Surface:
    """All picture frames, and the inner sides of all door openings, from each room to the middle of its wall."""
    pieces = []
    for room in range(NUM_ROOMS):
        pieces += [_picture(wall, middle, name, border=0.05) for wall, middle, name in _hangings(room)]
        for wall in (wall for wall in _walls(room) if wall.door):
            left, right = (wall.length - _DOOR_WIDTH_M) / 2, (wall.length + _DOOR_WIDTH_M) / 2
            into = wall.place(0, 0, -_HALF_WALL_M) - wall.place(0, 0)
            across = wall.place(right, 0) - wall.place(left, 0)
            up = (0, 0, _DOOR_HEIGHT_M)
            pieces.append(quad(wall.place(left, 0), into, up, picture_m=1.0))
            pieces.append(quad(wall.place(right, 0) + into, -into, up, picture_m=1.0))
            pieces.append(quad(wall.place(left, _DOOR_HEIGHT_M) + into, across, -into, picture_m=1.0))
    return Surface(name="woodwork", mesh=merge(pieces), texture=textures.planks(rng, (0.62, 0.54, 0.44)))


def _ceiling(rng: np.random.Generator) -> Lamp:
    """One lamp over all rooms: a big lamp gives little noise. Its panels differ, so that it has features too."""
    side = 8
    panels = np.repeat(np.repeat(rng.uniform(0.62, 0.92, (side, side)), 16, 0), 16, 1)
    seam = np.arange(16 * side) % 16 < 2
    panels[seam] *= 0.55
    panels[:, seam] *= 0.55
    radiance = (panels[..., None] * np.array([1.0, 0.96, 0.9])).astype(np.float32)
    sheets = []
    for room in range(NUM_ROOMS):
        x, y = _corner(room)
        sheets.append(quad((x, y + _SIDE_M, _HEIGHT_M), (_SIDE_M, 0, 0), (0, -_SIDE_M, 0)))
    return Lamp(mesh=merge(sheets), radiance=radiance)


def _cameras(num_views: int, rng: np.random.Generator) -> np.ndarray:
    """In every room a ring of cameras that look over the table at the far side. [V, 4, 4]"""
    poses = []
    for room, count in enumerate(spread(num_views, NUM_ROOMS)):
        x, y = _corner(room)
        for index in range(count):
            angle = 2 * np.pi * (index + rng.uniform(-0.2, 0.2)) / count + 0.3
            radius, height = rng.uniform(1.25, 1.5), rng.uniform(1.35, 1.65)
            heading = angle + np.pi + rng.uniform(-0.45, 0.45)
            position = np.array(
                [x + _SIDE_M / 2 + radius * np.cos(angle), y + _SIDE_M / 2 + radius * np.sin(angle), height]
            )
            poses.append(look_at(position, position + [np.cos(heading), np.sin(heading), -rng.uniform(0.05, 0.3)]))
    return np.stack(poses)
