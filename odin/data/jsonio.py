"""JSON files that are whole or absent, and that hold no number JSON does not know.

Records outlive the process that wrote them: a half-written file or a bare NaN (which Python writes and other readers
refuse) would only show up when tables are made, long after the run.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


def write_json(path: Path, obj: Any) -> None:
    """Write `obj` under a temporary name, flush it to the disk and rename it: readers see the old file or the new.

    Keys keep the order given. NumPy scalars and arrays become plain numbers and lists, paths become text. Raises
    ValueError with the key's path (``$.mean.psnr``) for NaN, infinities and what JSON cannot hold; the old file stays.
    """
    path = Path(path)
    try:
        text = json.dumps(_plain(obj, "$"), indent=1, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise ValueError(f"{path}: not written: {error}") from None
    path.parent.mkdir(parents=True, exist_ok=True)
    # The process id keeps two writers of one path from sharing a temporary file.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read_json(path: Path) -> Any:
    """The file's content. Raises ValueError naming the file where it is absent, cut short or not strict JSON."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read ({error}).") from error
    if not text.strip():
        raise ValueError(f"{path}: empty file; what wrote it was probably stopped. Make it again.")
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except ValueError as error:
        raise ValueError(f"{path}: not valid JSON ({error}).") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _plain(obj: Any, where: str) -> Any:
    """`obj` in JSON's own types; `where` is its key path, for errors."""
    if isinstance(obj, (np.generic, np.ndarray)):
        obj = obj.tolist()
    if obj is None or isinstance(obj, (bool, int, str)):
        return obj
    if isinstance(obj, float):
        if not math.isfinite(obj):
            raise ValueError(f"{where} is {obj}; write null, and the reason beside it.")
        return obj
    if isinstance(obj, Path):
        return str(obj)
    if isinstance(obj, Mapping):
        for key in obj:
            if not isinstance(key, str):
                raise ValueError(f"{where} has the key {key!r} ({type(key).__name__}); keys must be text.")
        return {key: _plain(value, f"{where}.{key}") for key, value in obj.items()}
    if isinstance(obj, (list, tuple)):
        return [_plain(value, f"{where}[{index}]") for index, value in enumerate(obj)]
    raise ValueError(f"{where} is of type {type(obj).__name__}, which JSON cannot hold.")
