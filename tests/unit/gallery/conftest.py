"""Small builds of all three gallery scenes, shared by the gallery's tests."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from odin.data import gallery


@pytest.fixture(scope="session")
def small() -> dict[str, int | bool]:
    """Arguments of the small builds: 32 x 24 pixels and 6 views, with depths."""
    for module in ("mitsuba", "skimage"):
        if importlib.util.find_spec(module) is None:  # found, not imported: only workers import Mitsuba
            pytest.skip(f"{module} is missing: pip install odin[gallery]")
    return {"width": 32, "num_views": 6, "depth": True}


@pytest.fixture(scope="session")
def built(small: dict, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folder of each scene, rendered by two processes."""
    root = tmp_path_factory.mktemp("gallery")
    return {name: gallery.build(name, root / name, **small, processes=2) for name in gallery.NAMES}
