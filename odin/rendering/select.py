"""Which renderer a run uses, and why."""

from __future__ import annotations

from collections.abc import Callable

from odin.rendering.interface import Renderer

DEVICES = ("auto", "cpu", "cuda")


def select_renderer(device: str = "auto") -> tuple[Callable[[], Renderer], str]:
    """A function that makes renderers, and the reason of the choice, for printing.

    "auto" asks torch whether there is a CUDA device, before any of gsplat's functions is touched: without one they
    fail in ways that depend on the installation. Raises ValueError for "cuda" without a device and for other names.
    """
    import torch

    if device not in DEVICES:
        raise ValueError(f"device: got {device!r}, allowed {', '.join(DEVICES)}")
    if device == "cpu":
        return _cpu(), "cpu: asked for"
    if torch.cuda.is_available():
        from odin.rendering.cuda import CudaRenderer

        name = torch.cuda.get_device_name()
        return CudaRenderer, f"cuda: asked for ({name})" if device == "cuda" else f"cuda: torch sees {name}"
    if device == "cuda":
        raise ValueError(
            "device: 'cuda' asked for, but torch sees no CUDA device. In a container, was it started with --nv? "
            "Use device 'cpu' or 'auto' to run without a GPU."
        )
    return _cpu(), "cpu: torch sees no CUDA device"


def _cpu() -> Callable[[], Renderer]:
    from odin.rendering.cpu.renderer import CpuRenderer

    return CpuRenderer
