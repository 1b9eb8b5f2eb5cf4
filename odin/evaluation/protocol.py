"""From renders and targets to ``metrics.json``: values of every test view, then means over exactly the test views.

Pure but for the renders that the caller hands over: no files, no clocks, no model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from odin.data.scene import Protocol, Scene
from odin.evaluation.metrics import DEFINITIONS, Lpips, check_image, load_lpips, psnr, ssim

METRICS_VERSION = 1
KINDS = ("measured", "emulated", "simulated")


@dataclass(frozen=True, kw_only=True, slots=True)
class ViewScore:
    """Metrics of one test view, known by its image's path relative to the image folder."""

    name: str
    psnr: float  # dB
    ssim: float
    lpips: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """Scores of all test views, in the scene's order."""

    views: tuple[ViewScore, ...]
    lpips_reason: str | None  # why there is no LPIPS

    def mean(self) -> dict[str, Any]:
        """Arithmetic means of the per-image values (not of errors pooled over images), and over how many views."""
        lpips = None if self.lpips_reason else float(np.mean([view.lpips for view in self.views]))
        return {
            "psnr": float(np.mean([view.psnr for view in self.views])),
            "ssim": float(np.mean([view.ssim for view in self.views])),
            "lpips": lpips,
            "num_views": len(self.views),
        }


def test_names(scene: Scene) -> tuple[str, ...]:
    """Names of the test views. Raises ValueError where the split leaves no test or no training view."""
    num_test = int(np.count_nonzero(scene.is_test))
    if num_test == 0 or num_test == scene.num_views:
        raise ValueError(
            f"{scene.name}: the split '{scene.protocol.split}' gives {num_test} test and {scene.num_views - num_test} "
            f"training views of {scene.num_views}; both must be at least 1. Use more views or another split."
        )
    return tuple(scene.names[view] for view in scene.test_views)


test_names.__test__ = False  # type: ignore[attr-defined]  # a test collector takes it for a test


def evaluate(
    renders: Iterable[tuple[str, np.ndarray]],
    targets: Callable[[str], np.ndarray] | Mapping[str, np.ndarray],
    names: Sequence[str],
    *,
    lpips: Lpips | None = None,
    on_view: Callable[[str, np.ndarray, np.ndarray], None] | None = None,
) -> Evaluation:
    """Score each render against its target.

    renders: (name, image [3, H, W] float) in any order, clipped here to 0..1; one image is held at a time.
    targets: image [3, H, W] float in 0..1 of a name.
    names: the test views; each must come exactly once.
    on_view: called with name, clipped render and target, for instance to save pictures.

    Raises ValueError where a view is missing, doubled or unknown, where sizes differ, for non-finite values, and for
    images too small for SSIM.
    """
    if not names:
        raise ValueError("no test view to evaluate: the split leaves none. Use more views or another split.")
    lpips = lpips or load_lpips(None)
    wanted = set(names)
    if len(wanted) != len(names):
        raise ValueError(f"test views listed twice: {_listed(n for n, c in Counter(names).items() if c > 1)}.")
    target_of = targets if callable(targets) else targets.__getitem__
    scores: dict[str, ViewScore] = {}
    for name, render in renders:
        if name not in wanted:
            raise ValueError(f"render of {name!r}, which is not one of the {len(names)} test views.")
        if name in scores:
            raise ValueError(f"two renders of test view {name!r}; each must come exactly once.")
        image, target = np.clip(render, 0.0, 1.0), np.asarray(target_of(name))
        scores[name] = _score(name, image, target, lpips)
        if on_view is not None:
            on_view(name, image, target)
    missing = [name for name in names if name not in scores]
    if missing:
        raise ValueError(f"{len(missing)} of {len(names)} test views have no render: {_listed(missing)}.")
    return Evaluation(views=tuple(scores[name] for name in names), lpips_reason=lpips.reason)


def metrics_record(
    evaluation: Evaluation,
    *,
    protocol: Protocol,
    lpips: Lpips | None,
    kind: str,
    num_gs: int,
    model_sha256: str,
    **extra: Any,
) -> dict[str, Any]:
    """What ``metrics.json`` holds. `kind`: was the model trained by a measured, emulated or simulated run?"""
    if kind not in KINDS:
        raise ValueError(f"kind {kind!r}, expected one of {', '.join(KINDS)}.")
    return {
        "version": METRICS_VERSION,
        "kind": kind,
        "protocol": asdict(protocol),
        "definitions": {**DEFINITIONS, "lpips": lpips.describe() if lpips else None},
        "mean": evaluation.mean(),
        "lpips_reason": evaluation.lpips_reason,
        "num_gs": int(num_gs),
        "model_sha256": model_sha256,
        **extra,
        "views": [asdict(view) for view in evaluation.views],
    }


def _score(name: str, image: np.ndarray, target: np.ndarray, lpips: Lpips) -> ViewScore:
    check_image(image, f"render of {name}")
    check_image(target, f"target of {name}")
    if image.shape != target.shape:
        raise ValueError(
            f"{name}: render of {image.shape[2]} x {image.shape[1]} pixels, target of {target.shape[2]} x "
            f"{target.shape[1]}. Both must come from the same prepared scene."
        )
    try:
        return ViewScore(
            name=name,
            psnr=psnr(image, target),
            ssim=ssim(image, target),
            lpips=None if lpips.distance is None else lpips.distance(image, target),
        )
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _listed(names: Iterable[str], most: int = 10) -> str:
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
