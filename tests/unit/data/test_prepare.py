"""From data to a prepared folder: options, protocol, split, repeats."""

from __future__ import annotations

import json
import sys
import types

import numpy as np
import pytest
from PIL import Image
from tiny_inputs import ring_pose, write_image

from odin.data.initial_points import random_points, seen_by_any
from odin.data.prepare import prepare, split_views
from odin.data.scene import Protocol
from odin.data.scene_io import load_image, load_scene


def manifest_of(folder) -> dict:
    return json.loads((folder / "manifest.json").read_text())


def contents(folder) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_colmap_folder_becomes_a_scene(colmap_folder, tmp_path):
    scene = prepare(str(colmap_folder()), tmp_path / "out")
    assert (scene.name, scene.num_views) == ("data", 9)
    assert scene.protocol == Protocol(
        source="colmap",
        factor=1.0,
        resize="none",
        undistorted=False,
        split="index % 8 == 0",
        background=(0.0, 0.0, 0.0),
    )
    assert scene.test_views.tolist() == [0, 8]
    np.testing.assert_allclose(scene.Ks[0], [[14, 0, 8], [0, 15, 6.5], [0, 0, 1]])
    np.testing.assert_allclose(scene.viewmats[2], ring_pose(2), atol=1e-12)
    assert scene.tracks(5).tolist() == [0, 1, 2]
    assert manifest_of(tmp_path / "out")["points"] == "sfm"


def test_same_input_same_bytes_wherever_it_goes(colmap_folder, tmp_path):
    folder = colmap_folder()
    prepare(str(folder), tmp_path / "a" / "x", factor=2)
    prepare(str(folder), tmp_path / "b", factor=2)
    assert contents(tmp_path / "a" / "x") == contents(tmp_path / "b")
    text = (tmp_path / "b" / "manifest.json").read_text()
    assert str(tmp_path) not in text


def test_repeat_is_a_no_op_that_says_so_and_other_input_is_refused(colmap_folder, tmp_path, caplog):
    folder, out = colmap_folder(), tmp_path / "out"
    prepare(str(folder), out)
    before = {p: p.stat().st_mtime_ns for p in out.rglob("*")}
    with caplog.at_level("INFO"):
        prepare(str(folder), out)
    assert "already prepared from the same input, nothing to do" in caplog.text
    assert {p: p.stat().st_mtime_ns for p in out.rglob("*")} == before
    for options in ({"factor": 2}, {"test_every": 4}, {"background": (1, 1, 1)}):
        with pytest.raises(ValueError, match="was prepared from other data or with other options"):
            prepare(str(folder), out, **options)
    write_image(folder / "images" / "03.png", 16, 12, seed=99)
    with pytest.raises(ValueError, match="was prepared from other data"):
        prepare(str(folder), out)


def test_prepared_folder_is_copied_or_left(colmap_folder, tmp_path, caplog):
    prepare(str(colmap_folder()), tmp_path / "out")
    with caplog.at_level("INFO"):
        prepare(str(tmp_path / "out"), tmp_path / "out")
        prepare(str(tmp_path / "out"), tmp_path / "copy")
    assert "nothing to do" in caplog.text
    assert contents(tmp_path / "out") == contents(tmp_path / "copy")
    with pytest.raises(ValueError, match="is already prepared; factor, images and model need the original data"):
        prepare(str(tmp_path / "out"), tmp_path / "smaller", factor=2)


@pytest.mark.parametrize("count", [7, 8, 9])
def test_split_of_small_sets(count):
    is_test = split_views(count, 8, "here")
    assert np.flatnonzero(is_test).tolist() == ([0] if count < 9 else [0, 8])


@pytest.mark.parametrize(("count", "every"), [(1, 8), (5, 1)])
def test_split_without_training_views_is_refused_with_counts(count, every):
    with pytest.raises(ValueError, match=rf"{count} views give 0 training and {count} test views"):
        split_views(count, every, "here")


