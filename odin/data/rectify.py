"""From a capture's cameras and files to pinhole views and their final image files.

Order for one image: decode, composite over the background, undistort, resize. Compositing comes first because mixing
after a resize would weight colours that nobody sees under transparent pixels. Files that need none of it are copied
byte for byte; all others are written as 8-bit PNG.
"""

from __future__ import annotations

import math
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from odin.data._pycolmap import pycolmap
from odin.data.capture import Capture
from odin.data.images import read_pixels, read_size, resize_area, to_bytes

_WORKERS = 4  # decoding and resizing release the interpreter lock; more would only cost memory


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RectifiedView:
    """What has to happen to one image file, and the pinhole camera that it then belongs to."""

    source: Path
    source_size: tuple[int, int]  # width and height of the source file
    file: str  # relative path of the final file
    K: np.ndarray  # [3, 3] float64, pixels of the final file
    width: int
    height: int
    distorted: pycolmap.Camera | None  # camera at the source file's size, where it has to be undistorted
    resized: bool

    @property
    def is_copied(self) -> bool:
        return self.distorted is None and not self.resized


def is_pinhole(camera: pycolmap.Camera) -> bool:
    """Whether the model is a pinhole as it stands: PINHOLE, SIMPLE_PINHOLE, or distortion parameters all exactly zero.

    Not so for fisheye models, whose projection is no pinhole even with zero coefficients.
    """
    extra = np.asarray(camera.params)[list(camera.extra_params_idxs())]
    return bool(camera.is_perspective_pinhole()) and not np.any(extra)


def plan_views(capture: Capture, factor: float | None) -> tuple[list[RectifiedView], list[str]]:
    """Decide per view on scaling, undistortion and resizing, from image headers alone. Also returns warnings.

    Raises ValueError listing the images whose shape contradicts their camera, or whose model cannot be a pinhole.
    """
    shrink = 1.0 if factor is None or capture.provided_factor != 1.0 else float(factor)
    views, problems, rotated = [], [], 0
    for view in capture.views:
        source = capture.image_root / view.name
        width, height, orientation = read_size(source)
        rotated += orientation != 1
        problem = _shape_problem(view.name, view.camera, width, height, orientation)
        if problem:
            problems.append(problem)
            continue
        views.append(_plan(source, view.name, scaled_to(view.camera, width, height), shrink))
    if problems:
        shown = "\n".join("  " + problem for problem in problems[:10])
        raise ValueError(
            f"{capture.image_root}: {len(problems)} of {len(capture.views)} images do not fit their cameras:\n{shown}"
        )
    _check_collisions(views, capture.image_root)
    warnings = []
    if rotated:
        warnings.append(f"{rotated} images carry an EXIF orientation; pixels are used as stored, as the cameras expect")
    return views, warnings


def scaled_to(camera: pycolmap.Camera, width: int, height: int) -> pycolmap.Camera:
    """The camera for the same view in another number of pixels: x and y are scaled each by its own ratio.

    Models with a single focal length become the equal one with two, since image files are rounded to whole pixels
    and the two ratios differ.
    """
    if (camera.width, camera.height) == (width, height):
        return camera
    params = np.asarray(camera.params, dtype=np.float64)
    name = camera.model_name
    if name in _TWO_FOCALS:
        name, num_extra = _TWO_FOCALS[name]
        extra = np.zeros(num_extra)
        extra[: len(params) - 3] = params[3:]
        params = np.concatenate([[params[0], params[0], params[1], params[2]], extra])
    scaled = pycolmap.Camera(
        camera_id=camera.camera_id, model=name, width=camera.width, height=camera.height, params=params
    )
    scaled.rescale(width, height)
    return scaled


def source_factor(capture: Capture, views: list[RectifiedView]) -> float:
    """How many times smaller the source files are than the camera file says (1 for equal sizes).

    A whole number where every size is its quotient within a pixel of rounding, else the mean ratio to three digits.
    """
    cameras = np.array([(view.camera.width, view.camera.height) for view in capture.views], dtype=np.float64)
    sizes = np.array([view.source_size for view in views], dtype=np.float64)
    ratio = float((cameras / sizes).mean())
    whole = max(1.0, round(ratio))
    return whole if (np.abs(cameras / whole - sizes) <= 1).all() else round(ratio, 3)


# Model with one focal length: the equal one with fx and fy, and how many distortion parameters that has.
_TWO_FOCALS = {
    "SIMPLE_PINHOLE": ("PINHOLE", 0),
    "SIMPLE_RADIAL": ("OPENCV", 4),
    "RADIAL": ("OPENCV", 4),
    "SIMPLE_RADIAL_FISHEYE": ("OPENCV_FISHEYE", 4),
    "RADIAL_FISHEYE": ("OPENCV_FISHEYE", 4),
    "SIMPLE_DIVISION": ("DIVISION", 1),
    "SIMPLE_FISHEYE": ("FISHEYE", 0),
}


