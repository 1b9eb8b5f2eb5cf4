"""Real captures, where they exist."""

from __future__ import annotations

import numpy as np
import pytest

from odin.data.prepare import prepare
from odin.data.scene_io import load_image


@pytest.mark.parametrize(
    ("name", "num_views", "size"),
    [
        ("miku", 40, (240, 180)),
        ("fox", 40, (135, 240)),
        ("brighton", 18, (240, 135)),
        ("desk_vr", 29, (240, 135)),
        ("fern", 20, (240, 180)),
    ],
)
def test_captures_load(captures, tmp_path, name, num_views, size):
    scene = prepare(str(captures / name / "mini240"), tmp_path / name)
    assert (scene.num_views, (scene.widths[0], scene.heights[0])) == (num_views, size)
    image = load_image(scene, 0)
    assert image.shape == (3, size[1], size[0])
    assert 0.05 < image.mean() < 0.95


def test_points_show_their_colour_where_they_project(captures, tmp_path):
    """Poses, points and pixels fit: colours at projected tracks agree far better than at random pixels."""
    scene = prepare(str(captures / "miku" / "mini240"), tmp_path / "miku")
    image, camera, seen = load_image(scene, 7), scene.camera(7), scene.tracks(7)
    local = scene.points[seen] @ camera.viewmat[:3, :3].T + camera.viewmat[:3, 3]
    pixels = (local / local[:, 2:]) @ camera.K.T
    columns = np.clip(pixels[:, 0].astype(int), 0, camera.width - 1)
    rows = np.clip(pixels[:, 1].astype(int), 0, camera.height - 1)
    colors = scene.colors[seen].T / 255
    error = np.abs(image[:, rows, columns] - colors).mean()
    shuffled = np.abs(image[:, np.roll(rows, 57), np.roll(columns, 57)] - colors).mean()
    assert error < 0.5 * shuffled


def test_public_fox_lists_more_frames_than_files(captures, tmp_path):
    folder = captures / "fox" / "transforms_mini480"
    with pytest.raises(ValueError, match=r"17 of 67 images are not in"):
        prepare(str(folder), tmp_path / "fox")
    scene = prepare(str(folder), tmp_path / "fox", skip_missing=True)
    assert (scene.num_views, scene.protocol.undistorted, len(scene.points)) == (50, True, 5000)


def test_every_odd_folder_loads_or_gives_one_clear_error(captures, tmp_path):
    odd = captures / "odd"
    folders = [path for root in (odd, odd / "derived") for path in sorted(root.iterdir()) if path.is_dir()]
    folders += [odd / "brush" / "test_dataset", odd / "nerfstudio" / "lego_test", odd / "sfm_multi_model" / "7"]
    folders += [odd / "derived_rig2cam_synthetic" / "bin", odd / "derived_rig2cam_synthetic" / "txt"]
    loaded = set()
    for number, folder in enumerate(folders):
        try:
            prepare(str(folder), tmp_path / str(number), skip_missing=True)
            loaded.add(folder.name)
        except ValueError as error:
            assert folder.name in str(error)
    assert loaded == {
        "bin_text", "names_bin", "no_points_txt", "simple_pinhole", "sparse_no0", "unregistered", "lego_test",
    }  # fmt: skip
