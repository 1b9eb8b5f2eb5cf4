"""COLMAP folders: layouts, camera models, several models, rigs, names, damaged files."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pycolmap
import pytest
from tiny_inputs import CORNER, build_model, ring_pose, write_image, write_model

from odin.data.colmap import find_model, read_colmap, read_model

NAMES = [f"{i:02d}.png" for i in range(9)]


def projected(capture, view: int, point: np.ndarray) -> np.ndarray:
    local = capture.views[view].viewmat[:3, :3] @ point + capture.views[view].viewmat[:3, 3]
    return capture.views[view].camera.img_from_cam(local)


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("model", ["sparse/0", "sparse", "."])
def test_layouts_load_alike(colmap_folder, text, model):
    capture = read_colmap(colmap_folder(text=text, model=model))
    assert [view.name for view in capture.views] == NAMES
    np.testing.assert_allclose(capture.views[3].viewmat, ring_pose(3), atol=1e-12)
    np.testing.assert_allclose(capture.points, [CORNER, -CORNER, CORNER * 0.5], atol=1e-15)
    assert capture.colors.tolist() == [[0, 100, 200], [1, 100, 200], [2, 100, 200]]
    assert all(track.tolist() == [0, 1, 2] for track in capture.tracks)
    assert (capture.num_images_on_disk, capture.warnings) == (9, ())


def test_model_folder_itself_finds_images_above(colmap_folder):
    folder = colmap_folder()
    capture = read_colmap(folder / "sparse" / "0")
    assert capture.image_root == folder / "images"


def test_views_are_sorted_by_name_whatever_the_order_of_ids(colmap_folder):
    names = ["b.png", "a.png", "c.png"]
    capture = read_colmap(colmap_folder(names))
    assert [view.name for view in capture.views] == ["a.png", "b.png", "c.png"]
    np.testing.assert_allclose(capture.views[0].viewmat, ring_pose(1), atol=1e-12)


def test_binary_wins_over_text(colmap_folder):
    folder = colmap_folder()
    write_model(build_model(["other.png"]), folder / "sparse" / "0", text=True)
    assert [view.name for view in read_colmap(folder).views] == NAMES


def test_non_ascii_names_and_equal_basenames_in_subfolders(colmap_folder):
    names = ["cam0/0001.png", "cam1/0001.png", "été/図 01.png"]
    for text in (False, True):
        capture = read_colmap(colmap_folder(names, text=text, folder=f"names_{text}"))
        assert [view.name for view in capture.views] == names


def test_larger_other_model_is_refused_with_counts(colmap_folder):
    folder = colmap_folder(["00.png", "01.png"])
    write_model(build_model(NAMES), folder / "sparse" / "1")
    with pytest.raises(ValueError, match=r"sparse/0 \(2 registered images\), sparse/1 \(9 registered images\)"):
        read_colmap(folder)
    for name in NAMES:
        write_image(folder / "images" / name, 16, 12)
    assert len(read_colmap(folder, model="sparse/1").views) == 9
    assert len(read_colmap(folder, model="1").views) == 9
    assert len(read_colmap(folder, model="0").views) == 2


def test_smaller_other_model_leaves_the_default(colmap_folder):
    folder = colmap_folder()
    write_model(build_model(NAMES[:2]), folder / "sparse" / "1")
    assert find_model(folder) == folder / "sparse" / "0"


def test_several_models_without_a_zero_are_refused(tmp_path):
    for name, count in (("7", 2), ("8", 3)):
        write_model(build_model(NAMES[:count]), tmp_path / name, text=name == "8")
    with pytest.raises(ValueError, match=r"7 \(2 registered images\), 8 \(3 registered images\)"):
        find_model(tmp_path)


def test_unknown_model_lists_what_there_is(colmap_folder):
    with pytest.raises(ValueError, match=r"no COLMAP model at '5'.*sparse/0 \(9 registered"):
        read_colmap(colmap_folder(), model="5")


def test_registered_of_on_disk_is_reported(colmap_folder, caplog):
    folder = colmap_folder(NAMES[:4])
    for name in NAMES:
        write_image(folder / "images" / name, 16, 12)
    (folder / "images" / ".DS_Store").write_bytes(b"x")
    (folder / "images" / "Thumbs.db").write_bytes(b"x")
    with caplog.at_level("INFO"):
        capture = read_colmap(folder)
    assert "4 registered of 9 images on disk" in caplog.text
    assert capture.warnings == ("4 registered of 9 images on disk",)


def test_every_missing_image_is_listed_and_skipping_is_recorded(colmap_folder):
    folder = colmap_folder()
    (folder / "images" / "03.png").unlink()
    (folder / "images" / "07.png").unlink()
    with pytest.raises(ValueError, match=r"2 of 9 images are not in .*\n  03.png\n  07.png"):
        read_colmap(folder)
    capture = read_colmap(folder, skip_missing=True)
    assert (len(capture.views), len(capture.tracks), capture.skipped) == (7, 7, ("03.png", "07.png"))
    np.testing.assert_allclose(capture.views[3].viewmat, ring_pose(4), atol=1e-12)  # 04.png, not the next in line


@pytest.mark.parametrize(("registered", "on_disk"), [("A.JPG", "A.jpg"), ("A.jpg", "A.JPG")])
def test_extension_case_mismatch_names_the_file(colmap_folder, registered, on_disk):
    folder = colmap_folder(["00.png", registered])
    (folder / "images" / registered).rename(folder / "images" / on_disk)
    with pytest.raises(ValueError, match=rf"{registered} \(the folder has {on_disk}: rename one of them\)"):
        read_colmap(folder)


@pytest.mark.parametrize("name", ["../outside.png", "/absolute.png"])
def test_names_outside_the_image_folder_are_refused(tmp_path, name):
    write_model(build_model([name]), tmp_path / "sparse" / "0")
    (tmp_path / "images").mkdir()
    with pytest.raises(ValueError, match="must be a path inside the image folder"):
        read_colmap(tmp_path)


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_few_points_load(colmap_folder, count):
    points = np.arange(9.0).reshape(3, 3)[:count] * 0.1
    capture = read_colmap(colmap_folder(points=points))
    assert capture.points.shape == (count, 3)
    assert all(track.tolist() == list(range(count)) for track in capture.tracks)


def test_non_finite_points_and_poses_are_counted(colmap_folder):
    points = np.array([[0.1, 0, 0], [0, 0.1, 0], [0, 0, 0.1]])
    folder = colmap_folder(points=points, text=True)
    path = folder / "sparse" / "0" / "points3D.txt"
    path.write_text(path.read_text().replace("1 0.1", "1 nan").replace("2 0 0.1", "2 0 inf"))
    try:
        read_colmap(folder)
    except ValueError as error:
        assert "2 of 3 points" in str(error) or "cannot be read" in str(error)  # pycolmap may refuse the text itself
    else:
        pytest.fail("non-finite points were accepted")

    binary = colmap_folder(points=points, folder="binary")
    file = binary / "sparse" / "0" / "points3D.bin"
    content = bytearray(file.read_bytes())
    content[16:24] = np.array([np.nan]).tobytes()  # x of the first point, after the count and its id
    file.write_bytes(content)
    with pytest.raises(ValueError, match="1 of 3 points hold NaN"):
        read_colmap(binary)


def test_observations_of_absent_points_are_dropped_with_counts(colmap_folder):
    folder = colmap_folder(text=True)
    path = folder / "sparse" / "0" / "points3D.txt"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))  # without the last point
    capture = read_colmap(folder)
    assert all(track.tolist() == [0, 1] for track in capture.tracks)
    assert capture.warnings[0].startswith("9 of 27 observations are of points that points3D.txt (2 points)")


@pytest.mark.parametrize("file", ["cameras.bin", "images.bin", "points3D.bin", "rigs.bin", "frames.bin"])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 0.99])
def test_truncated_binary_file_is_named(colmap_folder, file, share):
    path = colmap_folder() / "sparse" / "0" / file
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(ValueError, match=rf"{file} is truncated"):
        read_model(path.parent)


def test_trailing_bytes_and_unknown_camera_models_are_named(colmap_folder):
    model = colmap_folder() / "sparse" / "0"
    images = (model / "images.bin").read_bytes()
    (model / "images.bin").write_bytes(images + b"12")
    with pytest.raises(ValueError, match=r"images.bin is damaged: 2 bytes follow its 9 records"):
        read_model(model)
    (model / "images.bin").write_bytes(images)
    cameras = bytearray((model / "cameras.bin").read_bytes())
    cameras[12:16] = (99).to_bytes(4, "little")
    (model / "cameras.bin").write_bytes(cameras)
    with pytest.raises(ValueError, match=r"cameras.bin: camera 1 has the unknown camera model id 99"):
        read_model(model)


def test_truncated_text_file_is_named(colmap_folder):
    path = colmap_folder(text=True) / "sparse" / "0" / "images.txt"
    content = path.read_text()
    path.write_text(content[: content.rindex("\n0") if "\n0" in content else len(content) * 2 // 3])
    with pytest.raises(ValueError, match=r"cannot be read.*cut short: images.txt"):
        read_model(path.parent)


def test_missing_model_file_is_named(colmap_folder):
    folder = colmap_folder()
    (folder / "sparse" / "0" / "points3D.bin").unlink()
    with pytest.raises(ValueError, match=r"sparse/0 holds cameras.bin, images.bin and lacks points3D"):
        read_colmap(folder)


def rig_model() -> pycolmap.Reconstruction:
    """Two cameras side by side, three frames."""
    model = pycolmap.Reconstruction()
    rig = pycolmap.Rig(rig_id=1)
    for camera_id in (1, 2):
        camera = pycolmap.Camera(camera_id=camera_id, model="PINHOLE", width=16, height=12, params=[14, 14, 8, 6])
        model.add_camera(camera)
    rig.add_ref_sensor(pycolmap.sensor_t(pycolmap.SensorType.CAMERA, 1))
    second = pycolmap.sensor_t(pycolmap.SensorType.CAMERA, 2)
    rig.add_sensor(second, pycolmap.Rigid3d(pycolmap.Rotation3d(), np.array([-0.2, 0.0, 0.0])))
    model.add_rig(rig)
    for index in range(3):
        frame = pycolmap.Frame(frame_id=index + 1, rig_id=1)
        pose = ring_pose(index)
        frame.rig_from_world = pycolmap.Rigid3d(pycolmap.Rotation3d(pose[:3, :3]), pose[:3, 3])
        for camera_id in (1, 2):
            sensor = pycolmap.sensor_t(pycolmap.SensorType.CAMERA, camera_id)
            frame.add_data_id(pycolmap.data_t(sensor, index * 2 + camera_id))
        model.add_frame(frame)
        for camera_id in (1, 2):
            image_id = index * 2 + camera_id
            image = pycolmap.Image(
                name=f"cam{camera_id}/{index}.png", keypoints=np.zeros((0, 2)), camera_id=camera_id, image_id=image_id
            )
            image.frame_id = index + 1
            model.add_image(image)
        model.register_frame(index + 1)
    return model


@pytest.fixture(params=[False, True], ids=["binary", "text"])
def rig_folder(request, tmp_path) -> Path:
    write_model(rig_model(), tmp_path / "sparse" / "0", text=request.param)
    for camera in (1, 2):
        for index in range(3):
            write_image(tmp_path / "images" / f"cam{camera}" / f"{index}.png", 16, 12)
    return tmp_path


def test_rig_poses_are_composed(rig_folder):
    capture = read_colmap(rig_folder)
    assert [view.name for view in capture.views] == [f"cam{c}/{i}.png" for c in (1, 2) for i in range(3)]
    expected = ring_pose(2)
    expected[0, 3] -= 0.2
    np.testing.assert_allclose(capture.views[5].viewmat, expected, atol=1e-9)
    assert capture.warnings == ()


def test_rig_poses_that_disagree_with_images_give_one_warning(rig_folder, tmp_path):
    model = rig_folder / "sparse" / "0"
    suffix = ".txt" if (model / "images.txt").is_file() else ".bin"
    # images.* of a model whose second camera was turned by 90 degrees, beside the frames and rigs of the first.
    turned = rig_model()
    for index in range(3):
        frame = turned.frame(index + 1)
        quarter = pycolmap.Rigid3d(pycolmap.Rotation3d(np.array([0, 0, np.pi / 2])), np.zeros(3))
        frame.rig_from_world = quarter * frame.rig_from_world
    other = write_model(turned, tmp_path / "turned", text=suffix == ".txt")
    shutil.copyfile(other / f"images{suffix}", model / f"images{suffix}")
    capture = read_colmap(rig_folder)
    assert len(capture.warnings) == 1
    assert "poses of 6 of 6 images" in capture.warnings[0]
    assert "up to 90 degrees" in capture.warnings[0]
    np.testing.assert_allclose(capture.views[0].viewmat, ring_pose(0), atol=1e-9)  # frames and rigs win


def test_frames_without_rigs_are_ignored(colmap_folder, caplog):
    folder = colmap_folder()
    (folder / "sparse" / "0" / "rigs.bin").unlink()
    capture = read_colmap(folder)
    np.testing.assert_allclose(capture.views[3].viewmat, ring_pose(3), atol=1e-12)
    assert "only frames.bin present" in caplog.text


def test_models_before_rigs_load(colmap_folder):
    folder = colmap_folder()
    (folder / "sparse" / "0" / "rigs.bin").unlink()
    (folder / "sparse" / "0" / "frames.bin").unlink()
    capture = read_colmap(folder)
    assert capture.warnings == ()
    np.testing.assert_allclose(capture.views[3].viewmat, ring_pose(3), atol=1e-12)


def test_points_project_where_they_were_observed(colmap_folder):
    folder = colmap_folder()
    capture = read_colmap(folder)
    observed = next(image for image in read_model(folder / "sparse" / "0").images.values() if image.name == "04.png")
    np.testing.assert_allclose(projected(capture, 4, capture.points[0]), observed.points2D[0].xy, atol=1e-9)
