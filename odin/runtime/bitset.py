"""Sets of rows as bits, 64 to a word: what units claim, see and compare.

Legend: N rows, L = ceil(N / 64) words.
"""

from __future__ import annotations

import numpy as np
from numba import njit

_STRICT = {"cache": True, "nogil": True, "error_model": "numpy"}
_ONE = np.uint64(1)


def num_words(num_rows: int) -> int:
    return (num_rows + 63) // 64


@njit(**_STRICT)
def set_visible(ids, radii, bits):
    """Make `bits` the set of those `ids` [n] whose radius [n, 2] is positive."""
    bits[:] = 0
    for i in range(ids.shape[0]):
        if radii[i, 0] > 0:
            p = np.int64(ids[i])
            bits[p >> 6] |= _ONE << np.uint64(p & 63)


@njit(**_STRICT)
def intersects(a, b):
    for i in range(a.shape[0]):
        if a[i] & b[i]:
            return True
    return False


@njit(**_STRICT)
def first_outside(a, b):
    """The smallest member of `a` that is not in `b`, or -1."""
    for i in range(a.shape[0]):
        rest = a[i] & ~b[i]
        if rest:
            for k in range(64):
                if (rest >> np.uint64(k)) & _ONE:
                    return i * 64 + k
    return -1


@njit(**_STRICT)
def list_members(bits, ids):
    """Write the members into `ids` in ascending order; returns how many there are."""
    n = 0
    for i in range(bits.shape[0]):
        word = bits[i]
        for k in range(64):
            if not word:
                break
            if word & _ONE:
                ids[n] = i * 64 + k
                n += 1
            word >>= _ONE
    return n
