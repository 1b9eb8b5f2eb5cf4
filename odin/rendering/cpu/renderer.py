"""The CPU renderer: buffers that grow and are reused around the kernels of this package."""

from __future__ import annotations

import numpy as np

from odin.data.scene import Camera
from odin.rendering.cpu import loss, projection, rasterization, sorting
from odin.rendering.interface import Gaussians, Image, PreparedTarget, RenderSettings, SplatGradients, Splats
from odin.rendering.validation import check_inputs


class _Buffers:
    """Named arrays, reallocated only when a larger size is asked for."""

    def __init__(self) -> None:
        self._arrays: dict[str, np.ndarray] = {}

    def rows(self, name: str, num: int, tail: tuple[int, ...], dtype: type) -> np.ndarray:
        """The first `num` rows of a buffer that grows by half at least. [num, *tail], contents arbitrary"""
        array = self._arrays.get(name)
        if array is None or array.shape[1:] != tail or len(array) < num:
            capacity = num if array is None or array.shape[1:] != tail else max(num, len(array) * 3 // 2)
            array = self._arrays[name] = np.empty((capacity, *tail), dtype)
        return array[:num]

    def image(self, name: str, shape: tuple[int, ...], dtype: type) -> np.ndarray:
        """A contiguous array of exactly this shape; views of several sizes share one buffer."""
        return self.rows(name, int(np.prod(shape)), (), dtype).reshape(shape)


class CpuRenderer:
    """`odin.rendering.interface.Renderer` on one thread, bit for bit repeatable.

    Arrays of another type or layout than C-contiguous `dtype` are copied first. What `project` was given must stay
    unchanged until `project_backward`. Not thread-safe: one object per thread.
    """

    name = "cpu"

    def __init__(self, dtype: type = np.float32) -> None:
        if np.dtype(dtype) not in (np.dtype(np.float32), np.dtype(np.float64)):
            raise ValueError(f"CpuRenderer: dtype {np.dtype(dtype)} not supported, use float32 or float64")
        self.dtype = np.dtype(dtype).type
        self._buffers = _Buffers()
        self._counts = np.empty((sorting.DIGITS, sorting.BUCKETS), np.int32)
        self._no_alphas = np.zeros((1, 1), self.dtype)

    def project(self, gaussians: Gaussians, camera: Camera, settings: RenderSettings) -> Splats:
        """Splats of the primitives; rows that cannot touch the image, or are not finite, hold zeros."""
        check_inputs(gaussians, settings)
        n, real = len(gaussians.means), self.dtype
        self._inputs = tuple(
            self._array(a)
            for a in (gaussians.means, gaussians.quats, gaussians.scales, gaussians.opacities, gaussians.sh)
        )
        # copies: read-only arrays are another type to Numba and would compile every kernel once more
        self._camera = tuple(np.array(a, real, order="C") for a in (camera.viewmat, camera.K, camera.position))
        self._size = (camera.width, camera.height)
        self._settings = settings
        splats = Splats(
            radii=self._buffers.rows("radii", n, (2,), np.int32),
            means2d=self._buffers.rows("means2d", n, (2,), real),
            depths=self._buffers.rows("depths", n, (), real),
            conics=self._buffers.rows("conics", n, (3,), real),
            opacities=self._buffers.rows("splat_opacities", n, (), real),
            colors=self._buffers.rows("colors", n, (3,), real),
        )
        projection.project(
            *self._inputs, settings.sh_degree, *self._camera, *self._size, real(settings.eps2d),
            real(settings.near_plane), real(settings.far_plane), settings.antialiased, splats.radii, splats.means2d,
            splats.depths, splats.conics, splats.opacities, splats.colors,
        )  # fmt: skip
        self._projected = splats
        return splats

    def compose(self, splats: Splats, camera: Camera, background: np.ndarray) -> Image:
        """Composes any splats, not only those projected here. background: [3]"""
        n, width, height, real = len(splats.radii), camera.width, camera.height, self.dtype
        padded = rasterization.padded_width(width)
        rows = self._buffers.rows
        order = rows("order", n, (), np.int32)
        keys = rows("keys", n, (), np.uint32)
        radii = np.ascontiguousarray(splats.radii, np.int32)
        num = sorting.order_by_depth(
            self._array(splats.depths), radii, keys.view(np.float32), keys, order,
            rows("order_scratch", n, (), np.int32), self._counts,
        )  # fmt: skip
        self._order = order[:num]
        self._table = rows("table", num, (rasterization.NUM_COLUMNS,), real)
        self._spans = rows("spans", num, (2,), np.int32)
        rasterization.prepare(
            self._order, radii, self._array(splats.means2d), self._array(splats.conics),
            self._array(splats.opacities), self._array(splats.colors), height, self._table, self._spans,
        )  # fmt: skip
        accumulated = self._buffers.image("accumulated", (3, height, padded), real)
        self._transmittance = self._buffers.image("transmittance", (height, padded), real)
        self._stops = self._buffers.image("stops", (height, padded), np.int32)
        rasterization.clear(width, accumulated, self._transmittance, self._stops)
        rasterization.compose(self._table, self._spans, width, accumulated, self._transmittance, self._stops)
        image = Image(
            colors=self._buffers.image("image_colors", (3, height, width), real),
            alphas=self._buffers.image("image_alphas", (height, width), real),
        )
        self._background = np.array(background, real)
        rasterization.finish(accumulated, self._transmittance, self._background, image.colors, image.alphas)
        self._composed = (n, width, height)
        return image

    def compose_backward(self, grad_colors: np.ndarray, grad_alphas: np.ndarray | None = None) -> SplatGradients:
        """Splat gradients for the image composed last; may be called again with other gradients."""
        (n, width, height), real = self._composed, self.dtype
        if grad_colors.shape != (3, height, width):
            raise ValueError(f"grad_colors: got shape {grad_colors.shape}, expected (3, {height}, {width})")
        rows, image = self._buffers.rows, self._buffers.image
        transmittance = image("transmittance_work", self._transmittance.shape, real)
        g_image = image("g_image", (3, *self._transmittance.shape), real)
        behind = image("behind", self._transmittance.shape, real)
        rasterization.start_backward(
            self._background, self._array(grad_colors), self._no_alphas if grad_alphas is None else
            self._array(grad_alphas), grad_alphas is not None, self._transmittance, transmittance, g_image, behind,
        )  # fmt: skip
        grads = SplatGradients(
            means2d=rows("g_means2d", n, (2,), real),
            conics=rows("g_conics", n, (3,), real),
            opacities=rows("g_splat_opacities", n, (), real),
            colors=rows("g_colors", n, (3,), real),
            touched=rows("touched", n, (), np.int32),
        )
        for array in (grads.means2d, grads.conics, grads.opacities, grads.colors, grads.touched):
            array.fill(0)
        rasterization.compose_backward(
            self._order, self._table, self._spans, width, transmittance, self._stops, g_image, behind,
            grads.means2d, grads.conics, grads.opacities, grads.colors, grads.touched,
        )  # fmt: skip
        return grads

    def project_backward(self, grads: SplatGradients) -> Gaussians:
        """Gradients of the primitives projected last; rows with touched 0 are exactly zero."""
        means, _, _, _, sh = self._inputs
        n, real, rows = len(means), self.dtype, self._buffers.rows
        result = Gaussians(
            means=rows("g_means", n, (3,), real),
            quats=rows("g_quats", n, (4,), real),
            scales=rows("g_scales", n, (3,), real),
            opacities=rows("g_opacities", n, (), real),
            sh=rows("g_sh", n, sh.shape[1:], real),
        )
        projection.project_backward(
            *self._inputs, self._settings.sh_degree, *self._camera, *self._size, real(self._settings.eps2d),
            self._settings.antialiased, self._projected.radii, self._projected.colors,
            np.ascontiguousarray(grads.touched, np.int32), self._array(grads.means2d), self._array(grads.conics),
            self._array(grads.opacities), self._array(grads.colors),
            result.means, result.quats, result.scales, result.opacities, result.sh,
        )  # fmt: skip
        return result

    def prepare_target(self, target: np.ndarray) -> PreparedTarget:
        """The target with its windowed mean and second moment: three images of memory, a quarter of the loss's time."""
        target = self._array(target)
        mean, square = np.empty_like(target), np.empty_like(target)
        loss.target_moments(target, *self._loss_buffers(target.shape), mean, square)
        return PreparedTarget(image=target, extra=(mean, square))

    def loss(
        self, image: np.ndarray, target: np.ndarray | PreparedTarget, ssim_weight: float
    ) -> tuple[float, np.ndarray]:
        """(1 - w) L1 + w (1 - SSIM) over planar images, and its gradient with respect to `image` ([3, H, W])."""
        image = self._array(image)
        shape = target.image.shape if isinstance(target, PreparedTarget) else target.shape
        if shape != image.shape:
            raise ValueError(f"loss: image has shape {image.shape}, target {shape}")
        if isinstance(target, PreparedTarget):
            pixels, (mean, square) = target.image, target.extra
        else:
            pixels = self._array(target)
            mean = self._buffers.image("target_mean", shape, self.dtype)
            square = self._buffers.image("target_square", shape, self.dtype)
            loss.target_moments(pixels, *self._loss_buffers(shape), mean, square)
        gradient = self._buffers.image("loss_gradient", image.shape, self.dtype)
        l1, ssim = loss.l1_ssim(
            image, pixels, mean, square, self.dtype(ssim_weight), *self._loss_buffers(image.shape), gradient
        )
        return (1.0 - ssim_weight) * float(l1) + ssim_weight * (1.0 - float(ssim)), gradient

    def _loss_buffers(self, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        _, height, width = shape
        border = 2 * loss.HALF_WINDOW
        return (
            self._buffers.image("loss_maps", (loss.NUM_MAPS, height + border, width), self.dtype),
            self._buffers.image("loss_sums", (3, width + border), self.dtype),
        )

    def _array(self, values: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(values, self.dtype)
