"""Is a plan sound? Every violation is a `PlanError` that says what, where, what was got, what is allowed, what to do.

Plans come from files that may be truncated, edited or made for another scene; training must not find that out at
step 20,000.
"""

from __future__ import annotations

import numpy as np

from odin.data.scene import Scene
from odin.schedule.ordering import ORDERINGS
from odin.schedule.plan import Plan

_REMEDY = "make the plan again with `odin schedule`"
_DTYPES = {
    "views": np.int32,
    "rank_of": np.int16,
    "costs": np.float32,
    "conflicts": np.float32,
    "windows": np.int32,
    "phases": np.int32,
    "train_views": np.int32,
}


class PlanError(ValueError):
    """A plan that cannot be trained by."""


def validate_plan(plan: Plan, scene: Scene | None = None, scene_sha256: str | None = None, where: str = "plan") -> None:
    """PlanError unless the plan is sound in itself and, where given, belongs to the scene. `where` starts messages."""
    _check_arrays(plan, where)
    _check_header(plan, where)
    _check_views(plan, where)
    _check_ranks(plan, where)
    _check_phases(plan, where)
    _check_windows(plan, where)
    if scene is not None:
        _check_scene(plan, scene, where)
    if scene_sha256 is not None and plan.scene_sha256 != scene_sha256:
        raise PlanError(
            f"{where}: made for scene {plan.scene!r} with sha256 {plan.scene_sha256}, but the scene given has "
            f"{scene_sha256}; {_REMEDY} for this scene, or give the scene it was made for"
        )


def _fail(where: str, what: str, got: object, allowed: str) -> None:
    raise PlanError(f"{where}: {what}: got {got}, allowed: {allowed}; {_REMEDY}")


def _check_arrays(plan: Plan, where: str) -> None:
    for name, dtype in _DTYPES.items():
        array = getattr(plan, name)
        if array.dtype != dtype:
            _fail(where, f"{name} has the wrong type", array.dtype, np.dtype(dtype).name)
    if plan.views.ndim != 2 or 0 in plan.views.shape:
        _fail(where, "views has the wrong shape", plan.views.shape, "[steps, batch], neither empty")
    for name in ("rank_of", "costs"):
        if getattr(plan, name).shape != plan.views.shape:
            _fail(where, f"{name} has the wrong shape", getattr(plan, name).shape, f"that of views, {plan.views.shape}")
    if plan.conflicts.ndim != 2 or len(plan.conflicts) != plan.num_steps or plan.conflicts.shape[1] < 1:
        _fail(where, "conflicts has the wrong shape", plan.conflicts.shape, f"[{plan.num_steps}, depth of 1 or more]")
    for name in ("windows", "phases"):
        array = getattr(plan, name)
        if array.ndim != 2 or array.shape[1] != 2 or len(array) == 0:
            _fail(where, f"{name} has the wrong shape", array.shape, "[n, 2], not empty")
    if plan.train_views.ndim != 1:
        _fail(where, "train_views has the wrong shape", plan.train_views.shape, "[n]")
    for name, top in (("costs", np.inf), ("conflicts", 1.0)):
        array = getattr(plan, name)
        bad = np.argwhere(~(np.isfinite(array) & (array >= 0) & (array <= top * (1 + 1e-5))))
        if len(bad):
            step, column = bad[0].tolist()
            allowed = "finite, 0 or more" if np.isinf(top) else "0 to 1"
            _fail(where, f"{name} of step {step + 1}, column {column}", array[step, column], allowed)


def _check_header(plan: Plan, where: str) -> None:
    if plan.ordering not in ORDERINGS:
        _fail(where, "ordering", repr(plan.ordering), " or ".join(map(repr, ORDERINGS)))
    if not 1 <= plan.ranks <= np.iinfo(np.int16).max:
        _fail(where, "ranks", plan.ranks, f"1 to {np.iinfo(np.int16).max}")
    if plan.seed < 0:
        _fail(where, "seed", plan.seed, "0 or more")


