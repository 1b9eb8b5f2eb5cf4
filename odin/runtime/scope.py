"""Scopes: supersets of the rows that a view can touch, computed on whatever a rank holds.

A rank may hold a row some steps old. So each row is inflated by the most its own lag can move and grow it
(`StepTable.reach`), and then tested against the view's five widened planes (`odin.rendering.frustum`). Blocks of
neighbouring rows (rows are in Morton order) are tested by their boxes first, so that a view costs
O(blocks + rows of the blocks it hits).

Legend: N rows, Q blocks.
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

_STRICT = {"cache": True, "nogil": True, "error_model": "numpy"}
BLOCK_ROWS = 128
_SQRT3 = math.sqrt(3.0)


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


@njit(inline="always", **_STRICT)
def _inflate(row, version, flushed, target, reach, idle_reach, out):
    """out [5]: centre, reach of the splat in world units (negative: cannot be seen), inflation of the centre."""
    out[0] = row[0]
    out[1] = row[1]
    out[2] = row[2]
    largest = abs(row[0]) + abs(row[1]) + abs(row[2])
    # the second term covers float32 rounding of the position itself
    out[4] = _lag(version, flushed, target, reach, idle_reach, 0) * _SQRT3 + 1e-6 * (1.0 + largest)
    logit = row[10] + _lag(version, flushed, target, reach, idle_reach, 2)
    alpha = 255.0 / (1.0 + math.exp(-logit)) * (1.0 + 1e-5)
    if alpha < 1.0:
        out[3] = -1.0
        return
    sigmas = min(MAX_EXTENT, math.sqrt(2.0 * math.log(alpha)) + 1e-3)
    log_scale = max(row[7], max(row[8], row[9])) + _lag(version, flushed, target, reach, idle_reach, 1)
    out[3] = sigmas * math.exp(log_scale) * (1.0 + 1e-5)


@njit(**_STRICT)
def _refresh(rows, version, flushed, target, reach, idle_reach, row_bounds, block_bounds):
    """row_bounds [N, 5] as `_inflate`; block_bounds [Q, 8]: box centre, half sizes, largest reach and inflation."""
    num_rows = rows.shape[0]
    for q in range(block_bounds.shape[0]):
        lo0 = lo1 = lo2 = 1e300
        hi0 = hi1 = hi2 = -1e300
        splat = inflation = 0.0
        for p in range(q * BLOCK_ROWS, min(num_rows, (q + 1) * BLOCK_ROWS)):
            b = row_bounds[p]
            _inflate(rows[p], version[p], flushed, target, reach, idle_reach, b)
            if b[3] < 0.0:
                continue
            lo0, lo1, lo2 = min(lo0, b[0]), min(lo1, b[1]), min(lo2, b[2])
            hi0, hi1, hi2 = max(hi0, b[0]), max(hi1, b[1]), max(hi2, b[2])
            splat, inflation = max(splat, b[3]), max(inflation, b[4])
        o = block_bounds[q]
        o[0], o[1], o[2] = 0.5 * (lo0 + hi0), 0.5 * (lo1 + hi1), 0.5 * (lo2 + hi2)
        o[3], o[4], o[5] = 0.5 * (hi0 - lo0), 0.5 * (hi1 - lo1), 0.5 * (hi2 - lo2)  # negative: nothing to be seen
        o[6], o[7] = splat, inflation


@njit(inline="always", **_STRICT)
def _outside(planes, b):
    for j in range(5):
        value = planes[j, 0] * b[0] + planes[j, 1] * b[1] + planes[j, 2] * b[2] + planes[j, 3]
        if value - planes[j, 4] * b[3] - planes[j, 5] * b[4] >= 0.0:
            return True
    return False


@njit(**_STRICT)
def _select(planes, row_bounds, block_bounds, bits, ids):
    num_rows = row_bounds.shape[0]
    n = 0
    bits[:] = 0
    for q in range(block_bounds.shape[0]):
        o = block_bounds[q]
        if o[3] < 0.0:
            continue
        out = False
        for j in range(5):
            a0, a1, a2 = planes[j, 0], planes[j, 1], planes[j, 2]
            nearest = (
                a0 * o[0] + a1 * o[1] + a2 * o[2] + planes[j, 3] - abs(a0) * o[3] - abs(a1) * o[4] - abs(a2) * o[5]
            )
            # the tiny margin covers rounding of the box, so that no row inside a dropped block could pass
            if nearest - planes[j, 4] * o[6] - planes[j, 5] * o[7] >= 1e-9 * (abs(planes[j, 3]) + 1.0):
                out = True
                break
        if out:
            continue
        for p in range(q * BLOCK_ROWS, min(num_rows, (q + 1) * BLOCK_ROWS)):
            b = row_bounds[p]
            if b[3] >= 0.0 and not _outside(planes, b):
                bits[p >> 6] |= np.uint64(1) << np.uint64(p & 63)
                ids[n] = p
                n += 1
    return n


@njit(**_STRICT)
def _narrow(planes, ids, num_ids, rows, version, flushed, target, reach, idle_reach, bits, out_ids):
    b = np.empty(5)
    n = 0
    bits[:] = 0
    for i in range(num_ids):
        p = ids[i]
        _inflate(rows[p], version[p], flushed, target, reach, idle_reach, b)
        if b[3] >= 0.0 and not _outside(planes, b):
            bits[p >> 6] |= np.uint64(1) << np.uint64(p & 63)
            out_ids[n] = p
            n += 1
    return n


class ScopeIndex:
    """Inflated bounds of all rows, refreshed every few steps, and the views' scopes computed from them."""

    def __init__(self, primitives: PrimitiveSet, table: StepTable) -> None:
        num = len(primitives)
        self._primitives = primitives
        self._table = table
        self._row_bounds = np.empty((num, 5))
        self._block_bounds = np.empty((-(-num // BLOCK_ROWS), 8))
        self.valid_to = -1  # largest version that scopes hold for

    def refresh(self, *, flushed: int, target: int) -> None:
        """Make scopes hold for reads at any version from the rows' own up to `target`."""
        p, t = self._primitives, self._table
        assert flushed <= target <= t.num_steps, f"scopes asked for version {target} of a run of {t.num_steps} steps"
        _refresh(p.rows, p.version, flushed, target, t.reach, t.idle_reach, self._row_bounds, self._block_bounds)
        self.valid_to = target

    def select(self, planes: np.ndarray, bits: np.ndarray, ids: np.ndarray) -> int:
        """The scope of a view with `planes` [5, 6], as bits [L] and ascending ids [N]; returns its size."""
        return _select(planes, self._row_bounds, self._block_bounds, bits, ids)

    def narrow(
        self, planes: np.ndarray, ids: np.ndarray, num_ids: int, *, flushed: int, target: int,
        bits: np.ndarray, out_ids: np.ndarray,
    ) -> int:  # fmt: skip
        """The part of a scope that a read at `target` can touch, judged by the rows' present lag."""
        p, t = self._primitives, self._table
        return _narrow(planes, ids, num_ids, p.rows, p.version, flushed, target, t.reach, t.idle_reach, bits, out_ids)
