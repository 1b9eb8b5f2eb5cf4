"""Helpers of the tests of commands: training in this process, and captures of any points and number of views."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from scipy.spatial.transform import Rotation

from odin.distributed.worker import run_rank


def launch_here(run, options, *, num_steps, on_progress):
    """Stands for `odin.distributed.launch.launch` with one rank: the same without starting a process."""
    assert options.ranks == 1
    threads = torch.get_num_threads()
    try:
        run_rank(run)
    finally:
        gc.enable()  # a rank switches it off for good
        torch.set_num_threads(threads)
    on_progress(num_steps)


def write_capture(
    folder: Path, points: np.ndarray, *, num_views: int = 12, size: tuple[int, int] = (24, 20), inwards: bool = True
) -> np.ndarray:
    """COLMAP text model without tracks: cameras on a ring of radius 3 that look at the origin, or away from it.

    points: [P, 3]. Returns the camera centres [V, 3]. Images are noise, the same for the same arguments.
    """
    width, height = size
    model = folder / "sparse" / "0"
    model.mkdir(parents=True)
    (folder / "images").mkdir()
    rng = np.random.default_rng(0)
    angles = 2 * np.pi * np.arange(num_views) / num_views
    centres = 3 * np.stack([np.cos(angles), 0.1 * np.sin(2 * angles), np.sin(angles)], axis=1)
    lines = []
    for view, centre in enumerate(centres):
        forward = centre / np.linalg.norm(centre) * (-1 if inwards else 1)
        right = np.cross(forward, [0.0, 1.0, 0.0])
        right /= np.linalg.norm(right)
        rotation = np.stack([right, np.cross(forward, right), forward])
        quat = Rotation.from_matrix(rotation).as_quat()[[3, 0, 1, 2]]
        pose = " ".join(map(str, [*quat, *(-rotation @ centre)]))
        lines.append(f"{view + 1} {pose} 1 {view:02d}.png\n\n")
        pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"{view:02d}.png")
    (model / "cameras.txt").write_text(f"1 PINHOLE {width} {height} {width} {width} {width / 2} {height / 2}\n")
    (model / "images.txt").write_text("".join(lines))
    (model / "points3D.txt").write_text(
        "".join(f"{index + 1} {x} {y} {z} 90 140 200 0.5\n" for index, (x, y, z) in enumerate(points))
    )
    return centres
