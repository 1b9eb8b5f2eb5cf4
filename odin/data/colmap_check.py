"""Structure check of COLMAP's binary files, before pycolmap reads them.

pycolmap trusts the counts inside the files: a truncated one gives wrong cameras without an error, an error that names
no file, or a loop over 2^64 garbage entries. Walking the records costs little and finds out which file ends where.
Only sizes and counts are looked at; values are pycolmap's business. The layouts are those of COLMAP's
`scene/reconstruction_io_binary.cc`; all numbers are little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

from odin.data._pycolmap import pycolmap

_POSE_BYTES = 7 * 8  # quaternion wxyz and translation, float64


class _Truncated(Exception):
    """The record in progress reaches past the end of the file."""


class _Cursor:
    """A position in a file's bytes that refuses to pass their end."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def skip(self, num_bytes: int) -> None:
        if self.position + num_bytes > len(self.data):
            raise _Truncated
        self.position += num_bytes

    def number(self, code: str) -> int:
        """The next number of struct format `code` (little-endian)."""
        start = self.position
        self.skip(struct.calcsize("<" + code))
        return struct.unpack_from("<" + code, self.data, start)[0]

    def skip_text(self) -> None:
        """Past the next zero byte."""
        end = self.data.find(b"\0", self.position)
        if end < 0:
            raise _Truncated
        self.position = end + 1


def check_binary_model(folder: Path) -> None:
    """Raise ValueError naming the first binary file of `folder` whose contents do not match its own counts.

    Files that are absent are not checked here.
    """
    for name, skip_record in _SKIP_RECORD.items():
        path = folder / name
        if path.is_file():
            _check_file(path, skip_record)


def _check_file(path: Path, skip_record: Callable[[_Cursor, Path], None]) -> None:
    cursor = _Cursor(path.read_bytes())
    total, done = 0, 0
    try:
        total = cursor.number("Q")
        while done < total:
            skip_record(cursor, path)
            done += 1
    except _Truncated:
        raise ValueError(
            f"{path} is truncated: it ends after {len(cursor.data)} bytes, inside record {done + 1} of {total}. "
            "Copy the model again or export it once more from COLMAP."
        ) from None
    extra = len(cursor.data) - cursor.position
    if extra:
        raise ValueError(f"{path} is damaged: {extra} bytes follow its {total} records. Export the model once more.")


def _skip_camera(cursor: _Cursor, path: Path) -> None:
    camera_id = cursor.number("I")
    model_id = cursor.number("i")
    try:
        model = pycolmap.CameraModelId(model_id)
        num_params = len(pycolmap.Camera.create_from_model_id(1, model, 1.0, 1, 1).params)
    except (ValueError, TypeError, RuntimeError):
        raise ValueError(
            f"{path}: camera {camera_id} has the unknown camera model id {model_id}. The file is damaged, "
            "or newer than the installed pycolmap."
        ) from None
    cursor.skip(2 * 8 + 8 * num_params)


def _skip_image(cursor: _Cursor, _: Path) -> None:
    cursor.skip(4 + _POSE_BYTES + 4)  # image id, pose, camera id
    cursor.skip_text()
    cursor.skip(cursor.number("Q") * 24)  # x, y, point id


def _skip_point(cursor: _Cursor, _: Path) -> None:
    cursor.skip(8 + 3 * 8 + 3 + 8)  # point id, position, colour, error
    cursor.skip(cursor.number("Q") * 8)  # image id, index of the 2D point


def _skip_rig(cursor: _Cursor, _: Path) -> None:
    cursor.skip(4)
    num_sensors = cursor.number("I")
    if num_sensors > 0:
        cursor.skip(8)  # the reference sensor's type and id
    for _sensor in range(1, num_sensors):
        cursor.skip(8)
        if cursor.number("B"):  # the pose may be unknown
            cursor.skip(_POSE_BYTES)


def _skip_frame(cursor: _Cursor, _: Path) -> None:
    cursor.skip(4 + 4 + _POSE_BYTES)  # frame id, rig id, pose
    cursor.skip(cursor.number("I") * 16)  # sensor type, sensor id, data id


_SKIP_RECORD: dict[str, Callable[[_Cursor, Path], None]] = {
    "cameras.bin": _skip_camera,
    "images.bin": _skip_image,
    "points3D.bin": _skip_point,
    "rigs.bin": _skip_rig,
    "frames.bin": _skip_frame,
}
