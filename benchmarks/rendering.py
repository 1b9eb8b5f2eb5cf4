"""Speed of the CPU renderer as ratios within one run: against a prototype's kernels and against torch autograd.

    python -m benchmarks.rendering

prints JSON lines. Ratios are reference time / ours, medians of alternating runs on one thread, so that they carry
over between machines better than milliseconds do. The prototype is a folder of Numba kernels named by
ODIN_PROTOTYPE (default: shared/prototype/render beside the repository); without it those lines have ok = null.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from gsplat.cuda import _torch_impl as reference
from numba.core import config as numba_config

from odin.data.scene import Camera
from odin.rendering.cpu.renderer import CpuRenderer
from odin.rendering.interface import Gaussians, RenderSettings, SplatGradients

REPEATS = 11
SIZES = ((10_000, 160, 120), (30_000, 320, 240))
SETTINGS = RenderSettings()
PROTOTYPE_GOAL, AUTOGRAD_GOAL = 1.0, 8.0


def make_camera(width: int, height: int) -> Camera:
    """50 degrees of view, looking at the origin from a distance of about 3.4."""
    focal = 0.5 * width / math.tan(math.radians(25))
    position = np.array([-0.7, 3.1, 1.2])
    forward = -position / np.linalg.norm(position)
    right = np.cross(forward, [0.0, 0.0, 1.0])
    right /= np.linalg.norm(right)
    viewmat = np.eye(4)
    viewmat[:3, :3] = np.stack([right, np.cross(forward, right), forward])
    viewmat[:3, 3] = -viewmat[:3, :3] @ position
    K = np.array([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]])
    return Camera(viewmat=viewmat, K=K, width=width, height=height)


def make_gaussians(num: int, seed: int = 0) -> Gaussians:
    """As after densification: flat Gaussians about as large as their spacing, on a floor, four balls and a shell."""
    rng = np.random.default_rng(seed)
    on_floor, on_balls = num // 3, num // 2
    around = num - on_floor - on_balls
    floor = np.c_[rng.uniform(-1.6, 1.6, (on_floor, 2)), rng.normal(-0.6, 0.005, on_floor)]
    centres = np.array([[0.0, 0.0, 0.0], [0.8, 0.5, -0.2], [-0.7, 0.6, -0.3], [0.2, -0.9, -0.3]])
    radii = np.array([0.6, 0.4, 0.3, 0.3])
    directions = rng.normal(size=(num - on_floor, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    ball = rng.choice(4, on_balls, p=radii**2 / (radii**2).sum())
    balls = centres[ball] + directions[:on_balls] * radii[ball][:, None]
    shell = directions[on_balls:] * rng.uniform(1.5, 4.0, (around, 1))
    means = np.concatenate([floor, balls, shell])

    area = 3.2**2 + 4 * math.pi * (radii**2).sum()
    scales = 0.6 * math.sqrt(area / (on_floor + on_balls)) * np.exp(rng.normal(0, 0.45, (num, 3)))
    scales[on_floor + on_balls :] *= 2.5
    scales[np.arange(num), rng.integers(0, 3, num)] *= 0.3
    sh = rng.normal(0, 0.08, (num, 16, 3))
    sh[:, 0] = 1.7 * np.sin(means * [3.0, 4.0, 3.0])
    arrays = {
        "means": means,
        "quats": rng.normal(size=(num, 4)),
        "scales": scales,
        "opacities": 1 / (1 + np.exp(-rng.normal(0.3, 2.0, num))),
        "sh": sh,
    }
    return Gaussians(**{name: values.astype(np.float32) for name, values in arrays.items()})


def alternate(first: Callable[[], object], second: Callable[[], object]) -> tuple[float, float]:
    """Median seconds of CPU time of both, run alternately and in alternating order, after one run to warm up."""
    times: tuple[list[float], list[float]] = ([], [])
    first(), second()
    for repeat in range(REPEATS):
        for which in (0, 1) if repeat % 2 == 0 else (1, 0):
            start = time.thread_time()
            (first, second)[which]()
            times[which].append(time.thread_time() - start)
    return statistics.median(times[0]), statistics.median(times[1])


@contextlib.contextmanager
def _prototype(folder: Path) -> Iterator[SimpleNamespace]:
    """The prototype's modules, with Numba's cache in a temporary folder: theirs may be read-only."""
    names = ("nb_proj", "nb_raster3")
    config: Any = numba_config  # its attributes are made at run time
    cache_before = config.CACHE_DIR
    with tempfile.TemporaryDirectory() as cache:
        config.CACHE_DIR = cache
        sys.path.insert(0, str(folder))
        try:
            yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
        finally:
            sys.path.remove(str(folder))
            config.CACHE_DIR = cache_before


def _prototype_pass(kernels, g: Gaussians, camera: Camera, grad: np.ndarray) -> Callable[[], tuple]:
    """One forward and backward pass of the prototype, all buffers made beforehand. width must be a multiple of 8."""
    n, width, height = len(g.means), camera.width, camera.height
    f32 = np.float32

    def zeros(*shapes):
        return [np.zeros(shape, f32) for shape in shapes]

    inputs = (g.means, g.quats, g.scales, g.opacities, g.sh)
    view = (camera.viewmat.astype(f32), camera.K.astype(f32), camera.position.astype(f32), width, height)
    radii, touched, stops = np.zeros((n, 2), np.int32), np.zeros(n, np.int32), np.zeros((height, width), np.int32)
    means2d, depths, conics, opacities, colors = zeros((n, 2), n, (n, 3), n, (n, 3))
    image, transmittance, work, behind = zeros((3, height, width), *[(height, width)] * 3)
    g_means2d, g_abs, g_conics, g_colors, g_opacities, g_depths = zeros((n, 2), (n, 2), (n, 3), (n, 3), n, n)
    results = [np.empty_like(a) for a in inputs]

    def run() -> tuple:
        kernels.nb_proj.proj_fwd(
            *inputs, 3, *view, f32(0.3), f32(0.01), f32(1e10), False, radii, means2d, depths, conics, opacities, colors
        )
        order = kernels.nb_raster3.depth_order(depths, radii)
        image[:], transmittance[:], stops[:] = 0, 1, 2**31 - 1
        kernels.nb_raster3.raster_fwd(
            order, means2d, conics, colors, opacities, width, height, image, transmittance, stops
        )
        work[:], behind[:] = transmittance, 0
        for array in (g_means2d, g_conics, g_colors, g_opacities):
            array[:] = 0
        kernels.nb_raster3.raster_bwd(
            order, means2d, conics, colors, opacities, width, height, work, stops, grad, behind, False, g_means2d,
            g_abs, g_conics, g_colors, g_opacities, touched,
        )  # fmt: skip
        kernels.nb_proj.proj_bwd(
            *inputs, 3, *view, f32(0.3), False, radii, colors, g_means2d, g_conics, g_opacities, g_colors, g_depths,
            *results,
        )  # fmt: skip
        return image, results[0]

    return run


def _our_pass(g: Gaussians, camera: Camera, grad: np.ndarray) -> Callable[[], tuple]:
    renderer, background = CpuRenderer(), np.zeros(3, np.float32)

    def run() -> tuple:
        image = renderer.compose(renderer.project(g, camera, SETTINGS), camera, background)
        return image.colors, renderer.project_backward(renderer.compose_backward(grad)).means

    return run


def _against_prototype() -> Iterator[dict]:
    default = Path(__file__).resolve().parents[2] / "shared" / "prototype" / "render"
    folder = Path(os.environ.get("ODIN_PROTOTYPE", default))
    lines = [{"bench": f"rendering.forward_backward_{n // 1000}k_{w}x{h}", "n": n} for n, w, h in SIZES]
    common = {"unit": "prototype time / ours", "goal": f">= {PROTOTYPE_GOAL:g}"}
    if not (folder / "nb_raster3.py").is_file():
        for line in lines:
            yield line | common | {"value": None, "ok": None, "reason": f"no prototype at {folder} (ODIN_PROTOTYPE)"}
        return
    with _prototype(folder) as kernels:
        for line, (n, width, height) in zip(lines, SIZES, strict=True):
            g, camera = make_gaussians(n), make_camera(width, height)
            grad = np.random.default_rng(1).normal(size=(3, height, width)).astype(np.float32)
            theirs, ours = _prototype_pass(kernels, g, camera, grad), _our_pass(g, camera, grad)
            for a, b in zip(theirs(), ours(), strict=True):  # a ratio means something only for the same results
                difference = float(np.linalg.norm(a - b) / np.linalg.norm(a))
                assert difference < 1e-2, f"prototype and renderer disagree: {difference:.2e}"
            before, after = alternate(theirs, ours)
            yield line | common | _measured(before, after, PROTOTYPE_GOAL)


def _measured(reference_s: float, ours_s: float, goal: float) -> dict:
    ratio = reference_s / ours_s
    return {
        "value": round(ratio, 3),
        "ok": ratio >= goal,
        "ours_ms": round(1e3 * ours_s, 3),
        "reference_ms": round(1e3 * reference_s, 3),
        "repeats": REPEATS,
    }


def _autograd_pass(g: Gaussians, camera: Camera, grads: SplatGradients) -> Callable[[], object]:
    """gsplat's torch reference of projection and colours, and autograd's way back."""
    leaves = [torch.from_numpy(a.copy()).requires_grad_() for a in (g.means, g.quats, g.scales, g.sh)]
    viewmat, K = torch.tensor(camera.viewmat).float()[None], torch.tensor(camera.K).float()[None]
    position = torch.tensor(camera.position).float()
    given = [torch.from_numpy(a) for a in (grads.means2d, grads.conics, grads.colors)]

    def run() -> object:
        means, quats, scales, sh = leaves
        covars, _ = reference._quat_scale_to_covar_preci(quats, scales, True, False)
        _, means2d, _, conics, _ = reference._fully_fused_projection(
            means, covars, viewmat, K, camera.width, camera.height
        )
        colors = torch.clamp_min(reference._spherical_harmonics(3, means - position, sh) + 0.5, 0.0)
        return torch.autograd.grad((means2d[0], conics[0], colors), leaves, given)

    return run


def _against_autograd() -> Iterator[dict]:
    n, width, height = SIZES[0]
    g, camera, renderer, rng = make_gaussians(n), make_camera(width, height), CpuRenderer(), np.random.default_rng(2)
    shapes = {"means2d": (n, 2), "conics": (n, 3), "opacities": (n,), "colors": (n, 3)}
    given = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    grads = SplatGradients(**given, touched=np.ones(n, np.int32))

    def ours() -> None:
        renderer.project(g, camera, SETTINGS)
        renderer.project_backward(grads)

    line = {"bench": f"rendering.projection_{n // 1000}k", "n": n, "unit": "torch autograd time / ours"}
    reference_s, ours_s = alternate(_autograd_pass(g, camera, grads), ours)
    yield line | {"goal": f">= {AUTOGRAD_GOAL:g}"} | _measured(reference_s, ours_s, AUTOGRAD_GOAL)


def lines() -> Iterator[dict]:
    """One dictionary per measurement: bench, n, value, unit, goal, ok (null where it could not be measured)."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # ours has one; and thread_time would miss the others
    try:
        yield from _against_prototype()
        yield from _against_autograd()
    finally:
        torch.set_num_threads(threads)


def main() -> None:
    for line in lines():
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
