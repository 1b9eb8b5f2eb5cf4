"""Checks of what goes into a renderer, with messages that say where to look."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from odin.rendering.interface import Gaussians, RenderSettings

MAX_SH_DEGREE = 3


def check_finite(gaussians: Gaussians, *, what: str = "primitives") -> None:
    """Raises ValueError naming every field with NaN or infinite values, how many rows and the first of them.

    O(N): meant for the ends of a phase, checkpoints and failed runs, not for every unit. Renderers themselves take
    such rows as not visible.
    """
    problems = []
    for field in fields(gaussians):
        values = getattr(gaussians, field.name)
        bad = np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(axis=1))
        if len(bad):
            row = int(bad[0])
            problems.append(f"{field.name}: {len(bad)} of {len(values)} rows, first row {row} = {values[row].tolist()}")
    if problems:
        raise ValueError(
            f"{what} hold values that are not finite; " + "; ".join(problems) + ". Usual causes: a learning rate or "
            "a regularizer that is too large, or input points that are not finite."
        )


def check_inputs(gaussians: Gaussians, settings: RenderSettings) -> None:
    """Raises ValueError where shapes or settings contradict each other. O(1)."""
    n = len(gaussians.means)
    shapes = {"means": (n, 3), "quats": (n, 4), "scales": (n, 3), "opacities": (n,)}
    for name, shape in shapes.items():
        if getattr(gaussians, name).shape != shape:
            raise ValueError(f"gaussians.{name}: got shape {getattr(gaussians, name).shape}, expected {shape}")
    if not 0 <= settings.sh_degree <= MAX_SH_DEGREE:
        raise ValueError(f"settings.sh_degree: got {settings.sh_degree}, allowed 0..{MAX_SH_DEGREE}")
    needed = (settings.sh_degree + 1) ** 2
    sh = gaussians.sh.shape
    if len(sh) != 3 or sh[0] != n or sh[1] < needed or sh[2] != 3:
        raise ValueError(
            f"gaussians.sh: got shape {sh}, expected ({n}, K, 3) with K >= {needed} for sh_degree {settings.sh_degree}"
        )
    if not settings.near_plane > 0.0:
        raise ValueError(f"settings.near_plane: got {settings.near_plane}, must be positive")
    if not settings.eps2d >= 0.0:
        raise ValueError(f"settings.eps2d: got {settings.eps2d}, must not be negative")
