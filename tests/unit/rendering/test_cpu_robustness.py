"""Degenerate primitives and images: finite results and gradients, and messages that say where to look."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rendering_scenes import FIELDS, camera, gaussians, rows_of

from odin.rendering.cpu.projection import MAX_RADIUS_PX
from odin.rendering.cpu.renderer import CpuRenderer
from odin.rendering.interface import Gaussians, RenderSettings, Splats
from odin.rendering.validation import check_finite

BACKGROUND = np.array([0.1, 0.2, 0.3])
DTYPES = [np.float32, np.float64]


def all_results(g, cam, settings=None, dtype=np.float32, seed=0):
    """Every array of one forward and backward pass, by name."""
    renderer = CpuRenderer(dtype)
    splats = renderer.project(g, cam, settings or RenderSettings())
    image = renderer.compose(splats, cam, BACKGROUND)
    rng = np.random.default_rng(seed)
    splat_grads = renderer.compose_backward(
        rng.normal(size=(3, cam.height, cam.width)), rng.normal(size=image.alphas.shape)
    )
    grads = renderer.project_backward(splat_grads)
    named = {
        f"{type(o).__name__}.{name}": getattr(o, name) for o in (splats, splat_grads, grads) for name in o.__slots__
    }
    return named | {"image": image.colors, "alphas": image.alphas}


def assert_finite(results):
    for name, values in results.items():
        assert np.isfinite(values).all(), name


def degenerate(case: str, dtype) -> tuple[Gaussians, bool]:
    """Fifty ordinary Gaussians whose row 7 is degenerate, and whether row 7 may be drawn."""
    g, row = gaussians(50, seed=9, dtype=dtype), 7
    g.means[row], g.scales[row], g.opacities[row] = 0.0, 0.1, 0.5
    drawn = False
    with np.errstate(over="ignore"):
        match case:
            case "zero quaternion":
                g.quats[row], drawn = 0.0, True
            case "tiny quaternion":
                g.quats[row], drawn = 1e-25, True
            case "log-scale 100":
                g.scales[row] = np.exp(dtype(100))
            case "one log-scale 100":
                g.scales[row, 1] = np.exp(dtype(100))
            case "infinite scale":
                g.scales[row] = np.inf
            case "zero scale":
                g.scales[row], drawn = 0.0, True
            case "flat":
                g.scales[row, 0], drawn = 0.0, True
            case "huge opaque":
                g.scales[row], g.opacities[row], drawn = 300.0, 1.0, True
            case "camera centre":
                g.means[row] = camera().position
            case "NaN opacity":
                g.opacities[row] = np.nan
            case "infinite opacity":
                g.opacities[row] = np.inf
            case "NaN mean":
                g.means[row, 1] = np.nan
            case "infinite mean":
                g.means[row, 2] = np.inf
            case "far mean":
                g.means[row] = 1e30
            case "NaN quaternion":
                g.quats[row, 2] = np.nan
            case "huge quaternion":
                g.quats[row], drawn = 1e25, dtype is np.float64
            case "NaN sh":
                g.sh[row, 3, 1] = np.nan
            case "NaN unused sh":
                g.sh[row, 15, 1], drawn = np.nan, True
    return g, drawn


CASES = [
    "zero quaternion", "tiny quaternion", "log-scale 100", "one log-scale 100", "infinite scale", "zero scale", "flat",
    "huge opaque", "camera centre", "NaN opacity", "infinite opacity", "NaN mean", "infinite mean", "far mean",
    "NaN quaternion", "huge quaternion", "NaN sh", "NaN unused sh",
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("antialiased", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_degenerate_rows_leave_everything_finite(case, antialiased, dtype):
    g, may_be_drawn = degenerate(case, dtype)
    settings = RenderSettings(antialiased=antialiased, sh_degree=2 if case == "NaN unused sh" else 3)
    results = all_results(g, camera(), settings, dtype)
    assert_finite(results)
    if not may_be_drawn:
        assert not results["Splats.radii"][7].any()
        # as if the row were not there, to the bit
        rest = all_results(rows_of(g, np.arange(50) != 7), camera(), settings, dtype)
        assert results["image"].tobytes() == rest["image"].tobytes()
        for name in FIELDS:
            assert not results[f"Gaussians.{name}"][7].any(), name
    elif not antialiased:
        assert results["Splats.radii"][7].all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_radii_stay_below_the_documented_limit(dtype):
    g = gaussians(300, seed=1, dtype=dtype)
    g.scales *= np.exp(np.linspace(0, 60, 300))[:, None].astype(dtype)
    results = all_results(g, camera(), dtype=dtype)
    assert_finite(results)
    assert 0 < results["Splats.radii"].max() < MAX_RADIUS_PX


@pytest.mark.parametrize("dtype", DTYPES)
def test_splats_from_elsewhere_that_are_not_finite_are_skipped(dtype):
    """Another rank's splats: whatever arrives, the rasteriser neither crashes nor loops, and draws the good rows."""
    cam = camera(16, 12)
    renderer = CpuRenderer(dtype)
    made = renderer.project(gaussians(30, seed=2, dtype=dtype), cam, RenderSettings())
    splats = Splats(**{name: getattr(made, name).copy() for name in made.__slots__})
    splats.radii[:] = 2**31 - 1
    splats.conics[0], splats.conics[1], splats.conics[2] = np.nan, 0.0, -1.0
    splats.opacities[3], splats.opacities[4] = np.nan, np.inf
    splats.means2d[5], splats.means2d[6], splats.means2d[7] = np.nan, [np.nan, 3.0], [3.0, np.inf]
    splats.means2d[8], splats.means2d[9] = 1e30, [-1e30, 5.0]
    splats.conics[10], splats.conics[11] = [1e-40, 1e-3, 1.0], [1.0, 5.0, np.inf]
    splats.colors[12, 1] = np.nan
    bad = np.arange(13)
    # odd, but finite: an indefinite conic, a vast one, extreme shear
    splats.conics[13], splats.conics[14], splats.conics[15] = [1.0, 5.0, 1.0], [1e-25, 0.0, 1e-25], [1e-18, 1e-9, 1.0]
    image = renderer.compose(splats, cam, BACKGROUND)
    grads = renderer.compose_backward(np.ones((3, 12, 16)))
    assert not grads.touched[bad].any()
    assert grads.touched[16:].any()
    assert np.isfinite(image.colors).all()
    assert np.isfinite(grads.conics).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num", [0, 1, 40])
