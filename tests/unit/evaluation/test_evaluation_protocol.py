"""Means over exactly the test views, and pictures that never overwrite each other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from odin.data.jsonio import read_json, write_json
from odin.data.scene import Protocol, Scene
from odin.evaluation.metrics import Lpips
from odin.evaluation.pictures import picture_path, save_comparison, save_render
from odin.evaluation.protocol import evaluate, metrics_record, test_names

PROTOCOL = Protocol(
    source="colmap", factor=4.0, resize="area", undistorted=False, split="index % 8 == 0", background=(0.0, 0.0, 0.0)
)
NAMES = ("cam0/0001.png", "cam1/0001.png")


def flat(value: float) -> np.ndarray:
    return np.full((3, 12, 16), value, np.float32)


def scene_of(is_test: list[bool]) -> Scene:
    num = len(is_test)
    return Scene(
        name="s",
        names=tuple(f"{i}.png" for i in range(num)),
        image_root=Path("."),
        image_files=tuple(f"{i}.png" for i in range(num)),
        widths=np.full(num, 16, np.int32),
        heights=np.full(num, 12, np.int32),
        Ks=np.zeros((num, 3, 3)),
        viewmats=np.zeros((num, 4, 4)),
        is_test=np.array(is_test),
        points=np.zeros((0, 3), np.float32),
        colors=np.zeros((0, 3), np.uint8),
        track_offsets=np.zeros(num + 1, np.int64),
        track_points=np.zeros(0, np.int32),
        protocol=PROTOCOL,
    )


def test_values_and_means_in_the_scenes_order(tmp_path: Path) -> None:
    targets = {NAMES[0]: flat(0.5), NAMES[1]: flat(0.25)}
    seen = []
    renders = [(NAMES[1], flat(0.125)), (NAMES[0], flat(0.5 + 2**-4))]
    result = evaluate(renders, targets, NAMES, on_view=lambda name, image, target: seen.append(name))
    assert [view.name for view in result.views] == list(NAMES)
    assert seen == [NAMES[1], NAMES[0]]
    assert result.views[0].psnr == pytest.approx(80 * np.log10(2))
    assert result.views[1].psnr == pytest.approx(60 * np.log10(2))
    # Flat images: SSIM is its luminance term (2ab + C1) / (a^2 + b^2 + C1), C1 = 1e-4.
    assert result.views[1].ssim == pytest.approx((2 * 0.25 * 0.125 + 1e-4) / (0.25**2 + 0.125**2 + 1e-4), abs=1e-9)
    mean = result.mean()
    assert mean["psnr"] == pytest.approx(70 * np.log10(2)) and mean["num_views"] == 2
    assert mean["lpips"] is None and result.lpips_reason == "no LPIPS weights configured"

    record = metrics_record(result, protocol=PROTOCOL, lpips=None, kind="measured", num_gs=7, model_sha256="ab")
    write_json(tmp_path / "metrics.json", record)
    stored = read_json(tmp_path / "metrics.json")
    assert stored["protocol"] == {
        "source": "colmap",
        "factor": 4.0,
        "resize": "area",
        "undistorted": False,
        "split": "index % 8 == 0",
        "background": [0.0, 0.0, 0.0],
    }
    assert stored["views"][0]["name"] == "cam0/0001.png" and stored["views"][0]["lpips"] is None


def test_lpips_means_come_from_the_distance_given() -> None:
    lpips = Lpips(distance=lambda image, target: float(target[0, 0, 0]), weights=None, reason=None)
    targets = {NAMES[0]: flat(0.5), NAMES[1]: flat(0.25)}
    result = evaluate([(n, flat(0.1)) for n in NAMES], targets, NAMES, lpips=lpips)
    assert result.mean()["lpips"] == 0.375 and result.lpips_reason is None


def test_renders_are_clipped_but_targets_are_not() -> None:
    result = evaluate([("a", flat(1.5))], {"a": flat(1.0)}, ["a"])
    assert result.views[0].psnr == 120.0
    with pytest.raises(ValueError, match=r"target of a: values 1\.5\.\.1\.5, expected 0\.\.1"):
        evaluate([("a", flat(1.0))], {"a": flat(1.5)}, ["a"])


@pytest.mark.parametrize(
    ("renders", "names", "message"),
    [
        ([("a", 0.1)], ["a", "b", "c"], "2 of 3 test views have no render: b, c"),
        ([("a", 0.1), ("a", 0.1)], ["a"], "two renders of test view 'a'"),
        ([("z", 0.1)], ["a"], "'z', which is not one of the 1 test views"),
        ([], [], "no test view"),
        ([("a", 0.1)], ["a", "a"], "listed twice: a"),
        ([("a", np.nan)], ["a"], "render of a: 576 of 576 values are NaN"),
    ],
)
def test_refuses_wrong_sets_of_views(renders: list, names: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        evaluate([(n, flat(v)) for n, v in renders], lambda name: flat(0.5), names)


def test_sizes_are_named() -> None:
    with pytest.raises(ValueError, match="a: render of 16 x 12 pixels, target of 8 x 12"):
        evaluate([("a", flat(0.1))], {"a": flat(0.1)[:, :, :8]}, ["a"])
    with pytest.raises(ValueError, match=r"a: SSIM needs .* got 16 x 6"):
        evaluate([("a", flat(0.1)[:, :6])], {"a": flat(0.1)[:, :6]}, ["a"])


def test_split_without_test_or_training_views_is_refused() -> None:
    assert test_names(scene_of([True, False, True])) == ("0.png", "2.png")
    with pytest.raises(ValueError, match="0 test and 2 training views of 2"):
        test_names(scene_of([False, False]))
    with pytest.raises(ValueError, match="1 test and 0 training views of 1"):
        test_names(scene_of([True]))


def test_kind_is_checked() -> None:
    result = evaluate([("a", flat(0.1))], {"a": flat(0.1)}, ["a"])
    with pytest.raises(ValueError, match="kind 'real', expected one of measured, emulated, simulated"):
        metrics_record(result, protocol=PROTOCOL, lpips=None, kind="real", num_gs=1, model_sha256="")


def test_pictures_of_equal_base_names_stay_apart(tmp_path: Path) -> None:
    names = ["cam0/0001.png", "cam1/0001.png", "été/図 01.jpg", "été/図 01.png"]
    paths = [save_render(tmp_path, name, flat(i / 4)) for i, name in enumerate(names)]
    assert len(set(paths)) == 4
    values = [int(np.asarray(Image.open(path))[0, 0, 0]) for path in paths]
    assert values == [0, 64, 128, 191]
    assert paths[0] == tmp_path / "cam0" / "0001.png.png"
    for bad in ("../a.png", "/a.png", ""):
        with pytest.raises(ValueError, match="not a path inside"):
            picture_path(tmp_path, bad)


def test_comparison_shows_target_render_and_error(tmp_path: Path) -> None:
    pixels = np.asarray(Image.open(save_comparison(tmp_path, "a.png", flat(0.5), flat(1.0))))
    assert pixels.shape == (12, 3 * 16 + 2 * 4, 3)
    assert pixels[0, 0].tolist() == [255, 255, 255] and pixels[0, 20].tolist() == [128, 128, 128]
    assert pixels[0, 40, 0] > 240  # an error of 0.5 is beyond the brightest colour
