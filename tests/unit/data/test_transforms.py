"""transforms.json: axes, intrinsics, paths, splits, poses, points."""

from __future__ import annotations

import json
import math

import numpy as np
import plyfile
import pytest
from tiny_inputs import CORNER, opengl_pose, ring_pose, write_image

from odin.data.transforms import read_transforms

ROOT = {"fl_x": 14.0, "fl_y": 15.0, "cx": 8.0, "cy": 6.5, "w": 16.0, "h": 12.0}


def frames(count: int = 3) -> list[dict]:
    return [{"file_path": f"images/{i}.png"} for i in range(count)]


def with_images(folder, count: int = 3, size: tuple[int, int] = (16, 12)):
    for i in range(count):
        write_image(folder / "images" / f"{i}.png", *size, seed=i)
    return folder


def write_ply(path, points: np.ndarray, colors: np.ndarray | None = None) -> None:
    fields = [("x", "f4"), ("y", "f4"), ("z", "f4")]
    fields += [(name, "u1") for name in ("red", "green", "blue")] if colors is not None else []
    vertex = np.zeros(len(points), dtype=fields)
    vertex["x"], vertex["y"], vertex["z"] = points.T
    if colors is not None:
        vertex["red"], vertex["green"], vertex["blue"] = colors.T
    plyfile.PlyData([plyfile.PlyElement.describe(vertex, "vertex")]).write(str(path))


def test_axes_become_opencv(transforms_folder):
    capture = read_transforms(with_images(transforms_folder(frames(), ROOT)))
    for index, view in enumerate(capture.views):
        np.testing.assert_allclose(view.viewmat, ring_pose(index), atol=1e-12)
    assert [view.name for view in capture.views] == ["0.png", "1.png", "2.png"]
    assert list(capture.views[0].camera.params) == [14, 15, 8, 6.5]
    assert (capture.views[0].camera.width, capture.views[0].camera.height) == (16, 12)


def test_a_known_ply_point_projects_on_its_pixel(transforms_folder):
    # nerfstudio turns the world before it writes poses and PLY, and says so in applied_transform.
    applied = np.array([[1.0, 0, 0, 0.5], [0, 0, 1, -0.2], [0, -1, 0, 0.1]])
    full = np.vstack([applied, [0, 0, 0, 1]])
    turned = [{**f, "transform_matrix": (full @ opengl_pose(ring_pose(i))).tolist()} for i, f in enumerate(frames())]
    root = {**ROOT, "applied_transform": applied.tolist(), "ply_file_path": "sparse_pc.ply"}
    folder = with_images(transforms_folder(turned, root))
    write_ply(folder / "sparse_pc.ply", (applied[:, :3] @ CORNER + applied[:, 3])[None], np.array([[9, 8, 7]]))
    capture = read_transforms(folder)
    assert capture.colors.tolist() == [[9, 8, 7]]
    for index, view in enumerate(capture.views):
        local = view.viewmat[:3, :3] @ capture.points[0] + view.viewmat[:3, 3]
        expected = ring_pose(index)[:3, :3] @ CORNER + ring_pose(index)[:3, 3]
        np.testing.assert_allclose(view.camera.img_from_cam(local), view.camera.img_from_cam(expected), atol=1e-5)


def test_frame_values_override_root_values(transforms_folder):
    own = {"w": 32, "h": 24, "fl_x": 30.0, "fl_y": 31.0, "cx": 15.0, "cy": 11.0, "k1": 0.1}
    listed = frames(2)
    listed[1].update(own)
    folder = with_images(transforms_folder(listed, ROOT), 2)
    write_image(folder / "images" / "1.png", 32, 24)
    first, second = (view.camera for view in read_transforms(folder).views)
    assert (first.model_name, first.width, list(first.params)) == ("PINHOLE", 16, [14, 15, 8, 6.5])
    assert (second.model_name, second.width) == ("OPENCV", 32)
    assert list(second.params) == [30, 31, 15, 11, 0.1, 0, 0, 0]


def test_intrinsics_only_per_frame(transforms_folder):
    listed = [{**frame, **ROOT} for frame in frames(2)]
    assert list(read_transforms(with_images(transforms_folder(listed), 2)).views[1].camera.params) == [14, 15, 8, 6.5]


