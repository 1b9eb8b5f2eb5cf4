"""Projection of primitives to splats with their view-dependent colours, and the way back. One pass per primitive.

Sources: EWA splatting (Zwicker et al. 2001), 3D Gaussian Splatting (Kerbl et al. 2023, section 4 and appendix A),
gsplat (Ye et al. 2024, arXiv 2409.06765, appendix) whose clamps and thresholds are followed exactly; spherical
harmonics by Sloan 2013. With the quaternion's rotation R, S = diag(scales), the world-to-camera rotation W and the
Jacobian J of the perspective map at the centre,

    U = J W R S  [2, 3],   cov = U U^T + eps2d I,   conic = cov^-1.

The backward pass is the chain rule of that, written out. `G` below is dL/dcov (symmetric).

Every decision (visible or not, radius) is a pure function of the row and the camera.
"""

from __future__ import annotations

import math
from collections import namedtuple
from typing import Any

import numpy as np
from numba import njit

# no 'nnan'/'ninf': rows that are not finite must be recognised
_FAST: dict[str, Any] = {
    "cache": True,
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "nsz", "arcp", "afn"},
}
_INLINE: dict[str, Any] = {"inline": "always", **_FAST}

#: A splat wider than this is not drawn: its radius would not be exact in float32 nor its conic a normal number.
MAX_RADIUS_PX = 2**24

# Constants of the real spherical harmonics, in gsplat's order and signs.
_SH0 = 0.2820947917738781
_SH1 = 0.48860251190292
_SH2_XY, _SH2_Z, _SH2_ZZ, _SH2_0 = 0.5462742152960395, 1.092548430592079, 0.9461746957575601, 0.3153915652525201
_SH3_XYZ, _SH3_ZZ, _SH3_0 = 0.5900435899266435, 2.285228997322329, 0.4570457994644658
_SH3_Z, _SH3_ZZZ, _SH3_Z0 = 1.445305721320277, 1.865881662950577, 1.119528997770346

#: A camera as scalars: rotation w, translation t, intrinsics, and the Jacobian's clamp on x/z and y/z. Worked out
#: once per call: from arrays, which might overlap the outputs, the compiler would have to do it for every row.
View = namedtuple("View", "w00 w01 w02 w10 w11 w12 w20 w21 w22 t0 t1 t2 fx fy cx cy left right top bottom")

#: All intermediate quantities of one row that both directions need.
Footprint = namedtuple(
    "Footprint",
    "inv_norm qw qx qy qz "  # 1 / |quat| and the unit quaternion
    "r00 r01 r02 r10 r11 r12 r20 r21 r22 "  # R
    "s0 s1 s2 x y z inv_z "  # scales; centre in camera space
    "x_free y_free tx ty "  # centre inside the Jacobian's clamp? clamped centre
    "p00 p01 p02 p10 p11 p12 "  # J W
    "u00 u01 u02 u10 u11 u12 "  # U
    "cov_xx cov_yy det_free inv_det conic_xx conic_xy conic_yy",
)


@njit(**_INLINE)
def _view(real, viewmat, K, width, height):
    fx, fy, cx, cy = K[0, 0], K[1, 1], K[0, 2], K[1, 2]
    # J is linearised at a centre clamped to 0.15 image widths beyond the image on each side
    margin_x, margin_y = real(0.15) * real(width) / fx, real(0.15) * real(height) / fy
    return View(
        viewmat[0, 0], viewmat[0, 1], viewmat[0, 2], viewmat[1, 0], viewmat[1, 1], viewmat[1, 2],
        viewmat[2, 0], viewmat[2, 1], viewmat[2, 2], viewmat[0, 3], viewmat[1, 3], viewmat[2, 3], fx, fy, cx, cy,
        -(cx / fx + margin_x), (real(width) - cx) / fx + margin_x,
        -(cy / fy + margin_y), (real(height) - cy) / fy + margin_y,
    )  # fmt: skip