def test_one_image_is_refused_before_anything_is_written(colmap_folder, tmp_path):
    with pytest.raises(ValueError, match="1 views give 0 training and 1 test views"):
        prepare(str(colmap_folder(["a.png"])), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_factor_uses_the_data_sets_own_images_first(colmap_folder, tmp_path):
    folder = colmap_folder()
    for index in range(9):
        write_image(folder / "images_2" / f"{index:02d}.png", 8, 6, seed=100 + index)
    scene = prepare(str(folder), tmp_path / "out", factor=2)
    assert (scene.protocol.factor, scene.protocol.resize) == (2.0, "provided")
    copied = (tmp_path / "out" / "images" / "00.png").read_bytes()
    assert copied == (folder / "images_2" / "00.png").read_bytes()
    np.testing.assert_allclose(scene.Ks[0], [[7, 0, 4], [0, 7.5, 3.25], [0, 0, 1]])


def test_factor_without_provided_images_averages_areas(colmap_folder, tmp_path):
    folder = colmap_folder()
    scene = prepare(str(folder), tmp_path / "out", factor=2)
    assert (scene.protocol.factor, scene.protocol.resize) == (2.0, "area")
    pixels = np.asarray(Image.open(folder / "images" / "04.png"), dtype=np.float64) / 255
    expected = pixels.reshape(6, 2, 8, 2, 3).mean(axis=(1, 3)).transpose(2, 0, 1)
    assert np.abs(load_image(scene, 4) - expected).max() <= 0.5 / 255 + 1e-6


def test_images_smaller_than_the_cameras_record_their_factor(colmap_folder, tmp_path):
    scene = prepare(str(colmap_folder(size=(8, 6))), tmp_path / "out")
    assert (scene.protocol.factor, scene.protocol.resize) == (2.0, "provided")


def test_another_image_folder(colmap_folder, tmp_path):
    folder = colmap_folder()
    (folder / "images").rename(folder / "photos")
    with pytest.raises(ValueError, match="no folder `images`"):
        prepare(str(folder), tmp_path / "out")
    prepare(str(folder), tmp_path / "out", images="photos")
    assert manifest_of(tmp_path / "out")["source"] == {"kind": "colmap", "model": "sparse/0", "images": "photos"}


def half_transparent(folder) -> None:
    """Left half opaque red, right half transparent black."""
    pixels = np.zeros((16, 16, 4), np.uint8)
    pixels[:, :8] = [255, 0, 0, 255]
    for path in (folder / "images").iterdir():
        Image.fromarray(pixels).save(path)


@pytest.mark.parametrize("factor", [None, 1, 2])
def test_transparency_shows_the_background_at_every_factor(colmap_folder, tmp_path, factor):
    import pycolmap

    camera = pycolmap.Camera(model="PINHOLE", width=16, height=16, params=[14, 14, 8, 8])
    folder = colmap_folder(size=(16, 16), camera=camera)
    half_transparent(folder)
    scene = prepare(str(folder), tmp_path / "out", factor=factor, background=(1, 1, 1))
    image = load_image(scene, 0)
    side = 16 // int(factor or 1)
    expected = np.ones((3, side, side))
    expected[1:, :, : side // 2] = 0
    np.testing.assert_allclose(image, expected, atol=1e-6)


def test_compositing_comes_before_resizing(colmap_folder, tmp_path):
    folder = colmap_folder()
    rgba = np.random.default_rng(3).integers(0, 256, size=(12, 16, 4), dtype=np.uint8)
    for path in (folder / "images").iterdir():
        Image.fromarray(rgba).save(path)
    background = (0.2, 0.9, 0.4)
    scene = prepare(str(folder), tmp_path / "out", factor=2, background=background)
    color, alpha = rgba[:, :, :3] / 255, rgba[:, :, 3:] / 255
    composited = color * alpha + np.array(background) * (1 - alpha)
    expected = composited.reshape(6, 2, 8, 2, 3).mean(axis=(1, 3)).transpose(2, 0, 1)
    assert np.abs(load_image(scene, 0) - expected).max() <= 0.5 / 255 + 1e-6
    assert scene.protocol.background == background


def test_names_survive_as_paths_and_never_collide(colmap_folder, tmp_path):
    names = ["cam0/0001.png", "cam1/0001.png", "été/図 01.png"]
    for factor in (None, 2):
        out = tmp_path / f"out{factor}"
        scene = prepare(str(colmap_folder(names, folder=f"data{factor}")), out, factor=factor)
        assert list(scene.names) == names
        assert len(set((out / "images").rglob("*.png"))) == 3
        assert not np.array_equal(load_image(scene, 0), load_image(scene, 1))


def test_no_points_start_from_seeded_random_ones(colmap_folder, tmp_path):
    folder = colmap_folder(points=np.zeros((0, 3)))
    scene = prepare(str(folder), tmp_path / "a", seed=1)
    other = prepare(str(folder), tmp_path / "b", seed=2)
    assert scene.points.shape == (5000, 3)
    assert len(scene.track_points) == 0
    assert not np.array_equal(scene.points, other.points)
    manifest = manifest_of(tmp_path / "a")
    assert manifest["points"] == "random (5000, seed 1)"
    assert "the data has no points" in manifest["warnings"][0]


def test_random_points_lie_in_the_camera_bounds_and_are_seen():
    viewmats = np.stack([ring_pose(i) for i in range(12)])
    views = (viewmats, np.tile([[14.0, 0, 8], [0, 14, 6], [0, 0, 1]], (12, 1, 1)), np.full(12, 16), np.full(12, 12))
    points = random_points(*views, num=700, seed=0)
    assert (points.shape, points.dtype) == ((700, 3), np.float32)
    assert np.abs(points - [0, 0.5, 0]).max() <= 4 + 1e-5
    assert seen_by_any(points.astype(np.float64), *views).mean() > 0.99
    np.testing.assert_array_equal(points, random_points(*views, num=700, seed=0))
    alone = random_points(*(array[:1] for array in views), num=50, seed=0)  # one centre: the cube has half side 1
    assert np.abs(alone - np.linalg.inv(viewmats[0])[:3, 3]).max() <= 1 + 1e-5


def test_points_that_nobody_sees_are_reported(colmap_folder, tmp_path):
    far = np.random.default_rng(0).normal(size=(20, 3)) * 0.1 + [0, 1000.0, 0]
    prepare(str(colmap_folder(points=far)), tmp_path / "out")
    assert manifest_of(tmp_path / "out")["warnings"] == [
        "only 0% of the points lie inside a training view: axes or units of points and cameras may differ"
    ]


def test_a_distorted_set_is_undistorted_and_keeps_points_and_tracks(colmap_folder, tmp_path):
    import pycolmap

    camera = pycolmap.Camera(model="SIMPLE_RADIAL", width=160, height=120, params=[120, 80, 60, 0.15])
    scene = prepare(str(colmap_folder(size=(160, 120), camera=camera)), tmp_path / "out")
    assert scene.protocol.undistorted
    assert load_image(scene, 0).shape == (3, scene.heights[0], scene.widths[0])
    assert scene.widths[0] < 160
    assert scene.points.shape == (3, 3)
    assert scene.tracks(0).tolist() == [0, 1, 2]


def test_transforms_split_from_files(transforms_folder, tmp_path):
    root = {"camera_angle_x": 0.8}
    for kind in ("train", "test"):
        listed = [{"file_path": f"./{kind}/r_{i}"} for i in range(3)]
        folder = transforms_folder(listed, root, file=f"transforms_{kind}.json")
        for i in range(3):
            write_image(folder / kind / f"r_{i}.png", 16, 12)
    scene = prepare(str(folder), tmp_path / "out")
    assert (scene.protocol.source, scene.protocol.split) == ("transforms", "files")
    assert [scene.names[i] for i in scene.test_views] == ["test/r_0.png", "test/r_1.png", "test/r_2.png"]


def test_skipped_frames_are_recorded(transforms_folder, tmp_path):
    listed = [{"file_path": f"images/{i}.png"} for i in range(5)]
    folder = transforms_folder(listed, {"camera_angle_x": 0.8})
    for i in range(3):
        write_image(folder / "images" / f"{i}.png", 16, 12)
    scene = prepare(str(folder / "transforms.json"), tmp_path / "out", skip_missing=True)
    assert (scene.name, scene.num_views) == ("nerf", 3)
    assert manifest_of(tmp_path / "out")["skipped"] == ["3.png", "4.png"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"factor": 0.5}, "factor must be at least 1"),
        ({"test_every": 0}, "test_every must be at least 1"),
        ({"background": (0, 0, 2)}, "background must be three numbers in 0..1"),
        ({"width": 100}, "width and num_views are for gallery scenes only"),
        ({"model": "5"}, "no COLMAP model at '5'"),
        ({"images": "nowhere"}, "no image folder 'nowhere'"),
    ],
)
def test_wrong_options_are_refused(colmap_folder, tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        prepare(str(colmap_folder()), tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_unknown_data_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no such file or folder"):
        prepare(str(tmp_path / "nowhere"), tmp_path / "out")
    with pytest.raises(ValueError, match=r"no COLMAP model \(nor transforms.json\)"):
        prepare(str(tmp_path), tmp_path / "out")
    (tmp_path / "a.txt").touch()
    with pytest.raises(ValueError, match=r"expected a folder or a .json file"):
        prepare(str(tmp_path / "a.txt"), tmp_path / "out")


def test_gallery_scenes_are_rendered_once_and_read_as_colmap(colmap_folder, tmp_path, monkeypatch):
    calls = []

    def build(name, out, *, width=160, num_views=None, seed=0):
        calls.append((name, width, num_views, seed))
        return colmap_folder()

    monkeypatch.setitem(sys.modules, "odin.data.gallery", types.SimpleNamespace(build=build))
    monkeypatch.setattr("odin.data.gallery", sys.modules["odin.data.gallery"], raising=False)
    for _ in range(2):
        scene = prepare("gallery:orbit", tmp_path / "out", width=80, num_views=9, seed=4)
    assert calls == [("orbit", 80, 9, 4)]
    assert (scene.name, scene.protocol.source) == ("orbit", "gallery")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_gallery_without_its_renderer_says_what_to_install(tmp_path, monkeypatch):
    def build(*_, **__):
        raise ModuleNotFoundError("No module named 'mitsuba'", name="mitsuba")

    monkeypatch.setitem(sys.modules, "odin.data.gallery", types.SimpleNamespace(build=build))
    monkeypatch.setattr("odin.data.gallery", sys.modules["odin.data.gallery"], raising=False)
    with pytest.raises(ValueError, match=r"needs mitsuba, which is not installed. Run `pip install 'odin\[gallery\]'`"):
        prepare("gallery:orbit", tmp_path / "out")


def test_tiny_scene_is_whole(tiny_prepared):
    scene = load_scene(tiny_prepared)
    assert (scene.num_views, len(scene.points), scene.test_views.tolist()) == (24, 300, [0, 8, 16])
    assert min(len(scene.tracks(view)) for view in range(24)) > 50
