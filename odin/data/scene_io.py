"""The prepared folder: `scene.npz` (arrays), `manifest.json` (names, protocol, hashes) and `images/`.

Everything later in the pipeline starts from such a folder. It is self-contained, may be moved, and has the same bytes
for the same input: no dates, no absolute paths. It appears under its name only when it is complete.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from odin.data.images import read_pixels
from odin.data.jsonio import read_json, write_json
from odin.data.scene import Protocol, Scene

VERSION = 1
MANIFEST = "manifest.json"
ARRAYS = "scene.npz"
IMAGES = "images"

# Field: dtype and shape, where V and P are the numbers of views and points, and None is any length.
_LAYOUT: dict[str, tuple[str, tuple[str | int | None, ...]]] = {
    "widths": ("int32", ("V",)),
    "heights": ("int32", ("V",)),
    "Ks": ("float64", ("V", 3, 3)),
    "viewmats": ("float64", ("V", 4, 4)),
    "is_test": ("bool", ("V",)),
    "points": ("float32", ("P", 3)),
    "colors": ("uint8", ("P", 3)),
    "track_offsets": ("int64", ("V+1",)),
    "track_points": ("int32", (None,)),
}
_FIXED_DATE = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip file can say
_ROTATION_TOLERANCE = 1e-3


@dataclass(frozen=True, kw_only=True, slots=True)
class Provenance:
    """What the manifest says about a scene's making, beside the scene itself."""

    input_sha256: str = ""  # of everything that went in: data and options
    source: dict[str, str] = field(default_factory=dict)  # parts of the data set that were read
    points: str = "sfm"  # where the points came from
    num_images_on_disk: int | None = None  # in the data set's image folders, registered or not
    skipped: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def save_scene(scene: Scene, directory: Path, provenance: Provenance | None = None) -> None:
    """Write a prepared folder with copies of the scene's images; appears under its name only when complete.

    Raises ValueError where `directory` already holds something else; writing the same again is a no-op.
    """
    provenance = provenance or Provenance(input_sha256=_scene_sha256(scene))
    if is_prepared_from(directory, provenance.input_sha256):
        return
    with staging(directory) as folder:
        for file in scene.image_files:
            target = folder / IMAGES / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(scene.image_root / file, target)
        write_scene_files(scene, folder, provenance)


def is_prepared_from(directory: Path, input_sha256: str) -> bool:
    """Whether `directory` already holds the scene of this input. Raises ValueError where it holds anything else."""
    if not directory.exists() or (directory.is_dir() and not any(directory.iterdir())):
        return False
    if not (directory / MANIFEST).is_file():
        raise ValueError(f"{directory} exists and is no prepared folder. Choose a new folder, or remove it.")
    found = read_json(directory / MANIFEST).get("input_sha256")
    if found != input_sha256:
        raise ValueError(
            f"{directory} was prepared from other data or with other options (input {str(found)[:12]}, now "
            f"{input_sha256[:12]}). Choose a new folder, or remove it."
        )
    return True