@njit(**_INLINE)
def _footprint(real, means, quats, scales, i, v, eps2d):
    """Everything of row i up to its conic. Degenerate rows give values that are not finite; `_visible` drops them."""
    one, two = real(1), real(2)
    q0, q1, q2, q3 = quats[i, 0], quats[i, 1], quats[i, 2], quats[i, 3]
    # as torch's normalize: a zero quaternion becomes 0 / 1e-12 and its "rotation" the identity
    inv_norm = one / math.sqrt(max(q0 * q0 + q1 * q1 + q2 * q2 + q3 * q3, real(1e-24)))
    qw, qx, qy, qz = q0 * inv_norm, q1 * inv_norm, q2 * inv_norm, q3 * inv_norm
    r00, r01, r02 = one - two * (qy * qy + qz * qz), two * (qx * qy - qw * qz), two * (qx * qz + qw * qy)
    r10, r11, r12 = two * (qx * qy + qw * qz), one - two * (qx * qx + qz * qz), two * (qy * qz - qw * qx)
    r20, r21, r22 = two * (qx * qz - qw * qy), two * (qy * qz + qw * qx), one - two * (qx * qx + qy * qy)
    s0, s1, s2 = scales[i, 0], scales[i, 1], scales[i, 2]

    m0, m1, m2 = means[i, 0], means[i, 1], means[i, 2]
    x = v.w00 * m0 + v.w01 * m1 + v.w02 * m2 + v.t0
    y = v.w10 * m0 + v.w11 * m1 + v.w12 * m2 + v.t1
    z = v.w20 * m0 + v.w21 * m1 + v.w22 * m2 + v.t2
    inv_z = one / max(z, real(1e-6))

    ratio_x, ratio_y = x * inv_z, y * inv_z
    x_free = ratio_x <= v.right and ratio_x >= v.left
    y_free = ratio_y <= v.bottom and ratio_y >= v.top
    tx, ty = z * min(v.right, max(v.left, ratio_x)), z * min(v.bottom, max(v.top, ratio_y))
    j00, j02 = v.fx * inv_z, -v.fx * tx * inv_z * inv_z
    j11, j12 = v.fy * inv_z, -v.fy * ty * inv_z * inv_z

    p00, p01, p02 = j00 * v.w00 + j02 * v.w20, j00 * v.w01 + j02 * v.w21, j00 * v.w02 + j02 * v.w22
    p10, p11, p12 = j11 * v.w10 + j12 * v.w20, j11 * v.w11 + j12 * v.w21, j11 * v.w12 + j12 * v.w22
    u00, u10 = (p00 * r00 + p01 * r10 + p02 * r20) * s0, (p10 * r00 + p11 * r10 + p12 * r20) * s0
    u01, u11 = (p00 * r01 + p01 * r11 + p02 * r21) * s1, (p10 * r01 + p11 * r11 + p12 * r21) * s1
    u02, u12 = (p00 * r02 + p01 * r12 + p02 * r22) * s2, (p10 * r02 + p11 * r12 + p12 * r22) * s2

    xx, yy = u00 * u00 + u01 * u01 + u02 * u02, u10 * u10 + u11 * u11 + u12 * u12
    xy = u00 * u10 + u01 * u11 + u02 * u12
    det_free = xx * yy - xy * xy
    if det_free < real(0.01) * xx * yy:
        # needle-like splats: det(U U^T) as a sum of squared minors (Cauchy-Binet), never negative, no cancellation
        minor0, minor1, minor2 = u01 * u12 - u02 * u11, u02 * u10 - u00 * u12, u00 * u11 - u01 * u10
        det_free = minor0 * minor0 + minor1 * minor1 + minor2 * minor2
    inv_det = one / max(det_free + eps2d * (xx + yy) + eps2d * eps2d, real(1e-10))
    cov_xx, cov_yy = xx + eps2d, yy + eps2d
    return Footprint(
        inv_norm, qw, qx, qy, qz, r00, r01, r02, r10, r11, r12, r20, r21, r22, s0, s1, s2, x, y, z, inv_z,
        x_free, y_free, tx, ty, p00, p01, p02, p10, p11, p12, u00, u01, u02, u10, u11, u12,
        cov_xx, cov_yy, det_free, inv_det, cov_yy * inv_det, -xy * inv_det, cov_xx * inv_det,
    )  # fmt: skip


