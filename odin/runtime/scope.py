"""Scopes: supersets of the rows that a view can touch, computed on whatever a rank holds.

A rank may hold a row some steps old. So each row is inflated by the most its own lag can move and grow it
(`StepTable.reach`), and then tested against the view's five widened planes (`odin.rendering.frustum`). Blocks of
neighbouring rows (rows are in Morton order) are tested by their boxes first, so that a view costs
O(blocks + rows of the blocks it hits).

Legend: N rows, Q = ceil(N / 64) blocks. A block is a word of a bit set: 64 rows.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from odin.data.scene import Camera
from odin.primitives.primitive_set import PrimitiveSet
from odin.primitives.row_update import StepTable
from odin.rendering.frustum import MAX_EXTENT, rounding_shift, side_planes
from odin.rendering.interface import RenderSettings
from odin.runtime.bitset import num_words

_STRICT = {"cache": True, "nogil": True, "error_model": "numpy"}
_SQRT3 = math.sqrt(3.0)
_ONE = np.uint64(1)


def _upper_table(function, low: float, high: float, per_unit: int) -> np.ndarray:
    """Values of an increasing function at low, low + 1 / per_unit, ..., high: the next entry up is an upper bound."""
    return np.array([function(x) for x in np.linspace(low, high, round((high - low) * per_unit) + 1)])


def _sigmas(logit: float) -> float:
    """Standard deviations out to which a splat of this opacity is drawn (alpha >= 1 / 255); -1 for none."""
    alpha = 255.0 / (1.0 + math.exp(-logit)) * (1.0 + 1e-5)
    return min(MAX_EXTENT, math.sqrt(2.0 * math.log(alpha)) + 1e-3) if alpha >= 1.0 else -1.0


# Tables instead of exp and log: a refresh is six times faster, and reaches grow by 1.6 % on average
_PER_UNIT = 32
_SCALE_LOW, _SCALE_HIGH = -16.0, 8.0
_SCALES = _upper_table(math.exp, _SCALE_LOW, _SCALE_HIGH, _PER_UNIT) * (1.0 + 1e-5)
_LOGIT_LOW, _LOGIT_HIGH = -6.0, 8.0
_SIGMAS = _upper_table(_sigmas, _LOGIT_LOW, _LOGIT_HIGH, _PER_UNIT)


def view_planes(camera: Camera, settings: RenderSettings) -> np.ndarray:
    """The five side tests of `odin.rendering.frustum`, packed for the kernels here. [5, 6] float64

    A row is outside where planes[:, :3] . centre + planes[:, 3] >= planes[:, 4] reach + planes[:, 5] shift. The
    camera's share of float32 rounding is in the fourth column, the rows' own in their shift.
    """
    sides = side_planes(camera, settings)
    planes = np.empty((5, 6))
    planes[:, :4] = sides.coefficients
    planes[:, 3] -= sides.shift_factors * rounding_shift(np.zeros((1, 3)), camera)[0]
    planes[:, 4] = sides.reach_factors
    planes[:, 5] = sides.shift_factors
    return planes


@njit(**_STRICT)
def _lag(version, flushed, target, reach, idle_reach, column):
    """Most that one component can move from `version` to `target`; steps up to `flushed` are idle for the row."""
    moved = 0.0
    if version < flushed:
        idle_to = min(flushed, target)
        moved += min(reach[idle_to, column] - reach[version, column], idle_reach[column])
        version = idle_to
    if version < target:
        moved += reach[target, column] - reach[version, column]
    return moved


@njit(**_STRICT)
def _lags(oldest, flushed, target, reach, idle_reach):
    """`_lag` of means, log-scales and logits for rows at version oldest, oldest + 1, ..., target. [.., 3]"""
    lags = np.zeros((max(target - oldest, 0) + 1, 3))
    for i in range(lags.shape[0]):
        for column in range(3):
            lags[i, column] = _lag(oldest + i, flushed, target, reach, idle_reach, column)
    return lags


@njit(inline="always", **_STRICT)
def _above(table, low, high, x):
    """Upper bound of the tabulated function at x; x beyond the table, or not a number, is taken for its end."""
    if not x > low:
        x = low
    elif x > high:
        x = high
    return table[int(math.ceil((x - low) * _PER_UNIT))]


@njit(inline="always", **_STRICT)
def _inflate(row, lags, lag, out):
    """out [5]: centre, reach of the splat in world units (negative: cannot be seen), inflation of the centre."""
    out[0] = row[0]
    out[1] = row[1]
    out[2] = row[2]
    # the second term covers float32 rounding of the position itself
    out[4] = lags[lag, 0] * _SQRT3 + 1e-6 * (1.0 + abs(row[0]) + abs(row[1]) + abs(row[2]))
    sigmas = _above(_SIGMAS, _LOGIT_LOW, _LOGIT_HIGH, row[10] + lags[lag, 2])
    log_scale = max(row[7], max(row[8], row[9])) + lags[lag, 1]
    if not log_scale > _SCALE_HIGH:
        out[3] = sigmas * _above(_SCALES, _SCALE_LOW, _SCALE_HIGH, log_scale)
    else:
        out[3] = sigmas * math.exp(log_scale) * (1.0 + 1e-5)


@njit(**_STRICT)
def _refresh(rows, version, flushed, target, reach, idle_reach, row_bounds, block_bounds, drawable):
    """row_bounds [N, 5] as `_inflate`; block_bounds [Q, 8]: box centre, half sizes, largest reach and inflation;
    drawable [Q]: which rows of each block can be seen at all."""
    num_rows = rows.shape[0]
    oldest = target
    for p in range(num_rows):
        oldest = min(oldest, version[p])
    lags = _lags(oldest, flushed, target, reach, idle_reach)
    for q in range(block_bounds.shape[0]):
        lo0 = lo1 = lo2 = 1e300
        hi0 = hi1 = hi2 = -1e300
        splat = inflation = 0.0
        word = np.uint64(0)
        for p in range(q * 64, min(num_rows, (q + 1) * 64)):
            b = row_bounds[p]
            _inflate(rows[p], lags, min(version[p], target) - oldest, b)
            if b[3] < 0.0:
                continue
            word |= _ONE << np.uint64(p & 63)
            lo0, lo1, lo2 = min(lo0, b[0]), min(lo1, b[1]), min(lo2, b[2])
            hi0, hi1, hi2 = max(hi0, b[0]), max(hi1, b[1]), max(hi2, b[2])
            splat, inflation = max(splat, b[3]), max(inflation, b[4])
        drawable[q] = word
        o = block_bounds[q]
        o[0], o[1], o[2] = 0.5 * (lo0 + hi0), 0.5 * (lo1 + hi1), 0.5 * (lo2 + hi2)
        o[3], o[4], o[5] = 0.5 * (hi0 - lo0), 0.5 * (hi1 - lo1), 0.5 * (hi2 - lo2)
        o[6], o[7] = splat, inflation


@njit(inline="always", **_STRICT)
def _outside(planes, b):
    for j in range(5):
        value = planes[j, 0] * b[0] + planes[j, 1] * b[1] + planes[j, 2] * b[2] + planes[j, 3]
        if value - planes[j, 4] * b[3] - planes[j, 5] * b[4] >= 0.0:
            return True
    return False


@njit(inline="always", **_STRICT)
def _classify(planes, o):
    """-1: no row of the block passes; 1: every drawable row passes; 0: rows differ."""
    inside = True
    for j in range(5):
        middle = planes[j, 0] * o[0] + planes[j, 1] * o[1] + planes[j, 2] * o[2] + planes[j, 3]
        spread = abs(planes[j, 0]) * o[3] + abs(planes[j, 1]) * o[4] + abs(planes[j, 2]) * o[5]
        # a margin for rounding of the box, so that no row inside a dropped block could pass
        margin = 1e-9 * (abs(planes[j, 3]) + spread + 1.0)
        if middle - spread - planes[j, 4] * o[6] - planes[j, 5] * o[7] >= margin:
            return -1
        inside = inside and middle + spread < -margin
    return 1 if inside else 0


@njit(**_STRICT)
def _select(planes, row_bounds, block_bounds, drawable, bits):
    num_rows = row_bounds.shape[0]
    for q in range(block_bounds.shape[0]):
        word = drawable[q]
        if word:
            place = _classify(planes, block_bounds[q])
            if place < 0:
                word = np.uint64(0)
            elif place == 0:
                for p in range(q * 64, min(num_rows, (q + 1) * 64)):
                    bit = _ONE << np.uint64(p & 63)
                    if word & bit and _outside(planes, row_bounds[p]):
                        word ^= bit
        bits[q] = word


@njit(**_STRICT)
def _narrow(planes, bits, rows, version, flushed, target, reach, idle_reach):
    """Drop from `bits` what does not pass with the rows' present lag."""
    b = np.empty(5)
    lags = np.empty((1, 3))
    for q in range(bits.shape[0]):
        word = bits[q]
        if not word:
            continue
        for k in range(64):
            bit = _ONE << np.uint64(k)
            if not word & bit:
                continue
            p = q * 64 + k
            for column in range(3):
                lags[0, column] = _lag(version[p], flushed, target, reach, idle_reach, column)
            _inflate(rows[p], lags, 0, b)
            if b[3] < 0.0 or _outside(planes, b):
                word ^= bit
        bits[q] = word