@contextmanager
def staging(directory: Path) -> Iterator[Path]:
    """A new folder beside `directory` that takes its name when the block ends, and vanishes if the block fails."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", suffix=".partial", dir=directory.parent))
    try:
        yield folder
        folder.chmod(0o777 & ~_umask())
        try:
            folder.rename(directory)  # replaces an empty folder, never a filled one
        except OSError as error:
            raise ValueError(f"{directory} was filled by something else meanwhile ({error}). Run again.") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_scene_files(scene: Scene, folder: Path, provenance: Provenance) -> None:
    """Write scene.npz and manifest.json into `folder`, whose images/ is complete."""
    validate_scene(scene, folder)
    arrays = {name: np.ascontiguousarray(getattr(scene, name)) for name in _LAYOUT}
    content = _npz_bytes(arrays)
    temporary = folder / f".{ARRAYS}.tmp"
    temporary.write_bytes(content)
    os.replace(temporary, folder / ARRAYS)
    views = []
    for index, (name, file) in enumerate(zip(scene.names, scene.image_files, strict=True)):
        path = folder / IMAGES / file
        views.append(
            {
                "name": name,
                "file": file,
                "test": bool(scene.is_test[index]),
                "width": int(scene.widths[index]),
                "height": int(scene.heights[index]),
                "size_bytes": path.stat().st_size,
                "sha256": file_sha256(path),
            }
        )
    manifest = {
        "version": VERSION,
        "name": scene.name,
        "source": provenance.source,
        "protocol": asdict(scene.protocol),
        "num_views": scene.num_views,
        "num_test_views": int(scene.is_test.sum()),
        "num_points": len(scene.points),
        "num_tracks": len(scene.track_points),
        "num_images_on_disk": provenance.num_images_on_disk,
        "points": provenance.points,
        "warnings": list(provenance.warnings),
        "skipped": list(provenance.skipped),
        "input_sha256": provenance.input_sha256,
        "scene_sha256": hashlib.sha256(content).hexdigest(),
        "views": views,
    }
    write_json(folder / MANIFEST, manifest)


def load_scene(directory: Path | str) -> Scene:
    """Read a prepared folder.

    Raises ValueError where files are missing, of another version, or where contents are inconsistent or not finite.
    Image contents are not hashed here (`verify_images` does); `load_image` checks their sizes.
    """
    directory = Path(directory)
    if not (directory / MANIFEST).is_file():
        raise ValueError(f"{directory}: no {MANIFEST}, so no prepared folder. Make one with `odin prepare`.")
    manifest = read_json(directory / MANIFEST)
    if not isinstance(manifest, dict) or manifest.get("version") != VERSION:
        version = manifest.get("version") if isinstance(manifest, dict) else None
        raise ValueError(
            f"{directory}: format version {version!r}, but this program reads {VERSION}. Prepare it again."
        )
    content = _read_arrays_file(directory, manifest)
    arrays = _npz_arrays(content, directory / ARRAYS)
    try:
        protocol_values = {key.name: manifest["protocol"][key.name] for key in fields(Protocol)}
        protocol_values["background"] = tuple(protocol_values["background"])
        scene = Scene(
            name=manifest["name"],
            names=tuple(view["name"] for view in manifest["views"]),
            image_root=directory / IMAGES,
            image_files=tuple(view["file"] for view in manifest["views"]),
            protocol=Protocol(**protocol_values),
            **arrays,
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"{directory / MANIFEST}: incomplete ({error!r}). Prepare the scene again.") from error
    validate_scene(scene, directory)
    missing = [file for file in scene.image_files if not (scene.image_root / file).is_file()]
    if missing:
        raise ValueError(
            f"{directory}: {len(missing)} image files are missing: {', '.join(missing)}. Prepare it again."
        )
    return scene


def load_image(scene: Scene, view: int) -> np.ndarray:
    """Image of a view over the protocol's background. [3, H, W] float32 in 0..1

    Raises ValueError where the file no longer has the size that the scene's camera is for.
    """
    path = scene.image_root / scene.image_files[view]
    pixels = read_pixels(path, scene.protocol.background)
    expected = (int(scene.heights[view]), int(scene.widths[view]))
    if pixels.shape[:2] != expected:
        raise ValueError(
            f"{path} is {pixels.shape[1]} x {pixels.shape[0]} pixels, the scene says {expected[1]} x {expected[0]}. "
            "The file was changed after the scene was prepared: prepare it again."
        )
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def verify_images(directory: Path | str) -> None:
    """Raise ValueError naming every image of a prepared folder whose bytes differ from the manifest's hash."""
    directory = Path(directory)
    views = read_json(directory / MANIFEST)["views"]
    changed = [view["file"] for view in views if file_sha256(directory / IMAGES / view["file"]) != view["sha256"]]
    if changed:
        raise ValueError(f"{directory}: {len(changed)} images changed since they were prepared: {', '.join(changed)}.")


