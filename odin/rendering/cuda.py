"""The CUDA renderer: gsplat's own kernels, unchanged, behind the interface that the CPU renderer has.

The autograd graph is cut at the splats: `project` and `compose` each build their own part, so that splats and their
gradients can travel between ranks in NumPy arrays. Importable, but not usable, without a GPU.

gsplat's backward kernels add with atomics in any order: results differ in their last bits from call to call. Compare
them with tolerances only.
"""

from __future__ import annotations

import math

import gsplat
import numpy as np
import torch
import torch.nn.functional as F

from odin.data.scene import Camera
from odin.rendering.interface import Gaussians, Image, PreparedTarget, RenderSettings, SplatGradients, Splats
from odin.rendering.validation import check_inputs

TILE_PX = 16
_WINDOW, _SIGMA = 11, 1.5
_C1, _C2 = 0.01**2, 0.03**2


class CudaRenderer:
    """`odin.rendering.interface.Renderer` in float32 through gsplat's CUDA functions.

    Differs from `CpuRenderer` in `SplatGradients.touched`: gsplat does not count pixels, so it is 1 for rows with any
    non-zero gradient and 0 for all others. Rows whose projection is not finite are not caught: `check_finite` first
    where that is possible.
    """

    name = "cuda"

    def __init__(self, device: str = "cuda") -> None:
        self._device = torch.device(device)

    def project(self, gaussians: Gaussians, camera: Camera, settings: RenderSettings) -> Splats:
        """Splats of the primitives; rows that cannot touch the image hold zeros."""
        check_inputs(gaussians, settings)
        inputs = [
            self._tensor(values).requires_grad_()
            for values in (gaussians.means, gaussians.quats, gaussians.scales, gaussians.opacities, gaussians.sh)
        ]
        means, quats, scales, opacities, sh = inputs
        if len(means):
            radii, depths, outputs = self._project(means, quats, scales, opacities, sh, camera, settings)
        else:  # gsplat's kernels do not take empty arrays
            radii, depths = means.new_zeros((0, 2), dtype=torch.int32), means.new_zeros(0)
            outputs = [means[:, :2] * 1, scales * 1, opacities * 1, scales * 1]
        visible = (radii > 0).all(-1)
        # gsplat leaves rows outside the view unwritten
        means2d, conics, splat_opacities, colors = (
            torch.where(visible.reshape(-1, *[1] * (o.dim() - 1)), o.detach(), 0.0) for o in outputs
        )
        radii, depths = torch.where(visible[:, None], radii, 0), torch.where(visible, depths.detach(), 0.0)
        self._inputs, self._outputs, self._visible = inputs, outputs, visible
        self._on_device = (radii, means2d, depths, conics, splat_opacities, colors)
        self._projected = Splats(
            radii=_numpy(radii),
            means2d=_numpy(means2d),
            depths=_numpy(depths),
            conics=_numpy(conics),
            opacities=_numpy(splat_opacities),
            colors=_numpy(colors),
        )
        return self._projected

    def _project(self, means, quats, scales, opacities, sh, camera, settings):
        """gsplat's projection and colours: radii, depths, and [means2d, conics, opacities, colors] with graph."""
        radii, means2d, depths, conics, factors = gsplat.fully_fused_projection(
            means, None, quats, scales, self._tensor(camera.viewmat)[None], self._tensor(camera.K)[None],
            camera.width, camera.height, eps2d=settings.eps2d, near_plane=settings.near_plane,
            far_plane=settings.far_plane, calc_compensations=settings.antialiased, opacities=opacities,
        )  # fmt: skip
        visible = (radii[0] > 0).all(-1)
        if settings.antialiased:
            # a product with an unwritten factor could be NaN, and so would be its gradient
            opacities = opacities * torch.where(visible, factors[0], 0.0)
        else:
            opacities = opacities * 1.0
        directions = means - self._tensor(camera.position)
        colors = gsplat.spherical_harmonics(settings.sh_degree, directions, sh, masks=visible)
        return radii[0], depths[0], [means2d[0], conics[0], opacities, torch.clamp_min(colors + 0.5, 0.0)]

    def compose(self, splats: Splats, camera: Camera, background: np.ndarray) -> Image:
        """Composes any splats, not only those projected here. background: [3]"""
        if splats is self._projected:
            radii, means2d, depths, conics, opacities, colors = self._on_device
        else:
            radii = torch.from_numpy(np.ascontiguousarray(splats.radii, np.int32)).to(self._device)
            means2d, depths, conics, opacities, colors = (
                self._tensor(a) for a in (splats.means2d, splats.depths, splats.conics, splats.opacities, splats.colors)
            )
        leaves = [t.clone().requires_grad_() for t in (means2d, conics, opacities, colors)]
        if bool((radii > 0).all(-1).any()):
            image, alphas = self._rasterize(radii, depths, leaves, camera, self._tensor(background))
        else:
            image = self._tensor(background).expand(camera.height, camera.width, 3)
            alphas = image.new_zeros(camera.height, camera.width)
        self._leaves, self._composed = leaves, (image, alphas)
        return Image(colors=_numpy(image.permute(2, 0, 1).contiguous()), alphas=_numpy(alphas))

    def _rasterize(self, radii, depths, leaves, camera, background):
        """Image [H, W, 3] and alphas [H, W] with graph."""
        means2d, conics, opacities, colors = leaves
        tiles_x, tiles_y = math.ceil(camera.width / TILE_PX), math.ceil(camera.height / TILE_PX)
        with torch.no_grad():
            _, isect_ids, flatten_ids = gsplat.isect_tiles(
                means2d[None], radii[None], depths[None], TILE_PX, tiles_x, tiles_y
            )
            offsets = gsplat.isect_offset_encode(isect_ids, 1, tiles_x, tiles_y)
        image, alphas = gsplat.rasterize_to_pixels(
            means2d[None], conics[None], colors[None], opacities[None], camera.width, camera.height, TILE_PX,
            offsets, flatten_ids, backgrounds=background[None],
        )  # fmt: skip
        return image[0], alphas[0, ..., 0]

    def compose_backward(self, grad_colors: np.ndarray, grad_alphas: np.ndarray | None = None) -> SplatGradients:
        """Splat gradients for the image composed last; may be called again with other gradients."""
        image, alphas = self._composed
        height, width = alphas.shape
        if grad_colors.shape != (3, height, width):
            raise ValueError(f"grad_colors: got shape {grad_colors.shape}, expected (3, {height}, {width})")
        if image.requires_grad:
            given = [self._tensor(grad_colors).permute(1, 2, 0).contiguous()]
            given.append(torch.zeros_like(alphas) if grad_alphas is None else self._tensor(grad_alphas))
            grads = torch.autograd.grad((image, alphas), self._leaves, given, retain_graph=True)
        else:
            grads = tuple(torch.zeros_like(leaf) for leaf in self._leaves)
        touched = torch.cat([g.flatten(1) if g.dim() > 1 else g[:, None] for g in grads], dim=1).ne(0).any(1)
        means2d, conics, opacities, colors = (_numpy(g) for g in grads)
        return SplatGradients(
            means2d=means2d, conics=conics, opacities=opacities, colors=colors, touched=_numpy(touched.int())
        )

    def project_backward(self, grads: SplatGradients) -> Gaussians:
        """Gradients of the primitives projected last; rows with touched 0 are exactly zero."""
        keep = torch.from_numpy(grads.touched > 0).to(self._device) & self._visible
        given = [
            torch.where(keep.reshape(-1, *[1] * (g.ndim - 1)), self._tensor(g), 0.0)
            for g in (grads.means2d, grads.conics, grads.opacities, grads.colors)
        ]
        if len(keep):
            results = torch.autograd.grad(self._outputs, self._inputs, given, retain_graph=True)
        else:
            results = tuple(torch.zeros_like(t) for t in self._inputs)
        means, quats, scales, opacities, sh = (_numpy(r) for r in results)
        return Gaussians(means=means, quats=quats, scales=scales, opacities=opacities, sh=sh)

    def prepare_target(self, target: np.ndarray) -> PreparedTarget:
        """The target on the device, with its windowed mean and second moment."""
        tensor = self._tensor(target)
        return PreparedTarget(image=target, extra=(tensor, _blur(tensor), _blur(tensor * tensor)))

    def loss(
        self, image: np.ndarray, target: np.ndarray | PreparedTarget, ssim_weight: float
    ) -> tuple[float, np.ndarray]:
        """(1 - w) L1 + w (1 - SSIM) over planar images, and its gradient with respect to `image` ([3, H, W])."""
        if not isinstance(target, PreparedTarget):
            target = self.prepare_target(target)
        if target.image.shape != image.shape:
            raise ValueError(f"loss: image has shape {image.shape}, target {target.image.shape}")
        b, m2, e2 = target.extra
        a = self._tensor(image).requires_grad_()
        m1 = _blur(a)
        s1, s2, s12 = _blur(a * a) - m1 * m1, e2 - m2 * m2, _blur(a * b) - m1 * m2
        ssim = ((2 * m1 * m2 + _C1) * (2 * s12 + _C2)) / ((m1 * m1 + m2 * m2 + _C1) * (s1 + s2 + _C2))
        loss = (1 - ssim_weight) * (a - b).abs().mean() + ssim_weight * (1 - ssim.mean())
        (gradient,) = torch.autograd.grad(loss, a)
        return loss.item(), _numpy(gradient)

    def _tensor(self, values: np.ndarray) -> torch.Tensor:
        """A float32 copy on the device: callers may go on to reuse their arrays."""
        return torch.tensor(np.ascontiguousarray(values, np.float32), device=self._device)


def _numpy(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy()


def _blur(image: torch.Tensor) -> torch.Tensor:
    """SSIM's separable Gaussian window over [C, H, W], zero padded."""
    distances = torch.arange(_WINDOW, device=image.device, dtype=image.dtype) - _WINDOW // 2
    taps = torch.exp(-(distances**2) / (2 * _SIGMA**2))
    taps = taps / taps.sum()
    planes = image[:, None]  # [C, 1, H, W]
    planes = F.conv2d(planes, taps.view(1, 1, 1, -1), padding=(0, _WINDOW // 2))
    return F.conv2d(planes, taps.view(1, 1, -1, 1), padding=(_WINDOW // 2, 0))[:, 0]
