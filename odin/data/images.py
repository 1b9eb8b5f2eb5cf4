"""Image files: which are there, how large they are, and their pixels as float32 in 0..1.

All image reading goes through `read_pixels`, so that preparation, training and evaluation see the same values.
"""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image, UnidentifiedImageError

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".bmp"})
_EXIF_ORIENTATION = 0x0112
_EIGHT_BIT = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"})
_SIXTEEN_BIT = frozenset({"I;16", "I;16L", "I;16B", "I;16N"})


def list_images(folder: Path) -> list[str]:
    """Relative paths (forward slashes) of the image files under `folder`, sorted. Hidden files are not images."""
    found = []
    for parent, folders, files in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        relative = Path(parent).relative_to(folder)
        found += [
            (relative / name).as_posix()
            for name in files
            if not name.startswith(".") and Path(name).suffix.lower() in SUFFIXES
        ]
    return sorted(found)


def split_missing(folder: Path, names: list[str], *, skip_missing: bool) -> tuple[list[str], list[str]]:
    """Names whose files exist under `folder`, and those whose do not (only with `skip_missing`), in the given order.

    Raises ValueError that lists every missing file at once, with the file that was probably meant where only the case
    of letters or the Unicode form differs. Such near matches are never used silently.
    """
    # Compared with a listing, not with `exists`: on a file system that ignores case A.JPG would pass here, and fail
    # on the next machine.
    listed = _list_beside(folder, names)
    missing = [name for name in names if name not in listed]
    if missing and not skip_missing:
        near = {_loose(name): name for name in sorted(listed)}
        lines = []
        for name in missing:
            hint = near.get(_loose(name))
            lines.append(f"  {name}" + (f" (the folder has {hint}: rename one of them)" if hint else ""))
        raise ValueError(
            f"{len(missing)} of {len(names)} images are not in {folder}:\n" + "\n".join(lines) + "\n"
            "Add the files, name another image folder, or skip them on purpose (skip_missing)."
        )
    absent = set(missing)
    return [name for name in names if name not in absent], missing


def _list_beside(folder: Path, names: list[str]) -> set[str]:
    """Every file in the folders that `names` point into, relative to `folder`."""
    listed: set[str] = set()
    for parent in {PurePosixPath(name).parent for name in names}:
        if (folder / parent).is_dir():
            listed.update((parent / entry).as_posix() for entry in os.listdir(folder / parent))
    return listed


def _loose(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def read_size(path: Path) -> tuple[int, int, int]:
    """Width and height in pixels as stored, and the EXIF orientation (1 where there is none), from the header."""
    with _open(path) as image:
        return image.width, image.height, int(image.getexif().get(_EXIF_ORIENTATION, 1))


def read_pixels(path: Path, background: tuple[float, float, float]) -> np.ndarray:
    """Pixels of an image file over `background` (linear mix, 0..1). [H, W, 3] float32 in 0..1

    Gray is spread to three channels and 16 bits are divided by 65535. The EXIF orientation is *not* applied: SfM tools
    measure in the stored pixels. Raises ValueError for files that are no images or have another depth.
    """
    with _open(path) as image:
        has_alpha = "A" in image.mode or "transparency" in image.info
        is_deep = image.mode in _SIXTEEN_BIT or (image.mode == "I" and image.format == "PNG")
        if not is_deep and image.mode not in _EIGHT_BIT:
            raise ValueError(
                f"{path}: pixel format {image.mode!r} has no defined white. Allowed: 8-bit images and 16-bit PNG. "
                "Convert the file."
            )
        try:
            if is_deep:  # Pillow's own conversion to 8 bits saturates instead of scaling
                gray = np.asarray(image, dtype=np.float32) / np.float32(65535)
                return np.repeat(gray[:, :, None], 3, axis=2)
            pixels = np.asarray(image.convert("RGBA" if has_alpha else "RGB"), dtype=np.float32) / np.float32(255)
        except (OSError, SyntaxError) as error:
            raise ValueError(f"{path}: the image cannot be decoded ({error}). Copy it again.") from error
    if not has_alpha:
        return pixels
    alpha = pixels[:, :, 3:]
    return pixels[:, :, :3] * alpha + np.asarray(background, dtype=np.float32) * (1 - alpha)


def resize_area(pixels: np.ndarray, width: int, height: int) -> np.ndarray:
    """Mean over each target pixel's area, [H, W, 3] float32 to [height, width, 3] float32.

    scikit-image's local mean weights by the exact overlap also where sizes do not divide; Pillow's box filter takes
    whole source pixels there, which shifts parts of the image, and rounds 8-bit images between its two passes.
    """
    from skimage.transform import resize_local_mean  # most of a rank's start-up time, and ranks never resize

    return resize_local_mean(pixels, (height, width), channel_axis=2, preserve_range=True).astype(np.float32)


def to_bytes(pixels: np.ndarray) -> np.ndarray:
    """Float pixels in 0..1 as the nearest 8-bit values. uint8, same shape"""
    return np.clip(np.rint(pixels * 255), 0, 255).astype(np.uint8)


def _open(path: Path) -> Image.Image:
    try:
        return Image.open(path)
    except FileNotFoundError:
        raise ValueError(f"{path}: the image file does not exist.") from None
    except (UnidentifiedImageError, OSError) as error:
        raise ValueError(f"{path} cannot be read as an image ({error}).") from error
