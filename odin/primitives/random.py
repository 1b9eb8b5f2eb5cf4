"""Counter-based random numbers: a value depends on (seed, step, row id, draw) and on nothing else.

Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"). NumPy's Philox is the
4x64 variant and keeps one stream per object; here each row is its own stream, on whichever rank it lives.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

_STRICT = {"cache": True, "nogil": True, "error_model": "numpy"}
_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


@njit(**_STRICT)
def philox4x32(c0, c1, c2, c3, k0, k1):
    """Ten rounds on a counter of four and a key of two 32-bit words; returns four uint32."""
    for _ in range(10):
        p0 = _M0 * np.uint64(c0)
        p1 = _M1 * np.uint64(c2)
        h0, l0 = np.uint32(p0 >> _HALF), np.uint32(p0 & _LOW)
        h1, l1 = np.uint32(p1 >> _HALF), np.uint32(p1 & _LOW)
        c0, c1, c2, c3 = h1 ^ c1 ^ k0, l1, h0 ^ c3 ^ k1, l0
        k0 = np.uint32(k0 + _W0)
        k1 = np.uint32(k1 + _W1)
    return c0, c1, c2, c3


@njit(**_STRICT)
def _normals(seed, step, row_ids, num_draws, out):
    k0 = np.uint32(np.uint64(seed) & _LOW)
    k1 = np.uint32(np.uint64(seed) >> _HALF)
    for i in range(row_ids.shape[0]):
        row = np.uint64(row_ids[i])
        for pair in range((num_draws + 1) // 2):
            words = philox4x32(np.uint32(pair), np.uint32(step), np.uint32(row & _LOW), np.uint32(row >> _HALF), k0, k1)
            # Box-Muller on 53-bit uniforms; the first lies in (0, 1] so that its logarithm is finite
            a = (np.float64(words[0]) * 2097152.0 + np.float64(words[1] >> np.uint32(11)) + 1.0) / 9007199254740992.0
            b = (np.float64(words[2]) * 2097152.0 + np.float64(words[3] >> np.uint32(11))) / 9007199254740992.0
            radius = math.sqrt(-2.0 * math.log(a))
            out[i, 2 * pair] = np.float32(radius * math.cos(2.0 * math.pi * b))
            if 2 * pair + 1 < num_draws:
                out[i, 2 * pair + 1] = np.float32(radius * math.sin(2.0 * math.pi * b))


def normals(seed: int, step: int, row_ids: np.ndarray, num_draws: int) -> np.ndarray:
    """Standard normal numbers [len(row_ids), num_draws] float32, keyed by seed (64 bits), step and row id."""
    out = np.empty((len(row_ids), num_draws), np.float32)
    _normals(np.uint64(seed), np.uint32(step), np.ascontiguousarray(row_ids, np.int64), num_draws, out)
    return out
