"""Create .venv with exactly the locked packages; does nothing where that was done already.

    make venv

Needs nothing but Python's standard library. Every download is checked against a hash of requirements/lock.txt. A
package index or a folder of wheels is configured where pip always looks for it (pip.conf, PIP_* variables), never here.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
STAMP = VENV / ".odin-ready"
LOCK = ROOT / "requirements" / "lock.txt"
LOCK_CUDA = ROOT / "requirements" / "lock-cuda.txt"
OLDEST, TESTED = (3, 11), (3, 11)

# Printed by the new interpreter: torch's version and whether it asks for NVIDIA's packages.
_TORCH = """
from importlib.metadata import requires, version
print(version("torch"), any(line.startswith("nvidia-") for line in requires("torch") or ()))
"""


def check_python() -> None:
    got = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < OLDEST:
        sys.exit(f"Odin needs Python {_dotted(OLDEST)} or newer, {sys.executable} is {got}. Try `make venv PYTHON=...`")
    if sys.version_info[:2] != TESTED:
        print(f"note: tested with Python {_dotted(TESTED)}; this is {got}. Some wheels may be missing.", flush=True)
    if importlib.util.find_spec("ensurepip") is None:
        sys.exit(f"{sys.executable} cannot make environments (no ensurepip). Debian: apt-get install python3-venv")


def stamp_text() -> str:
    """What the environment depends on; another text means that set-up has to run."""
    digest = hashlib.sha256()
    for path in (LOCK, LOCK_CUDA, ROOT / "pyproject.toml", Path(__file__)):
        digest.update(path.read_bytes())
    return f"{digest.hexdigest()} python{_dotted(sys.version_info[:2])} {ROOT}\n"


def run(*command: str, may_fail: bool = False, **options) -> subprocess.CompletedProcess:
    # The user's own site-packages and module path must not leak into what is installed or reported.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"PYTHONNOUSERSITE": "1"}
    completed = subprocess.run(command, cwd=ROOT, env=environment, text=True, check=False, **options)
    if completed.returncode != 0 and not may_fail:
        sys.exit(f"set-up stopped: `{' '.join(command)}` exited with {completed.returncode}")
    return completed


def install(python: str) -> None:
    pip = (python, "-m", "pip", "--disable-pip-version-check", "-qq")
    locked = (*pip, "install", "--require-hashes", "--no-deps", "-r")
    install_torch_from_disk(python)
    run(*locked, str(LOCK))
    version, is_cuda = run(python, "-c", _TORCH, stdout=subprocess.PIPE).stdout.split()
    if is_cuda == "True":
        print(f"torch {version}: the CUDA build, the best that pip found; adding NVIDIA's libraries", flush=True)
        run(*locked, str(LOCK_CUDA))
    else:
        print(f"torch {version}: pip found a build without CUDA and preferred it; GPUs stay unused", flush=True)
    run(*pip, "install", "--no-deps", "--no-build-isolation", "-e", ".")
    run(python, "-m", "pip", "--disable-pip-version-check", "check")


def install_torch_from_disk(python: str) -> None:
    """Take a wheel of torch from the folders that pip is told to look in (find-links), if one has a locked hash.

    Left alone, pip prefers a registry's wheel whose hash it knows before downloading to one on disk whose hash it has
    to compute first.
    """
    entry = re.search(r"^torch==[^\n]*\\\n(?:    --hash=.*\n)+", LOCK.read_text(), re.MULTILINE)
    assert entry, f"{LOCK} does not pin torch with hashes"
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirement:
        requirement.write(entry.group())
        requirement.flush()
        command = (python, "-m", "pip", "--disable-pip-version-check", "install", "--no-index", "--require-hashes")
        attempt = run(*command, "--no-deps", "-r", requirement.name, may_fail=True, capture_output=True)
    if attempt.returncode != 0:
        print("no wheel of torch on disk: taking the registry's", flush=True)


def main() -> None:
    check_python()
    wanted = stamp_text()
    if STAMP.exists() and STAMP.read_text() == wanted:
        return
    started = time.monotonic()
    print(f"setting up {VENV} (a few minutes the first time)", flush=True)
    python = str(VENV / "bin" / "python")
    if not Path(python).exists():
        run(sys.executable, "-m", "venv", "--clear", str(VENV))
    install(python)
    STAMP.write_text(wanted)
    print(f"ready after {time.monotonic() - started:.0f} s: {VENV}", flush=True)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


if __name__ == "__main__":
    main()
