"""Target images, decoded and prepared for the loss once, and kept as long as they fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from odin.rendering.interface import PreparedTarget

DEFAULT_BYTES = 4 << 30


class TargetStore:
    """Targets by view, as the renderer's loss takes them. Beyond `max_bytes` a target is made anew each time."""

    def __init__(
        self,
        load: Callable[[int], np.ndarray],
        prepare: Callable[[np.ndarray], PreparedTarget],
        max_bytes: int = DEFAULT_BYTES,
    ) -> None:
        self._load = load
        self._prepare = prepare
        self._max_bytes = max_bytes
        self._kept: dict[int, PreparedTarget] = {}
        self._bytes = 0

    def preload(self, views: Iterable[int]) -> None:
        """Decode before the clock starts what fits: up to the first view that does not."""
        for view in views:
            self[view]
            if view not in self._kept:
                return

    def __getitem__(self, view: int) -> PreparedTarget:
        target = self._kept.get(view)
        if target is None:
            target = self._prepare(np.ascontiguousarray(self._load(view), np.float32))
            size = target.image.nbytes + sum(getattr(part, "nbytes", 0) for part in target.extra)
            if self._bytes + size <= self._max_bytes:
                self._kept[view] = target
                self._bytes += size
        return target
