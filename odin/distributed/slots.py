"""Slots: where a unit's announcement and row gradients lie, on every rank.

Flags hold the number of the step they speak of, so a slot that still holds an older step can never be taken for
the present one. Legend: N rows, L words of 64 rows, R ring slots, B units of a step, W ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from odin.primitives.primitive_set import ROW_FLOATS
from odin.runtime.bitset import num_words

_PAGE = 4096
#: int64 of one cache line, so that no two ranks write to the same line
_LINE = 8


@dataclass(frozen=True, slots=True, eq=False)
class Slots:
    gradients: np.ndarray  # [R, B, N, 64] float32; rows 0..touched are valid
    ids: np.ndarray  # [R, B, N] int32; touched rows first, then rows only seen
    counts: np.ndarray  # [R, B, 2] int64: seen, touched
    visible: np.ndarray  # [R, B, L] uint64
    announced: np.ndarray  # [R, B] int64: step
    delivered: np.ndarray  # [R, B] int64: step
    retired: np.ndarray  # [W, 8] int64: column 0, last retired step of each rank
    failed: np.ndarray  # [W, 8] int64: column 0, step in which the rank failed, or 0


def _layout(num_rows: int, batch: int, ring: int, world: int) -> dict[str, tuple[tuple[int, ...], type]]:
    return {
        "gradients": ((ring, batch, num_rows, ROW_FLOATS), np.float32),
        "ids": ((ring, batch, num_rows), np.int32),
        "counts": ((ring, batch, 2), np.int64),
        "visible": ((ring, batch, num_words(num_rows)), np.uint64),
        "announced": ((ring, batch), np.int64),
        "delivered": ((ring, batch), np.int64),
        "retired": ((world, _LINE), np.int64),
        "failed": ((world, _LINE), np.int64),
    }


def slots_bytes(num_rows: int, batch: int, ring: int, world: int) -> int:
    """Bytes of an arena; pages that no unit writes to are never allocated."""
    layout = _layout(num_rows, batch, ring, world)
    return sum(-(-int(np.prod(shape)) * np.dtype(kind).itemsize // _PAGE) * _PAGE for shape, kind in layout.values())


def slots_in(buffer, num_rows: int, batch: int, ring: int, world: int) -> Slots:
    """Slots laid over `buffer` (zeroed, at least `slots_bytes` long)."""
    offset, arrays = 0, {}
    for name, (shape, kind) in _layout(num_rows, batch, ring, world).items():
        size = int(np.prod(shape))
        arrays[name] = np.frombuffer(buffer, kind, size, offset).reshape(shape)
        offset += -(-size * np.dtype(kind).itemsize // _PAGE) * _PAGE
    return Slots(**arrays)
