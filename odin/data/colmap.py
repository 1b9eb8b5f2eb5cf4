"""Reads a COLMAP model, binary or text, with any camera model, as a `Capture`.

Accepted layouts of a data folder: `sparse/0/`, `sparse/` without numbered models, or the model's files in the folder
itself. Binary files win where both kinds exist. With rigs and frames (COLMAP 3.12 and later) the pose of an image is
the frame's pose composed with the rig's, which is what COLMAP itself uses; where `images.*` says otherwise, one warning
gives the largest difference.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from pathlib import Path

import numpy as np

from odin.data._pycolmap import pycolmap
from odin.data.capture import Capture, SourceView, check_names, check_points, check_poses
from odin.data.colmap_check import check_binary_model
from odin.data.images import list_images, split_missing

logger = logging.getLogger(__name__)

_PARTS = ("cameras", "images", "points3D")
_RIG_PARTS = ("rigs", "frames")
_POSE_AGREEMENT = 1e-4  # largest difference of pose entries, relative to the scene's size, that is rounding


def is_colmap_folder(folder: Path) -> bool:
    """Whether some model lies in one of the places that `find_model` looks at."""
    return bool(_models(folder))


def find_model(folder: Path, model: str | None = None) -> Path:
    """The model's folder: `model` (relative to `folder` or to its sparse/), or the default one.

    The default is `sparse/0`, or the only model there is. Raises ValueError with every model and its number of
    registered images where another model has more of them: `sparse/0` is then a fragment of the scene.
    """
    if model is not None:
        for candidate in (folder / model, folder / "sparse" / model):
            if _suffix(candidate):
                return candidate
        raise ValueError(f"{folder}: no COLMAP model at {model!r}. {_describe_models(folder)}")
    models = _models(folder)
    if not models:
        raise ValueError(
            f"{folder}: no COLMAP model (nor transforms.json). Looked for cameras, images and points3D (.bin or .txt) "
            f"in sparse/0, sparse, the folder itself and their sub-folders.{_describe_incomplete(folder)}"
        )
    if len(models) == 1:
        return models[0]
    default = next((path for path in models if path.name == "0"), None)
    if default is None:
        raise ValueError(f"{folder}: several COLMAP models, none called 0. {_describe_models(folder)}")
    if max(_num_registered(path) for path in models) > _num_registered(default):
        raise ValueError(
            f"{folder}: another model has more registered images than {default.relative_to(folder)}, which is then "
            f"only a fragment. {_describe_models(folder)}"
        )
    return default


def read_colmap(
    folder: Path,
    *,
    model: str | None = None,
    images: str | None = None,
    factor: float | None = None,
    skip_missing: bool = False,
) -> Capture:
    """Read a COLMAP data set. Images come from `images`, else `images_F` for a factor that has one, else `images`.

    Raises ValueError for unreadable models, missing images (all listed), non-finite or non-rigid values.
    """
    path = find_model(folder, model)
    reconstruction = read_model(path)
    warnings = _rig_warnings(path, reconstruction)
    image_root, provided_factor = _image_folder(folder, path, images, factor)
    try:
        names = sorted(image.name for image in reconstruction.images.values() if image.has_pose)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: an image name is not UTF-8 ({error}). Rename the image and its entry.") from error
    registered = {image.name: image for image in reconstruction.images.values() if image.has_pose}
    if not names:
        raise ValueError(f"{path}: no image of the model is registered. Run the reconstruction again.")
    check_names(names, path)
    on_disk = len(list_images(image_root))
    logger.info("%s: %d registered of %d images on disk", folder, len(names), on_disk)
    if on_disk > len(names):
        warnings.append(f"{len(names)} registered of {on_disk} images on disk")
    present, skipped = split_missing(image_root, names, skip_missing=skip_missing)
    if skipped:
        warnings.append(f"{len(skipped)} views skipped because their image files do not exist")
    if not present:
        raise ValueError(f"{image_root}: none of the {len(names)} registered images is there.")
    chosen = [registered[name] for name in present]
    points, colors, tracks, track_warnings = _points_and_tracks(reconstruction, chosen, path)
    warnings += track_warnings
    viewmats = np.stack([_viewmat(image) for image in chosen])
    check_poses(present, viewmats, path)
    views = tuple(
        SourceView(name=image.name, camera=_checked_camera(reconstruction.cameras[image.camera_id], path), viewmat=pose)
        for image, pose in zip(chosen, viewmats, strict=True)
    )
    return Capture(
        kind="colmap",
        origin={"model": _relative(path, folder), "images": _relative(image_root, folder)},
        image_root=image_root,
        views=views,
        points=points,
        colors=colors,
        tracks=tracks,
        num_images_on_disk=on_disk,
        provided_factor=provided_factor,
        skipped=tuple(skipped),
        warnings=tuple(warnings),
    )


def read_model(path: Path) -> pycolmap.Reconstruction:
    """The model in folder `path`; any failure to read it is one ValueError that names the file or folder."""
    suffix = _suffix(path)
    if not suffix:
        raise ValueError(f"{path}: no complete COLMAP model.{_describe_incomplete(path)}")
    if suffix == ".bin":
        check_binary_model(path)
    if len(_rig_files(path, suffix)) == 1:
        # pycolmap cannot read half of them, and the images' own poses are complete without.
        logger.warning("%s: only %s present of rigs and frames, ignored", path, _rig_files(path, suffix)[0].name)
        return _read_without_rigs(path, suffix)
    return _read(path, suffix)


def _read(path: Path, suffix: str) -> pycolmap.Reconstruction:
    reconstruction = pycolmap.Reconstruction()
    try:
        if suffix == ".bin":
            reconstruction.read_binary(str(path))
        else:
            reconstruction.read_text(str(path))
            for image_id, name in _text_names(path / "images.txt").items():
                reconstruction.images[image_id].name = name
    except Exception as error:  # pycolmap passes on whatever C++ threw: IndexError, ValueError, RuntimeError
        reason = str(error).split("] ")[-1].strip().rstrip(".") or type(error).__name__
        raise ValueError(
            f"{path}: the COLMAP model ({suffix} files) cannot be read: {reason}. Its files are damaged or do not "
            f"belong together{_describe_cut(path, suffix)}; export the model once more."
        ) from error
    return reconstruction


def _text_names(path: Path) -> dict[int, str]:
    """Image id to name: the rest of the line, of which pycolmap keeps only what comes before the first blank."""
    names = {}
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.startswith("#") or not line.strip():
                continue
            values = line.split(maxsplit=9)  # id, quaternion, translation, camera id, name
            names[int(values[0])] = values[9].rstrip("\r\n")
            next(file, None)  # the observations, which may be an empty line
    return names


def _describe_cut(path: Path, suffix: str) -> str:
    """Text files that end inside a line, for an error message (binary files were checked before)."""
    files = [path / (part + suffix) for part in (*_PARTS, *_RIG_PARTS)]
    cut = [file.name for file in files if suffix == ".txt" and file.is_file() and not file.read_bytes().endswith(b"\n")]
    return f" (cut short: {', '.join(cut)})" if cut else ""


def _read_without_rigs(path: Path, suffix: str) -> pycolmap.Reconstruction:
    with tempfile.TemporaryDirectory() as folder:
        for part in _PARTS:
            shutil.copyfile(path / (part + suffix), Path(folder) / (part + suffix))
        return _read(Path(folder), suffix)


def _rig_warnings(path: Path, reconstruction: pycolmap.Reconstruction) -> list[str]:
    """Compare the poses in use (frames and rigs composed) with those of `images.*`."""
    suffix = _suffix(path)
    if len(_rig_files(path, suffix)) < 2:
        return []
    plain = _read_without_rigs(path, suffix)
    differing, largest_deg = 0, 0.0
    size = max(
        (float(np.abs(_viewmat(i)[:3, 3]).max()) for i in reconstruction.images.values() if i.has_pose), default=1.0
    )
    for image_id, image in reconstruction.images.items():
        if not image.has_pose or image_id not in plain.images or not plain.images[image_id].has_pose:
            continue
        used, stored = _viewmat(image), _viewmat(plain.images[image_id])
        cosine = (np.trace(used[:3, :3].T @ stored[:3, :3]) - 1) / 2
        shift = float(np.abs(used[:3, 3] - stored[:3, 3]).max())
        turn = float(np.abs(used[:3, :3] - stored[:3, :3]).max())
        if turn > _POSE_AGREEMENT or shift > _POSE_AGREEMENT * max(size, 1e-12):
            differing += 1
            largest_deg = max(largest_deg, float(np.degrees(np.arccos(np.clip(cosine, -1, 1)))))
    if not differing:
        return []
    message = (
        f"poses of {differing} of {reconstruction.num_reg_images()} images in images{suffix} disagree with "
        f"frames{suffix} and rigs{suffix} (up to {largest_deg:.3g} degrees); the poses of frames and rigs are used"
    )
    logger.warning("%s: %s", path, message)
    return [message]


def _points_and_tracks(
    reconstruction: pycolmap.Reconstruction, images: list[pycolmap.Image], path: Path
) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, ...], list[str]]:
    """Points in the order of their ids, for each image the ascending indices of the points it saw, and warnings."""
    table = reconstruction.points3D
    ids = np.array(sorted(table), dtype=np.uint64)
    points = np.array([table[int(i)].xyz for i in ids], dtype=np.float64).reshape(-1, 3)
    colors = np.array([table[int(i)].color for i in ids], dtype=np.uint8).reshape(-1, 3)
    check_points(points, path)
    tracks, num_seen, num_dangling = [], 0, 0
    for image in images:
        seen = np.unique(np.array([p.point3D_id for p in image.points2D if p.has_point3D()], dtype=np.uint64))
        known = seen[np.isin(seen, ids)]
        num_seen += len(seen)
        num_dangling += len(seen) - len(known)
        tracks.append(np.searchsorted(ids, known).astype(np.int32))
    if not num_dangling:
        return points, colors, tuple(tracks), []
    # Cropped models look like this, and text files cut between two lines do too.
    warning = (
        f"{num_dangling} of {num_seen} observations are of points that points3D{_suffix(path)} ({len(ids)} points) "
        "does not hold, and are left out; was the file cropped or cut short?"
    )
    return points, colors, tuple(tracks), [warning]


def _checked_camera(camera: pycolmap.Camera, path: Path) -> pycolmap.Camera:
    focals = [camera.params[i] for i in camera.focal_length_idxs()]
    if not np.isfinite(camera.params).all() or min(focals, default=1.0) <= 0 or min(camera.width, camera.height) < 1:
        raise ValueError(
            f"{path}: camera {camera.camera_id} ({camera.model_name}, {camera.width} x {camera.height}) has the "
            f"parameters {list(camera.params)}; sizes and focal lengths must be positive and all values finite."
        )
    return camera


def _viewmat(image: pycolmap.Image) -> np.ndarray:
    viewmat = np.eye(4)
    viewmat[:3] = image.cam_from_world().matrix()
    return viewmat


def _image_folder(folder: Path, model: Path, images: str | None, factor: float | None) -> tuple[Path, float]:
    """The image folder in use and its factor (1 unless it is the data set's own smaller copy)."""
    if images is not None:
        if not (folder / images).is_dir():
            raise ValueError(f"{folder}: no image folder {images!r}. Name an existing folder.")
        return folder / images, 1.0
    roots = [folder] if folder.resolve() != model.resolve() else [folder, folder.parent, folder.parent.parent]
    for root in roots:
        if factor is not None and factor != 1 and (root / f"images_{factor:g}").is_dir():
            return root / f"images_{factor:g}", float(factor)
        if (root / "images").is_dir():
            return root / "images", 1.0
    raise ValueError(f"{folder}: no folder `images` with the photographs. Add it, or name another image folder.")


def _models(folder: Path) -> list[Path]:
    """Model folders of the first place that has any: sparse/*, sparse, the folder itself, its sub-folders."""
    sparse = folder / "sparse"
    for candidates in (_subfolders(sparse), [sparse], [folder], _subfolders(folder)):
        found = [path for path in candidates if _suffix(path)]
        if found:
            return found
    return []


def _subfolders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def _suffix(path: Path) -> str:
    """`.bin` or `.txt`, whichever kind of model files is complete in `path`; empty where neither is."""
    for suffix in (".bin", ".txt"):
        if all((path / (part + suffix)).is_file() for part in _PARTS):
            return suffix
    return ""


def _rig_files(path: Path, suffix: str) -> list[Path]:
    return [path / (part + suffix) for part in _RIG_PARTS if (path / (part + suffix)).is_file()]


def _num_registered(path: Path) -> int:
    """Images that the model's file lists (COLMAP writes the registered ones only)."""
    suffix = _suffix(path)
    if suffix == ".bin":
        with (path / "images.bin").open("rb") as file:
            return int.from_bytes(file.read(8), "little")
    with (path / "images.txt").open(encoding="utf-8") as file:
        return sum(not line.startswith("#") for line in file) // 2


def _describe_models(folder: Path) -> str:
    models = _models(folder)
    if not models:
        return "There is no model in the usual places."
    listed = ", ".join(f"{_relative(path, folder)} ({_num_registered(path)} registered images)" for path in models)
    return f"Models: {listed}. Choose one (model)."


def _describe_incomplete(folder: Path) -> str:
    """Which files are missing where a model folder is there but incomplete."""
    for path in (folder / "sparse" / "0", folder / "sparse", folder):
        present = [file.name for part in _PARTS for file in path.glob(part + ".*") if file.suffix in (".bin", ".txt")]
        if present:
            missing = [part for part in _PARTS if not any(name.startswith(part + ".") for name in present)]
            lacks = f"lacks {', '.join(missing)}" if missing else "has no complete set of one kind"
            return f" {path} holds {', '.join(sorted(present))} and {lacks}."
    return ""


def _relative(path: Path, folder: Path) -> str:
    try:
        return path.resolve().relative_to(folder.resolve()).as_posix()
    except ValueError:
        return path.name
