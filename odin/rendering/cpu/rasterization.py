"""Compositing of splats, front to back, and the way back. Splat-major: every splat walks its own pixel rows.

For each splat in depth order and each image row, the exact span with alpha >= 1/255 is solved from the quadratic
form, rounded out to chunks of 8 pixels, and run through a loop without branches, which LLVM vectorises. A splat's
gradient is then a sum over its own pixels and written once: no scatter, one fixed order of summation.

With d = mean2d - pixel centre, s = 1/2 d^T conic d and alpha = min(0.999, o exp(-s)), gsplat's rules hold: a pixel
skips the splat where s < 0 or alpha < 1/255; it stops, without the splat, where T (1 - alpha) <= 1e-4. Backward
(gsplat, arXiv 2409.06765, appendix) runs the same loops in reverse order and recovers T by division.

Opacities must lie in [0, 1]. Image buffers have rows padded to a multiple of 8 pixels (`padded_width`).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload

_FASTMATH = {"reassoc", "contract", "nsz", "arcp", "afn"}  # no 'nnan': comparisons with NaN must fail
_FAST: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy", "fastmath": _FASTMATH}
_INLINE: dict[str, Any] = {"inline": "always", **_FAST}

CHUNK = 8
#: `stops` of a pixel that has not stopped.
NEVER = 2**31 - 1
#: Beyond this exponent no opacity <= 1 reaches 1/255 (ln 255 = 5.541).
_MAX_S = 5.6
#: exp(-s / 8) on [0, 5.6]: polynomial of least maximal relative error (2e-9), constant term first.
_EXP = (
    1.0, -0.12499997019767761, 0.007812413387000561, -0.0003254314069636166,
    1.0127823770744726e-05, -2.426054663828836e-07, 3.7193030877347155e-09,
)  # fmt: skip

# Columns of the table that `prepare` fills, one row per visible splat in depth order.
MEAN_X, MEAN_Y, CONIC_XX, CONIC_XY, CONIC_YY, OPACITY, RED, GREEN, BLUE, REACH, SHEAR, CORE, INV_XX = range(13)
NUM_COLUMNS = 13


def padded_width(width: int) -> int:
    return (width + CHUNK - 1) // CHUNK * CHUNK


def _exp_minus(s):
    """exp(-s) for 0 <= s <= 5.6; float32 by polynomial (relative error 2e-6), which vectorises."""
    raise NotImplementedError("only inside compiled kernels")


@overload(_exp_minus, inline="always", jit_options={"fastmath": _FASTMATH, "error_model": "numpy"})
def _exp_minus_by_type(s):
    if s == types.float64:
        return lambda s: math.exp(-s)
    c0, c1, c2, c3, c4, c5, c6 = (np.float32(c) for c in _EXP)

    def polynomial(s):
        root8 = c0 + s * (c1 + s * (c2 + s * (c3 + s * (c4 + s * (c5 + s * c6)))))
        root4 = root8 * root8
        root2 = root4 * root4
        return root2 * root2

    return polynomial


@njit(**_FAST)
def prepare(order, radii, means2d, conics, opacities, colors, height, table, rows):
    """Gathers the splats of `order` [M] into table [M, 13] and their image rows [first, last] into rows [M, 2]."""
    real = table.dtype.type
    zero, half, inv255 = real(0), real(0.5), real(1.0 / 255.0)
    for k in range(order.shape[0]):
        g = order[k]
        a, b, c, opacity = conics[g, 0], conics[g, 1], conics[g, 2], opacities[g]
        mean_x, mean_y, red, green, blue = means2d[g, 0], means2d[g, 1], colors[g, 0], colors[g, 1], colors[g, 2]
        rows[k, 0], rows[k, 1] = 0, -1
        inv_a = real(1) / a
        shear = b * inv_a
        # written so that anything not finite fails; then every conversion to a pixel index is defined
        if not (a > zero and c > zero and opacity >= inv255 and opacity + inv_a < real(np.inf)):
            continue
        if not (abs(mean_x) + abs(mean_y) < real(1e9) and abs(shear) < real(1e15)):
            continue
        if not abs(red) + abs(green) + abs(blue) < real(np.inf):
            continue
        # alpha >= 1/255 exactly where 2 s <= 2 ln(255 o); the margin covers rounding, the pixel loop decides
        reach = real(2) * (real(math.log(opacity * real(255))) + real(1e-3))
        det = a * c - b * b
        half_height = real(radii[g, 1])
        if det > zero:
            half_height = min(half_height, real(math.sqrt(reach * a / det)))
        rows[k, 0] = max(0, math.ceil(mean_y - half_height - half))
        rows[k, 1] = min(height - 1, math.floor(mean_y + half_height - half))
        table[k, MEAN_X], table[k, MEAN_Y], table[k, OPACITY] = mean_x, mean_y, opacity
        table[k, CONIC_XX], table[k, CONIC_XY], table[k, CONIC_YY] = a, b, c
        table[k, RED], table[k, GREEN], table[k, BLUE] = red, green, blue
        table[k, REACH], table[k, SHEAR], table[k, INV_XX] = reach, shear, inv_a
        table[k, CORE] = max(c - b * shear, zero)


@njit(**_INLINE)
def _span(real, centre, disc, width):
    """First pixel and one past the last, in whole chunks, of a span that is sqrt(disc) wide on each side of centre.

    Truncation instead of ceil and floor: those would be library calls in the innermost loop but one.
    """
    half_width = real(math.sqrt(disc))
    left = min(max(centre - half_width, real(0)), real(width))
    right = max(min(centre + half_width, real(width - 1)), real(-1))
    first, last = np.int64(left), np.int64(right)
    if first < left:
        first += 1
    if right < real(0) or last < first:
        return 0, 0
    return first & ~7, (last | 7) + 1


@njit(**_FAST)
def compose(table, rows, width, image, transmittance, stops):
    """Composes table [M, 13] over image [3, H, W8] (in: zeros), transmittance [H, W8] (in: ones).

    stops [H, W8] int32 gets, per pixel, the position in depth order of the splat at which it stopped. In: NEVER,
    and -1 in the padding, which keeps it empty.
    """
    real = transmittance.dtype.type
    zero, half, one = real(0), real(0.5), real(1)
    min_alpha, max_alpha, min_t, max_s = real(1.0 / 255.0), real(0.999), real(1e-4), real(_MAX_S)
    for k in range(rows.shape[0]):
        position = np.int32(k)
        mean_x, mean_y, xy, opacity = table[k, MEAN_X], table[k, MEAN_Y], table[k, CONIC_XY], table[k, OPACITY]
        red, green, blue = table[k, RED], table[k, GREEN], table[k, BLUE]
        half_xx, half_yy = half * table[k, CONIC_XX], half * table[k, CONIC_YY]
        reach, shear, core, inv_xx = table[k, REACH], table[k, SHEAR], table[k, CORE], table[k, INV_XX]
        for row in range(rows[k, 0], rows[k, 1] + 1):
            dy = mean_y - (real(row) + half)
            disc = (reach - core * dy * dy) * inv_xx
            if not disc > zero:
                continue
            start, end = _span(real, mean_x + shear * dy - half, disc, width)
            s_y, slope, dx0 = half_yy * dy * dy, xy * dy, mean_x - half
            y = np.uint64(row)
            for column in range(start, end):
                x = np.uint64(column)
                dx = dx0 - real(np.int32(column))
                s = (half_xx * dx + slope) * dx + s_y
                alpha = opacity * _exp_minus(min(s, max_s))
                t, stop = transmittance[y, x], stops[y, x]
                hit = (stop > position) & (alpha >= min_alpha) & (s >= zero) & (s < max_s)
                alpha = min(alpha, max_alpha)
                t_next = t * (one - alpha)
                drawn = hit & (t_next > min_t)
                stops[y, x] = position if hit & (t_next <= min_t) else stop
                weight = alpha * t if drawn else zero
                transmittance[y, x] = t_next if drawn else t
                image[0, y, x] += weight * red
                image[1, y, x] += weight * green
                image[2, y, x] += weight * blue


@njit(**_FAST)
def compose_backward(
    order, table, rows, width, transmittance, stops, g_image, behind, g_means2d, g_conics, g_opacities, g_colors,
    touched,
):  # fmt: skip
    """Splat gradients from those of the image; outputs of rows that touch no pixel are left as they are.

    transmittance [H, W8]: the final one, consumed. g_image [3, H, W8]. behind [H, W8]: per pixel, the loss
    gradient carried by all that lies behind the current splat, sum_j>k w_j c_j . g, in: that of the background and
    of alpha, -T (g_alpha - background . g); consumed.
    """
    real = transmittance.dtype.type
    zero, half, one = real(0), real(0.5), real(1)
    min_alpha, max_alpha, max_s = real(1.0 / 255.0), real(0.999), real(_MAX_S)
    for k in range(rows.shape[0] - 1, -1, -1):
        position = np.int32(k)
        mean_x, mean_y, xy, opacity = table[k, MEAN_X], table[k, MEAN_Y], table[k, CONIC_XY], table[k, OPACITY]
        red, green, blue = table[k, RED], table[k, GREEN], table[k, BLUE]
        half_xx, half_yy = half * table[k, CONIC_XX], half * table[k, CONIC_YY]
        reach, shear, core, inv_xx = table[k, REACH], table[k, SHEAR], table[k, CORE], table[k, INV_XX]
        # moments of v = dL/ds over the pixels: 1, dx, dx^2, dy, dx dy, dy^2
        v_1 = v_x = v_xx = v_y = v_xy = v_yy = zero
        g_red = g_green = g_blue = zero
        count = np.int32(0)
        for row in range(rows[k, 0], rows[k, 1] + 1):
            dy = mean_y - (real(row) + half)
            disc = (reach - core * dy * dy) * inv_xx
            if not disc > zero:
                continue
            start, end = _span(real, mean_x + shear * dy - half, disc, width)
            s_y, slope, dx0 = half_yy * dy * dy, xy * dy, mean_x - half
            y = np.uint64(row)
            row_1 = row_x = row_xx = zero
            for column in range(start, end):
                x = np.uint64(column)
                dx = dx0 - real(np.int32(column))
                s = (half_xx * dx + slope) * dx + s_y
                raw = opacity * _exp_minus(min(s, max_s))
                hit = (stops[y, x] > position) & (raw >= min_alpha) & (s >= zero) & (s < max_s)
                alpha = min(raw, max_alpha) if hit else zero
                inv = one / (one - alpha)
                t = transmittance[y, x] * inv
                transmittance[y, x] = t
                weight = alpha * t
                gr, gg, gb = g_image[0, y, x], g_image[1, y, x], g_image[2, y, x]
                g_red += weight * gr
                g_green += weight * gg
                g_blue += weight * gb
                own = red * gr + green * gg + blue * gb
                carried = behind[y, x]
                g_alpha = t * own - inv * carried
                behind[y, x] = carried + weight * own
                count += np.int32(1) if hit else np.int32(0)
                # where alpha is cut off at 0.999 it does not depend on s
                v = -raw * g_alpha if hit & (raw <= max_alpha) else zero
                v_dx = v * dx
                row_1 += v
                row_x += v_dx
                row_xx += v_dx * dx
            v_1 += row_1
            v_x += row_x
            v_xx += row_xx
            v_y += row_1 * dy
            v_xy += row_x * dy
            v_yy += row_1 * dy * dy
        if count > 0:
            g, two = order[k], real(2)
            touched[g] = count
            g_means2d[g, 0] = two * half_xx * v_x + xy * v_y
            g_means2d[g, 1] = xy * v_x + two * half_yy * v_y
            g_conics[g, 0], g_conics[g, 1], g_conics[g, 2] = half * v_xx, v_xy, half * v_yy
            g_opacities[g] = -v_1 / opacity
            g_colors[g, 0], g_colors[g, 1], g_colors[g, 2] = g_red, g_green, g_blue


@njit(**_FAST)
def clear(width, image, transmittance, stops):
    """The buffers of `compose` for an empty image."""
    image[:] = 0
    transmittance[:] = 1
    stops[:, :width] = NEVER
    stops[:, width:] = -1


@njit(**_FAST)
def finish(image, transmittance, background, colors, alphas):
    """Adds the background: colors [3, H, W] and alphas [H, W] from the padded buffers."""
    one = alphas.dtype.type(1)
    for y in range(alphas.shape[0]):
        for x in range(alphas.shape[1]):
            alphas[y, x] = one - transmittance[y, x]
        for channel in range(3):
            shade = background[channel]
            for x in range(alphas.shape[1]):
                colors[channel, y, x] = image[channel, y, x] + shade * transmittance[y, x]


@njit(**_FAST)
def start_backward(background, g_colors, g_alphas, has_alphas, final, transmittance, g_image, behind):
    """Fills the padded buffers that `compose_backward` consumes. final [H, W8]: transmittance after `compose`."""
    height, width = g_colors.shape[1], g_colors.shape[2]
    b0, b1, b2 = background[0], background[1], background[2]
    transmittance[:] = final
    g_image[:, :, width:] = 0
    behind[:, width:] = 0
    for y in range(height):
        for channel in range(3):
            for x in range(width):
                g_image[channel, y, x] = g_colors[channel, y, x]
        for x in range(width):
            through = b0 * g_colors[0, y, x] + b1 * g_colors[1, y, x] + b2 * g_colors[2, y, x]
            if has_alphas:
                through -= g_alphas[y, x]
            behind[y, x] = final[y, x] * through
