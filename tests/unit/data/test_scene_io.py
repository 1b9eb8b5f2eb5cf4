"""Prepared folders: bytes, validation, images."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil

import numpy as np
import pytest
from PIL import Image

from odin.data.scene_io import (
    MANIFEST,
    Provenance,
    load_image,
    load_scene,
    save_scene,
    validate_scene,
    verify_images,
)


@pytest.fixture
def prepared(tiny_prepared, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(tiny_prepared, tmp_path / "prepared")


def contents(folder) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def assert_equal(a, b) -> None:
    for field in dataclasses.fields(a):
        x, y = getattr(a, field.name), getattr(b, field.name)
        if isinstance(x, np.ndarray):
            assert x.dtype == y.dtype
            np.testing.assert_array_equal(x, y)
        elif field.name != "image_root":
            assert x == y


def test_round_trip_keeps_every_field(prepared, tmp_path):
    scene = load_scene(prepared)
    save_scene(scene, tmp_path / "again")
    loaded = load_scene(tmp_path / "again")
    assert_equal(scene, loaded)
    assert loaded.image_root == tmp_path / "again" / "images"
    np.testing.assert_array_equal(load_image(loaded, 3), load_image(scene, 3))


def test_saving_twice_gives_the_same_bytes(prepared, tmp_path):
    scene = load_scene(prepared)
    save_scene(scene, tmp_path / "a")
    save_scene(scene, tmp_path / "b")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    save_scene(scene, tmp_path / "a")  # a no-op
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_other_contents_are_never_replaced(prepared, tmp_path):
    scene = load_scene(prepared)
    with pytest.raises(ValueError, match="was prepared from other data or with other options"):
        save_scene(scene, prepared, Provenance(input_sha256="other"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    with pytest.raises(ValueError, match="is no prepared folder"):
        save_scene(scene, tmp_path / "mine")


def test_a_failed_save_leaves_nothing_behind(prepared, tmp_path):
    scene = load_scene(prepared)
    broken = dataclasses.replace(scene, points=np.full_like(scene.points, np.nan))
    with pytest.raises(ValueError, match=r"`points` holds 900 values that are not finite"):
        save_scene(broken, tmp_path / "fresh" / "out")
    assert list((tmp_path / "fresh").iterdir()) == []


def test_manifest_counts_and_hashes(prepared):
    manifest = json.loads((prepared / MANIFEST).read_text())
    scene = load_scene(prepared)
    assert manifest["version"] == 1
    assert (manifest["num_views"], manifest["num_test_views"]) == (24, 3)
    assert (manifest["num_points"], manifest["num_tracks"]) == (300, len(scene.track_points))
    assert manifest["scene_sha256"] == hashlib.sha256((prepared / "scene.npz").read_bytes()).hexdigest()
    first = manifest["views"][0]
    image = (prepared / "images" / first["file"]).read_bytes()
    assert first["sha256"] == hashlib.sha256(image).hexdigest()
    assert (first["size_bytes"], first["width"], first["height"], first["test"]) == (len(image), 48, 36, True)
    assert manifest["source"]["kind"] == "colmap"
    assert manifest["num_images_on_disk"] == 24


def test_images_are_planar_floats_of_the_scene_size(prepared):
    scene = load_scene(prepared)
    image = load_image(scene, 5)
    assert (image.shape, image.dtype, image.flags.c_contiguous) == ((3, 36, 48), np.float32, True)
    stored = np.asarray(Image.open(prepared / "images" / scene.image_files[5]))
    np.testing.assert_allclose(image, stored.transpose(2, 0, 1) / 255, atol=1e-7)


def test_an_image_of_another_size_is_refused(prepared):
    scene = load_scene(prepared)
    Image.new("RGB", (24, 18)).save(prepared / "images" / scene.image_files[2])
    with pytest.raises(ValueError, match=r"is 24 x 18 pixels, the scene says 48 x 36"):
        load_image(scene, 2)
    with pytest.raises(ValueError, match=r"1 images changed since they were prepared: ring_02.png"):
        verify_images(prepared)


def test_missing_parts_are_named(prepared, tmp_path):
    with pytest.raises(ValueError, match=r"no manifest.json, so no prepared folder"):
        load_scene(tmp_path)
    (prepared / "images" / "ring_07.png").unlink()
    with pytest.raises(ValueError, match=r"1 image files are missing: ring_07.png"):
        load_scene(prepared)
    (prepared / "scene.npz").unlink()
    with pytest.raises(ValueError, match=r"scene.npz: no such file"):
        load_scene(prepared)


def test_changed_arrays_and_versions_are_refused(prepared):
    content = bytearray((prepared / "scene.npz").read_bytes())
    content[len(content) // 2] ^= 1
    (prepared / "scene.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"scene.npz: its bytes differ from what manifest.json says"):
        load_scene(prepared)
    manifest = json.loads((prepared / MANIFEST).read_text())
    (prepared / MANIFEST).write_text(json.dumps({**manifest, "version": 2}))
    with pytest.raises(ValueError, match=r"format version 2, but this program reads 1"):
        load_scene(prepared)
    del manifest["protocol"]
    (prepared / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match=r"differ|incomplete"):
        load_scene(prepared)


def scaled_rotation(scene):
    viewmats = scene.viewmats.copy()
    viewmats[4, :3, :3] *= 1.1
    return {"viewmats": viewmats}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (scaled_rotation, r"view matrices of ring_04.png \(1 in all\)"),
        (lambda s: {"widths": s.widths[:-1]}, r"`widths` is int32 \[23\], expected int32 \[24\]"),
        (lambda s: {"points": s.points.astype(np.float64)}, r"`points` is float64 \[300, 3\], expected float32"),
        (lambda s: {"track_points": s.track_points + 300}, "a track names no point"),
        (lambda s: {"track_offsets": s.track_offsets[::-1].copy()}, "track offsets must rise"),
        (lambda s: {"names": s.names[::-1]}, "views must be sorted"),
        (lambda s: {"Ks": -s.Ks}, "focal lengths must be positive"),
        (lambda s: {"heights": s.heights * 0}, "image sizes must be positive"),
    ],
)
def test_inconsistent_scenes_are_refused(tiny_prepared, change, message):
    scene = load_scene(tiny_prepared)
    with pytest.raises(ValueError, match=message):
        validate_scene(dataclasses.replace(scene, **change(scene)), "scene")