class ScopeIndex:
    """Inflated bounds of all rows, refreshed every few steps, and the views' scopes computed from them."""

    def __init__(self, primitives: PrimitiveSet, table: StepTable) -> None:
        num = len(primitives)
        self._primitives = primitives
        self._table = table
        self._row_bounds = np.empty((num, 5))
        self._block_bounds = np.empty((num_words(num), 8))
        self._drawable = np.empty(num_words(num), np.uint64)
        self.valid_to = -1  # largest version that scopes hold for

    def refresh(self, *, flushed: int, target: int) -> None:
        """Make scopes hold for reads at any version from the rows' own up to `target`."""
        p, t = self._primitives, self._table
        assert flushed <= target <= t.num_steps, f"scopes asked for version {target} of a run of {t.num_steps} steps"
        _refresh(
            p.rows, p.version, flushed, target, t.reach, t.idle_reach,
            self._row_bounds, self._block_bounds, self._drawable,
        )  # fmt: skip
        self.valid_to = target

    def select(self, planes: np.ndarray, bits: np.ndarray) -> None:
        """Make `bits` [Q] the scope of the view with `planes` [5, 6]."""
        _select(planes, self._row_bounds, self._block_bounds, self._drawable, bits)

    def narrow(self, planes: np.ndarray, bits: np.ndarray, *, flushed: int, target: int) -> None:
        """Reduce a scope `bits` to what a read at `target` can touch, judged by the rows' present lag."""
        p, t = self._primitives, self._table
        _narrow(planes, bits, p.rows, p.version, flushed, target, t.reach, t.idle_reach)
