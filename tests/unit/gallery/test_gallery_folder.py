"""What a built gallery folder holds: pictures, cameras, surface points and tracks that agree with each other."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from odin.data import gallery
from odin.data._pycolmap import pycolmap
from odin.data.gallery.scenes import SCENES
from odin.data.gallery.surface import NOISE_PX

REPOSITORY = Path(__file__).resolve().parents[3]


def load(folder: Path) -> pycolmap.Reconstruction:
    return pycolmap.Reconstruction(str(folder / "sparse" / "0"))


def project(model: pycolmap.Reconstruction, image_id: int, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pixels [P, 2] and depths [P] of world points, from the written model alone."""
    viewmat = model.images[image_id].cam_from_world().matrix()
    fx, fy, cx, cy = model.cameras[1].params
    local = points @ viewmat[:, :3].T + viewmat[:, 3]
    return local[:, :2] / local[:, 2:] * [fx, fy] + [cx, cy], local[:, 2]


@pytest.mark.parametrize("name", gallery.NAMES)
def test_folder_is_an_ordinary_capture(built: dict[str, Path], name: str) -> None:
    model = load(built[name])
    assert model.num_images() == 6
    assert model.cameras[1].model.name == "PINHOLE"
    description = SCENES[name](6, 0)
    for view in range(6):
        image = model.images[view + 1]
        assert image.name == f"{view:04d}.png"
        with Image.open(built[name] / "images" / image.name) as picture:
            assert (picture.size, picture.mode) == ((32, 24), "RGB")
        viewmat = np.linalg.inv(description.camtoworlds[view])
        np.testing.assert_allclose(image.cam_from_world().matrix(), viewmat[:3], atol=1e-9)
    assert not list(built[name].parent.glob(".*"))  # nothing is left beside it


@pytest.mark.parametrize("name", gallery.NAMES)
def test_pictures_are_well_exposed(built: dict[str, Path], name: str) -> None:
    pictures = np.stack([np.asarray(Image.open(path)) for path in sorted((built[name] / "images").glob("*.png"))])
    assert 80 < pictures.mean() < 150
    assert (pictures.max(-1) < 8).mean() < 0.02  # black
    assert (pictures.min(-1) > 250).mean() < 0.01  # blown out
    assert pictures.std(axis=(1, 2, 3)).min() > 15  # each view shows something


@pytest.mark.parametrize("name", gallery.NAMES)
def test_observations_reproject_within_their_noise(built: dict[str, Path], name: str) -> None:
    model = load(built[name])
    residuals = []
    for point in model.points3D.values():
        seen_by = [element.image_id for element in point.track.elements]
        assert len(seen_by) == len(set(seen_by)) >= 2
        for element in point.track.elements:
            pixels, _ = project(model, element.image_id, point.xyz[None])
            observed = model.images[element.image_id].points2D[element.point2D_idx]
            assert (observed.xy >= 0).all() and (observed.xy < [32, 24]).all()
            residuals.append(observed.xy - pixels[0])
    residuals = np.array(residuals)  # [T, 2]
    assert len(residuals) > 200
    assert np.abs(residuals).max() < 5 * NOISE_PX
    assert residuals.std() == pytest.approx(NOISE_PX, rel=0.1)
    assert np.abs(residuals.mean(0)).max() < 4 * NOISE_PX / len(residuals) ** 0.5


@pytest.mark.parametrize("name", gallery.NAMES)
def test_tracks_agree_with_the_depth_maps(built: dict[str, Path], name: str) -> None:
    model = load(built[name])
    ids = sorted(model.points3D)
    points = np.array([model.points3D[point].xyz for point in ids])
    num_hidden = num_plain = num_plain_seen = 0
    for image_id, image in model.images.items():
        seen = np.isin(ids, [point2D.point3D_id for point2D in image.points2D])
        depths = np.load(built[name] / "depth" / f"{image_id - 1:04d}.npz")["depth"]
        assert depths.dtype == np.float32 and depths.shape == (24, 32)
        pixels, z = project(model, image_id, points)
        inner = (z > 0) & (pixels > 2).all(1) & (pixels < [30, 22]).all(1)
        column, row = np.floor(np.where(inner[:, None], pixels, 5)).astype(int).T
        around = np.stack([depths[row + dy, column + dx] for dy in (-1, 0, 1) for dx in (-1, 0, 1)])  # [9, P]
        nearest, farthest = around.min(0), around.max(0)
        unbroken = inner & (farthest < 1.15 * nearest)  # no silhouette, past which a point may show
        hidden = unbroken & (z > 1.1 * farthest)
        assert not (hidden & seen).any(), "a point behind a surface was observed"
        plain = unbroken & (0.999 * nearest < z) & (z < 1.001 * farthest)
        num_hidden, num_plain = num_hidden + hidden.sum(), num_plain + plain.sum()
        num_plain_seen += (plain & seen).sum()
    assert num_hidden > 0
    assert num_plain > 50
    assert num_plain_seen > 0.95 * num_plain


@pytest.mark.parametrize("name", gallery.NAMES)
def test_point_colours_are_those_of_the_pictures(built: dict[str, Path], name: str) -> None:
    model = load(built[name])
    pictures = [np.asarray(Image.open(built[name] / "images" / f"{view:04d}.png")) for view in range(6)]
    closest = []
    for point in model.points3D.values():
        found = []
        for element in point.track.elements:
            pixels, _ = project(model, element.image_id, point.xyz[None])
            column, row = np.floor(pixels[0]).astype(int)
            found.append(np.abs(pictures[element.image_id - 1][row, column].astype(int) - point.color).max())
        closest.append(min(found))
    assert np.mean(np.array(closest) == 0) > 0.95  # the view it was drawn from shows exactly its colour


def test_bytes_repeat_in_another_process_and_with_one_worker(
    built: dict[str, Path], small: dict, tmp_path: Path
) -> None:
    code = (
        "import sys; from pathlib import Path; from odin.data import gallery\n"
        f"for name in gallery.NAMES: gallery.build(name, Path(sys.argv[1]) / name, **{small!r}, processes=1)"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=300, env=environment)
    for name, folder in built.items():
        first = json.loads((folder / "gallery.json").read_text())
        assert first == json.loads((tmp_path / name / "gallery.json").read_text())
        assert len(first["files"]) == 6 + 6 + 5  # pictures, depths, sparse model
        for path, sha256 in first["files"].items():
            assert hashlib.sha256((tmp_path / name / path).read_bytes()).hexdigest() == sha256


@pytest.mark.usefixtures("small")
def test_most_pairs_of_views_of_rooms_share_no_point(tmp_path: Path) -> None:
    model = load(gallery.build("rooms", tmp_path / "rooms", width=16))
    index = {point: row for row, point in enumerate(sorted(model.points3D))}
    seen = np.zeros((model.num_images(), len(index)), np.float32)
    for point, row in index.items():
        seen[[element.image_id - 1 for element in model.points3D[point].track.elements], row] = 1
    shared = (seen @ seen.T)[~np.eye(len(seen), dtype=bool)]
    assert (shared == 0).mean() >= 0.5
    assert seen.sum(1).min() >= 20  # and still every view sees many
