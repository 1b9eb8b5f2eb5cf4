"""From source cameras and files to pinhole views: scaling, undistortion, shapes."""

from __future__ import annotations

import numpy as np
import pycolmap
import pytest
from PIL import Image
from tiny_inputs import CORNER, ring_pose, write_image

from odin.data.colmap import read_colmap
from odin.data.rectify import is_pinhole, plan_views, scaled_to, source_factor, write_views

BLACK = (0.0, 0.0, 0.0)


def camera(model: str, params: list[float], width: int = 160, height: int = 120) -> pycolmap.Camera:
    return pycolmap.Camera(camera_id=1, model=model, width=width, height=height, params=params)


def test_zero_distortion_is_a_pinhole_except_for_fisheyes():
    assert is_pinhole(camera("PINHOLE", [100, 101, 80, 60]))
    assert is_pinhole(camera("SIMPLE_PINHOLE", [100, 80, 60]))
    assert is_pinhole(camera("SIMPLE_RADIAL", [100, 80, 60, 0]))
    assert is_pinhole(camera("OPENCV", [100, 101, 80, 60, 0, 0, 0, 0]))
    assert not is_pinhole(camera("OPENCV", [100, 101, 80, 60, 0, 0, 0, 1e-9]))
    assert not is_pinhole(camera("OPENCV_FISHEYE", [100, 101, 80, 60, 0, 0, 0, 0]))
    assert not is_pinhole(camera("SIMPLE_FISHEYE", [100, 80, 60]))


@pytest.mark.parametrize(
    ("model", "params"), [("SIMPLE_RADIAL", [100, 80, 60, 0]), ("OPENCV", [100, 100, 80, 60, 0, 0, 0, 0])]
)
def test_zero_distortion_keeps_images_untouched(colmap_folder, model, params):
    folder = colmap_folder(size=(160, 120), camera=camera(model, params))
    views, _ = plan_views(read_colmap(folder), None)
    assert all(view.is_copied for view in views)
    np.testing.assert_allclose(views[0].K, [[100, 0, 80], [0, 100, 60], [0, 0, 1]])


def test_focal_lengths_and_centre_scale_by_each_sides_own_ratio(colmap_folder):
    # 30 x 22 -> 8 x 6: the width was rounded up (7.5), the height too (5.5), so the ratios differ.
    folder = colmap_folder(size=(8, 6), camera=camera("SIMPLE_PINHOLE", [40, 14, 12], 30, 22))
    capture = read_colmap(folder)
    views, _ = plan_views(capture, None)
    expected = [[40 * 8 / 30, 0, 14 * 8 / 30], [0, 40 * 6 / 22, 12 * 6 / 22], [0, 0, 1]]
    np.testing.assert_allclose(views[0].K, expected, rtol=1e-12)
    assert source_factor(capture, views) == 4.0


def test_scaling_a_single_focal_keeps_the_distortion():
    scaled = scaled_to(camera("SIMPLE_RADIAL", [100, 80, 60, 0.1]), 80, 61)
    assert scaled.model_name == "OPENCV"
    np.testing.assert_allclose(scaled.params, [50, 100 * 61 / 120, 40, 30.5, 0.1, 0, 0, 0])


@pytest.mark.parametrize(
    ("model", "params"),
    [
        ("SIMPLE_RADIAL", [120, 80, 60, 0.15]),
        ("RADIAL", [120, 80, 60, -0.2, 0.05]),
        ("OPENCV", [120, 125, 78, 62, -0.15, 0.03, 0.01, -0.008]),
        ("OPENCV_FISHEYE", [120, 120, 80, 60, 0.02, 0.01, 0, 0]),
        ("SIMPLE_FISHEYE", [120, 80, 60]),
        ("FOV", [120, 120, 80, 60, 0.6]),
    ],
)
def test_undistorted_images_show_points_where_the_pinhole_says(colmap_folder, tmp_path, model, params):
    distorted = camera(model, params)
    point = np.array([0.9, -0.5, 0.4])
    folder = colmap_folder(["0.png", "1.png"], size=(160, 120), camera=distorted, points=point[None])
    local = ring_pose(1)[:3, :3] @ point + ring_pose(1)[:3, 3]
    x, y = distorted.img_from_cam(local)
    columns, rows = np.meshgrid(np.arange(160) + 0.5, np.arange(120) + 0.5)
    blob = np.exp(-((columns - x) ** 2 + (rows - y) ** 2) / (2 * 2.0**2))
    Image.fromarray(np.repeat((blob * 255).astype(np.uint8)[:, :, None], 3, axis=2)).save(folder / "images/1.png")

    views, _ = plan_views(read_colmap(folder), None)
    view = views[1]
    assert not view.is_copied
    write_views(views, tmp_path / "out", BLACK)
    pixels = np.asarray(Image.open(tmp_path / "out" / view.file), dtype=np.float64)[:, :, 0]
    assert pixels.shape == (view.height, view.width)
    columns, rows = np.meshgrid(np.arange(view.width) + 0.5, np.arange(view.height) + 0.5)
    found = np.array([(columns * pixels).sum(), (rows * pixels).sum()]) / pixels.sum()
    expected = (view.K @ (local / local[2]))[:2]
    assert np.linalg.norm(expected - [x, y]) > 1.0  # else the test could not see a dropped distortion
    np.testing.assert_allclose(found, expected, atol=0.25)


