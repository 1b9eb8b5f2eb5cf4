"""Rows to activated Gaussians and gradients back, in one pass each.

Activations of 3DGS: scale = exp(log-scale), opacity = sigmoid(logit); quaternions are normalised by the projection.
Strict arithmetic: a unit's input must not depend on which rows stand beside it. Legend: n rows of the unit.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

_STRICT = {"cache": True, "nogil": True, "error_model": "numpy"}


@njit(**_STRICT)
def activate_rows(ids, rows, means, quats, scales, opacities, sh):
    """Copy rows `ids` [n] of `rows` [N, 64] into means [n, 3] ... sh [n, 16, 3]."""
    one = np.float32(1)
    for i in range(ids.shape[0]):
        x = rows[ids[i]]
        for k in range(3):
            means[i, k] = x[k]
        for k in range(4):
            quats[i, k] = x[3 + k]
        for k in range(3):
            scales[i, k] = np.float32(math.exp(x[7 + k]))
        opacities[i] = one / (one + np.float32(math.exp(-x[10])))
        for c in range(16):
            for k in range(3):
                sh[i, c, k] = x[11 + 3 * c + k]


@njit(**_STRICT)
def compact_gradients(
    ids, radii, touched, scales, opacities, g_means2d, screen_x, screen_y,
    g_means, g_quats, g_scales, g_opacities, g_sh, out_ids, out_gradients,
):  # fmt: skip
    """Row gradients of the touched rows, chained through the activations; then the ids of rows only seen.

    The first spare float of a gradient row is |(screen_x dL/du, screen_y dL/dv)|, the norm densification needs.
    Returns (number seen, number touched).
    """
    one = np.float32(1)
    n = 0
    for i in range(ids.shape[0]):
        if radii[i, 0] <= 0 or touched[i] <= 0:
            continue
        out_ids[n] = ids[i]
        w = out_gradients[n]
        for k in range(3):
            w[k] = g_means[i, k]
        for k in range(4):
            w[3 + k] = g_quats[i, k]
        for k in range(3):
            w[7 + k] = g_scales[i, k] * scales[i, k]
        w[10] = g_opacities[i] * opacities[i] * (one - opacities[i])
        for c in range(16):
            for k in range(3):
                w[11 + 3 * c + k] = g_sh[i, c, k]
        u = g_means2d[i, 0] * screen_x
        v = g_means2d[i, 1] * screen_y
        w[59] = np.float32(math.sqrt(u * u + v * v))
        for k in range(60, 64):
            w[k] = np.float32(0)
        n += 1
    seen = n
    for i in range(ids.shape[0]):
        if radii[i, 0] > 0 and touched[i] <= 0:
            out_ids[seen] = ids[i]
            seen += 1
    return seen, n
