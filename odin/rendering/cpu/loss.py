"""L1 + SSIM with its gradient, fused row by row.

SSIM (Wang et al. 2004) with an 11 x 11 Gaussian window of sigma 1.5, zero padding, data range 1, as 3DGS uses it:

    S = (2 m1 m2 + C1)(2 s12 + C2) / ((m1^2 + m2^2 + C1)(s1 + s2 + C2))

where m = window * image, s1 = window * a^2 - m1^2, s12 = window * (a b) - m1 m2. The window is symmetric, so the
gradient is again three convolutions: dL/da = window * d_m + 2 a (window * d_s1) + b (window * d_s12).

The window is separable. Each output row first sums 11 image rows, then 11 neighbours in that one row, so that all
intermediate rows stay in cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

_FAST: dict[str, Any] = {
    "cache": True,
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "nsz", "arcp", "afn"},
}
_INLINE: dict[str, Any] = {"inline": "always", **_FAST}

HALF_WINDOW = 5
_TAPS = np.exp(-(np.arange(-HALF_WINDOW, HALF_WINDOW + 1) ** 2) / (2 * 1.5**2))
#: Weights of the window by distance from its centre, 0..5.
WEIGHTS = tuple(float(t) for t in (_TAPS / _TAPS.sum())[HALF_WINDOW:])
_C1, _C2 = 0.01**2, 0.03**2


#: Images of the buffer `maps` [6, H + 10, W], each with 5 rows of zeros above and below, and so many.
IMAGE, SQUARE, PRODUCT, D_MEAN, D_SQUARE, D_PRODUCT = range(6)
NUM_MAPS = 6

# Elements are indexed in full throughout: a view of a row costs reference counting, more than a short row's work.


@njit(**_INLINE)
def _down(real, maps, which, y, x):
    """The window down column x around image row y."""
    w0, w1, w2, w3, w4, w5 = WEIGHTS
    return (
        real(w0) * maps[which, y + 5, x]
        + real(w1) * (maps[which, y + 4, x] + maps[which, y + 6, x])
        + real(w2) * (maps[which, y + 3, x] + maps[which, y + 7, x])
        + real(w3) * (maps[which, y + 2, x] + maps[which, y + 8, x])
        + real(w4) * (maps[which, y + 1, x] + maps[which, y + 9, x])
        + real(w5) * (maps[which, y, x] + maps[which, y + 10, x])
    )


@njit(**_INLINE)
def _across(real, sums, which, x):
    """The window along a row of `_down` sums; sums [3, W + 10] has 5 zeros at either end."""
    w0, w1, w2, w3, w4, w5 = WEIGHTS
    return (
        real(w0) * sums[which, x + 5]
        + real(w1) * (sums[which, x + 4] + sums[which, x + 6])
        + real(w2) * (sums[which, x + 3] + sums[which, x + 7])
        + real(w3) * (sums[which, x + 2] + sums[which, x + 8])
        + real(w4) * (sums[which, x + 1] + sums[which, x + 9])
        + real(w5) * (sums[which, x] + sums[which, x + 10])
    )


@njit(**_INLINE)
def _clear_borders(maps, sums):
    height, width = maps.shape[1] - 10, maps.shape[2]
    for which in range(NUM_MAPS):
        for y in range(5):
            for x in range(width):
                maps[which, y, x] = 0
                maps[which, height + 5 + y, x] = 0
    for which in range(sums.shape[0]):
        for x in range(5):
            sums[which, x] = 0
            sums[which, width + 5 + x] = 0


@njit(**_FAST)
def target_moments(target, maps, sums, mean, square):
    """mean = window * target and square = window * target^2, [3, H, W] each. maps, sums: buffers as above"""
    real = target.dtype.type
    channels, height, width = target.shape
    _clear_borders(maps, sums)
    for channel in range(channels):
        for y in range(height):
            for x in range(width):
                value = target[channel, y, x]
                maps[IMAGE, y + 5, x] = value
                maps[SQUARE, y + 5, x] = value * value
        for y in range(height):
            for x in range(width):
                sums[0, x + 5] = _down(real, maps, IMAGE, y, x)
            for x in range(width):
                sums[1, x + 5] = _down(real, maps, SQUARE, y, x)
            for x in range(width):
                mean[channel, y, x] = _across(real, sums, 0, x)
                square[channel, y, x] = _across(real, sums, 1, x)


@njit(**_FAST)
def l1_ssim(image, target, mean, square, ssim_weight, maps, sums, gradient):
    """Mean absolute difference and mean SSIM; gradient [3, H, W] of (1 - w) L1 + w (1 - SSIM).

    mean, square: `target_moments` of the target. maps [6, H + 10, W] and sums [3, W + 10]: buffers.
    """
    real = image.dtype.type
    channels, height, width = image.shape
    zero, one, two, c1, c2 = real(0), real(1), real(2), real(_C1), real(_C2)
    inv_count = one / real(channels * height * width)
    sum_l1 = sum_ssim = 0.0
    _clear_borders(maps, sums)
    for channel in range(channels):
        for y in range(height):
            for x in range(width):
                value = image[channel, y, x]
                maps[IMAGE, y + 5, x] = value
                maps[SQUARE, y + 5, x] = value * value
                maps[PRODUCT, y + 5, x] = value * target[channel, y, x]
        for y in range(height):
            for x in range(width):
                sums[0, x + 5] = _down(real, maps, IMAGE, y, x)
            for x in range(width):
                sums[1, x + 5] = _down(real, maps, SQUARE, y, x)
            for x in range(width):
                sums[2, x + 5] = _down(real, maps, PRODUCT, y, x)
            row_ssim = zero
            for x in range(width):
                m1, m2 = _across(real, sums, 0, x), mean[channel, y, x]
                s1, s2 = _across(real, sums, 1, x) - m1 * m1, square[channel, y, x] - m2 * m2
                s12 = _across(real, sums, 2, x) - m1 * m2
                luminance, structure = two * m1 * m2 + c1, two * s12 + c2
                inv_l, inv_s = one / (m1 * m1 + m2 * m2 + c1), one / (s1 + s2 + c2)
                ssim = luminance * structure * inv_l * inv_s
                row_ssim += ssim
                d_s1, d_s12 = -ssim * inv_s, two * luminance * inv_l * inv_s
                d_m1 = two * m2 * structure * inv_l * inv_s - two * m1 * ssim * inv_l
                maps[D_MEAN, y + 5, x] = d_m1 - two * m1 * d_s1 - m2 * d_s12
                maps[D_SQUARE, y + 5, x] = d_s1
                maps[D_PRODUCT, y + 5, x] = d_s12
            sum_ssim += row_ssim
        for y in range(height):
            for x in range(width):
                sums[0, x + 5] = _down(real, maps, D_MEAN, y, x)
            for x in range(width):
                sums[1, x + 5] = _down(real, maps, D_SQUARE, y, x)
            for x in range(width):
                sums[2, x + 5] = _down(real, maps, D_PRODUCT, y, x)
            row_l1 = zero
            for x in range(width):
                a, b = image[channel, y, x], target[channel, y, x]
                difference = a - b
                row_l1 += abs(difference)
                sign = one if difference > zero else (-one if difference < zero else zero)
                d_ssim = _across(real, sums, 0, x) + two * a * _across(real, sums, 1, x)
                d_ssim += b * _across(real, sums, 2, x)
                gradient[channel, y, x] = inv_count * ((one - ssim_weight) * sign - ssim_weight * d_ssim)
            sum_l1 += row_l1
    return sum_l1 * inv_count, sum_ssim * inv_count
