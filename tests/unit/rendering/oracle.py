"""gsplat's own torch reference functions as the oracle of the CPU renderer, in any float type, with autograd.

Two pieces are ours: a stand-in for `nerfacc` (an optional dependency of gsplat) and the list of (Gaussian, pixel)
pairs in the order of compositing, which gsplat computes on the GPU.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import torch
from gsplat.cuda import _torch_impl as reference

from odin.data.scene import Camera
from odin.rendering.interface import Gaussians, RenderSettings

FIELDS = ("means", "quats", "scales", "opacities", "sh")


def _render_weight_from_alpha(alphas, ray_indices, n_rays):
    """Weights alpha_i prod_{j<i} (1 - alpha_j) along each ray; pairs are grouped by ray and sorted."""
    counts = torch.bincount(ray_indices, minlength=n_rays)
    slot = torch.arange(len(alphas)) - (torch.cumsum(counts, 0) - counts)[ray_indices]
    longest = int(counts.max()) if len(alphas) else 0
    dense = alphas.new_zeros(n_rays, longest + 1).index_put((ray_indices, slot + 1), alphas)
    transmittance = torch.cumprod(1 - dense, dim=1)[ray_indices, slot]
    return alphas * transmittance, transmittance


def _accumulate_along_rays(weights, values, ray_indices, n_rays):
    source = weights[:, None] if values is None else weights[:, None] * values
    return source.new_zeros(n_rays, source.shape[-1]).index_add(0, ray_indices, source)


def install_nerfacc_stand_in() -> None:
    module = ModuleType("nerfacc")
    module.render_weight_from_alpha = _render_weight_from_alpha
    module.accumulate_along_rays = _accumulate_along_rays
    sys.modules.setdefault("nerfacc", module)


def contributing_pairs(means2d, conics, opacities, depths, radii, width, height):
    """All (Gaussian, pixel) pairs that gsplat's rasteriser draws, grouped by pixel, front to back."""
    means2d, conics, opacities = (t.detach().double().numpy() for t in (means2d, conics, opacities))
    visible = np.flatnonzero(radii.numpy()[:, 0] > 0)
    order = visible[np.argsort(depths.detach().float().numpy()[visible], kind="stable")]
    px, py = np.meshgrid(np.arange(width) + 0.5, np.arange(height) + 0.5)
    transmittance, done = np.ones((height, width)), np.zeros((height, width), bool)
    rows, pixels = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for g in order:
        dx, dy = means2d[g, 0] - px, means2d[g, 1] - py
        s = 0.5 * (conics[g, 0] * dx * dx + conics[g, 2] * dy * dy) + conics[g, 1] * dx * dy
        alpha = np.minimum(0.999, opacities[g] * np.exp(-s))
        hit = (s >= 0) & (alpha >= 1 / 255) & ~done
        after = transmittance * (1 - alpha)
        done |= hit & (after <= 1e-4)
        hit &= ~done
        transmittance = np.where(hit, after, transmittance)
        pixels.append(np.flatnonzero(hit.ravel()))
        rows.append(np.full(len(pixels[-1]), g))
    rows, pixels = np.concatenate(rows), np.concatenate(pixels)
    grouped = np.argsort(pixels, kind="stable")
    return torch.from_numpy(rows[grouped]), torch.from_numpy(pixels[grouped])


@dataclass(kw_only=True, slots=True, eq=False)
class OracleResult:
    colors: torch.Tensor  # [3, H, W]
    alphas: torch.Tensor  # [H, W]
    inputs: dict[str, torch.Tensor]  # leaves, with gradients after a backward pass
    splats: dict[str, torch.Tensor]  # radii, means2d, depths, conics, opacities, colors; gradients retained
    touched: np.ndarray  # [N] pixels per primitive


def render(gaussians: Gaussians, camera: Camera, settings: RenderSettings, background, dtype=torch.float64):
    """One image through gsplat's reference functions."""
    install_nerfacc_stand_in()
    leaves = {name: torch.tensor(getattr(gaussians, name), dtype=dtype).requires_grad_() for name in FIELDS}
    viewmat, K = torch.tensor(camera.viewmat, dtype=dtype), torch.tensor(camera.K, dtype=dtype)
    position = torch.tensor(camera.position, dtype=dtype)
    width, height = camera.width, camera.height
    covars, _ = reference._quat_scale_to_covar_preci(leaves["quats"], leaves["scales"], True, False)
    radii, means2d, depths, conics, factors = reference._fully_fused_projection(
        leaves["means"], covars, viewmat[None], K[None], width, height, eps2d=settings.eps2d,
        near_plane=settings.near_plane, far_plane=settings.far_plane, calc_compensations=settings.antialiased,
    )  # fmt: skip
    radii, means2d, depths, conics = radii[0], means2d[0], depths[0], conics[0]
    opacities = leaves["opacities"] * factors[0] if settings.antialiased else leaves["opacities"] * 1.0
    sh = reference._spherical_harmonics(settings.sh_degree, leaves["means"] - position, leaves["sh"])
    colors = torch.clamp_min(sh + 0.5, 0.0)
    for tensor in (means2d, conics, opacities, colors):
        tensor.retain_grad()
    rows, pixels = contributing_pairs(means2d, conics, opacities, depths, radii, width, height)
    image, alphas = reference.accumulate(
        means2d[None], conics[None], opacities[None], colors[None], rows, pixels, torch.zeros_like(rows), width, height
    )
    image, alphas = image[0], alphas[0, ..., 0]
    image = image + torch.as_tensor(background, dtype=dtype) * (1 - alphas[..., None])
    return OracleResult(
        colors=image.permute(2, 0, 1), alphas=alphas, inputs=leaves,
        splats={"radii": radii, "means2d": means2d, "depths": depths, "conics": conics, "opacities": opacities,
                "colors": colors},
        touched=np.bincount(rows.numpy(), minlength=len(leaves["means"])),
    )  # fmt: skip