def validate_scene(scene: Scene, where: Path | str) -> None:
    """Raise ValueError unless the scene's arrays agree with each other and make sense."""

    def require(condition: Any, message: str) -> None:
        if not condition:
            raise ValueError(f"{where}: {message}. Prepare the scene again.")

    lengths = {"V": len(scene.names), "P": len(scene.points), "V+1": len(scene.names) + 1}
    for name, (dtype, shape) in _LAYOUT.items():
        array = getattr(scene, name)
        expected = tuple(lengths.get(axis, axis) if isinstance(axis, str) else axis for axis in shape)
        fits = array.ndim == len(expected) and all(
            want is None or want == got for want, got in zip(expected, array.shape, strict=True)
        )
        require(
            fits and array.dtype == dtype,
            f"`{name}` is {array.dtype} {list(array.shape)}, expected {dtype} {list(expected)}",
        )
        if array.dtype.kind == "f":
            num_broken = int((~np.isfinite(array)).sum())
            require(not num_broken, f"`{name}` holds {num_broken} values that are not finite")
    require(scene.num_views > 0 and len(scene.image_files) == scene.num_views, "there must be one image file a view")
    require(list(scene.names) == sorted(set(scene.names)), "views must be sorted by their names, which are unique")
    require((scene.widths > 0).all() and (scene.heights > 0).all(), "image sizes must be positive")
    require((scene.Ks[:, [0, 1], [0, 1]] > 0).all(), "focal lengths must be positive")
    require((scene.Ks[:, 2] == [0, 0, 1]).all(), "last row of a camera matrix must be 0 0 1")
    rotations = scene.viewmats[:, :3, :3]
    deviation = np.abs(rotations @ rotations.transpose(0, 2, 1) - np.eye(3)).max(axis=(1, 2))
    rigid = (deviation <= _ROTATION_TOLERANCE) & (np.linalg.det(rotations) > 0)
    rigid &= (scene.viewmats[:, 3] == [0, 0, 0, 1]).all(axis=1)
    bad = [scene.names[i] for i in np.flatnonzero(~rigid)]
    require(not bad, f"view matrices of {', '.join(bad[:5])} ({len(bad)} in all) are no rotation and translation")
    offsets, tracks = scene.track_offsets, scene.track_points
    require(
        offsets[0] == 0 and offsets[-1] == len(tracks) and (np.diff(offsets) >= 0).all(),
        "track offsets must rise from 0 to the number of track entries",
    )
    require(not len(tracks) or (tracks.min() >= 0 and tracks.max() < len(scene.points)), "a track names no point")


def file_sha256(path: Path) -> str:
    """Hash of a file's bytes, as hexadecimal text."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _scene_sha256(scene: Scene) -> str:
    digest = hashlib.sha256(repr((VERSION, scene.name, scene.names, scene.image_files, scene.protocol)).encode())
    for name in _LAYOUT:
        digest.update(np.ascontiguousarray(getattr(scene, name)).tobytes())
    for file in scene.image_files:
        digest.update(file_sha256(scene.image_root / file).encode())
    return digest.hexdigest()


def _npz_bytes(arrays: dict[str, np.ndarray]) -> bytes:
    """An npz file without dates or compression: `np.savez` stamps the clock into it."""
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            entry = zipfile.ZipInfo(name + ".npy", date_time=_FIXED_DATE)
            entry.create_system = 3  # the default depends on the platform
            with archive.open(entry, "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, version=(1, 0), allow_pickle=False)
    return buffer.getvalue()


def _read_arrays_file(directory: Path, manifest: dict[str, Any]) -> bytes:
    path = directory / ARRAYS
    if not path.is_file():
        raise ValueError(f"{path}: no such file. Prepare the scene again.")
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != manifest.get("scene_sha256"):
        raise ValueError(f"{path}: its bytes differ from what {MANIFEST} says. Prepare the scene again.")
    return content


def _npz_arrays(content: bytes, path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(BytesIO(content), allow_pickle=False) as archive:
            return {name: archive[name] for name in _LAYOUT}
    except (KeyError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path}: not the arrays of a scene ({error}). Prepare the scene again.") from error


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
