"""The gallery's pure parts: meshes, cameras, textures and descriptions."""

from __future__ import annotations

import numpy as np
import pytest

from odin.data.gallery import textures
from odin.data.gallery.description import intrinsics, look_at, spread
from odin.data.gallery.meshes import Mesh, box, merge, quad, sphere, tube
from odin.data.gallery.scenes import DEFAULT_VIEWS, SCENES, rooms


def face_normals(mesh: Mesh) -> np.ndarray:
    a, b, c = (mesh.positions[mesh.faces[:, corner]] for corner in range(3))
    return np.cross(b - a, c - a)


def test_quad_shows_its_picture_upright_from_its_front() -> None:
    mesh = quad((1, 0, 0), (2, 0, 0), (0, 0, 3))
    assert mesh.positions.tolist() == [[1, 0, 0], [3, 0, 0], [3, 0, 3], [1, 0, 3]]
    assert mesh.uvs.tolist() == [[0, 1], [1, 1], [1, 0], [0, 0]]  # v runs down the picture
    assert (face_normals(mesh)[:, 1] < 0).all()


def test_quad_repeats_its_picture_by_length() -> None:
    mesh = quad((0, 0, 0), (6, 0, 0), (0, 3, 0), picture_m=1.5)
    assert np.ptp(mesh.uvs, axis=0).tolist() == [4, 2]


@pytest.mark.parametrize("faces", ["sides", "sides top", "sides top bottom"])
def test_box_faces_look_outwards(faces: str) -> None:
    mesh = box((-1, -2, -3), (1, 2, 3), faces=faces)
    assert mesh.num_faces == {"sides": 8, "sides top": 10, "sides top bottom": 12}[faces]
    middles = mesh.positions[mesh.faces].mean(1)
    assert ((face_normals(mesh) * middles).sum(1) > 0).all()


@pytest.mark.parametrize("inside", [False, True])
def test_sphere_faces_and_normals_agree(inside: bool) -> None:
    mesh = sphere((1, 2, 3), 2.0, inside=inside)
    outward = mesh.positions - [1, 2, 3]
    np.testing.assert_allclose(np.linalg.norm(outward, axis=1), 2, rtol=1e-6)
    sign = -1 if inside else 1
    assert (sign * (mesh.normals * outward).sum(1) > 0).all()
    area_normals = face_normals(mesh)
    proper = np.linalg.norm(area_normals, axis=1) > 1e-6  # faces at the poles have no area
    assert (sign * (area_normals * outward[mesh.faces].mean(1)).sum(1) > 0)[proper].all()


def test_tube_keeps_its_radius() -> None:
    angle = np.linspace(0, 2 * np.pi, 100, endpoint=False)
    mesh = tube(np.stack([np.cos(angle), np.sin(angle), 0 * angle], 1), 0.2, pictures=3)
    ring = np.hypot(np.hypot(mesh.positions[:, 0], mesh.positions[:, 1]) - 1, mesh.positions[:, 2])
    np.testing.assert_allclose(ring, 0.2, atol=1e-6)
    assert (np.einsum("fi,fi->f", face_normals(mesh), mesh.normals[mesh.faces].mean(1)) > 0).all()


def test_merge_keeps_each_mesh_apart() -> None:
    first, second = quad((0, 0, 0), (1, 0, 0), (0, 1, 0)), quad((0, 0, 5), (1, 0, 0), (0, 1, 0))
    both = merge([first, second])
    assert both.faces.max() == 7
    assert both.positions[both.faces[2:]][..., 2].tolist() == [[5, 5, 5], [5, 5, 5]]


def test_look_at_has_opencv_axes() -> None:
    pose = look_at((0, -5, 0), (0, 0, 0))
    np.testing.assert_allclose(pose[:3, :3], [[1, 0, 0], [0, 0, 1], [0, -1, 0]], atol=1e-12)
    np.testing.assert_allclose(np.linalg.det(pose[:3, :3]), 1)


def test_intrinsics_reach_the_edge_at_half_the_field_of_view() -> None:
    K = intrinsics(90.0, 160, 120)
    np.testing.assert_allclose(K, [[80, 0, 80], [0, 80, 60], [0, 0, 1]], atol=1e-12)


def test_spread() -> None:
    assert spread(10, 4) == [3, 3, 2, 2]
    assert spread(6, 6) == [1] * 6


@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize("num_views", [6, 7, 25])
def test_any_number_of_views_is_a_sensible_scene(name: str, num_views: int) -> None:
    description = SCENES[name](num_views, 0)
    assert description.camtoworlds.shape == (num_views, 4, 4)
    rotations = description.camtoworlds[:, :3, :3]
    np.testing.assert_allclose(rotations @ rotations.transpose(0, 2, 1), np.broadcast_to(np.eye(3), (num_views, 3, 3)),
                               atol=1e-9)  # fmt: skip
    names = [surface.name for surface in description.surfaces]
    assert len(set(names)) == len(names)
    # The cameras of a thinner scene cover the same place.
    full = SCENES[name](DEFAULT_VIEWS[name], 0).camtoworlds[:, :2, 3]
    extent = np.ptp(description.camtoworlds[:, :2, 3], axis=0)
    assert (extent > 0.45 * np.ptp(full, axis=0)).all()


@pytest.mark.parametrize("name", SCENES)
def test_surfaces_depend_on_the_seed_but_not_on_the_views(name: str) -> None:
    few, many, other = SCENES[name](6, 0), SCENES[name](9, 0), SCENES[name](6, 1)
    for a, b in zip(few.surfaces, many.surfaces, strict=True):
        np.testing.assert_array_equal(a.mesh.positions, b.mesh.positions)
        np.testing.assert_array_equal(a.texture, b.texture)
    assert any(
        a.mesh.positions.shape != b.mesh.positions.shape or not np.array_equal(a.mesh.positions, b.mesh.positions)
        for a, b in zip(few.surfaces, other.surfaces, strict=True)
    )


@pytest.mark.parametrize("num_views", [6, 8, 72])
def test_every_room_keeps_views(num_views: int) -> None:
    positions = SCENES["rooms"](num_views, 0).camtoworlds[:, :3, 3]
    room = positions[:, 0] // 4 + 3 * (positions[:, 1] // 4)
    counts = np.bincount(room.astype(int), minlength=rooms.NUM_ROOMS)
    assert len(counts) == rooms.NUM_ROOMS
    assert counts.min() >= num_views // rooms.NUM_ROOMS


def test_every_photograph_is_in_the_wheel() -> None:
    for name in textures.PICTURES:
        photo = textures.photo(name)
        assert photo.dtype == np.uint8 and max(photo.shape[:2]) <= textures.MAX_TEXELS


def test_an_unknown_photograph_is_refused() -> None:
    with pytest.raises(ValueError, match=r"does not ship .*no_such\.png"):
        textures.photo("no_such.png")


def test_srgb_round_trip() -> None:
    values = np.linspace(0, 1, 256)
    np.testing.assert_allclose(textures.to_srgb(textures.to_linear(values)), values, atol=1e-6)
    np.testing.assert_allclose(textures.to_linear(np.array([0.5])), [0.21404114], atol=1e-7)


def test_value_noise_repeats_without_a_seam() -> None:
    noise = textures.value_noise(np.random.default_rng(0), gain=0.4)
    inner = np.abs(np.diff(noise, axis=1)).max()
    assert np.abs(noise[:, 0] - noise[:, -1]).max() <= inner
    assert noise.min() >= 0 and noise.max() <= 1
