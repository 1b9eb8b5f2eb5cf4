"""L1 + SSIM with its gradient, fused row by row.

SSIM (Wang et al. 2004) with an 11 x 11 Gaussian window of sigma 1.5, zero padding, data range 1, as 3DGS uses it:

    S = (2 m1 m2 + C1)(2 s12 + C2) / ((m1^2 + m2^2 + C1)(s1 + s2 + C2))

where m = window * image, s1 = window * a^2 - m1^2, s12 = window * (a b) - m1 m2. The window is symmetric, so the
gradient is again three convolutions: dL/da = window * d_m + 2 a (window * d_s1) + b (window * d_s12).

The window is separable. Each output row first sums 11 image rows, then 11 neighbours in that one row, so that all
intermediate rows stay in cache.
"""

from __future__ import annotations

import numpy as np
from numba import njit

_FAST = {
    "cache": True,
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "nsz", "arcp", "afn"},
}
_INLINE = {"inline": "always", **_FAST}

HALF_WINDOW = 5
_TAPS = np.exp(-(np.arange(-HALF_WINDOW, HALF_WINDOW + 1) ** 2) / (2 * 1.5**2))
#: Weights of the window by distance from its centre, 0..5.
WEIGHTS = tuple(float(t) for t in (_TAPS / _TAPS.sum())[HALF_WINDOW:])
_C1, _C2 = 0.01**2, 0.03**2


@njit(**_INLINE)
def _row(image, y, zero_row):
    """Row y of an image, zeros outside."""
    return image[y] if 0 <= y < image.shape[0] else zero_row


@njit(**_INLINE)
def _across(real, padded, x):
    """The window along a row; padded has 5 zeros on each side."""
    w0, w1, w2, w3, w4, w5 = WEIGHTS
    return (
        real(w0) * padded[x + 5]
        + real(w1) * (padded[x + 4] + padded[x + 6])
        + real(w2) * (padded[x + 3] + padded[x + 7])
        + real(w3) * (padded[x + 2] + padded[x + 8])
        + real(w4) * (padded[x + 1] + padded[x + 9])
        + real(w5) * (padded[x] + padded[x + 10])
    )


@njit(**_FAST)
def _down(image, y, zero_row, out):
    """The window down the columns around row y, into out[5:-5]."""
    real = out.dtype.type
    w0, w1, w2, w3, w4, w5 = WEIGHTS
    c, a1, b1 = image[y], _row(image, y - 1, zero_row), _row(image, y + 1, zero_row)
    a2, b2 = _row(image, y - 2, zero_row), _row(image, y + 2, zero_row)
    a3, b3 = _row(image, y - 3, zero_row), _row(image, y + 3, zero_row)
    a4, b4 = _row(image, y - 4, zero_row), _row(image, y + 4, zero_row)
    a5, b5 = _row(image, y - 5, zero_row), _row(image, y + 5, zero_row)
    inner = out[5 : 5 + c.shape[0]]
    for x in range(c.shape[0]):
        inner[x] = (
            real(w0) * c[x]
            + real(w1) * (a1[x] + b1[x])
            + real(w2) * (a2[x] + b2[x])
            + real(w3) * (a3[x] + b3[x])
            + real(w4) * (a4[x] + b4[x])
            + real(w5) * (a5[x] + b5[x])
        )


@njit(**_FAST)
def target_moments(target, scratch, padded, mean, square):
    """mean = window * target and square = window * target^2, [3, H, W] each. scratch: [H, W], padded: [3, W + 10]"""
    real = target.dtype.type
    zero_row = np.zeros(target.shape[2], target.dtype)
    padded[:] = 0
    for channel in range(target.shape[0]):
        image = target[channel]
        for y in range(image.shape[0]):
            for x in range(image.shape[1]):
                scratch[y, x] = image[y, x] * image[y, x]
        for y in range(image.shape[0]):
            _down(image, y, zero_row, padded[0])
            _down(scratch, y, zero_row, padded[1])
            for x in range(image.shape[1]):
                mean[channel, y, x] = _across(real, padded[0], x)
                square[channel, y, x] = _across(real, padded[1], x)


@njit(**_FAST)
def l1_ssim(image, target, mean, square, ssim_weight, maps, padded, gradient):
    """Mean absolute difference and mean SSIM; gradient [3, H, W] of (1 - w) L1 + w (1 - SSIM).

    mean, square: `target_moments` of the target. maps: [5, H, W] and padded: [3, W + 10], buffers.
    """
    real = image.dtype.type
    channels, height, width = image.shape
    one, two, c1, c2 = real(1), real(2), real(_C1), real(_C2)
    inv_count = one / real(channels * height * width)
    squares, products, d_mean, d_square, d_product = maps[0], maps[1], maps[2], maps[3], maps[4]
    zero_row = np.zeros(width, image.dtype)
    padded[:] = 0
    pad0, pad1, pad2 = padded[0], padded[1], padded[2]
    sum_l1 = sum_ssim = 0.0
    for channel in range(channels):
        a, b = image[channel], target[channel]
        for y in range(height):
            for x in range(width):
                squares[y, x] = a[y, x] * a[y, x]
                products[y, x] = a[y, x] * b[y, x]
        for y in range(height):
            _down(a, y, zero_row, pad0)
            _down(squares, y, zero_row, pad1)
            _down(products, y, zero_row, pad2)
            m2_row, e2_row = mean[channel, y], square[channel, y]
            dm_row, ds_row, dp_row = d_mean[y], d_square[y], d_product[y]
            row_ssim = real(0)
            for x in range(width):
                m1, m2 = _across(real, pad0, x), m2_row[x]
                s1, s2 = _across(real, pad1, x) - m1 * m1, e2_row[x] - m2 * m2
                s12 = _across(real, pad2, x) - m1 * m2
                luminance, structure = two * m1 * m2 + c1, two * s12 + c2
                inv_l, inv_s = one / (m1 * m1 + m2 * m2 + c1), one / (s1 + s2 + c2)
                ssim = luminance * structure * inv_l * inv_s
                row_ssim += ssim
                d_s1, d_s12 = -ssim * inv_s, two * luminance * inv_l * inv_s
                d_m1 = two * m2 * structure * inv_l * inv_s - two * m1 * ssim * inv_l
                dm_row[x] = d_m1 - two * m1 * d_s1 - m2 * d_s12
                ds_row[x] = d_s1
                dp_row[x] = d_s12
            sum_ssim += row_ssim
        for y in range(height):
            _down(d_mean, y, zero_row, pad0)
            _down(d_square, y, zero_row, pad1)
            _down(d_product, y, zero_row, pad2)
            a_row, b_row, g_row = a[y], b[y], gradient[channel, y]
            row_l1 = real(0)
            for x in range(width):
                difference = a_row[x] - b_row[x]
                row_l1 += abs(difference)
                sign = one if difference > 0 else (-one if difference < 0 else real(0))
                d_ssim = _across(real, pad0, x) + two * a_row[x] * _across(real, pad1, x)
                d_ssim += b_row[x] * _across(real, pad2, x)
                g_row[x] = inv_count * ((one - ssim_weight) * sign - ssim_weight * d_ssim)
            sum_l1 += row_l1
    return sum_l1 * inv_count, sum_ssim * inv_count