def test_frame_angle_beats_root_length(transforms_folder):
    listed = frames(2)
    listed[1]["camera_angle_x"] = math.pi / 2
    camera = read_transforms(with_images(transforms_folder(listed, ROOT), 2)).views[1].camera
    np.testing.assert_allclose(camera.params, [8.0, 15.0, 8.0, 6.5])


def test_blender_angle_and_size_from_the_header(transforms_folder):
    root = {"camera_angle_x": 2 * math.atan(0.5)}
    camera = read_transforms(with_images(transforms_folder(frames(2), root), 2, (20, 10))).views[0].camera
    assert (camera.width, camera.height) == (20, 10)
    np.testing.assert_allclose(camera.params, [20.0, 20.0, 10.0, 5.0])


def test_no_focal_length_is_an_error(transforms_folder):
    with pytest.raises(ValueError, match=r"transforms.json frame 0: no focal length"):
        read_transforms(with_images(transforms_folder(frames(2), {"w": 16, "h": 12}), 2))


@pytest.mark.parametrize(
    ("values", "model", "extra"),
    [
        ({"k1": 0.1, "k2": 0.2, "p1": 0.01, "p2": 0.02}, "OPENCV", [0.1, 0.2, 0.01, 0.02]),
        ({"k1": 0.1, "k3": 0.3, "p1": 0.01}, "FULL_OPENCV", [0.1, 0, 0.01, 0, 0.3, 0, 0, 0]),
        ({"camera_model": "OPENCV_FISHEYE", "k1": 0.1, "k4": 0.4}, "OPENCV_FISHEYE", [0.1, 0, 0, 0.4]),
        ({"is_fisheye": True}, "OPENCV_FISHEYE", [0, 0, 0, 0]),
        ({"camera_model": "OPENCV", "k1": 0}, "PINHOLE", []),
    ],
)
def test_distortion_chooses_the_camera_model(transforms_folder, values, model, extra):
    camera = read_transforms(with_images(transforms_folder(frames(2), {**ROOT, **values}), 2)).views[0].camera
    assert (camera.model_name, list(camera.params[4:])) == (model, extra)


def test_unknown_camera_model_is_refused(transforms_folder):
    folder = with_images(transforms_folder(frames(2), {**ROOT, "camera_model": "EQUIRECTANGULAR"}), 2)
    with pytest.raises(ValueError, match=r"camera_model 'EQUIRECTANGULAR' is not supported. Allowed: FULL_OPENCV"):
        read_transforms(folder)


def test_missing_extension_is_resolved_only_if_unique(transforms_folder):
    folder = with_images(transforms_folder([{"file_path": "./images/0"}, {"file_path": "images/1.png"}], ROOT), 2)
    (folder / "images" / "0.json").touch()  # no image
    (folder / "images" / "0.depth.png").touch()  # another image
    assert [view.name for view in read_transforms(folder).views] == ["0.png", "1.png"]
    write_image(folder / "images" / "0.jpg", 16, 12)
    with pytest.raises(ValueError, match=r"'./images/0' has no extension and fits 0.jpg, 0.png"):
        read_transforms(folder)


def test_frames_without_files_are_listed_or_skipped(transforms_folder):
    folder = with_images(transforms_folder(frames(5), ROOT), 3)
    with pytest.raises(ValueError, match=r"2 of 5 images are not in .*\n  3.png\n  4.png"):
        read_transforms(folder)
    capture = read_transforms(folder, skip_missing=True)
    assert (len(capture.views), capture.skipped) == (3, ("3.png", "4.png"))
    assert capture.warnings == ("2 views skipped because their image files do not exist",)


def scaled_pose(scale: float) -> list:
    matrix = opengl_pose(ring_pose(1))
    matrix[:3, :3] *= scale
    return matrix.tolist()


def mirrored_pose() -> list:
    return (opengl_pose(ring_pose(1)) @ np.diag([-1.0, 1, 1, 1])).tolist()


@pytest.mark.parametrize("pose", [scaled_pose(0.01), scaled_pose(1.01), mirrored_pose()])
def test_poses_that_are_not_rigid_name_the_frame(transforms_folder, pose):
    listed = frames(3)
    listed[1]["transform_matrix"] = pose
    with pytest.raises(ValueError, match=r"1 of 3 poses are not rigid: 1.png.*determinant"):
        read_transforms(with_images(transforms_folder(listed, ROOT)))


def test_non_finite_poses_are_counted(transforms_folder):
    listed = frames(3)
    listed[2]["transform_matrix"] = np.full((4, 4), np.nan).tolist()
    with pytest.raises(ValueError, match=r"1 of 3 poses hold NaN or infinite values: 2.png"):
        read_transforms(with_images(transforms_folder(listed, ROOT)))


