"""`odin prepare`: from any accepted data set to a prepared folder.

Data is a COLMAP folder, a transforms.json (or a folder with one and no COLMAP model), `gallery:NAME`, or an already
prepared folder. Preparing the same input again is a no-op; other input never replaces a prepared folder.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from odin.data import scene_io
from odin.data.capture import Capture
from odin.data.colmap import is_colmap_folder, read_colmap
from odin.data.initial_points import NUM_RANDOM_POINTS, random_points, seen_by_any
from odin.data.rectify import RectifiedView, plan_views, source_factor, write_views
from odin.data.scene import Protocol, Scene
from odin.data.scene_io import Provenance
from odin.data.transforms import is_transforms, read_transforms

logger = logging.getLogger(__name__)

GALLERY_PREFIX = "gallery:"
_MIN_POINTS_SEEN = 0.5  # with a smaller share of points inside some training view, axes or units probably differ
_SEEN_SAMPLE = 2000  # points that this share is taken from


def prepare(
    data: str,
    out: Path,
    *,
    factor: float | None = None,
    images: str | None = None,
    model: str | None = None,
    test_every: int = 8,
    background: tuple[float, float, float] = (0.0, 0.0, 0.0),
    skip_missing: bool = False,
    width: int | None = None,
    num_views: int | None = None,
    seed: int = 0,
    name: str | None = None,
) -> Scene:
    """Prepare `data` in folder `out` and return the scene, as `load_scene(out)` would.

    factor: images F times smaller: from the data set's own `images_F` where it has one, else by area averaging.
    images, model: another image folder or COLMAP model than the default one.
    test_every: test views are every n-th of the sorted names, unless the data set itself has test views.
    background: linear mix under transparent pixels, 0..1.
    skip_missing: leave out views whose image files do not exist (recorded) instead of refusing.
    width, num_views: size of a gallery scene; only there.
    seed: of the gallery, and of the random points of data without any.
    name: the scene's name; by default that of the data folder.

    Raises ValueError for everything that is wrong with the data or the options.
    """
    out = Path(out)
    options = {
        "factor": None if factor is None else float(factor),
        "images": images,
        "model": model,
        "test_every": test_every,
        "background": [float(channel) for channel in background],
        "skip_missing": skip_missing,
        "seed": seed,
    }
    _check_options(options, data, width, num_views)
    if data.startswith(GALLERY_PREFIX):
        return _prepare_gallery(data, out, options, width, num_views, name)
    path = Path(data)
    if not path.exists():
        raise ValueError(f"{data}: no such file or folder. Expected a data folder, transforms.json or gallery:NAME.")
    if (path / scene_io.MANIFEST).is_file():
        return _prepare_prepared(path, out, options)
    capture = _read(path, options)
    name = name or (path.parent if path.is_file() else path).resolve().name
    return _finish(capture, out, options, name, _capture_sha256(capture, {"name": name, **options}))


def split_views(num_views: int, test_every: int, where: Path | str) -> np.ndarray:
    """Mask of the test views, index % test_every == 0. [V] bool

    Raises ValueError where training or test views would be none.
    """
    is_test = np.arange(num_views) % test_every == 0
    _check_split(is_test, f"every {test_every}. view is a test view", where)
    return is_test


def _check_options(options: dict[str, Any], data: str, width: int | None, num_views: int | None) -> None:
    factor, background = options["factor"], options["background"]
    if factor is not None and not (np.isfinite(factor) and factor >= 1):
        raise ValueError(f"factor must be at least 1 (images are never enlarged), got {factor}.")
    if options["test_every"] < 1:
        raise ValueError(f"test_every must be at least 1, got {options['test_every']}.")
    if len(background) != 3 or not all(0 <= channel <= 1 for channel in background):
        raise ValueError(f"background must be three numbers in 0..1, got {background}.")
    if not data.startswith(GALLERY_PREFIX) and (width is not None or num_views is not None):
        raise ValueError(f"{data}: width and num_views are for gallery scenes only; use factor for smaller images.")
    if data.startswith(GALLERY_PREFIX) and (options["images"] or options["model"]):
        raise ValueError(f"{data}: a gallery scene has one model and one image folder; drop images and model.")


def _read(path: Path, options: dict[str, Any]) -> Capture:
    common = {key: options[key] for key in ("images", "factor", "skip_missing")}
    if path.is_dir() and (options["model"] is not None or is_colmap_folder(path) or not is_transforms(path)):
        return read_colmap(path, model=options["model"], **common)  # also explains what a folder with neither lacks
    if options["model"] is not None:
        raise ValueError(f"{path}: model chooses among COLMAP models, and this is none. Drop it.")
    if not is_transforms(path):
        raise ValueError(f"{path}: expected a folder or a .json file.")
    return read_transforms(path, **common)


def _prepare_gallery(
    data: str, out: Path, options: dict[str, Any], width: int | None, num_views: int | None, name: str | None
) -> Scene:
    """Render the scene, then read it like any COLMAP folder."""
    scene_name = data.removeprefix(GALLERY_PREFIX)
    sizes: dict[str, Any] = {
        key: value for key, value in (("width", width), ("num_views", num_views)) if value is not None
    }
    # The rendering is a function of these, so that a finished one need not be rendered to be recognized.
    name = name or scene_name
    fingerprint = _sha256_of({"gallery": scene_name, "name": name, **sizes, **options})
    if scene_io.is_prepared_from(out, fingerprint):
        return _already_prepared(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", suffix=".gallery", dir=out.parent) as work:
        try:
            from odin.data import gallery  # here: its renderer is an extra

            folder = gallery.build(scene_name, Path(work) / scene_name, seed=options["seed"], **sizes)
        except ModuleNotFoundError as error:
            raise ValueError(
                f"{data}: the gallery needs {error.name}, which is not installed. Run `pip install 'odin[gallery]'`, "
                "or prepare photographs instead."
            ) from error
        capture = _read(Path(folder), options)
        return _finish(capture, out, options, name, fingerprint, source="gallery")


def _prepare_prepared(path: Path, out: Path, options: dict[str, Any]) -> Scene:
    """Copy a prepared folder, or do nothing where it is `out` itself. Its split and background stay as they are."""
    scene = scene_io.load_scene(path)
    if options["factor"] not in (None, 1.0) or options["images"] or options["model"]:
        raise ValueError(f"{path} is already prepared; factor, images and model need the original data.")
    if out.resolve() == path.resolve():
        return _already_prepared(out)
    fingerprint = scene_io.read_json(path / scene_io.MANIFEST)["input_sha256"]
    if scene_io.is_prepared_from(out, fingerprint):
        return _already_prepared(out)
    logger.info("%s is already prepared (%d views): copied to %s", path, scene.num_views, out)
    with scene_io.staging(out) as folder:
        shutil.copytree(path, folder, dirs_exist_ok=True)
    return scene_io.load_scene(out)


def _already_prepared(out: Path) -> Scene:
    logger.info("%s: already prepared from the same input, nothing to do", out)
    return scene_io.load_scene(out)


def _finish(
    capture: Capture, out: Path, options: dict[str, Any], name: str, fingerprint: str, source: str | None = None
) -> Scene:
    """Write images, arrays and manifest of a capture that was read completely."""
    if scene_io.is_prepared_from(out, fingerprint):
        return _already_prepared(out)
    plan, plan_warnings = plan_views(capture, options["factor"])
    is_test, rule = _split(capture, options["test_every"])
    source = source or capture.kind
    scene = Scene(
        name=name,
        names=tuple(view.name for view in capture.views),
        image_root=capture.image_root,
        image_files=tuple(view.file for view in plan),
        widths=np.array([view.width for view in plan], np.int32),
        heights=np.array([view.height for view in plan], np.int32),
        Ks=np.stack([view.K for view in plan]),
        viewmats=np.stack([view.viewmat for view in capture.views]),
        is_test=is_test,
        points=capture.points.astype(np.float32),
        colors=capture.colors,
        track_offsets=np.cumsum([0, *(len(track) for track in capture.tracks)], dtype=np.int64),
        track_points=np.concatenate([np.zeros(0, np.int32), *capture.tracks]),
        protocol=_protocol(capture, plan, options, source, rule),
    )
    scene, points_from, point_warnings = _with_initial_points(scene, capture, options["seed"])
    warnings = (*capture.warnings, *plan_warnings, *point_warnings)
    for warning in warnings:
        logger.warning("%s: %s", name, warning)
    with scene_io.staging(out) as folder:
        write_views(plan, folder / scene_io.IMAGES, scene.protocol.background)
        provenance = Provenance(
            input_sha256=fingerprint,
            source={"kind": source, **capture.origin},
            points=points_from,
            num_images_on_disk=capture.num_images_on_disk,
            skipped=capture.skipped,
            warnings=warnings,
        )
        scene_io.write_scene_files(scene, folder, provenance)
    return scene_io.load_scene(out)


def _protocol(
    capture: Capture, plan: list[RectifiedView], options: dict[str, Any], source: str, split: str
) -> Protocol:
    """How the final images relate to the camera file."""
    is_resized = any(view.resized for view in plan)
    found = source_factor(capture, plan)
    provided = "none" if found == 1 else "provided"
    return Protocol(
        source=source,
        factor=found * options["factor"] if is_resized else found,
        resize="area" if is_resized else provided,
        undistorted=any(view.distorted is not None for view in plan),
        split=split,
        background=tuple(options["background"]),
    )


def _split(capture: Capture, test_every: int) -> tuple[np.ndarray, str]:
    given = [view.is_test for view in capture.views]
    if all(value is not None for value in given):
        is_test = np.array(given, bool)
        _check_split(is_test, "the data set's own split", capture.image_root)
        return is_test, "files"
    return split_views(len(given), test_every, capture.image_root), f"index % {test_every} == 0"


def _check_split(is_test: np.ndarray, rule: str, where: Path | str) -> None:
    num_test = int(is_test.sum())
    num_train = len(is_test) - num_test
    if not num_test or not num_train:
        raise ValueError(
            f"{where}: {len(is_test)} views give {num_train} training and {num_test} test views ({rule}). "
            "Both must be at least 1: add views, or change test_every."
        )


def _with_initial_points(scene: Scene, capture: Capture, seed: int) -> tuple[Scene, str, tuple[str, ...]]:
    """The scene with points, where they came from, and warnings.

    Without any, seeded random points (mid-gray, no tracks) stand in; with some, their place is checked.
    """
    train = scene.train_views
    views = (scene.viewmats[train], scene.Ks[train], scene.widths[train], scene.heights[train])
    if not len(scene.points):
        points = random_points(*views, num=NUM_RANDOM_POINTS, seed=seed)
        scene = replace(scene, points=points, colors=np.full(points.shape, 128, np.uint8))
        text = f"the data has no points: {len(points)} random ones inside the camera bounds instead"
        return scene, f"random ({len(points)}, seed {seed})", (text,)
    sample = scene.points[:: max(1, len(scene.points) // _SEEN_SAMPLE)].astype(np.float64)
    share = float(seen_by_any(sample, *views).mean())
    warnings: tuple[str, ...] = ()
    if share < _MIN_POINTS_SEEN:
        text = (
            f"only {share:.0%} of the points lie inside a training view: axes or units of points and cameras may differ"
        )
        warnings = (text,)
    return scene, "ply" if "points" in capture.origin else "sfm", warnings


def _capture_sha256(capture: Capture, options: dict[str, Any]) -> str:
    """Hash of the data's contents and the options, wherever the data lies."""
    digest = hashlib.sha256(_sha256_of({"version": scene_io.VERSION, "kind": capture.kind, **options}).encode())
    for array in (capture.points, capture.colors, *capture.tracks):
        digest.update(np.ascontiguousarray(array).tobytes())
    for view in capture.views:
        camera = view.camera
        described = [view.name, view.is_test, camera.model_name, camera.width, camera.height, list(camera.params)]
        digest.update(json.dumps(described).encode())
        digest.update(view.viewmat.tobytes())
        digest.update(scene_io.file_sha256(capture.image_root / view.name).encode())
    digest.update(json.dumps(capture.skipped).encode())
    return digest.hexdigest()


def _sha256_of(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