@njit(**_INLINE)
def _sh_basis(real, degree, x, y, z, basis):
    """Real spherical harmonics of a unit direction, (degree + 1)^2 of them. basis: [16] buffer"""
    basis[0] = real(_SH0)
    if degree < 1:
        return
    basis[1], basis[2], basis[3] = -real(_SH1) * y, real(_SH1) * z, -real(_SH1) * x
    if degree < 2:
        return
    cos2, sin2, zz = x * x - y * y, real(2) * x * y, z * z
    basis[4], basis[5] = real(_SH2_XY) * sin2, -real(_SH2_Z) * z * y
    basis[6] = real(_SH2_ZZ) * zz - real(_SH2_0)
    basis[7], basis[8] = -real(_SH2_Z) * z * x, real(_SH2_XY) * cos2
    if degree < 3:
        return
    across = real(_SH3_0) - real(_SH3_ZZ) * zz
    basis[9], basis[10] = -real(_SH3_XYZ) * (x * sin2 + y * cos2), real(_SH3_Z) * z * sin2
    basis[11] = across * y
    basis[12] = z * (real(_SH3_ZZZ) * zz - real(_SH3_Z0))
    basis[13] = across * x
    basis[14], basis[15] = real(_SH3_Z) * z * cos2, -real(_SH3_XYZ) * (x * cos2 - y * sin2)


@njit(**_INLINE)
def _sh_direction_gradient(real, degree, x, y, z, h):
    """Gradient of sum_k h[k] basis_k with respect to the direction, before its normalisation."""
    gx = gy = gz = real(0)
    two, three = real(2), real(3)
    if degree > 0:
        gx, gy, gz = -real(_SH1) * h[3], -real(_SH1) * h[1], real(_SH1) * h[2]
    if degree > 1:
        c_xy, c_z = two * real(_SH2_XY), -real(_SH2_Z)
        gx += c_z * z * h[7] + c_xy * (x * h[8] + y * h[4])
        gy += c_z * z * h[5] + c_xy * (x * h[4] - y * h[8])
        gz += two * real(_SH2_ZZ) * z * h[6] + c_z * (x * h[7] + y * h[5])
    if degree > 2:
        cos2, sin2, zz = x * x - y * y, two * x * y, z * z
        across, c_z, c_xyz = real(_SH3_0) - real(_SH3_ZZ) * zz, real(_SH3_Z), three * real(_SH3_XYZ)
        gx += across * h[13] + two * c_z * z * (x * h[14] + y * h[10]) - c_xyz * (cos2 * h[15] + sin2 * h[9])
        gy += across * h[11] + two * c_z * z * (x * h[10] - y * h[14]) - c_xyz * (cos2 * h[9] - sin2 * h[15])
        gz += (three * real(_SH3_ZZZ) * zz - real(_SH3_Z0)) * h[12] + c_z * (cos2 * h[14] + sin2 * h[10])
        gz -= two * real(_SH3_ZZ) * z * (x * h[13] + y * h[11])
    return gx, gy, gz


@njit(**_INLINE)
def _view_direction(real, means, i, position):
    """Unit vector from the camera to row i, and one over the distance."""
    dx, dy, dz = means[i, 0] - position[0], means[i, 1] - position[1], means[i, 2] - position[2]
    inv = real(1) / real(math.sqrt(max(dx * dx + dy * dy + dz * dz, real(1e-24))))
    return dx * inv, dy * inv, dz * inv, inv


@njit(**_INLINE)
def _ceil(real, x):
    """Of a number >= 0 that fits an int64; math.ceil would be a library call."""
    below = real(np.int64(x))
    return below + real(1) if below < x else below


