"""Checkpoints: everything that a run needs to go on with the same bits.

One uncompressed npz a checkpoint, written under a temporary name and renamed, so that a killed run leaves either
the old or the new one. Random numbers are counter-based and the plan is a file: there is no other state.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from odin.primitives.primitive_set import PrimitiveSet

CHECKPOINT_VERSION = 1
_NAME = re.compile(r"step-(\d{7})\.npz")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Checkpoint:
    primitives: PrimitiveSet
    step: int  # last step whose effect is included, structural change after it included too
    identity: str  # hash of what decides the run's bits
    meters: dict  # times measured so far, by name


def save_checkpoint(directory: Path, checkpoint: Checkpoint, *, keep: int = 2) -> Path:
    """Write ``step-NNNNNNN.npz`` and delete all but the newest `keep`. Durable when it returns."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"step-{checkpoint.step:07d}.npz"
    temporary = path.with_suffix(".tmp")
    p = checkpoint.primitives
    header = {
        "version": CHECKPOINT_VERSION,
        "step": checkpoint.step,
        "identity": checkpoint.identity,
        "next_id": p.next_id,
        "meters": checkpoint.meters,
    }
    with open(temporary, "wb") as file:
        np.savez(file, header=np.frombuffer(json.dumps(header).encode(), np.uint8), **p.arrays())
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    for old in list_checkpoints(directory)[:-keep]:
        old.unlink()
    return path


def list_checkpoints(directory: Path) -> list[Path]:
    """Complete checkpoints of a folder, oldest step first."""
    if not directory.is_dir():
        return []
    return sorted(path for path in directory.iterdir() if _NAME.fullmatch(path.name))


def load_checkpoint(path: Path) -> Checkpoint:
    """Raises ValueError where the file is truncated, of another version or not a checkpoint."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            header = json.loads(archive["header"].tobytes())
            arrays = {name: archive[name] for name in archive.files if name != "header"}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path}: not a readable checkpoint ({error}). Delete it; training goes on from the one before, if any."
        ) from error
    if header.get("version") != CHECKPOINT_VERSION:
        raise ValueError(
            f"{path}: checkpoint version {header.get('version')!r}, this odin reads {CHECKPOINT_VERSION}. "
            "Train into a new folder."
        )
    primitives = PrimitiveSet(**arrays, next_id=header["next_id"])
    primitives.check()
    return Checkpoint(primitives=primitives, step=header["step"], identity=header["identity"], meters=header["meters"])


def newest_checkpoint(directory: Path) -> Checkpoint | None:
    """The newest readable checkpoint, or None where there is none. An unreadable newest one is an error."""
    paths = list_checkpoints(directory)
    return load_checkpoint(paths[-1]) if paths else None
