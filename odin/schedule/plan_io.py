"""The plan file: a header to read with `head -40`, then the arrays.

    ODIN PLAN 1
    { indented JSON: what the plan is and what is predicted of it, next to random order }
    ---- arrays, npz ----
    npz bytes

The same plan gives the same bytes: fixed dates, no compression (zlib's output differs between versions).
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from odin.data.scene import Scene
from odin.schedule.plan import PLAN_VERSION, Plan
from odin.schedule.validation import PlanError, validate_plan

_MAGIC = "ODIN PLAN "
_SEPARATOR = b"\n---- arrays, npz ----\n"
_ARRAYS = ("views", "rank_of", "costs", "conflicts", "windows", "phases", "train_views")
_TEXTS = {"scene": str, "scene_sha256": str, "ordering": str, "seed": int, "ranks": int, "balance": bool}
_EARLIEST_DATE = (1980, 1, 1, 0, 0, 0)  # the first that the zip format knows


def save_plan(plan: Plan, path: str | Path) -> None:
    """Writes a plan, checked and whole or not at all. Raises PlanError (a ValueError) for one that is not sound."""
    path = Path(path)
    validate_plan(plan, where=f"plan for {path}")
    content = f"{_MAGIC}{PLAN_VERSION}\n{_header_text(plan)}".encode() + _SEPARATOR + _npz_bytes(plan)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The process id keeps two writers of one path from sharing a temporary file.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def load_plan(path: str | Path, scene: Scene | None = None, *, scene_sha256: str | None = None) -> Plan:
    """Reads and checks a plan; with a scene or its sha256, also that it was made for that one.

    Raises FileNotFoundError where there is none, PlanError (a ValueError) for anything that is wrong with it.
    """
    path = Path(path)
    content = path.read_bytes()
    header, arrays = _split(content, path)
    for name, kind in _TEXTS.items():
        if type(header.get(name)) is not kind:
            raise PlanError(
                f"{path}: header field {name!r}: got {header.get(name)!r}, allowed: {kind.__name__}; "
                "the header was edited or cut off, make the plan again with `odin schedule`"
            )
    structural = header.get("structural_steps")
    if not isinstance(structural, list) or not all(type(step) is int for step in structural):
        raise PlanError(
            f"{path}: header field 'structural_steps': got {structural!r}, allowed: a list of step numbers; "
            "make the plan again with `odin schedule`"
        )
    plan = Plan(
        **{name: header[name] for name in _TEXTS},
        structural_steps=tuple(structural),
        **arrays,
        measures=header.get("measures", {}),
    )
    validate_plan(plan, scene, scene_sha256, where=str(path))
    for name, value in _sizes(plan).items():
        if header.get(name) != value:
            raise PlanError(
                f"{path}: header field {name!r}: got {header.get(name)!r}, but the arrays say {value!r}; the header "
                "was edited, make the plan again with `odin schedule`"
            )
    return plan


def plan_header(path: str | Path) -> dict[str, object]:
    """The header alone, for listings. Raises PlanError where the file is not a plan."""
    path = Path(path)
    return _parse_header(path.read_bytes().partition(_SEPARATOR)[0], path)


def _sizes(plan: Plan) -> dict[str, object]:
    """Header fields that repeat what the arrays say, for people."""
    return {
        "batch": plan.batch,
        "steps": plan.num_steps,
        "training_views": len(plan.epoch_views),
        "epochs": round(plan.views.size / len(plan.epoch_views), 3),
        "depth": plan.depth,
        "phases": len(plan.phases),
        "windows": len(plan.windows),
    }


def _header_text(plan: Plan) -> str:
    fields: dict[str, object] = {
        "scene": plan.scene,
        "scene_sha256": plan.scene_sha256,
        "seed": plan.seed,
        "ranks": plan.ranks,
        "ordering": plan.ordering,
        "balance": plan.balance,
        **_sizes(plan),
        "structural_steps": list(plan.structural_steps),
        "measures": plan.measures,
    }
    return "{\n" + ",\n".join(f"  {json.dumps(name)}: {_field_text(value)}" for name, value in fields.items()) + "\n}"


def _field_text(value: object) -> str:
    """JSON; a mapping with one line an entry, anything below on that line."""
    if not isinstance(value, Mapping) or not value:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    width = max(len(json.dumps(name, ensure_ascii=False)) for name in value)
    entries = [
        f"    {json.dumps(name, ensure_ascii=False)}: {' ' * (width - len(json.dumps(name, ensure_ascii=False)))}"
        f"{json.dumps(entry, ensure_ascii=False, allow_nan=False)}"
        for name, entry in value.items()
    ]
    return "{\n" + ",\n".join(entries) + "\n  }"


def _npz_bytes(plan: Plan) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in _ARRAYS:
            member = zipfile.ZipInfo(f"{name}.npy", date_time=_EARLIEST_DATE)
            member.create_system = 3  # or the byte says on which system it was written
            with archive.open(member, "w", force_zip64=True) as file:
                array = np.ascontiguousarray(getattr(plan, name))
                little_endian = array.astype(array.dtype.newbyteorder("<"), copy=False)
                np.lib.format.write_array(file, little_endian, version=(1, 0), allow_pickle=False)
    return buffer.getvalue()


def _split(content: bytes, path: Path) -> tuple[dict[str, object], dict[str, np.ndarray]]:
    """Header and arrays of a file's bytes."""
    head, separator, tail = content.partition(_SEPARATOR)
    header = _parse_header(head, path)
    if not separator:
        raise PlanError(
            f"{path}: the line {_SEPARATOR.strip().decode()!r} and the arrays after it are missing: the file was cut "
            "off or rewritten by an editor; make the plan again with `odin schedule`"
        )
    try:
        with np.load(io.BytesIO(tail), allow_pickle=False) as archive:
            found = {name: archive[name] for name in archive.files}
    except (zipfile.BadZipFile, ValueError, EOFError, OSError, KeyError) as error:
        raise PlanError(
            f"{path}: the arrays after the header cannot be read ({error}): the file is damaged, allowed is an npz "
            "archive as written; make the plan again with `odin schedule`"
        ) from error
    if set(found) != set(_ARRAYS):
        raise PlanError(
            f"{path}: arrays: got {sorted(found)}, allowed: {sorted(_ARRAYS)}; make the plan again with `odin schedule`"
        )
    return header, found


def _parse_header(head: bytes, path: Path) -> dict[str, object]:
    first, _, rest = head.partition(b"\n")
    if not first.startswith(_MAGIC.encode()):
        raise PlanError(
            f"{path}: not a plan file: the first line is {first[:40]!r}, allowed: '{_MAGIC}{PLAN_VERSION}'; "
            "give a file written by `odin schedule`"
        )
    version = first[len(_MAGIC) :].decode(errors="replace").strip()
    if version != str(PLAN_VERSION):
        raise PlanError(
            f"{path}: plan version: got {version!r}, allowed: {PLAN_VERSION}; make the plan again with this version "
            "of odin, or read it with the version that wrote it"
        )
    try:
        header = json.loads(rest)
    except ValueError as error:
        raise PlanError(
            f"{path}: the header is not valid JSON ({error}): it was edited or cut off; make the plan again with "
            "`odin schedule`"
        ) from error
    if not isinstance(header, dict):
        raise PlanError(f"{path}: the header is a {type(header).__name__}, allowed: a JSON object; make the plan again")
    return header
