"""The row update: what one optimizer step does to one row, and the same for many steps at once.

A row update is a pure function of the row, its optimizer state, its summed gradient (perhaps none) and the step
number. So steps in which a row got no gradient may be applied later, together, with identical bits ("deferred"):
that is what lets dense Adam live with primitive-level synchronization. One strict kernel (no fast-math, no
contraction) serves every exact mode, so that "the same" means the same bits.

Legend: N primitives, S steps, R ring slots, B views of a step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numba import njit

from odin.primitives.primitive_set import COLUMNS, GRAD2D, ROW_FLOATS, PrimitiveSet

_STRICT = {"cache": True, "nogil": True, "error_model": "numpy"}
#: `gradient_at` holds this where a unit saw a row without touching a pixel through it.
SEEN_ONLY = -2
ABSENT = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class AdamSettings:
    """Adam (Kingma & Ba 2015) for a batch of B views, by Grendel's rule (arXiv 2406.18533, section 4.3).

    lr * sqrt(B), beta^B, eps / sqrt(B): the settings a user knows are those for one view a step.
    """

    learning_rates: dict[str, float]  # by parameter name, for one view a step
    means_decay: float  # factor on the means' rate over the whole run, exponentially
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-15
    batch: int = 1
    scale_with_batch: bool = True

    @property
    def betas(self) -> tuple[float, float]:
        power = self.batch if self.scale_with_batch else 1
        return self.beta1**power, self.beta2**power

    @property
    def effective_eps(self) -> float:
        return self.eps / math.sqrt(self.batch) if self.scale_with_batch else self.eps

    def rates(self, num_steps: int) -> np.ndarray:
        """Learning rate of every float of a row at every step. [S + 1, 64] float64, row 0 unused"""
        scale = math.sqrt(self.batch) if self.scale_with_batch else 1.0
        rates = np.zeros((num_steps + 1, ROW_FLOATS))
        for name, cols in COLUMNS.items():
            rates[:, cols] = self.learning_rates[name] * scale
        decay = self.means_decay ** (np.maximum(np.arange(num_steps + 1) - 1, 0) / max(num_steps, 1))
        rates[:, COLUMNS["means"]] *= decay[:, None]
        return rates


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StepTable:
    """Everything of Adam that depends on the step number alone, computed in float64 and rounded once."""

    step_sizes: np.ndarray  # [S + 1, 64] float32, lr / (1 - beta1^t)
    root_scales: np.ndarray  # [S + 1] float32, 1 / sqrt(1 - beta2^t)
    constants: np.ndarray  # [5] float32: beta1, beta2, 1 - beta1, 1 - beta2, eps
    reach: np.ndarray  # [S + 1, 3] float64, cumulated bound on the movement of means, log-scales, logits
    idle_reach: np.ndarray  # [3] float64, bound on the movement in any number of steps without gradient

    @property
    def num_steps(self) -> int:
        return len(self.root_scales) - 1


def step_table(settings: AdamSettings, num_steps: int) -> StepTable:
    """Bias corrections, step sizes and movement bounds for steps 1..num_steps.

    The bound per step and component, for any sequence of gradients, from Cauchy-Schwarz on the two moments
    (beta1^2 < beta2): |update| <= lr (1 - b1) / sqrt((1 - b2)(1 - b1^2 / b2)) sqrt(1 - b2^t) / (1 - b1^t).
    Without gradients the first moment shrinks by b1 and the root of the second by sqrt(b2) a step, so that
    all idle steps together move a component by at most x / (1 - x) bounds, x = b1 / sqrt(b2).
    """
    b1, b2 = settings.betas
    if not b1 * b1 < b2 < 1.0:
        raise ValueError(
            f"Adam: beta1 = {settings.beta1:.6g}, beta2 = {settings.beta2:.6g}; the movement bound needs "
            "beta1^2 < beta2 < 1, whatever the batch. Choose other betas."
        )
    steps = np.maximum(np.arange(num_steps + 1), 1).astype(np.float64)
    rates = settings.rates(num_steps)
    first, second = 1.0 - b1**steps, np.sqrt(1.0 - b2**steps)
    ratio = (1.0 - b1) / math.sqrt((1.0 - b2) * (1.0 - b1 * b1 / b2))
    lanes = [COLUMNS[name].start for name in ("means", "scales", "opacities")]
    per_step = rates[:, lanes] * (ratio * second / first)[:, None]
    per_step[0] = 0.0
    decay = b1 / math.sqrt(b2)
    idle = rates[1:, lanes].max(0) * ratio * (second / first).max() * decay / (1.0 - decay)
    return StepTable(
        step_sizes=(rates / first[:, None]).astype(np.float32),
        root_scales=(1.0 / second).astype(np.float32),
        constants=np.array([b1, b2, 1.0 - b1, 1.0 - b2, settings.effective_eps], np.float32),
        # float32 rounding of the update itself: a relative 1e-5 covers it many times over
        reach=np.cumsum(per_step, axis=0) * (1.0 + 1e-5),
        idle_reach=idle * (1.0 + 1e-5),
    )


@njit(inline="always", **_STRICT)
def _adam(x, m, v, g, sizes, root_scale, b1, b2, a1, a2, eps):
    # three loops instead of one: each vectorises over the whole row
    for k in range(64):
        m[k] = b1 * m[k] + a1 * g[k]
    for k in range(64):
        v[k] = b2 * v[k] + a2 * g[k] * g[k]
    for k in range(64):
        x[k] = x[k] - sizes[k] * m[k] / (np.float32(math.sqrt(v[k])) * root_scale + eps)


@njit(inline="always", **_STRICT)
def _untouched(m, v):
    """True where both moments are zero: an idle step then changes nothing, not even a bit.

    The second moment alone does not tell: the square of a tiny gradient underflows while its first moment stays.
    """
    total = np.float32(0)
    for k in range(64):
        total += abs(m[k]) + v[k]
    return total == np.float32(0)


@njit(**_STRICT)
def advance_rows(
    ids, num_ids, target, rows, exp_avg, exp_avg_sq, version, stats,
    flushed, gradient_at, gradients, step_sizes, root_scales, constants,
):  # fmt: skip
    """Bring rows `ids[:num_ids]` to version `target`, in place.

    Steps up to `flushed` hold no gradient for a row that is still behind them (every row they touched has been
    advanced). For later steps, `gradient_at` [R, B, N] int32 tells where in `gradients` [R, B, >=N, 64] the
    row's gradient of each unit lies (ABSENT: none; SEEN_ONLY: seen, no gradient). Gradients are added in the
    order of the batch. Returns the number of (row, step) updates made, those that change nothing included.
    """
    b1, b2, a1, a2, eps = constants[0], constants[1], constants[2], constants[3], constants[4]
    ring, batch = gradient_at.shape[0], gradient_at.shape[1]
    g = np.empty(64, np.float32)
    done = 0
    for i in range(num_ids):
        p = ids[i]
        start = version[p]
        if start >= target:
            continue
        x, m, v = rows[p], exp_avg[p], exp_avg_sq[p]
        if start < flushed and _untouched(m, v):
            start = min(flushed, target)
        for s in range(start + 1, target + 1):
            g[:] = np.float32(0)
            if s > flushed:
                slot = s % ring
                first = True
                for b in range(batch):
                    j = gradient_at[slot, b, p]
                    if j == ABSENT:
                        continue
                    stats[p, 1] += np.float32(1)
                    if j == SEEN_ONLY:
                        continue
                    w = gradients[slot, b, j]
                    stats[p, 0] += w[GRAD2D]
                    if first:
                        for k in range(64):
                            g[k] = w[k]
                        first = False
                    else:
                        for k in range(64):
                            g[k] = g[k] + w[k]
                g[GRAD2D] = np.float32(0)
            _adam(x, m, v, g, step_sizes[s], root_scales[s], b1, b2, a1, a2, eps)
        done += target - version[p]
        version[p] = target
    return done


@njit(**_STRICT)
def index_gradients(ids, num_seen, num_touched, step, version, gradient_at):
    """Note where each row's gradient of one unit lies. `gradient_at` [N] must be ABSENT everywhere.

    Returns -1, or the first row that has already been advanced to `step` or beyond: its gradient would be lost,
    which means that a scope was not conservative.
    """
    for j in range(num_seen):
        p = ids[j]
        if version[p] >= step:
            return p
        gradient_at[p] = j if j < num_touched else SEEN_ONLY
    return -1


def advance_idle(primitives: PrimitiveSet, target: int, table: StepTable) -> None:
    """Bring every row to version `target` where no gradient is pending (before a structural step or a save)."""
    everything = np.arange(len(primitives), dtype=np.int32)
    no_slots = np.full((1, 1, 1), ABSENT, np.int32)
    no_gradients = np.zeros((1, 1, 1, ROW_FLOATS), np.float32)
    advance(primitives, everything, len(everything), target, target, no_slots, no_gradients, table)


def advance(
    primitives: PrimitiveSet,
    ids: np.ndarray,
    num_ids: int,
    target: int,
    flushed: int,
    gradient_at: np.ndarray,
    gradients: np.ndarray,
    table: StepTable,
) -> int:
    """`advance_rows` on a `PrimitiveSet`."""
    p = primitives
    return advance_rows(
        ids, num_ids, target, p.rows, p.exp_avg, p.exp_avg_sq, p.version, p.stats,
        flushed, gradient_at, gradients, table.step_sizes, table.root_scales, table.constants,
    )  # fmt: skip