@pytest.mark.parametrize("size", [(1, 1), (5, 3), (7, 7), (9, 8)])
def test_nothing_visible_gives_the_background(num, size, dtype):
    g = gaussians(num, dtype=dtype)
    g.means += 100.0 * camera().position.astype(dtype)  # far behind the camera
    results = all_results(g, camera(*size), dtype=dtype)
    np.testing.assert_array_equal(
        results["image"], np.broadcast_to(BACKGROUND.astype(dtype)[:, None, None], (3, *size[::-1]))
    )
    assert not results["alphas"].any()
    for name in FIELDS:
        assert getattr(g, name).shape == results[f"Gaussians.{name}"].shape
        assert not results[f"Gaussians.{name}"].any()


def test_check_finite_names_field_row_and_count():
    g = gaussians(20)
    check_finite(g)
    g.scales[3, 1], g.scales[9, 0], g.opacities[12] = np.inf, np.nan, np.nan
    with pytest.raises(
        ValueError, match=r"(?s)scales: 2 of 20 rows, first row 3 = .*opacities: 1 of 20 rows, first row 12"
    ):
        check_finite(g)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quats": np.zeros((4, 4))}, r"gaussians\.quats: got shape \(4, 4\), expected \(5, 4\)"),
        ({"sh": np.zeros((5, 9, 3))}, r"gaussians\.sh: got shape \(5, 9, 3\).*K >= 16 for sh_degree 3"),
    ],
)
def test_wrong_shapes_are_refused(change, message):
    g = gaussians(5)
    for name, values in change.items():
        setattr(g, name, values)
    with pytest.raises(ValueError, match=message):
        CpuRenderer().project(g, camera(), RenderSettings())


@pytest.mark.parametrize(
    ("settings", "message"),
    [(RenderSettings(sh_degree=4), "sh_degree: got 4"), (RenderSettings(near_plane=0.0), "near_plane: got 0.0")],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        CpuRenderer().project(gaussians(5, num_sh=25), camera(), settings)


def digest() -> str:
    """Hash of every output bit of one float32 pass."""
    results = all_results(gaussians(600, seed=11, dtype=np.float32), camera(50, 37, principal=(0.4, 0.6)))
    return hashlib.sha256(b"".join(results[name].tobytes() for name in sorted(results))).hexdigest()


def test_bits_repeat_across_calls_and_processes():
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    code = "import test_cpu_robustness as t; print(t.digest())"
    other = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120, check=True
    )
    assert digest() == digest() == other.stdout.strip()
