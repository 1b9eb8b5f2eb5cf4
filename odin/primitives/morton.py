"""Morton (Z-order) codes: an order of points in space in which neighbours in memory are neighbours in the world.

Used wherever points or primitives are cut into blocks with small bounding boxes. The codes depend on the set of
points alone, so the order of rows is the same for any number of ranks.
Legend: N points.
"""

from __future__ import annotations

import numpy as np

MAX_BITS = 21  # three axes of 21 bits fill 63 bits of a uint64
_LOW_QUANTILE, _HIGH_QUANTILE = 0.01, 0.99

# Each step moves the upper half of every group of bits apart, until two zero bits follow each bit
# (Morton 1966; the magic numbers are the standard ones for 21 bits in 64).
_SPREAD = (
    (np.uint64(32), np.uint64(0x001F00000000FFFF)),
    (np.uint64(16), np.uint64(0x001F0000FF0000FF)),
    (np.uint64(8), np.uint64(0x100F00F00F00F00F)),
    (np.uint64(4), np.uint64(0x10C30C30C30C30C3)),
    (np.uint64(2), np.uint64(0x1249249249249249)),
)


def morton_codes(points: np.ndarray, bits: int = MAX_BITS) -> np.ndarray:
    """Morton codes of points [N, 3] in any unit: uint64 [N], x in the lowest bit of each triple.

    The cube that the codes divide is centred on the points' 1 % and 99 % quantiles and as wide as the widest axis
    between them, so a few far points do not coarsen the cells of all others; points outside are clipped to its
    sides. Cells are cubes of side `width / 2**bits`; all arithmetic is float64.

    Raises ValueError for another shape, a point that is not finite, or bits outside 1..21.
    """
    points = np.asarray(points)
    if points.ndim != 2 or points.shape[1] != 3:
        raise ValueError(f"morton_codes: points have shape {points.shape}, expected [N, 3]")
    if not 1 <= bits <= MAX_BITS:
        raise ValueError(f"morton_codes: bits = {bits}, allowed are 1 to {MAX_BITS}")
    points = points.astype(np.float64)
    finite = np.isfinite(points).all(axis=1)
    if not finite.all():
        bad = np.flatnonzero(~finite)
        raise ValueError(
            f"morton_codes: {len(bad)} of {len(points)} points are not finite, the first is row {bad[0]}: "
            f"{points[bad[0]].tolist()}; remove them first"
        )
    codes = np.zeros(len(points), np.uint64)
    if len(points) == 0:
        return codes
    cells = _cells(points, bits)
    for axis in range(3):
        codes |= _spread(cells[:, axis]) << np.uint64(axis)
    return codes


def morton_order(points: np.ndarray) -> np.ndarray:
    """Rows of points [N, 3] along the Z-order curve: int64 [N]. Points of one cell keep their order."""
    return np.argsort(morton_codes(points), kind="stable")


def _cells(points: np.ndarray, bits: int) -> np.ndarray:
    """Cell indices [N, 3] uint64, each below 2**bits."""
    low, high = np.quantile(points, (_LOW_QUANTILE, _HIGH_QUANTILE), axis=0)  # [3], [3]
    width = float((high - low).max())
    num_cells = 1 << bits
    if width > 0.0:
        unit = (points - 0.5 * (low + high)) / width + 0.5  # [N, 3], robustly within 0..1
    else:
        unit = np.full_like(points, 0.5)  # at least 98 % of the points coincide: one cell
    # Clip before the cast: a float beyond the integer's range has no defined integer value.
    return np.clip(np.floor(unit * num_cells), 0, num_cells - 1).astype(np.uint64)


def _spread(cells: np.ndarray) -> np.ndarray:
    """Bit i of a 21-bit number to bit 3 i. uint64 [N]"""
    spread = cells
    for shift, mask in _SPREAD:
        spread = (spread | (spread << shift)) & mask
    return spread
