"""Reads transforms.json files (instant-ngp, nerfstudio, Blender) as a `Capture`.

Poses there are camera to world with OpenGL camera axes (x right, y up, z backward); a Scene has OpenCV axes (y down,
z forward), so the second and third column change sign. World axes stay as the file has them. A PLY named by
`ply_file_path` is taken in those same world axes: nerfstudio applies its `applied_transform` to the poses *and* to the
PLY when it writes them, so applying it again would part points and cameras.
"""

from __future__ import annotations

import json
import logging
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import plyfile

from odin.data._pycolmap import pycolmap
from odin.data.capture import Capture, SourceView, check_names, check_points, check_poses
from odin.data.images import SUFFIXES, read_size, split_missing

logger = logging.getLogger(__name__)

_OPENGL_TO_OPENCV = np.diag([1.0, -1.0, -1.0, 1.0])
_PERSPECTIVE = frozenset({"SIMPLE_PINHOLE", "PINHOLE", "SIMPLE_RADIAL", "RADIAL", "OPENCV", "FULL_OPENCV"})
_FISHEYE = "OPENCV_FISHEYE"
_TRAIN = "transforms_train.json"
_TESTS = ("transforms_test.json", "transforms_val.json")  # the first that exists holds the test views

Json = dict[str, Any]


def is_transforms(path: Path) -> bool:
    """Whether `path` is a JSON file, or a folder with transforms.json or transforms_train.json."""
    if path.is_dir():
        return (path / "transforms.json").is_file() or (path / _TRAIN).is_file()
    return path.suffix.lower() == ".json"


def read_transforms(
    path: Path, *, images: str | None = None, factor: float | None = None, skip_missing: bool = False
) -> Capture:
    """Read one file, or the train and test pair of a folder (the split then comes from the files).

    `images` replaces the folder images/ of the frames' paths; a factor F uses images_F/ where that exists.
    Frames whose files do not exist are one ValueError, or left out and recorded with `skip_missing`.
    """
    files = _files(path)
    base = files[0][0].parent
    entries = []  # file, root, frame, label, image, is_test
    origin, roots = {}, []
    for file, is_test in files:
        root = _read(file)
        roots.append(root)
        origin["transforms_test" if is_test else "transforms"] = file.name
        for index, frame in enumerate(_frames(root, file)):
            label = f"{file.name} frame {index}"
            entries.append((root, frame, label, _image_path(file, frame, label), is_test))
    located, image_root, provided_factor = _locate([entry[3] for entry in entries], base, images, factor)
    names = [image.relative_to(image_root).as_posix() for image in located]
    check_names(names, base)
    present, skipped = split_missing(image_root, names, skip_missing=skip_missing)
    if not present:
        raise ValueError(f"{path}: none of the {len(names)} frames has an image file below {image_root}.")
    on_disk = _num_on_disk(image_root, present)
    logger.info("%s: %d registered of %d images on disk, %d frames skipped", path, len(present), on_disk, len(skipped))
    warnings = [f"{len(present)} registered of {on_disk} images on disk"] if on_disk > len(present) else []
    if skipped:
        warnings.append(f"{len(skipped)} views skipped because their image files do not exist")
    by_name = dict(zip(names, entries, strict=True))
    order = sorted(present)
    c2w = np.stack([_matrix(by_name[name][1], by_name[name][2]) for name in order])
    check_poses(order, c2w, path)
    viewmats = np.linalg.inv(c2w @ _OPENGL_TO_OPENCV)
    views = tuple(
        SourceView(
            name=name,
            camera=_camera(by_name[name][0], by_name[name][1], image_root / name, provided_factor, by_name[name][2]),
            viewmat=viewmat,
            is_test=by_name[name][4] if len(files) > 1 else None,
        )
        for name, viewmat in zip(order, viewmats, strict=True)
    )
    points, colors = _points(roots[0], base, origin)
    return Capture(
        kind="transforms",
        origin=origin,
        image_root=image_root,
        views=views,
        points=points,
        colors=colors,
        tracks=tuple(np.zeros(0, np.int32) for _ in views),
        num_images_on_disk=on_disk,
        provided_factor=provided_factor,
        skipped=tuple(skipped),
        warnings=tuple(warnings),
    )


