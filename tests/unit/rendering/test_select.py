"""The choice of renderer, and that the CUDA one can be imported anywhere."""

import pytest
import torch

from odin.rendering.cpu.renderer import CpuRenderer
from odin.rendering.cuda import CudaRenderer
from odin.rendering.select import select_renderer


def test_without_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert select_renderer() == (CpuRenderer, "cpu: torch sees no CUDA device")
    assert select_renderer("cpu") == (CpuRenderer, "cpu: asked for")
    with pytest.raises(ValueError, match=r"'cuda' asked for, but torch sees no CUDA device.*--nv"):
        select_renderer("cuda")


def test_with_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Some GPU")
    assert select_renderer() == (CudaRenderer, "cuda: torch sees Some GPU")
    assert select_renderer("cuda") == (CudaRenderer, "cuda: asked for (Some GPU)")
    assert select_renderer("cpu") == (CpuRenderer, "cpu: asked for")


def test_unknown_device():
    with pytest.raises(ValueError, match="device: got 'tpu', allowed auto, cpu, cuda"):
        select_renderer("tpu")
