"""Which primitives can touch an image at all: a linear test that no drawn primitive fails.

Derivation, for the right side (the other sides are its mirror images). Let (x, y, z) be the centre in camera space
with z > near > 0, s the largest scale, e <= 3.33 the extent in standard deviations down to alpha = 1/255. The
splat's horizontal variance is J0 C J0^T + eps2d, where C is the covariance in camera space and

    J0 = (fx / z, 0, -fx tx / z^2),    tx / z clamped to [-(cx / fx + m), (W - cx) / fx + m],   m = 0.15 W / fx,

so |J0| <= fx sqrt(1 + lim^2) / z with lim the larger end of the clamp in absolute value (with an off-centre principal
point the ends differ; with one outside the image they may have the same sign). With C <= s^2 I and
sqrt(a + b) <= sqrt(a) + sqrt(b), the radius is at most

    ceil(e sqrt(variance)) < fx sqrt(1 + lim^2) e s / z + e sqrt(eps2d) + 1.

A drawn splat has u - radius < W with u = fx x / z + cx. Multiplied by z, with q = 1.01 + 3.33 sqrt(eps2d):

    fx x - (W - cx + q) z < fx sqrt(1 + lim^2) e s.

The left side is linear in the centre. A centre that is off by a distance d changes it by at most d times the norm of
its gradient, hypot(fx, W - cx + q) for a rotation, which is below fx + |W - cx + q|. So the test stays true for every
centre within d and every scale up to s. The near plane is the same kind of test with no reach: near - z < d.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from odin.data.scene import Camera
from odin.rendering.interface import RenderSettings

#: Standard deviations at which the most opaque splat falls below alpha = 1/255; gsplat's constant.
MAX_EXTENT = 3.33
#: Pixels a radius gains by rounding up, plus 0.01 for rounding errors of the projection.
_ROUNDING_PX = 1.01
#: gsplat linearises the projection at most this far outside the image, as a share of its width or height.
_CLAMP_MARGIN = 0.15


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SidePlanes:
    """Sides right, left, bottom, top, near, in this order. Row p may be drawn only if, for all five sides j,

    coefficients[j, :3] . means[p] + coefficients[j, 3] < reach_factors[j] * reach[p] + shift_factors[j] * shift[p]

    with reach = extent * largest scale (`reach`) and shift a bound on the Euclidean distance between the centre
    given and the true one.
    """

    coefficients: np.ndarray  # [5, 4] float64, world space, pixels times world units
    reach_factors: np.ndarray  # [5] float64
    shift_factors: np.ndarray  # [5] float64

    def may_touch(self, means: np.ndarray, reach: np.ndarray, shift: np.ndarray | float = 0.0) -> np.ndarray:
        """The test above. means [N, 3], reach [N], shift [N] or a number, world units. [N] bool

        A negative reach marks rows that are not drawn whatever their place.
        """
        means = np.asarray(means, np.float64)
        reach = np.asarray(reach, np.float64)
        values = means @ self.coefficients[:, :3].T + self.coefficients[:, 3]  # [N, 5]
        slack = reach[:, None] * self.reach_factors
        slack += np.broadcast_to(np.asarray(shift, np.float64), reach.shape)[:, None] * self.shift_factors
        # written so that rows that are not finite pass: the renderer decides on them
        return ~(values >= slack).any(axis=1) & ~(reach < 0)


def side_planes(camera: Camera, settings: RenderSettings) -> SidePlanes:
    """The five side tests of a camera, by the derivation in this module's docstring."""
    viewmat, K = np.asarray(camera.viewmat, np.float64), np.asarray(camera.K, np.float64)
    q = _ROUNDING_PX + MAX_EXTENT * math.sqrt(settings.eps2d)
    # 1 for rotations; keeps the test right for view matrices that are slightly or deliberately something else
    stretch = float(np.linalg.norm(viewmat[:3, :3], 2))
    coefficients, reach_factors = np.zeros((5, 4)), np.zeros(5)
    for axis, size in ((0, camera.width), (1, camera.height)):
        focal, centre = K[axis, axis], K[axis, 2]
        margin = _CLAMP_MARGIN * size / focal
        lim = max(abs((size - centre) / focal + margin), abs(centre / focal + margin))
        beyond, before = 2 * axis, 2 * axis + 1
        coefficients[beyond] = focal * viewmat[axis] - (size - centre + q) * viewmat[2]
        coefficients[before] = -focal * viewmat[axis] - (centre + q) * viewmat[2]
        reach_factors[[beyond, before]] = focal * math.sqrt(1.0 + lim * lim) * stretch
    coefficients[4] = -viewmat[2]
    coefficients[4, 3] += settings.near_plane
    return SidePlanes(
        coefficients=coefficients,
        reach_factors=reach_factors,
        shift_factors=np.linalg.norm(coefficients[:, :3], axis=1),
    )


def reach(scales: np.ndarray, opacities: np.ndarray | None = None) -> np.ndarray:
    """Extent times largest scale, world units; -1 for rows too faint to be drawn. scales [N, 3], opacities [N]. [N]

    The extent is 3.33 or, given opacities, the smaller sqrt(2 ln(255 o)); the antialiasing factor only lowers it.
    Pass the largest scales and opacities that the rows may have. Relative 1e-5 is added for float32 rounding.
    """
    largest = np.asarray(scales, np.float64).max(axis=1, initial=0.0)
    if opacities is None:
        return largest * (MAX_EXTENT * (1.0 + 1e-5))
    above = 255.0 * np.asarray(opacities, np.float64) * (1.0 + 1e-5)
    extent = np.minimum(MAX_EXTENT, np.sqrt(2.0 * np.log(np.maximum(above, 1.0))) + 1e-3)
    return np.where(above < 1.0, -1.0, largest * extent * (1.0 + 1e-5))


def rounding_shift(means: np.ndarray, camera: Camera) -> np.ndarray:
    """Distance by which float32 rounding may displace centres in camera space. means [N, 3]. [N] world units

    Four roundings of terms no larger than |mean| + |translation|; it matters for points very close to a camera far
    from the origin.
    """
    size = np.abs(np.asarray(means, np.float64)).sum(axis=1) + np.abs(np.asarray(camera.viewmat)[:3, 3]).sum()
    return size * (8.0 * float(np.finfo(np.float32).eps))
