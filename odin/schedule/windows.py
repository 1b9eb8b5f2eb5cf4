"""Phases between structural changes, and overlap windows inside them.

Legend: S steps, K steps of look-back.
"""

from __future__ import annotations

import numpy as np

WINDOW_THRESHOLD = 0.05  # mean share of a scope that other ranks may hold between two steps of one window


def make_phases(num_steps: int, structural_steps: tuple[int, ...]) -> np.ndarray:
    """First and last step of each stretch without structural change: [n, 2] int32, together all steps.

    A structural change comes *after* its step, so that step ends a phase. Raises ValueError unless the structural
    steps ascend and are 1 or more; those after the last step are left out.
    """
    previous = 0
    for step in structural_steps:
        if step <= previous:
            raise ValueError(
                f"structural_steps: step {step} comes after {previous}; expected ascending step numbers from 1 on, "
                "each once"
            )
        previous = step
    lasts = [step for step in structural_steps if step < num_steps] + [num_steps]
    firsts = [1] + [last + 1 for last in lasts[:-1]]
    return np.array(list(zip(firsts, lasts, strict=True)), np.int32)


def make_windows(conflicts: np.ndarray, phases: np.ndarray, threshold: float = WINDOW_THRESHOLD) -> np.ndarray:
    """First and last step of each overlap window: [n, 2] int32. Every step is in exactly one.

    conflicts [S, K] as in the plan. A window lies in one phase, has at most K steps, and in it every predicted
    conflict with an earlier step of the same window is at most `threshold`; a step that must wait for the one before
    it starts a window. Any part of a window would be a window, so cutting as late as possible gives the fewest.
    """
    depth = conflicts.shape[1]
    windows = []
    for phase_first, phase_last in phases.tolist():
        first = phase_first
        for step in range(phase_first + 1, phase_last + 1):
            inside = step - first  # steps of the window before this one
            if inside >= depth or (conflicts[step - 1, :inside] > threshold).any():
                windows.append((first, step - 1))
                first = step
        windows.append((first, phase_last))
    return np.array(windows, np.int32)
