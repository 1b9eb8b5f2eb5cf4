"""Predicted cost of a unit (one view, forward and backward), relative to the mean view of its scene.

Only ratios matter: they balance ranks. The costs of a row and of a pixel are rounded from medians of the CPU renderer
on one core, in microseconds; US_PER_UNIT and ROWS_PER_POINT are estimates that nobody has measured yet.
"""

from __future__ import annotations

import numpy as np

from odin.data.scene import Scene
from odin.schedule.scopes import Scopes

US_PER_UNIT = 500.0  # scope, copies and bookkeeping that do not grow with the view
US_PER_ROW = 0.15 + 0.25  # projection and spherical harmonics, then compositing, both with their backward pass
US_PER_PIXEL = 0.05 + 0.085  # compositing, then loss
ROWS_PER_POINT = 4.0  # rows that densification makes of one SfM point by the end of training, order of magnitude


def predict_costs(scene: Scene, scopes: Scopes) -> np.ndarray:
    """US_PER_UNIT + US_PER_ROW * rows + US_PER_PIXEL * pixels, divided by its mean over the training views.
    [V] float32"""
    pixels = scene.widths.astype(np.float64) * scene.heights
    rows = ROWS_PER_POINT * scopes.num_points
    cost_us = US_PER_UNIT + US_PER_ROW * rows + US_PER_PIXEL * pixels
    return (cost_us / cost_us[scene.train_views].mean()).astype(np.float32)
