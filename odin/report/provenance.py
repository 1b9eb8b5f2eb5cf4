"""``provenance.json``: from what, with what and where a run was done, written once.

Everything that cannot be found out is null with the reason beside it. A resumed run appends an invocation; any other
attempt to change the record is refused.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shlex
import shutil
import site
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from odin.data.jsonio import read_json, write_json

PROVENANCE_VERSION = 1
LOCK_PATTERNS = ("envs/*lock*", "envs/*.pin.txt", "*.lock", "*-lock.yml", "requirements*.txt")
_ENVIRONMENT = re.compile(
    r"(OMP|MKL|OPENBLAS|NUMBA|CUDA|NVIDIA|NCCL|GLOO|SLURM|PYTORCH|TORCH)_\w+|PYTHON\w+|"
    r"(APPTAINER|SINGULARITY)_(CONTAINER|NAME)|ODIN_\w+"
)
# Slurm and others put credentials into the environment under such names.
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|JWT", re.IGNORECASE)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Git(_Strict):
    """Commit of the code that ran. All null with a reason where the code is not a checkout."""

    commit: str | None
    dirty: bool | None
    reason: str | None = None


class Gpu(_Strict):
    name: str
    driver: str | None
    memory_bytes: int | None


class Machine(_Strict):
    host: str
    platform: str
    cpu: str | None
    num_cpus: int
    memory_bytes: int | None
    gpus: tuple[Gpu, ...]
    cuda: str | None  # version torch was built for
    container: str | None


class Invocation(_Strict):
    """One start of the run; a resumed run has several."""

    command: tuple[str, ...]
    started_utc: str | None  # null where the run was not started by the `odin` command
    ended_utc: str | None
    git: Git
    machine: Machine
    python: str
    user_site_enabled: bool  # packages of the user's home may have been imported: not reproducible
    packages: dict[str, str]  # distributions of the modules imported, with their versions
    environment: dict[str, str]  # variables that change threads, devices or scheduling

    @field_validator("started_utc", "ended_utc")
    @classmethod
    def _is_utc(cls, value: str | None) -> str | None:
        if value is None:
            return None
        offset = datetime.fromisoformat(value).utcoffset()
        if offset is None or offset.total_seconds() != 0:
            raise ValueError(f"{value!r} is not a UTC time such as 2026-01-31T12:00:00+00:00")
        return value


class Provenance(_Strict):
    version: Literal[1]
    config: dict[str, Any]  # resolved options, run.json
    config_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    seeds: dict[str, int]
    datasets: dict[str, str]  # name to sha256
    lock_files: dict[str, str]  # relative path to sha256
    lock_reason: str | None = None
    invocations: tuple[Invocation, ...] = Field(min_length=1)


def collect(
    run: Mapping[str, Any],
    *,
    command: Sequence[str] | str,
    started_utc: datetime | str | None = None,
    ended_utc: datetime | str | None = None,
    datasets: Mapping[str, str] | None = None,
    root: Path | None = None,
) -> dict[str, Any]:
    """Describe this process and the run it did.

    run: the resolved options (``run.json``); seeds are its entries named ``seed`` or ``..._seed``.
    command: its words, or one line of shell.
    started_utc, ended_utc: aware UTC times (or their ISO text), of the wall clock: for the reader, never for durations.
    datasets: sha256 by name; by default the entries of `run` named ``<name>_sha256``.
    root: folder of the code, by default the one that holds the package.

    Raises ValueError where a time is not UTC or the run's options are not JSON.
    """
    root = root or Path(__file__).resolve().parents[2]
    if datasets is None:
        datasets = {k.removesuffix("_sha256"): v for k, v in run.items() if k.endswith("_sha256") and v}
    locks = lock_hashes(root)
    invocation = {
        "command": tuple(shlex.split(command) if isinstance(command, str) else command),
        "started_utc": _iso(started_utc),
        "ended_utc": _iso(ended_utc),
        "git": git_state(root),
        "machine": machine(),
        "python": sys.version.split()[0],
        "user_site_enabled": bool(site.ENABLE_USER_SITE),
        "packages": imported_versions(),
        "environment": relevant_environment(os.environ),
    }
    record = {
        "version": PROVENANCE_VERSION,
        "config": dict(run),
        "config_sha256": config_sha256(run),
        "seeds": {k: v for k, v in run.items() if k == "seed" or k.endswith("_seed")},
        "datasets": dict(datasets),
        "lock_files": locks,
        "lock_reason": None if locks else f"no lock file ({', '.join(LOCK_PATTERNS)}) beside the package",
        "invocations": (invocation,),
    }
    return _checked(record, "provenance").model_dump(mode="json")


def write(path: Path, record: Mapping[str, Any], *, resumed: bool = False) -> None:
    """Write the record once.

    Where the file exists, it stays as it is if it knows the invocation already (same command and start: a second
    evaluation, say), and grows by the new one if the run was resumed. Raises ValueError for anything else, and where
    configuration or data are not those of the file.
    """
    new = _checked(record, "provenance")
    if path.exists():
        old = load(path)
        differing = [name for name in ("config_sha256", "datasets") if getattr(old, name) != getattr(new, name)]
        if differing:
            raise ValueError(f"{path}: is of another run ({', '.join(differing)} differ). Use a new folder.")
        known = {(invocation.command, invocation.started_utc) for invocation in old.invocations}
        fresh = tuple(i for i in new.invocations if (i.command, i.started_utc) not in known)
        if not fresh:
            return
        if not resumed:
            raise ValueError(f"{path}: exists, of another invocation. Resume that run or use a new folder.")
        new = old.model_copy(update={"invocations": old.invocations + fresh})
    write_json(path, new.model_dump(mode="json"))


def load(path: Path) -> Provenance:
    """Raises ValueError naming the file and the field that is wrong."""
    return _checked(read_json(path), str(path))


def config_sha256(run: Mapping[str, Any]) -> str:
    """Hash of the options as JSON with sorted keys and no spaces, so that the order of keys does not matter."""
    text = json.dumps(run, sort_keys=True, separators=(",", ":"), allow_nan=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def git_state(root: Path) -> dict[str, Any]:
    """Commit and whether files differ from it. A checkout that merely contains the package's folder is not it."""
    try:
        top = _output(["git", "-C", str(root), "rev-parse", "--show-toplevel"])
        if Path(top).resolve() != root.resolve():
            return {"commit": None, "dirty": None, "reason": "the package is installed, not run from a checkout"}
        commit = _output(["git", "-C", str(root), "rev-parse", "HEAD"])
        dirty = bool(_output(["git", "-C", str(root), "status", "--porcelain"]))
    except FileNotFoundError:
        return {"commit": None, "dirty": None, "reason": "no git on this machine"}
    except (OSError, subprocess.SubprocessError) as error:
        detail = (getattr(error, "stderr", None) or str(error)).strip()
        return {"commit": None, "dirty": None, "reason": f"git: {detail.splitlines()[0] if detail else 'failed'}"}
    return {"commit": commit, "dirty": dirty, "reason": None}


