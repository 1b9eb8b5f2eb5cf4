"""Importing our readers leaves the process as it was (pycolmap on its own does not, see `odin.data._pycolmap`)."""

from __future__ import annotations

import signal
import subprocess
import sys


def run_after_import(code: str) -> subprocess.CompletedProcess:
    # colmap_check imports pycolmap before anything else that would load zlib.
    command = [sys.executable, "-c", "import odin.data.colmap_check; " + code]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


def test_compressing_does_not_crash():
    done = run_after_import(
        "import zlib, os; data = os.urandom(400_000); assert zlib.decompress(zlib.compress(data)) == data"
    )
    assert done.returncode == 0, done.stderr


def test_termination_is_silent():
    done = run_after_import("import os, signal; os.kill(os.getpid(), signal.SIGTERM)")
    assert (done.returncode, done.stderr) == (-signal.SIGTERM, "")
