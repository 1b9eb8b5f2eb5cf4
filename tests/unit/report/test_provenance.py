"""Provenance is checked against its schema, written once, and grows only when a run is resumed."""

from __future__ import annotations

import hashlib
import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from odin.data.jsonio import read_json, write_json
from odin.report.provenance import (
    collect,
    config_sha256,
    git_state,
    imported_versions,
    load,
    relevant_environment,
    write,
)

RUN = {"scene": "fox", "seed": 3, "noise_seed": 4, "scene_sha256": "5c" * 32, "plan_sha256": "11" * 32, "ranks": 2}
START, END = datetime(2026, 1, 31, 12, tzinfo=UTC), datetime(2026, 1, 31, 13, tzinfo=UTC)


def record(**changes: object) -> dict:
    return collect(RUN | changes, started_utc=START, ended_utc=END, command=["odin", "train", "--seed", "3"])


def test_collects_what_a_reader_needs() -> None:
    found = record()
    assert found["seeds"] == {"seed": 3, "noise_seed": 4}
    assert found["datasets"] == {"scene": "5c" * 32, "plan": "11" * 32}
    assert found["config"]["ranks"] == 2
    text = '{"noise_seed":4,"plan_sha256":"%s","ranks":2,"scene":"fox","scene_sha256":"%s","seed":3}'
    expected = hashlib.sha256((text % ("11" * 32, "5c" * 32)).encode()).hexdigest()
    assert found["config_sha256"] == expected == config_sha256(dict(reversed(RUN.items())))
    (invocation,) = found["invocations"]
    assert invocation["command"] == ["odin", "train", "--seed", "3"]
    assert invocation["started_utc"] == "2026-01-31T12:00:00+00:00"
    assert invocation["packages"]["numpy"] == np.__version__
    assert invocation["machine"]["num_cpus"] == len(os.sched_getaffinity(0))
    assert (invocation["git"]["commit"] is None) == (invocation["git"]["reason"] is not None)
    assert bool(found["lock_files"]) != bool(found["lock_reason"])


def test_times_must_be_utc() -> None:
    with pytest.raises(ValueError, match=r"started_utc: .*'2026-01-31T12:00:00' is not a UTC time"):
        collect(RUN, started_utc="2026-01-31T12:00:00", ended_utc=END, command=["odin"])


def test_unknown_times_are_null_and_commands_may_be_one_line() -> None:
    (invocation,) = collect(RUN, command="odin train 'a b'")["invocations"]
    assert invocation["command"] == ["odin", "train", "a b"]
    assert invocation["started_utc"] is None


def test_written_once(tmp_path: Path) -> None:
    path = tmp_path / "provenance.json"
    first = record()
    write(path, first)
    later = record()
    later["invocations"][0]["packages"] = {}  # the same start, seen by a process that imported other packages
    write(path, later)
    with pytest.raises(ValueError, match=r"is of another run \(config_sha256 differ\)"):
        write(path, record(ranks=3))
    again = record()
    again["invocations"][0]["started_utc"] = "2026-02-01T12:00:00+00:00"
    with pytest.raises(ValueError, match="exists, of another invocation"):
        write(path, again)
    assert read_json(path) == first


def test_a_resumed_run_appends_its_invocation(tmp_path: Path) -> None:
    path = tmp_path / "provenance.json"
    write(path, record())
    again = record()
    again["invocations"][0]["started_utc"] = "2026-02-01T12:00:00+00:00"
    write(path, again, resumed=True)
    starts = [invocation.started_utc for invocation in load(path).invocations]
    assert starts == ["2026-01-31T12:00:00+00:00", "2026-02-01T12:00:00+00:00"]
    with pytest.raises(ValueError, match="is of another run"):
        write(path, record(ranks=3), resumed=True)


def test_schema_refuses_unknown_and_missing_fields(tmp_path: Path) -> None:
    path = tmp_path / "provenance.json"
    bad = record() | {"extra": 1}
    del bad["seeds"]
    write_json(path, bad)
    with pytest.raises(ValueError, match=r"provenance\.json: seeds: Field required; extra: Extra inputs"):
        load(path)


def test_environment_is_a_choice_without_credentials() -> None:
    environment = {
        "OMP_NUM_THREADS": "1",
        "NUMBA_NUM_THREADS": "2",
        "CUDA_VISIBLE_DEVICES": "0",
        "SLURM_JOB_ID": "7",
        "SLURM_JWT": "s",
        "ODIN_API_TOKEN": "s",
        "HOME": "/h",
        "PYTHONPATH": "/p",
    }
    expected = ["CUDA_VISIBLE_DEVICES", "NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "PYTHONPATH", "SLURM_JOB_ID"]
    assert list(relevant_environment(environment)) == expected


def test_versions_are_those_of_imported_packages_only() -> None:
    versions = imported_versions()
    assert versions["pydantic"]
    assert "snakemake" not in versions


def test_git_state(tmp_path: Path) -> None:
    assert git_state(tmp_path)["commit"] is None
    assert git_state(tmp_path)["reason"].startswith("git: ")

    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-q", "-m", "m")
    head = git("rev-parse", "HEAD")
    assert git_state(tmp_path) == {"commit": head, "dirty": False, "reason": None}
    (tmp_path / "a").write_text("2")
    assert git_state(tmp_path)["dirty"] is True
    (tmp_path / "lib").mkdir()
    assert git_state(tmp_path / "lib")["reason"] == "the package is installed, not run from a checkout"
