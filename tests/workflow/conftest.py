"""Runs Snakemake as a user does: as a command, in a folder of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TINY = Path(__file__).parent / "config-tiny.yaml"


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    returncode: int
    text: str  # everything printed

    @property
    def jobs(self) -> dict[str, int]:
        """Number of jobs of each rule, from the table that a dry run prints; empty where there is nothing to do."""
        if "Nothing to be done" in self.text:
            return {}
        table = self.text.split("Job stats:")[1].split("total")[0]
        return {rule: int(count) for rule, count in re.findall(r"^(\w+) +(\d+)$", table, re.MULTILINE)}


def command(folder: Path, config: Path | None, *options: str, values: tuple[str, ...] = ()) -> list[str]:
    words = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"), "--directory", str(folder)]
    words += [*(["--configfile", str(config)] if config else []), "--cores", "2", *options]
    return [*words, "--config", *values] if values else words


def environment() -> dict[str, str]:
    """Without the variables of a coverage measurement: what the workflow starts is not this suite's code to measure."""
    return {key: value for key, value in os.environ.items() if not key.startswith("COV")}


def snakemake(folder: Path, config: Path | None, *options: str, values: tuple[str, ...] = ()) -> Result:
    done = subprocess.run(
        command(folder, config, *options, values=values),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        check=False,
    )
    return Result(returncode=done.returncode, text=done.stdout)


@pytest.fixture(scope="session")
def finished(tiny_scene: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder in which the tiny benchmark has run."""
    folder = tmp_path_factory.mktemp("workflow")
    result = snakemake(folder, TINY, values=(f"captures_root={tiny_scene}",))
    assert result.returncode == 0, result.text[-4000:]
    return folder
