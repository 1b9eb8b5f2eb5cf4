"""Folders of tiny inputs for the readers under test."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tiny_inputs import build_model, opengl_pose, ring_pose, write_image, write_model


@pytest.fixture
def colmap_folder(tmp_path: Path) -> Callable[..., Path]:
    """Make a data folder: `colmap_folder(names, size=(w, h), text=False, model="sparse/0", folder="data", **build)`."""

    def make(
        names: Sequence[str] = tuple(f"{i:02d}.png" for i in range(9)),
        *,
        size: tuple[int, int] = (16, 12),
        text: bool = False,
        model: str = "sparse/0",
        folder: str = "data",
        **build: object,
    ) -> Path:
        path = tmp_path / folder
        write_model(build_model(names, **build), path / model, text=text)
        for index, name in enumerate(names):
            write_image(path / "images" / name, *size, seed=index)
        return path

    return make


@pytest.fixture
def transforms_folder(tmp_path: Path) -> Callable[..., Path]:
    """Make a folder with transforms.json from frames (dicts without matrix get a ring pose) and root values."""

    def make(
        frames: list[dict], root: dict | None = None, *, file: str = "transforms.json", folder: str = "nerf"
    ) -> Path:
        path = tmp_path / folder
        path.mkdir(exist_ok=True)
        for index, frame in enumerate(frames):
            frame.setdefault("transform_matrix", opengl_pose(ring_pose(index)).tolist())
        (path / file).write_text(json.dumps({**(root or {}), "frames": frames}), encoding="utf-8")
        return path

    return make
