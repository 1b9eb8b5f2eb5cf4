"""What a training run is asked to do, checked before anything starts."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from odin.pipelines.preset import Preset
from odin.pipelines.protocol import Budget, get_pipeline, get_preset
from odin.runtime.modes import RULES

MODES = ("ddp", *RULES)
TRANSPORTS = ("auto", "shared-memory", "gloo")
#: options that decide a run's model, beside the contents of scene, plan and preset
IDENTITY_OPTIONS = ("pipeline", "mode", "ranks", "batch", "views", "seed")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainOptions:
    """Fields up to `cap` decide the model; the rest is operational and may differ between a run and its resumption."""

    scene_dir: str  # a prepared scene
    plan: str  # a plan file
    pipeline: str = "3dgs"
    preset: str = "small"
    mode: str = "sync"
    ranks: int = 1
    batch: int = 4
    views: int = 2000  # views seen over the whole run; steps = ceil(views / batch)
    seed: int = 0
    cap: int | None = None  # replaces the preset's largest number of primitives

    out: str = ""
    transport: str = "auto"
    device: str = "auto"
    timeout_s: float = 120.0  # longest wait for a peer
    checkpoint_every: int = 250  # steps
    pin: bool = True  # one core a rank, where there are enough
    delay_s: float = 0.0  # mean of random delays after each unit, to test that timing does not matter
    refine_scopes: bool = True  # tighten a blocked unit's scope by the present lag of its rows
    announce: bool = True  # publish the visible set of a unit as soon as it has projected

    @property
    def budget(self) -> Budget:
        return Budget(views=self.views, batch=self.batch)

    def resolve_preset(self) -> Preset:
        preset = get_preset(get_pipeline(self.pipeline), self.preset)
        return preset if self.cap is None else replace(preset, cap=self.cap)

    def validate(self) -> None:
        """Raises ValueError for the first option out of range: which, got, allowed."""
        positive = {"ranks": self.ranks, "batch": self.batch, "views": self.views, "timeout_s": self.timeout_s}
        for name, number in positive.items():
            if not 0 < number < math.inf:
                raise ValueError(f"{name} is {number}; it must be positive.")
        for name, value, allowed in (
            ("mode", self.mode, MODES),
            ("transport", self.transport, TRANSPORTS),
            ("device", self.device, ("auto", "cpu", "cuda")),
        ):
            if value not in allowed:
                raise ValueError(f"{name} is {value!r}; allowed: {', '.join(allowed)}.")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed is {self.seed}; allowed: 0 to 2^63 - 1.")
        for name, number in {"checkpoint_every": self.checkpoint_every, "delay_s": self.delay_s}.items():
            if not 0 <= number < math.inf:
                raise ValueError(f"{name} is {number}; it must be 0 (off) or more.")
        if self.cap is not None and self.cap < 1:
            raise ValueError(f"cap is {self.cap}; it must be at least 1.")
        self.resolve_preset()


def identity(options: TrainOptions, *, scene_sha256: str, plan_sha256: str) -> str:
    """Hash of everything that decides the bits of a run's model. Operational settings do not enter."""
    content = {
        "scene": scene_sha256,
        "plan": plan_sha256,
        "preset": asdict(options.resolve_preset()),
        **{name: getattr(options, name) for name in IDENTITY_OPTIONS},
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def file_sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