def _files(path: Path) -> list[tuple[Path, bool]]:
    """The JSON files to read and whether each holds test views."""
    if path.is_file():
        return [(path, False)]
    if (path / "transforms.json").is_file():
        return [(path / "transforms.json", False)]
    test = next((path / name for name in _TESTS if (path / name).is_file()), None)
    if not (path / _TRAIN).is_file():
        raise ValueError(f"{path}: no transforms.json and no {_TRAIN}.")
    return [(path / _TRAIN, False)] + ([(test, True)] if test is not None else [])


def _read(file: Path) -> Json:
    try:
        root = json.loads(file.read_text(encoding="utf-8-sig"))  # NaN passes here: the pose check counts it
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{file}: cannot be read as JSON ({error}).") from error
    if not isinstance(root, dict):
        raise ValueError(f"{file}: expected an object with a list `frames`, got {type(root).__name__}.")
    return root


def _frames(root: Json, file: Path) -> list[Json]:
    frames = root.get("frames")
    if not isinstance(frames, list) or not frames or not all(isinstance(frame, dict) for frame in frames):
        raise ValueError(f"{file}: `frames` must be a list of at least one object, got {type(frames).__name__}.")
    for index, frame in enumerate(frames):
        if "transform_matrix" not in frame or "file_path" not in frame:
            hint = ""
            if "rot_mat" in frame:
                hint = " This is MatrixCity's raw export: use a block's files in its folder pose/ instead."
            elif "file_name" in frame:
                hint = " This is a MatrixCity list over several blocks: use the files of one block instead."
            raise ValueError(
                f"{file} frame {index}: needs `file_path` and `transform_matrix`, got {sorted(frame)}.{hint}"
            )
    return frames


def _matrix(frame: Json, label: str) -> np.ndarray:
    try:
        matrix = np.array(frame["transform_matrix"], dtype=np.float64)
    except (TypeError, ValueError):
        matrix = np.zeros(0)
    if matrix.shape == (3, 4):
        matrix = np.vstack([matrix, [0.0, 0.0, 0.0, 1.0]])
    if matrix.shape != (4, 4):
        raise ValueError(f"{label}: `transform_matrix` must be 4 x 4 numbers.")
    if np.isfinite(matrix).all() and not np.allclose(matrix[3], [0, 0, 0, 1]):
        raise ValueError(f"{label}: last row of `transform_matrix` must be 0 0 0 1, got {matrix[3].tolist()}.")
    return matrix


def _image_path(file: Path, frame: Json, label: str) -> Path:
    """Absolute path of the frame's image; a missing extension is found on disk if only one file fits."""
    text = str(frame["file_path"]).replace("\\", "/")
    path = Path(os.path.normpath(file.parent.absolute() / text))
    if path.suffix.lower() in SUFFIXES:
        return path
    found = sorted(p for p in path.parent.glob(_escape(path.name) + ".*") if p.suffix.lower() in SUFFIXES)
    # `r_0.*` also matches r_0.depth.png, which is another image.
    found = [p for p in found if p.name[: -len(p.suffix)] == path.name]
    if len(found) > 1:
        raise ValueError(
            f"{file.parent / label}: file_path {text!r} has no extension and fits {', '.join(p.name for p in found)}. "
            "Write the extension."
        )
    return found[0] if found else path


