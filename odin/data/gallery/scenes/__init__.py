"""The gallery's scenes as pure descriptions, by name."""

from __future__ import annotations

from collections.abc import Callable

from odin.data.gallery.description import Description
from odin.data.gallery.scenes import blocks, orbit, rooms

SCENES: dict[str, Callable[[int, int], Description]] = {
    "orbit": orbit.describe,
    "rooms": rooms.describe,
    "blocks": blocks.describe,
}
DEFAULT_VIEWS = {"orbit": orbit.DEFAULT_VIEWS, "rooms": rooms.DEFAULT_VIEWS, "blocks": blocks.DEFAULT_VIEWS}