def test_train_and_test_files_give_the_split(transforms_folder):
    for kind in ("train", "test"):
        folder = transforms_folder(
            [{"file_path": f"./{kind}/r_{i}"} for i in range(2)], ROOT, file=f"transforms_{kind}.json"
        )
        for i in range(2):
            write_image(folder / kind / f"r_{i}.png", 16, 12)
    views = read_transforms(folder).views
    assert [(view.name, view.is_test) for view in views] == [
        ("test/r_0.png", True),
        ("test/r_1.png", True),
        ("train/r_0.png", False),
        ("train/r_1.png", False),
    ]


def test_paths_above_the_file_are_relative_to_the_common_folder(transforms_folder):
    folder = transforms_folder([{"file_path": "../../train/a.png"}, {"file_path": "../../test/a.png"}], ROOT)
    nested = folder / "pose" / "block"
    nested.mkdir(parents=True)
    (folder / "transforms.json").rename(nested / "transforms.json")
    for name in ("train/a.png", "test/a.png"):
        write_image(folder / name, 16, 12)
    capture = read_transforms(nested)
    assert capture.image_root == folder
    assert [view.name for view in capture.views] == ["test/a.png", "train/a.png"]


def test_provided_smaller_images(transforms_folder):
    folder = with_images(transforms_folder(frames(2), {"camera_angle_x": 1.0}), 2, (16, 12))
    for i in range(2):
        write_image(folder / "images_2" / f"{i}.png", 8, 6)
    capture = read_transforms(folder, factor=2)
    assert (capture.image_root, capture.provided_factor) == (folder / "images_2", 2.0)
    assert (capture.views[0].camera.width, capture.views[0].camera.height) == (16, 12)
    assert [view.name for view in capture.views] == ["0.png", "1.png"]
    assert read_transforms(folder, images="images_2").image_root == folder / "images_2"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "expected an object"),
        ('{"frames": []}', "`frames` must be a list of at least one object"),
        ('{"frames": [{"file_path": "a.png"}]}', "frame 0: needs `file_path` and `transform_matrix`"),
        ('{"frames": [{"frame_index": 0, "rot_mat": []}]}', "MatrixCity's raw export"),
    ],
)
def test_malformed_files_are_named(tmp_path, content, message):
    (tmp_path / "transforms.json").write_text(content)
    with pytest.raises(ValueError, match=message) as caught:
        read_transforms(tmp_path / "transforms.json")
    assert "transforms.json" in str(caught.value)


def test_malformed_matrices_and_numbers(transforms_folder):
    bad = [{**frames(1)[0], "transform_matrix": [[1, 0], [0, 1]]}]
    with pytest.raises(ValueError, match=r"frame 0: `transform_matrix` must be 4 x 4"):
        read_transforms(with_images(transforms_folder(bad, ROOT), 1))
    with pytest.raises(ValueError, match=r"`fl_x` must be a finite number, got 'wide'"):
        read_transforms(with_images(transforms_folder(frames(1), {**ROOT, "fl_x": "wide"}), 1))


def test_missing_or_broken_ply_is_named(transforms_folder):
    folder = with_images(transforms_folder(frames(1), {**ROOT, "ply_file_path": "points.ply"}), 1)
    with pytest.raises(ValueError, match=r"points.ply: cannot be read as a PLY"):
        read_transforms(folder)
    write_ply(folder / "points.ply", np.array([[0.0, 0, 0], [np.nan, 0, 0]]))
    with pytest.raises(ValueError, match=r"points.ply: 1 of 2 points hold NaN"):
        read_transforms(folder)
    write_ply(folder / "points.ply", np.zeros((2, 3)))
    assert read_transforms(folder).colors.tolist() == [[128] * 3] * 2


def test_bom_and_three_row_matrices_are_accepted(transforms_folder):
    folder = with_images(transforms_folder(frames(2), ROOT), 2)
    root = json.loads((folder / "transforms.json").read_text())
    for frame in root["frames"]:
        frame["transform_matrix"] = frame["transform_matrix"][:3]
    (folder / "transforms.json").write_text("\ufeff" + json.dumps(root), encoding="utf-8")
    np.testing.assert_allclose(read_transforms(folder).views[1].viewmat, ring_pose(1), atol=1e-12)