def write_views(views: list[RectifiedView], folder: Path, background: tuple[float, float, float]) -> None:
    """Write every view's final image file below `folder`."""
    for view in views:
        (folder / view.file).parent.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(_WORKERS) as pool:
        list(pool.map(lambda view: _write_view(view, folder / view.file, background), views))


def _plan(source: Path, name: str, camera: pycolmap.Camera, shrink: float) -> RectifiedView:
    source_size = (camera.width, camera.height)
    distorted = None if is_pinhole(camera) else camera
    if distorted is not None:
        camera = _undistorted_camera(distorted, source)
    K = np.asarray(camera.calibration_matrix(), dtype=np.float64)
    # Half up, as Mip-NeRF 360's folders were made.
    width = max(1, math.floor(camera.width / shrink + 0.5))
    height = max(1, math.floor(camera.height / shrink + 0.5))
    resized = (width, height) != (camera.width, camera.height)
    if resized:
        K = np.diag([width / camera.width, height / camera.height, 1.0]) @ K
    is_copied = distorted is None and not resized
    file = name if is_copied or Path(name).suffix.lower() == ".png" else name + ".png"
    return RectifiedView(
        source=source,
        source_size=source_size,
        file=file,
        K=K,
        width=width,
        height=height,
        distorted=distorted,
        resized=resized,
    )


def _undistorted_camera(camera: pycolmap.Camera, source: Path) -> pycolmap.Camera:
    advice = "Undistort the images with the tool that made the model, then prepare the result."
    if camera.is_spherical():
        raise ValueError(f"{source}: camera model {camera.model_name} is no perspective camera. {advice}")
    try:
        pinhole = pycolmap.undistort_camera(pycolmap.UndistortCameraOptions(), camera)
    except Exception as error:  # pycolmap passes on whatever C++ threw
        raise ValueError(
            f"{source}: camera model {camera.model_name} cannot be undistorted: {error}. {advice}"
        ) from error
    if min(pinhole.width, pinhole.height) < 2 or not np.isfinite(pinhole.params).all():
        raise ValueError(
            f"{source}: undistorting camera model {camera.model_name} with parameters {list(camera.params)} leaves "
            f"{pinhole.width} x {pinhole.height} pixels. Check the distortion. {advice}"
        )
    return pinhole


def _shape_problem(name: str, camera: pycolmap.Camera, width: int, height: int, orientation: int) -> str:
    """Empty where the file has the camera's aspect ratio within the rounding of its size to whole pixels."""
    if _same_shape(camera, width, height):
        return ""
    text = f"{name}: the file is {width} x {height}, camera {camera.camera_id} {camera.width} x {camera.height}"
    if _same_shape(camera, height, width):
        cause = (
            f"its EXIF orientation is {orientation}" if orientation != 1 else "an EXIF rotation lost or applied twice"
        )
        return f"{text}: width and height are swapped ({cause}). Rotate the pixels, or run the SfM tool on these files."
    return f"{text}: the aspect ratio differs. Use the images that the cameras were computed from."


def _same_shape(camera: pycolmap.Camera, width: int, height: int) -> bool:
    if (width, height) == (camera.width, camera.height):
        return True
    low = max((width - 1) / camera.width, (height - 1) / camera.height)
    high = min((width + 1) / camera.width, (height + 1) / camera.height)
    return low < high


def _check_collisions(views: list[RectifiedView], where: Path) -> None:
    seen: dict[str, Path] = {}
    for view in views:
        if view.file in seen:
            raise ValueError(f"{where}: {seen[view.file]} and {view.source} would both be written as {view.file}.")
        seen[view.file] = view.source


def _write_view(view: RectifiedView, target: Path, background: tuple[float, float, float]) -> None:
    if view.is_copied:
        shutil.copyfile(view.source, target)
        return
    pixels = read_pixels(view.source, background)
    if view.distorted is not None:
        bitmap = pycolmap.Bitmap.from_array(to_bytes(pixels))
        bitmap, _ = pycolmap.undistort_image(pycolmap.UndistortCameraOptions(), bitmap, view.distorted)
        pixels = np.asarray(bitmap.to_array(), dtype=np.float32) / np.float32(255)
    if view.resized:
        pixels = resize_area(pixels, view.width, view.height)
    Image.fromarray(to_bytes(pixels)).save(target, format="PNG")
