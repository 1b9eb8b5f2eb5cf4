"""The locks, the conda environment and the metadata say the same as pyproject.toml."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import odin

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRA_HASHES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["odin"]["lock"]["extra-hashes"]


def load_tool(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


lock_tool = load_tool("lock")


def pins(path: Path) -> dict[str, tuple[str, list[str]]]:
    return {
        name: (requirement.split("==")[1], hashes)
        for name, (requirement, hashes) in lock_tool.entries(path.read_text()).items()
    }


LOCK, LOCK_CUDA = pins(lock_tool.LOCK), pins(lock_tool.LOCK_CUDA)
REQUIREMENTS = [Requirement(line) for line in PROJECT["dependencies"]]
REQUIREMENTS += [Requirement(line) for lines in PROJECT["optional-dependencies"].values() for line in lines]


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=str)
def test_every_dependency_is_pinned_within_its_bounds(requirement: Requirement):
    version, _ = LOCK[requirement.name]
    assert requirement.specifier.contains(version)


def test_every_pin_has_hashes():
    for version, hashes in (LOCK | LOCK_CUDA).values():
        assert re.fullmatch(r"[0-9][0-9a-z.]*", version)
        assert hashes
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", value) for value in hashes)


def test_cuda_packages_are_apart():
    assert not [name for name in LOCK if name.startswith(("nvidia-", "cuda-", "triton"))]
    assert {"triton", "nvidia-nccl-cu13"} <= LOCK_CUDA.keys()
    assert not LOCK.keys() & LOCK_CUDA.keys()


def test_both_builds_of_torch_are_accepted():
    _, hashes = LOCK["torch"]
    assert set(EXTRA_HASHES["torch"]) < set(hashes)


def test_no_package_index_is_named():
    for path in (lock_tool.LOCK, lock_tool.LOCK_CUDA, ROOT / "pyproject.toml", ROOT / "Makefile", lock_tool.CONDA):
        assert not re.search(r"https?://|--index-url|--find-links", path.read_text()), path


def test_conda_environment_has_the_locked_versions():
    environment = yaml.safe_load(lock_tool.CONDA.read_text())
    python, _, pip = environment["dependencies"]
    assert python == f"python={lock_tool.PYTHON_VERSION}"
    wanted = {Requirement(line).name for line in PROJECT["dependencies"]} | {"mitsuba"}
    found = dict(line.split("==") for line in pip["pip"])
    assert found == {name: LOCK[name][0] for name in wanted}


def test_lock_text_survives_a_round_trip():
    text = lock_tool.LOCK.read_text()
    assert lock_tool.render(lock_tool.entries(text), "Every package but those of CUDA.") == text


def test_no_folder_of_tests_is_passed_over(pytestconfig: pytest.Config):
    """pytest's default `norecursedirs` has "dist"."""
    passed_over = pytestconfig.getini("norecursedirs")
    folders = [path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name != "__pycache__"]
    assert "dist" in folders
    assert not [name for name in folders if any(fnmatch(name, pattern) for pattern in passed_over)]


def test_version_is_said_once():
    assert PROJECT["version"] == odin.__version__
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == odin.__version__
    assert f"## {odin.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_set_up_is_keyed_by_the_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tool = load_tool("setup_venv")
    before = tool.stamp_text()
    assert before == tool.stamp_text()
    changed = tmp_path / "lock.txt"
    changed.write_text(tool.LOCK.read_text() + "\n")
    monkeypatch.setattr(tool, "LOCK", changed)
    assert tool.stamp_text() != before
    assert len(before.split()[0]) == hashlib.sha256().digest_size * 2


def test_too_old_python_gets_a_plain_message(monkeypatch: pytest.MonkeyPatch):
    tool = load_tool("setup_venv")
    monkeypatch.setattr(tool, "OLDEST", (99, 0))
    with pytest.raises(SystemExit, match=r"Odin needs Python 99.0 or newer, .* is 3\.\d+"):
        tool.check_python()