@njit(**_FAST)
def project(
    means, quats, scales, opacities, sh, degree, viewmat, K, position, width, height, eps2d, near, far, antialiased,
    radii, means2d, depths, conics, out_opacities, colors,
):  # fmt: skip
    """Fills radii [N, 2], means2d [N, 2], depths [N], conics [N, 3], out_opacities [N], colors [N, 3].

    Rows that cannot touch the image, or whose projection is not finite, get zeros everywhere.
    """
    real = means.dtype.type
    basis = np.empty(16, means.dtype)
    num_basis = (degree + 1) ** 2
    zero, half, limit = real(0), real(0.5), real(MAX_RADIUS_PX - 1)
    v = _view(real, viewmat, K, width, height)
    for i in range(means.shape[0]):
        radii[i, 0] = radii[i, 1] = 0
        means2d[i, 0] = means2d[i, 1] = depths[i] = out_opacities[i] = zero
        conics[i, 0] = conics[i, 1] = conics[i, 2] = colors[i, 0] = colors[i, 1] = colors[i, 2] = zero

        p = _footprint(real, means, quats, scales, i, v, eps2d)
        if not (p.z > near and p.z < far):
            continue
        opacity = opacities[i]
        if antialiased:
            opacity = opacity * real(math.sqrt(p.det_free * p.inv_det))
        if not (opacity >= real(1.0 / 255.0) and opacity < real(np.inf)):
            continue
        # half-width, in standard deviations, of the region with alpha >= 1/255
        extent = min(real(3.33), real(math.sqrt(real(2) * real(math.log(opacity * real(255))))))
        reach_x, reach_y = extent * real(math.sqrt(p.cov_xx)), extent * real(math.sqrt(p.cov_yy))
        # written so that anything not finite fails
        if not (reach_x < limit and reach_y < limit and p.conic_xx > zero and p.conic_yy > zero):
            continue
        radius_x, radius_y = _ceil(real, reach_x), _ceil(real, reach_y)
        px, py = v.fx * p.x * p.inv_z + v.cx, v.fy * p.y * p.inv_z + v.cy
        if not (px + radius_x > zero and px - radius_x < width and py + radius_y > zero and py - radius_y < height):
            continue
        dx, dy, dz, _ = _view_direction(real, means, i, position)
        _sh_basis(real, degree, dx, dy, dz, basis)
        red = green = blue = half
        for k in range(num_basis):
            red += basis[k] * sh[i, k, 0]
            green += basis[k] * sh[i, k, 1]
            blue += basis[k] * sh[i, k, 2]
        if not (abs(red) + abs(green) + abs(blue) < real(np.inf)):
            continue
        radii[i, 0], radii[i, 1] = np.int32(radius_x), np.int32(radius_y)
        means2d[i, 0], means2d[i, 1], depths[i], out_opacities[i] = px, py, p.z, opacity
        conics[i, 0], conics[i, 1], conics[i, 2] = p.conic_xx, p.conic_xy, p.conic_yy
        colors[i, 0], colors[i, 1], colors[i, 2] = max(red, zero), max(green, zero), max(blue, zero)


@njit(**_INLINE)
def _zero_row(i, g_means, g_quats, g_scales, g_opacities, g_sh):
    for k in range(3):
        g_means[i, k] = g_scales[i, k] = 0
    for k in range(4):
        g_quats[i, k] = 0
    g_opacities[i] = 0
    for k in range(g_sh.shape[1]):
        g_sh[i, k, 0] = g_sh[i, k, 1] = g_sh[i, k, 2] = 0


@njit(**_INLINE)
def _covariance_gradient(real, p, eps2d, antialiased, opacity, g_conic_xx, g_conic_xy, g_conic_yy, g_opacity):
    """G = dL/dcov as xx, xy, yy, and dL/d(opacity of the primitive)."""
    half, one = real(0.5), real(1)
    # G = -conic (dL/dconic) conic, where dL/dconic is symmetric: half of the xy entry on each side
    a, b, c = p.conic_xx, p.conic_xy, p.conic_yy
    ga, gb, gc = g_conic_xx, half * g_conic_xy, g_conic_yy
    t00, t01, t10, t11 = a * ga + b * gb, a * gb + b * gc, b * ga + c * gb, b * gb + c * gc
    g_xx, g_xy, g_yy = -(t00 * a + t01 * b), -(t00 * b + t01 * c), -(t10 * b + t11 * c)
    if antialiased:
        # factor = sqrt(det_free / det); d factor^2 / dcov = (1 - factor^2) conic - eps2d / det I
        square = p.det_free * p.inv_det
        factor = real(math.sqrt(square))
        # the root's slope is unbounded at a splat seen exactly edge-on; gsplat bounds it too
        slope = half * g_opacity * opacity / max(factor, real(1e-6))
        g_xx += slope * ((one - square) * a - eps2d * p.inv_det)
        g_xy += slope * (one - square) * b
        g_yy += slope * ((one - square) * c - eps2d * p.inv_det)
        g_opacity = g_opacity * factor
    return g_xx, g_xy, g_yy, g_opacity