def _escape(name: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


def _locate(paths: list[Path], base: Path, images: str | None, factor: float | None) -> tuple[list[Path], Path, float]:
    """Final image paths, the folder that names are relative to, and the factor of an images_F folder in use (else 1).

    Where every path starts with images/, that is the image folder, and `images` or images_F may take its place: names
    do not depend on it. Else it is the closest common folder of the JSON file and the images.
    """
    default = Path(os.path.normpath(base.absolute() / "images"))
    if not all(default in path.parents for path in paths):
        if images is not None:
            raise ValueError(f"{base}: another image folder needs frames whose paths all start with images/. Drop it.")
        return paths, Path(os.path.commonpath([base.absolute(), *(path.parent for path in paths)])), 1.0
    target, provided_factor = default, 1.0
    if images is not None:
        target = Path(os.path.normpath(base.absolute() / images))
        if not target.is_dir():
            raise ValueError(f"{base}: no image folder {images!r}. Name an existing folder.")
    elif factor is not None and factor != 1 and default.with_name(f"images_{factor:g}").is_dir():
        target, provided_factor = default.with_name(f"images_{factor:g}"), float(factor)
    return [target / path.relative_to(default) for path in paths], target, provided_factor


def _camera(root: Json, frame: Json, image: Path, provided_factor: float, label: str) -> pycolmap.Camera:
    """The frame's camera: its own values before the root's; sizes missing from both come from the image's header."""
    both = {**root, **frame}
    size = [both.get("w"), both.get("h")]
    if None in size:
        header = read_size(image)[:2]
        size = [round(header[i] * provided_factor) if size[i] is None else size[i] for i in range(2)]
    width, height = (round(_number({"size": value}, "size", label)) for value in size)
    given_x = _focal(root, frame, "x", width, label)
    given_y = _focal(root, frame, "y", height, label)
    fl_x, fl_y = (given_y if given_x is None else given_x), (given_x if given_y is None else given_y)
    if fl_x is None or fl_y is None:
        raise ValueError(f"{label}: no focal length. Expected fl_x, fl_y, camera_angle_x or camera_angle_y.")
    if min(fl_x, fl_y, width, height) <= 0:
        raise ValueError(f"{label}: focal lengths and sizes must be positive, got {fl_x}, {fl_y}, {width}, {height}.")
    centre = [_number({"cx": width / 2, **both}, "cx", label), _number({"cy": height / 2, **both}, "cy", label)]
    k1, k2, k3, k4, p1, p2 = (_number({key: 0.0, **both}, key, label) for key in ("k1", "k2", "k3", "k4", "p1", "p2"))
    model = str(both.get("camera_model", _FISHEYE if both.get("is_fisheye") else "OPENCV"))
    if model == _FISHEYE:
        extra = [k1, k2, k3, k4]
    elif model not in _PERSPECTIVE:
        raise ValueError(
            f"{label}: camera_model {model!r} is not supported. Allowed: {', '.join(sorted(_PERSPECTIVE))}, {_FISHEYE}."
        )
    elif k3 or k4:
        model, extra = "FULL_OPENCV", [k1, k2, p1, p2, k3, k4, 0.0, 0.0]
    elif k1 or k2 or p1 or p2:
        model, extra = "OPENCV", [k1, k2, p1, p2]
    else:
        model, extra = "PINHOLE", []
    return pycolmap.Camera(camera_id=1, model=model, width=width, height=height, params=[fl_x, fl_y, *centre, *extra])


def _focal(root: Json, frame: Json, axis: str, size: int, label: str) -> float | None:
    """Focal length in pixels along an axis: the frame's length or angle, then the root's."""
    for values in (frame, root):
        if values.get(f"fl_{axis}") is not None:
            return _number(values, f"fl_{axis}", label)
        if values.get(f"camera_angle_{axis}") is not None:
            angle = _number(values, f"camera_angle_{axis}", label)
            if not 0 < angle < math.pi:
                raise ValueError(f"{label}: camera_angle_{axis} must lie between 0 and pi, got {angle}.")
            return size / (2 * math.tan(angle / 2))
    return None


def _number(values: Json, key: str, label: str) -> float:
    value = values[key]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{label}: `{key}` must be a finite number, got {value!r}.")
    return float(value)


def _points(root: Json, base: Path, origin: dict[str, str]) -> tuple[np.ndarray, np.ndarray]:
    """Points and colours of the PLY that the file names; none where it names none."""
    name = root.get("ply_file_path")
    if not name:
        return np.zeros((0, 3)), np.zeros((0, 3), np.uint8)
    path = base / str(name)
    origin["points"] = str(name)
    return read_ply_points(path)


def read_ply_points(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Vertices and colours (mid-gray where the file has none) of a PLY. [P, 3] float64, [P, 3] uint8"""
    try:
        vertex = plyfile.PlyData.read(str(path))["vertex"].data
        points = np.stack([np.asarray(vertex[axis], dtype=np.float64) for axis in "xyz"], axis=1)
    except (OSError, KeyError, ValueError, plyfile.PlyParseError) as error:
        raise ValueError(f"{path}: cannot be read as a PLY with vertices x, y, z ({error}).") from error
    check_points(points, path)
    colors = np.full((len(points), 3), 128, np.uint8)
    if {"red", "green", "blue"} <= set(vertex.dtype.names):
        values = np.stack([vertex[channel] for channel in ("red", "green", "blue")], axis=1)
        colors = values if values.dtype == np.uint8 else np.clip(np.rint(values * 255.0), 0, 255).astype(np.uint8)
    return points, colors


def _num_on_disk(image_root: Path, names: list[str]) -> int:
    """Image files in the folders that the frames' images lie in, not below them."""
    folders = {(image_root / name).parent for name in names}
    return sum(path.suffix.lower() in SUFFIXES for folder in folders for path in folder.iterdir())
