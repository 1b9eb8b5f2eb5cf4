"""Pin every dependency of pyproject.toml with hashes: requirements/lock.txt and requirements/lock-cuda.txt.

Also writes envs/odin.yaml, the same versions of what Odin itself asks for, for those who use conda.

    make lock                # keeps the versions that are pinned already, adds what is missing
    make lock UPGRADE=1      # newest versions

The second file holds what only a CUDA build of torch needs (2 GB of wheels), so that a machine with a CPU build need
not download it. Which of the two builds pip finds is the machine's affair; both are accepted.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements" / "lock.txt"
LOCK_CUDA = ROOT / "requirements" / "lock-cuda.txt"
PYTHON_VERSION = "3.11"
CONDA = ROOT / "envs" / "odin.yaml"
_CUDA_ONLY = re.compile(r"(nvidia|cuda)-|triton$")
_HEADER = """\
# {what}
# Written by `make lock` from pyproject.toml for Python {python} on Linux. Do not edit.
"""


def resolve(upgrade: bool) -> str:
    """The whole lock as one text, from the registry that the machine is set up for."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "lock.txt"
        present = [path.read_text() for path in (LOCK, LOCK_CUDA) if path.exists()]
        output.write_text("".join(present))  # uv prefers the versions it finds there
        command = [sys.executable, "-m", "uv", "pip", "compile", "pyproject.toml", "--all-extras", "--generate-hashes"]
        command += ["--python-version", PYTHON_VERSION, "--python-platform", "linux", "--no-header", "--no-annotate"]
        command += ["--quiet", "--output-file", str(output), *(["--upgrade"] if upgrade else [])]
        subprocess.run(command, cwd=ROOT, check=True)
        return output.read_text()


def entries(text: str) -> dict[str, tuple[str, list[str]]]:
    """Name to (requirement, sorted hashes) of a lock's text."""
    found: dict[str, tuple[str, list[str]]] = {}
    for line in text.replace("\\\n", " ").splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        requirement, *hashes = (part.strip() for part in line.split("--hash="))
        found[requirement.split("==")[0]] = (requirement, sorted(hashes))
    return found


def render(pins: dict[str, tuple[str, list[str]]], what: str) -> str:
    lines = [_HEADER.format(what=what, python=PYTHON_VERSION)]
    for name in sorted(pins):
        requirement, hashes = pins[name]
        lines.append(" \\\n".join([requirement, *(f"    --hash={value}" for value in hashes)]) + "\n")
    return "".join(lines)


def conda_environment(pins: dict[str, tuple[str, list[str]]], project: dict) -> str:
    """Text of a conda environment that holds what is needed at run time, at the locked versions, from pip."""
    wanted = [*project["dependencies"], *project["optional-dependencies"]["gallery"]]
    names = sorted(re.split(r"[^A-Za-z0-9_.-]", requirement)[0] for requirement in wanted)
    head = _HEADER.format(what="What Odin asks for, as a conda environment.", python=PYTHON_VERSION)
    lines = ["name: odin", "channels:", "  - conda-forge", "  - nodefaults", "dependencies:"]
    lines += [f"  - python={PYTHON_VERSION}", "  - pip", "  - pip:", *(f"      - {pins[name][0]}" for name in names)]
    return head + "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions")
    pins = entries(resolve(parser.parse_args().upgrade))
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for name, hashes in pyproject["tool"]["odin"]["lock"]["extra-hashes"].items():
        requirement, listed = pins[name]
        pins[name] = (requirement, sorted({*listed, *hashes}))
    cuda = {name for name in pins if _CUDA_ONLY.match(name)}
    LOCK.write_text(render({name: pins[name] for name in pins.keys() - cuda}, "Every package but those of CUDA."))
    LOCK_CUDA.write_text(render({name: pins[name] for name in cuda}, "What a CUDA build of torch needs besides."))
    CONDA.write_text(conda_environment(pins, pyproject["project"]))
    print(f"{LOCK.relative_to(ROOT)}: {len(pins) - len(cuda)} packages; {LOCK_CUDA.relative_to(ROOT)}: {len(cuda)}")


if __name__ == "__main__":
    main()