@njit(**_INLINE)
def _centre_gradient(real, p, v, g_u, g_v, g_j00, g_j02, g_j11, g_j12):
    """dL/dmean through means2d and through J = (fx/z, 0, -fx tx/z^2; 0, fy/z, -fy ty/z^2)."""
    one, two = real(1), real(2)
    iz = p.inv_z
    iz2 = iz * iz
    gx, gy = v.fx * iz * g_u, v.fy * iz * g_v
    # where the clamp holds, tx is proportional to z, so that J's third column goes with 1/z, else with 1/z^2
    power_x = power_y = one
    if p.x_free:
        gx -= v.fx * iz2 * g_j02
        power_x = two
    if p.y_free:
        gy -= v.fy * iz2 * g_j12
        power_y = two
    gz = -(v.fx * p.x * g_u + v.fy * p.y * g_v) * iz2 - v.fx * iz2 * g_j00 - v.fy * iz2 * g_j11
    gz += power_x * v.fx * p.tx * iz2 * iz * g_j02 + power_y * v.fy * p.ty * iz2 * iz * g_j12
    return (
        v.w00 * gx + v.w10 * gy + v.w20 * gz,
        v.w01 * gx + v.w11 * gy + v.w21 * gz,
        v.w02 * gx + v.w12 * gy + v.w22 * gz,
    )


@njit(**_INLINE)
def _quaternion_gradient(real, p, m00, m01, m02, m10, m11, m12, m20, m21, m22):
    """dL/dquat from m = dL/dR: R's derivative by the unit quaternion, then the normalisation's projection."""
    two = real(2)
    w, x, y, z = p.qw, p.qx, p.qy, p.qz
    gw = two * (x * (m21 - m12) + y * (m02 - m20) + z * (m10 - m01))
    gx = two * (y * (m01 + m10) + z * (m02 + m20) + w * (m21 - m12) - two * x * (m11 + m22))
    gy = two * (x * (m01 + m10) + z * (m12 + m21) + w * (m02 - m20) - two * y * (m00 + m22))
    gz = two * (x * (m02 + m20) + y * (m12 + m21) + w * (m10 - m01) - two * z * (m00 + m11))
    along = gw * w + gx * x + gy * y + gz * z
    # a zero quaternion has no direction to turn in
    inv = p.inv_norm if p.inv_norm < real(1e12) else real(0)
    return (gw - along * w) * inv, (gx - along * x) * inv, (gy - along * y) * inv, (gz - along * z) * inv


@njit(**_INLINE)
def _color_gradient(real, i, means, position, sh, degree, colors, g_colors, basis, weights, g_sh):
    """Fills g_sh[i]; returns dL/dmean through the viewing direction. basis, weights: [16] buffers"""
    zero = real(0)
    x, y, z, inv = _view_direction(real, means, i, position)
    _sh_basis(real, degree, x, y, z, basis)
    # max(SH + 0.5, 0) passes gradient where it is positive
    red = g_colors[i, 0] if colors[i, 0] > zero else zero
    green = g_colors[i, 1] if colors[i, 1] > zero else zero
    blue = g_colors[i, 2] if colors[i, 2] > zero else zero
    num_basis = (degree + 1) ** 2
    for k in range(num_basis):
        weights[k] = red * sh[i, k, 0] + green * sh[i, k, 1] + blue * sh[i, k, 2]
        g_sh[i, k, 0], g_sh[i, k, 1], g_sh[i, k, 2] = basis[k] * red, basis[k] * green, basis[k] * blue
    for k in range(num_basis, g_sh.shape[1]):
        g_sh[i, k, 0] = g_sh[i, k, 1] = g_sh[i, k, 2] = zero
    gx, gy, gz = _sh_direction_gradient(real, degree, x, y, z, weights)
    along = gx * x + gy * y + gz * z
    return (gx - along * x) * inv, (gy - along * y) * inv, (gz - along * z) * inv


