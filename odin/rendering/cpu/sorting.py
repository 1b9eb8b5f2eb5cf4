"""Order of compositing: visible splats by depth, ties by row, so that every process composes in the same order."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

_STRICT: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy"}
#: Digits of the radix sort: 3 of 11 bits cover a float32.
DIGITS, BUCKETS = 3, 2048


@njit(**_STRICT)
def order_by_depth(depths, radii, depths32, keys, order, scratch, counts):
    """Stable least-significant-digit radix sort of the rows with both radii > 0 by their depth as float32.

    Depths of visible rows are positive, and positive IEEE floats sort like their bit patterns. Like gsplat, depths
    that agree in float32 are ties also for a float64 renderer.

    depths: [N]; radii: [N, 2] int32; depths32: [N] float32 and keys: [N] uint32, two names of one buffer; order,
    scratch: [N] int32 buffers; counts: [3, 2048] int32 buffer. Returns the number of visible rows M; order[:M] holds
    them.
    """
    num = 0
    counts[:] = 0
    for row in range(depths.shape[0]):
        if radii[row, 0] <= 0 or radii[row, 1] <= 0:
            continue
        scratch[num] = row
        num += 1
        depths32[row] = np.float32(depths[row])
        key = keys[row]
        counts[0, key & 2047] += 1
        counts[1, (key >> 11) & 2047] += 1
        counts[2, key >> 22] += 1
    source, target = scratch, order
    for digit in range(DIGITS):
        start = 0
        for bucket in range(BUCKETS):
            count = counts[digit, bucket]
            counts[digit, bucket] = start
            start += count
        shift = np.uint32(11 * digit)
        for j in range(num):
            row = source[j]
            bucket = (keys[row] >> shift) & np.uint32(2047)
            target[counts[digit, bucket]] = row
            counts[digit, bucket] += 1
        source, target = target, source
    return num  # an odd number of passes from scratch ends in order
