"""`PrimitiveSet`: all primitives as a structure of arrays, one row each.

A row is 64 floats so that it fills four cache lines and the row update runs without a remainder loop (three times
faster than 59). Legend: N primitives.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields

import numpy as np

ROW_FLOATS = 64
NUM_PARAMETERS = 59
#: gsplat's parameter names, in the order of a row. Values before activation: log-scales, opacity logits.
COLUMNS = {
    "means": slice(0, 3),
    "quats": slice(3, 7),
    "scales": slice(7, 10),
    "opacities": slice(10, 11),
    "sh0": slice(11, 14),
    "shN": slice(14, 59),
}
#: A *gradient* row carries the norm of the unit's screen-space gradient in its first spare float.
GRAD2D = NUM_PARAMETERS


@dataclass(kw_only=True, slots=True, eq=False)
class PrimitiveSet:
    """Parameters, optimizer state and bookkeeping of N primitives; every array has N rows in the same order.

    The order is the global Morton order of the last structural step: it does not depend on the number of ranks.
    """

    rows: np.ndarray  # [N, 64] float32, parameters as in COLUMNS, then zeros
    exp_avg: np.ndarray  # [N, 64] float32, Adam's first moment
    exp_avg_sq: np.ndarray  # [N, 64] float32, Adam's second moment
    version: np.ndarray  # [N] int64, last step whose effect on the row is included
    stats: np.ndarray  # [N, 2] float32, since the last refinement: sum of screen gradients, number of views
    row_ids: np.ndarray  # [N] int64, never reused
    next_id: int

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, name: str) -> np.ndarray:
        """View of one parameter, e.g. ``column("means")`` [N, 3]."""
        return self.rows[:, COLUMNS[name]]

    def arrays(self) -> dict[str, np.ndarray]:
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "next_id"}

    def check(self) -> None:
        """Our own invariants: equal lengths, contiguous rows, unique ids below `next_id`.

        Run at each structural step, since a stale per-row array there corrupts training silently.
        """
        for name, array in self.arrays().items():
            assert len(array) == len(self), f"{name} has {len(array)} rows, rows has {len(self)}"
            assert array.flags.c_contiguous, f"{name} is not contiguous"
        assert len(np.unique(self.row_ids)) == len(self), "row ids are not unique"
        assert not len(self) or self.row_ids.max() < self.next_id, "a row id is at or above next_id"

    def check_finite(self, step: int) -> None:
        """Raises ValueError naming the step, the parameter and the number of rows that are not finite.

        Moments count too: a second moment that overflowed would leave its row standing still for ever.
        """
        for what, array in (("parameters", self.rows), ("moments", self.exp_avg), ("moments", self.exp_avg_sq)):
            bad = ~np.isfinite(array[:, :NUM_PARAMETERS])
            if not bad.any():
                continue
            counts = {name: int(bad[:, cols].any(1).sum()) for name, cols in COLUMNS.items() if bad[:, cols].any()}
            first = int(self.row_ids[np.flatnonzero(bad.any(1))[0]])
            raise ValueError(
                f"step {step}: non-finite {what} in {counts} (rows of {len(self)}; first row id {first}). "
                "Training cannot go on from here; resume from the last checkpoint with a lower learning rate, "
                "or look at the loss weights."
            )

    def take(self, index: np.ndarray) -> PrimitiveSet:
        """The rows `index`, in that order, as a new set."""
        return PrimitiveSet(
            **{name: np.ascontiguousarray(array[index]) for name, array in self.arrays().items()}, next_id=self.next_id
        )

    def sha256(self) -> str:
        """Hash of parameters and row ids: two runs with equal hashes trained the same model to the bit."""
        digest = hashlib.sha256()
        digest.update(np.ascontiguousarray(self.rows[:, :NUM_PARAMETERS]).tobytes())
        digest.update(self.row_ids.tobytes())
        return digest.hexdigest()


def pack(parameters: dict[str, np.ndarray]) -> np.ndarray:
    """Parameters by name, each [N, ...], to rows [N, 64] float32."""
    num = len(parameters["means"])
    rows = np.zeros((num, ROW_FLOATS), np.float32)
    for name, cols in COLUMNS.items():
        rows[:, cols] = parameters[name].reshape(num, -1)
    return rows


def fresh(rows: np.ndarray, *, first_id: int = 0, version: int = 0) -> PrimitiveSet:
    """A set of new primitives: zero optimizer state and statistics, ids counted from `first_id`."""
    num = len(rows)
    return PrimitiveSet(
        rows=np.ascontiguousarray(rows, np.float32),
        exp_avg=np.zeros((num, ROW_FLOATS), np.float32),
        exp_avg_sq=np.zeros((num, ROW_FLOATS), np.float32),
        version=np.full(num, version, np.int64),
        stats=np.zeros((num, 2), np.float32),
        row_ids=np.arange(first_id, first_id + num, dtype=np.int64),
        next_id=first_id + num,
    )


def concatenate(first: PrimitiveSet, second: PrimitiveSet) -> PrimitiveSet:
    """`first` followed by `second`; ids must not overlap."""
    joined = {name: np.concatenate([array, second.arrays()[name]]) for name, array in first.arrays().items()}
    return PrimitiveSet(**joined, next_id=max(first.next_id, second.next_id))