@njit(**_FAST)
def project_backward(
    means, quats, scales, opacities, sh, degree, viewmat, K, position, width, height, eps2d, antialiased,
    radii, colors, touched, g_means2d, g_conics, g_splat_opacities, g_colors,
    g_means, g_quats, g_scales, g_opacities, g_sh,
):  # fmt: skip
    """Gradients of the primitives (g_means ... g_sh, overwritten) from those of their splats.

    Rows with radii 0 or touched 0 have zero gradient and are skipped.
    """
    real = means.dtype.type
    basis, weights = np.empty(16, means.dtype), np.empty(16, means.dtype)
    two = real(2)
    v = _view(real, viewmat, K, width, height)
    for i in range(means.shape[0]):
        if radii[i, 0] <= 0 or touched[i] <= 0:
            _zero_row(i, g_means, g_quats, g_scales, g_opacities, g_sh)
            continue
        p = _footprint(real, means, quats, scales, i, v, eps2d)
        g_xx, g_xy, g_yy, g_opacities[i] = _covariance_gradient(
            real, p, eps2d, antialiased, opacities[i], g_conics[i, 0], g_conics[i, 1], g_conics[i, 2],
            g_splat_opacities[i],
        )  # fmt: skip

        # cov = U U^T + eps2d I, so D = dL/dU = 2 G U; U = P R S with P = J W
        d00, d10 = two * (g_xx * p.u00 + g_xy * p.u10), two * (g_xy * p.u00 + g_yy * p.u10)
        d01, d11 = two * (g_xx * p.u01 + g_xy * p.u11), two * (g_xy * p.u01 + g_yy * p.u11)
        d02, d12 = two * (g_xx * p.u02 + g_xy * p.u12), two * (g_xy * p.u02 + g_yy * p.u12)
        # M = P^T D is dL/d(R S): columns times R's for the scales, times S for R
        m00, m01, m02 = p.p00 * d00 + p.p10 * d10, p.p00 * d01 + p.p10 * d11, p.p00 * d02 + p.p10 * d12
        m10, m11, m12 = p.p01 * d00 + p.p11 * d10, p.p01 * d01 + p.p11 * d11, p.p01 * d02 + p.p11 * d12
        m20, m21, m22 = p.p02 * d00 + p.p12 * d10, p.p02 * d01 + p.p12 * d11, p.p02 * d02 + p.p12 * d12
        g_scales[i, 0] = m00 * p.r00 + m10 * p.r10 + m20 * p.r20
        g_scales[i, 1] = m01 * p.r01 + m11 * p.r11 + m21 * p.r21
        g_scales[i, 2] = m02 * p.r02 + m12 * p.r12 + m22 * p.r22
        g_quats[i, 0], g_quats[i, 1], g_quats[i, 2], g_quats[i, 3] = _quaternion_gradient(
            real, p, m00 * p.s0, m01 * p.s1, m02 * p.s2, m10 * p.s0, m11 * p.s1, m12 * p.s2,
            m20 * p.s0, m21 * p.s1, m22 * p.s2,
        )  # fmt: skip

        # dL/dP = D (R S)^T, and of dL/dJ = dL/dP W^T only J's four entries
        e0, e1, e2, f0, f1, f2 = d00 * p.s0, d01 * p.s1, d02 * p.s2, d10 * p.s0, d11 * p.s1, d12 * p.s2
        gp00, gp10 = e0 * p.r00 + e1 * p.r01 + e2 * p.r02, f0 * p.r00 + f1 * p.r01 + f2 * p.r02
        gp01, gp11 = e0 * p.r10 + e1 * p.r11 + e2 * p.r12, f0 * p.r10 + f1 * p.r11 + f2 * p.r12
        gp02, gp12 = e0 * p.r20 + e1 * p.r21 + e2 * p.r22, f0 * p.r20 + f1 * p.r21 + f2 * p.r22
        gx, gy, gz = _centre_gradient(
            real, p, v, g_means2d[i, 0], g_means2d[i, 1],
            gp00 * v.w00 + gp01 * v.w01 + gp02 * v.w02, gp00 * v.w20 + gp01 * v.w21 + gp02 * v.w22,
            gp10 * v.w10 + gp11 * v.w11 + gp12 * v.w12, gp10 * v.w20 + gp11 * v.w21 + gp12 * v.w22,
        )  # fmt: skip
        hx, hy, hz = _color_gradient(real, i, means, position, sh, degree, colors, g_colors, basis, weights, g_sh)
        g_means[i, 0], g_means[i, 1], g_means[i, 2] = gx + hx, gy + hy, gz + hz