def lock_hashes(root: Path) -> dict[str, str]:
    """sha256 of the lock files beside the package, by path relative to `root`."""
    files = sorted({path for pattern in LOCK_PATTERNS for path in root.glob(pattern) if path.is_file()})
    return {path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def imported_versions() -> dict[str, str]:
    """Versions of the distributions whose modules this process has imported, from their own metadata."""
    owners = importlib.metadata.packages_distributions()
    modules = {name.partition(".")[0] for name in list(sys.modules)}
    names = sorted({distribution for module in modules for distribution in owners.get(module, ())}, key=str.lower)
    return {name: importlib.metadata.version(name) for name in names}


def relevant_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that change threads, devices, scheduling or imports; never ones that may hold a credential."""
    return {
        name: environment[name]
        for name in sorted(environment)
        if _ENVIRONMENT.fullmatch(name) and not _SECRET.search(name)
    }


def machine() -> dict[str, Any]:
    """Host, processor, memory and GPUs."""
    torch = sys.modules.get("torch")  # importing it here would make it a package of runs that did not use it
    return {
        "host": platform.node(),
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "num_cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "memory_bytes": _memory_bytes(),
        "gpus": _gpus(torch),
        "cuda": torch.version.cuda if torch else None,
        "container": os.environ.get("APPTAINER_CONTAINER") or os.environ.get("SINGULARITY_CONTAINER"),
    }


def _gpus(torch: Any) -> list[dict[str, Any]]:
    """GPUs this process may use: nvidia-smi knows the driver, torch knows what is visible."""
    driver = None
    if shutil.which("nvidia-smi"):
        try:
            driver = _output(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]).splitlines()[0]
        except (OSError, subprocess.SubprocessError, IndexError):
            driver = None
    if torch is None or not torch.cuda.is_available():
        return []
    properties = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [{"name": p.name, "driver": driver, "memory_bytes": p.total_memory} for p in properties]


def _cpu_model() -> str | None:
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        match = None
    return match.group(1).strip() if match else platform.processor() or None


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()


def _iso(time: datetime | str | None) -> str | None:
    return time if time is None or isinstance(time, str) else time.isoformat(timespec="seconds")


def _checked(record: Any, where: str) -> Provenance:
    try:
        return Provenance.model_validate(record)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, e['loc'])) or 'record'}: {e['msg']}" for e in error.errors()]
        raise ValueError(f"{where}: {'; '.join(problems)}.") from error