def test_undistortion_at_another_size_than_the_cameras(colmap_folder):
    folder = colmap_folder(size=(80, 60), camera=camera("SIMPLE_RADIAL", [120, 80, 60, 0.15]))
    full = colmap_folder(size=(160, 120), camera=camera("SIMPLE_RADIAL", [120, 80, 60, 0.15]), folder="full")
    small, large = plan_views(read_colmap(folder), None)[0][0], plan_views(read_colmap(full), None)[0][0]
    np.testing.assert_allclose(small.K[:2, :2], large.K[:2, :2] / 2, rtol=1e-12)
    assert abs(small.width - large.width / 2) <= 1


def test_spherical_cameras_are_refused_by_name(colmap_folder):
    spherical = camera("EQUIRECTANGULAR", [64, 32], 64, 32)
    folder = colmap_folder(["0.png", "1.png"], size=(64, 32), camera=spherical, points=CORNER[None])
    with pytest.raises(ValueError, match=r"0.png: camera model EQUIRECTANGULAR is no perspective camera"):
        plan_views(read_colmap(folder), None)


def turned_jpeg(path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(np.zeros((4, 6, 3), np.uint8)).save(path, exif=exif)


def test_swapped_sizes_name_exif_as_the_cause(colmap_folder):
    for size, fits in (((6, 4), True), ((4, 6), False)):
        params = [6.0, size[0] / 2, size[1] / 2]
        folder = colmap_folder(["a.jpg", "b.jpg"], camera=camera("SIMPLE_PINHOLE", params, *size), folder=f"exif{fits}")
        for name in ("a.jpg", "b.jpg"):
            turned_jpeg(folder / "images" / name)
        capture = read_colmap(folder)
        if fits:
            views, warnings = plan_views(capture, None)
            assert (views[0].width, views[0].height) == (6, 4)
            assert warnings[0].startswith("2 images carry an EXIF orientation")
        else:
            with pytest.raises(ValueError, match=r"2 of 2 images.*\n.*swapped \(its EXIF orientation is 6\)"):
                plan_views(capture, None)


def test_another_aspect_ratio_is_an_error_beyond_rounding(colmap_folder):
    folder = colmap_folder(size=(16, 10))
    with pytest.raises(ValueError, match=r"00.png: the file is 16 x 10, camera 1 16 x 12: the aspect ratio differs"):
        plan_views(read_colmap(folder), None)
    write_image(folder / "images" / "05.png", 8, 6)
    with pytest.raises(ValueError, match="8 of 9 images"):
        plan_views(read_colmap(folder), None)


def test_area_factor_rounds_half_up_and_scales_the_camera(colmap_folder, tmp_path):
    folder = colmap_folder(size=(30, 22), camera=camera("PINHOLE", [40, 44, 15, 11], 30, 22))
    views, _ = plan_views(read_colmap(folder), 4)
    assert (views[0].width, views[0].height, views[0].resized) == (8, 6, True)  # 7.5 and 5.5
    np.testing.assert_allclose(views[0].K, [[40 * 8 / 30, 0, 4], [0, 12, 3], [0, 0, 1]])
    write_views(views, tmp_path / "out", BLACK)
    assert Image.open(tmp_path / "out" / "00.png").size == (8, 6)


def test_reencoded_files_never_overwrite_each_other(colmap_folder):
    names = ["a.jpg", "a.png"]
    views, _ = plan_views(read_colmap(colmap_folder(names)), 2)
    assert [view.file for view in views] == ["a.jpg.png", "a.png"]
    clash = colmap_folder(["a.jpg", "a.jpg.png"], folder="clash")
    with pytest.raises(ValueError, match=r"would both be written as a.jpg.png"):
        plan_views(read_colmap(clash), 2)
