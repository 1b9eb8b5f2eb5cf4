"""Caching, continuing, repairing and refusing: what `build` does with a folder that exists."""

from __future__ import annotations

import importlib.util
import multiprocessing
import shutil
from pathlib import Path

import pytest

from odin.data import gallery
from odin.data.gallery import builder


@pytest.fixture
def copy(built: dict[str, Path], tmp_path: Path) -> Path:
    """A built scene to spoil."""
    return shutil.copytree(built["blocks"], tmp_path / "blocks")


@pytest.fixture
def no_rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("something was rendered")

    monkeypatch.setattr(builder, "for_each_view", refuse)


@pytest.mark.usefixtures("no_rendering")
def test_a_complete_folder_is_reused(copy: Path, small: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)  # and without Mitsuba
    (copy / "notes.txt").write_text("other files do not matter")
    assert gallery.build("blocks", copy, **small) == copy


@pytest.mark.usefixtures("no_rendering")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, "seed = 0, wanted is seed = 1"),
        ({"width": 64}, "width = 32, wanted is width = 64"),
        ({"num_views": 7}, "num_views = 6, wanted is num_views = 7"),
        ({"depth": False}, "depth = True, wanted is depth = False"),
    ],
)
def test_another_scene_is_never_overwritten(copy: Path, small: dict, change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gallery.build("blocks", copy, **{**small, **change})


@pytest.mark.usefixtures("no_rendering")
def test_foreign_content_is_refused_and_kept(tmp_path: Path, small: dict) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match="holds something else"):
        gallery.build("blocks", tmp_path, **small)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


@pytest.mark.usefixtures("no_rendering")
def test_a_file_in_the_way_is_refused(tmp_path: Path, small: dict) -> None:
    (tmp_path / "blocks").write_text("a file")
    with pytest.raises(ValueError, match="holds something else"):
        gallery.build("blocks", tmp_path / "blocks", **small)


@pytest.mark.usefixtures("no_rendering")
def test_a_changed_file_is_refused(copy: Path, small: dict) -> None:
    with (copy / "images" / "0003.png").open("ab") as file:
        file.write(b"!")
    with pytest.raises(ValueError, match=r"0003\.png was changed"):
        gallery.build("blocks", copy, **small)


@pytest.mark.usefixtures("no_rendering")
def test_a_spoilt_manifest_is_refused(copy: Path, small: dict) -> None:
    (copy / "gallery.json").write_text("{")
    with pytest.raises(ValueError, match="cannot be read"):
        gallery.build("blocks", copy, **small)


def test_missing_files_are_put_back(copy: Path, built: dict[str, Path], small: dict) -> None:
    shutil.rmtree(copy / "sparse")
    (copy / "images" / "0002.png").unlink()
    untouched = (copy / "images" / "0001.png").stat().st_mtime_ns
    gallery.build("blocks", copy, **small)
    for path in ("sparse/0/points3D.bin", "images/0002.png"):
        assert (copy / path).read_bytes() == (built["blocks"] / path).read_bytes()
    assert (copy / "images" / "0001.png").stat().st_mtime_ns == untouched
    assert not list(copy.parent.glob(".*"))


def test_an_interrupted_build_continues(tmp_path: Path, built: dict[str, Path], small: dict) -> None:
    out = tmp_path / "blocks"

    def interrupt(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gallery.build("blocks", out, **small, processes=1, progress=interrupt)
    assert multiprocessing.active_children() == []
    assert not out.exists()
    calls: list[tuple[int, int]] = []
    gallery.build("blocks", out, **small, processes=2, progress=lambda done, total: calls.append((done, total)))
    assert calls[0][0] >= 2
    assert calls[1:] == [(done, 6) for done in range(calls[0][0] + 1, 7)]
    assert (out / "gallery.json").read_bytes() == (built["blocks"] / "gallery.json").read_bytes()


@pytest.mark.usefixtures("no_rendering")
@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("garden", {}, "unknown scene 'garden'; there are orbit, rooms, blocks"),
        ("rooms", {"width": 30}, "width = 30 pixels, must be a multiple of 4"),
        ("rooms", {"width": 12}, "at least 16"),
        ("rooms", {"num_views": 5}, "num_views = 5, must be at least 6"),
        ("rooms", {"seed": -1}, "seed = -1"),
        ("rooms", {"processes": 0}, "processes = 0"),
    ],
)
def test_arguments_are_checked(tmp_path: Path, name: str, arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gallery.build(name, tmp_path / "out", **arguments)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("no_rendering")
def test_a_missing_renderer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"mitsuba is not installed; install it with `pip install odin\[gallery\]`"):
        gallery.build("orbit", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