def _check_views(plan: Plan, where: str) -> None:
    if len(plan.train_views) and (np.diff(plan.train_views) <= 0).any():
        _fail(where, "train_views", "an order that does not ascend", "ascending view numbers, each once")
    epoch_views = plan.epoch_views
    known = np.isin(plan.views, epoch_views) & (plan.views >= 0)
    if not known.all():
        step, slot = np.argwhere(~known)[0].tolist()
        _fail(
            where,
            f"view of step {step + 1}, slot {slot}",
            int(plan.views[step, slot]),
            f"one of the {len(epoch_views)} training views ({epoch_views[0]} to {epoch_views[-1]})",
        )
    repeated = (np.diff(np.sort(plan.views, axis=1), axis=1) == 0).any(axis=1)
    if repeated.any():
        step = int(np.flatnonzero(repeated)[0])
        _fail(where, f"batch of step {step + 1}", plan.views[step].tolist(), "each view at most once in a batch")
    num_train, sequence = len(epoch_views), plan.views.ravel()
    for epoch, first in enumerate(range(0, len(sequence), num_train)):
        visited, visits = np.unique(sequence[first : first + num_train], return_counts=True)
        if (visits > 1).any():
            view = int(visited[visits > 1][0])
            _fail(
                where,
                f"epoch {epoch + 1} (steps {first // plan.batch + 1} to "
                f"{-(-min(first + num_train, len(sequence)) // plan.batch)})",
                f"view {view} {int(visits[visits > 1][0])} times",
                "every training view exactly once in each epoch",
            )


def _check_ranks(plan: Plan, where: str) -> None:
    outside = (plan.rank_of < 0) | (plan.rank_of >= plan.ranks)
    if outside.any():
        step, slot = np.argwhere(outside)[0].tolist()
        got = int(plan.rank_of[step, slot])
        _fail(where, f"rank of step {step + 1}, slot {slot}", got, f"0 to {plan.ranks - 1}")


def _check_phases(plan: Plan, where: str) -> None:
    _check_partition(plan.phases, "phases", plan.num_steps, where)
    expected = [*plan.structural_steps, plan.num_steps]
    if plan.phases[:, 1].tolist() != expected:
        _fail(
            where,
            "phases end at the wrong steps",
            _some(plan.phases[:, 1].tolist()),
            f"the structural steps and the last step, {_some(expected)}",
        )


def _check_windows(plan: Plan, where: str) -> None:
    _check_partition(plan.windows, "windows", plan.num_steps, where)
    lengths = plan.windows[:, 1] - plan.windows[:, 0] + 1
    if lengths.max() > plan.depth:
        window = plan.windows[lengths.argmax()].tolist()
        _fail(where, f"window {window}", f"{lengths.max()} steps", f"at most {plan.depth} steps, the look-back")
    inside = np.searchsorted(plan.phases[:, 1], plan.windows)  # [n, 2] phase of the first and of the last step
    crossing = np.flatnonzero(inside[:, 0] != inside[:, 1])
    if len(crossing):
        _fail(
            where,
            f"window {plan.windows[crossing[0]].tolist()}",
            f"it crosses the structural change after step {plan.phases[inside[crossing[0], 0], 1]}",
            "windows that lie in one phase",
        )


def _check_partition(ranges: np.ndarray, name: str, num_steps: int, where: str) -> None:
    """Ranges of steps must follow each other without gap or overlap from 1 to num_steps."""
    expected_first = np.append(1, ranges[:-1, 1] + 1)
    wrong = np.flatnonzero((ranges[:, 0] != expected_first) | (ranges[:, 1] < ranges[:, 0]))
    if len(wrong):
        i = int(wrong[0])
        _fail(
            where, f"{name}, entry {i}", ranges[i].tolist(), f"[first, last] with first = {expected_first[i]} <= last"
        )
    if ranges[-1, 1] != num_steps:
        _fail(where, f"the last of the {name} ends at", int(ranges[-1, 1]), f"the last step, {num_steps}")


def _check_scene(plan: Plan, scene: Scene, where: str) -> None:
    if plan.scene != scene.name:
        raise PlanError(f"{where}: made for scene {plan.scene!r}, but the scene given is {scene.name!r}; {_REMEDY}")
    if len(plan.train_views) and not np.array_equal(plan.train_views, scene.train_views):
        raise PlanError(
            f"{where}: made for {len(plan.train_views)} training views, but scene {scene.name!r} has "
            f"{len(scene.train_views)} (or others): images or the test split changed since; {_REMEDY}"
        )
    outside = ~np.isin(plan.views, scene.train_views)
    if outside.any():
        step, slot = np.argwhere(outside)[0].tolist()
        view = int(plan.views[step, slot])
        _fail(where, f"view of step {step + 1}, slot {slot}", view, f"a training view of scene {scene.name!r}")


def _some(steps: list[int]) -> str:
    return str(steps) if len(steps) <= 8 else f"{str(steps[:8])[:-1]}, ...] ({len(steps)} in all)"
