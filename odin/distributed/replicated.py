"""The replicated layout on real processes: every rank holds all rows and applies all row updates itself.

One thread a rank. Between kernels it polls the slots' flags and feeds the board; the board says which unit may
start. Each rank sums gradients in canonical order, so the replicas are identical at every version, and their hashes
are compared at every barrier.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from odin.distributed.group import Group, PeerLost
from odin.distributed.transport import Transport, choose_transport, open_transport
from odin.primitives.primitive_set import PrimitiveSet
from odin.primitives.row_update import ABSENT, advance, advance_idle, index_gradients
from odin.rendering.interface import RenderSettings
from odin.runtime.bitset import first_outside, intersects, list_members, num_words, set_visible
from odin.runtime.board import Board, Start, Unit, UnitState
from odin.runtime.modes import RULES
from odin.runtime.scope import ScopeIndex, view_planes
from odin.training.job import Job
from odin.training.spans import SpanLog
from odin.training.targets import TargetStore
from odin.training.unit import UnitRunner

RING = 6  # steps that may be open at once
SCOPE_HORIZON = 4  # steps between two refreshes of the inflated bounds
_SPINS = 2000  # polls before a waiting rank starts to sleep between them
_SLEEP_S = 5e-5


class ReplicatedRank:
    """One rank of a run in mode `sync` or `quality`."""

    def __init__(
        self, job: Job, group: Group, primitives: PrimitiveSet, runner: UnitRunner, targets: TargetStore,
        spans: SpanLog, on_step: Callable[[int], None],
    ) -> None:  # fmt: skip
        self.job = job
        self.group = group
        self.primitives = primitives
        self.transport_name = ""
        self.last_losses: list[float] = []  # of this rank's units of the step it did last
        self._runner = runner
        self._targets = targets
        self._spans = spans
        self._on_step = on_step
        self._rule = RULES[job.options.mode]()
        self._delays = np.random.default_rng([job.options.seed, group.rank])
        self._transport: Transport | None = None
        self._step = 0
        self._planes_of: dict[tuple[int, RenderSettings], np.ndarray] = {}

    def warm_up(self) -> None:
        """Compile the runtime's kernels on a few rows of the real types, outside the measured time."""
        few = self.primitives.take(np.arange(min(len(self.primitives), 64)))
        num = len(few)
        table, settings = self.job.table, self._settings(1)
        index = ScopeIndex(few, table)
        index.refresh(flushed=0, target=1)
        bits, ids = np.zeros(num_words(num), np.uint64), np.empty(num, np.int32)
        planes = view_planes(self.job.scene.camera(int(self.job.plan.views[0, 0])), settings)
        index.select(planes, bits)
        index.narrow(planes, bits, flushed=0, target=1)
        size = list_members(bits, ids)
        set_visible(ids[:size], np.ones((size, 2), np.int32), bits)
        first_outside(bits, bits)
        intersects(bits, bits)
        at = np.full((RING, self.job.plan.batch, num), ABSENT, np.int32)
        everything = np.arange(num, dtype=np.int32)
        index_gradients(everything, np.int64(num), np.int64(num), 1, few.version, at[1, 0])
        gradients = np.zeros((RING, self.job.plan.batch, num, few.rows.shape[1]), np.float32)
        advance(few, everything, num, 1, 0, at, gradients, table)

    # One segment: the steps between two barriers

    def run_segment(self, first: int, last: int) -> None:
        """Train steps `first` to `last`; afterwards every row of every replica is at version `last`."""
        try:
            self._begin(first)
            for step in range(first, last + 1):
                self._run_step(step)
            self._drain(last)
        except BaseException:
            if self._transport is not None:
                self._transport.fail(self._step)
            raise

    def _begin(self, first: int) -> None:
        job, p = self.job, self.primitives
        num, batch = len(p), job.plan.batch
        if not self.transport_name:
            self.transport_name, reason = choose_transport(job.options.transport, self.group, num, batch, RING)
            if self.group.rank == 0:
                print(f"transport: {self.transport_name} ({reason})", flush=True)
        with self._spans.span("wait", first):
            self._transport = open_transport(self.transport_name, self.group, num, batch, RING, first)
        start = time.perf_counter()
        self._board = Board(num_rows=num, batch=batch, ring=RING, rule=self._rule, first_step=first)
        self._scopes = ScopeIndex(p, job.table)
        self._gradient_at = np.full((RING, batch, num), ABSENT, np.int32)  # [R, B, N]
        self._scope_ids = np.empty(num, np.int32)
        self._narrowed = np.zeros(self._board.claims.shape[2], np.uint64)
        self._spans.add("structure", first, None, start, time.perf_counter())

    def _run_step(self, step: int) -> None:
        self._step = step
        self._open(step)
        self._on_step(step)
        mine = np.flatnonzero(self.job.plan.rank_of[step - 1] == self.group.rank)
        todo = [Unit(step, int(index)) for index in mine]
        self._refined: set[Unit] = set()
        self.last_losses.clear()
        while todo:
            unit = self._next(todo)
            todo.remove(unit)
            self._run_unit(unit)

    def _open(self, step: int) -> None:
        board, transport = self._board, self._transport
        # rows of old steps are brought up to date here, unless a wait has done it already
        self._poll()
        self._retire(until=step - 2)
        self._wait_until(lambda: board.can_open(step) and transport.slot_free(step), Unit(step, 0))
        start = time.perf_counter()
        claims = board.open_step(step)
        self._gradient_at[step % RING] = ABSENT
        if self._scopes.valid_to < step - 1:
            horizon = min(step - 1 + SCOPE_HORIZON - 1, self.job.table.num_steps)
            self._scopes.refresh(flushed=board.retired, target=horizon)
        for index in range(board.batch):
            own = self.job.plan.rank_of[step - 1, index] == self.group.rank
            if own or self._rule.needs_claims:
                self._scopes.select(self._planes(step, index), claims[index])
        self._spans.add("scope", step, None, start, time.perf_counter())

    def _planes(self, step: int, index: int) -> np.ndarray:
        """The view's side tests [5, 6]. What they depend on does not change with the step, but the SH degree does."""
        view = int(self.job.plan.views[step - 1, index])
        settings = replace(self._settings(step), sh_degree=0)
        key = (view, settings)
        if key not in self._planes_of:
            self._planes_of[key] = view_planes(self.job.scene.camera(view), settings)
        return self._planes_of[key]

    def _settings(self, step: int) -> RenderSettings:
        return self.job.pipeline.render_settings(self.job.preset, self.job.options.budget, step)

    def _next(self, todo: list[Unit]) -> Unit:
        """Wait until one of the own units may start. Waiting time is put to use where a step can be retired."""
        waited_from = None
        deadline = time.monotonic() + self.group.timeout_s
        spins = 0
        while True:
            self._poll()
            answer = self._board.next_unit(todo)
            if not isinstance(answer, Start) and self._refine(todo):
                continue
            if isinstance(answer, Start) or self._board.retirable():
                if waited_from is not None:
                    self._spans.add("wait", answer.unit.step, answer.unit.index, waited_from, time.perf_counter())
                    waited_from = None
                if isinstance(answer, Start):
                    return answer.unit
                self._retire(until=self._board.retired + 1)
                continue
            waited_from = waited_from or time.perf_counter()
            spins = self._pause(spins, deadline, answer.unit)

    def _refine(self, todo: list[Unit]) -> bool:
        """Tighten the scopes of blocked units by their rows' present lag, once a unit."""
        if not (self._rule.needs_claims and self.job.options.refine_scopes):
            return False
        fresh = [unit for unit in todo if unit not in self._refined]
        for unit in fresh:
            self._narrowed[:] = self._board.claim(unit)
            self._scopes.narrow(
                self._planes(unit.step, unit.index), self._narrowed, flushed=self._board.retired, target=unit.step - 1
            )
            self._board.narrow(unit, self._narrowed)
            self._refined.add(unit)
        return bool(fresh)

    def _run_unit(self, unit: Unit) -> None:
        job, spans, runner = self.job, self._spans, self._runner
        step, index = unit.step, unit.index
        slot = step % RING
        view = int(job.plan.views[step - 1, index])
        clock = time.perf_counter
        t0 = clock()
        ids = self._scope_ids[: list_members(self._board.claim(unit), self._scope_ids)]
        advance(
            self.primitives, ids, len(ids), step - 1, self._board.retired,
            self._gradient_at, self._transport.slots.gradients, job.table,
        )  # fmt: skip
        t1 = clock()
        runner.read(ids, self.primitives.rows)
        t2 = clock()
        splats = runner.project(job.scene.camera(view), self._settings(step))
        if self._rule.needs_claims and self.group.world > 1 and job.options.announce:
            visible = self._transport.slots.visible[slot, index]
            set_visible(ids, splats.radii, visible)
            self._board.announce(unit, visible)
            self._transport.announce(step, index)
        image = runner.compose()
        t3 = clock()
        self.last_losses.append(runner.backward(image, self._targets[view], 1.0 / job.plan.batch))
        t4 = clock()
        if job.options.delay_s:
            time.sleep(self._delays.exponential(job.options.delay_s))
        t5 = clock()
        self._deliver(unit)
        t6 = clock()
        for name, start, end in (
            ("row_update", t0, t1), ("gather", t1, t2), ("render", t2, t3), ("backward", t3, t4), ("exchange", t5, t6)
        ):  # fmt: skip
            spans.add(name, step, index, start, end)

    def _deliver(self, unit: Unit) -> None:
        slots, slot = self._transport.slots, unit.step % RING
        seen, touched = self._runner.write(slots.ids[slot, unit.index], slots.gradients[slot, unit.index])
        slots.counts[slot, unit.index] = (seen, touched)
        self._accept(unit)
        self._transport.deliver(unit.step, unit.index)

    # What comes from others, and what follows from it

    def _poll(self) -> None:
        """Feed the board with what has arrived for open steps."""
        board, slots, rank_of = self._board, self._transport.slots, self.job.plan.rank_of
        for unit in board.outstanding(board.opened + 1):
            slot, index = unit.step % RING, unit.index
            if rank_of[unit.step - 1, index] == self.group.rank:
                continue
            if slots.delivered[slot, index] == unit.step:
                self._accept(unit)
            elif (
                self._rule.needs_claims
                and slots.announced[slot, index] == unit.step
                and board.unit_state(unit) is UnitState.PLANNED
            ):
                board.announce(unit, slots.visible[slot, index])

    def _accept(self, unit: Unit) -> None:
        """A unit's gradients are in its slot: index them by row."""
        slots, slot = self._transport.slots, unit.step % RING
        seen, touched = slots.counts[slot, unit.index]
        late = index_gradients(
            slots.ids[slot, unit.index], seen, touched, unit.step, self.primitives.version,
            self._gradient_at[slot, unit.index],
        )  # fmt: skip
        if late >= 0:
            raise RuntimeError(
                f"rank {self.group.rank}: unit {unit} delivers a gradient for row {late} (id "
                f"{self.primitives.row_ids[late]}), which is at version {self.primitives.version[late]} already: a "
                f"scope was not conservative. Story:\n  {self._board.story(unit)}"
            )
        self._board.deliver(unit)

    def _retire(self, until: int) -> None:
        """Apply complete steps up to `until`, oldest first, to all rows they touched."""
        board, slots = self._board, self._transport.slots
        while board.retired < until and (step := board.retirable()) is not None:
            start = time.perf_counter()
            slot = step % RING
            for index in range(board.batch):
                advance(
                    self.primitives, slots.ids[slot, index], slots.counts[slot, index, 0], step, board.retired,
                    self._gradient_at, slots.gradients, self.job.table,
                )  # fmt: skip
            board.retire(step)
            self._transport.retire(step)
            self._spans.add("row_update", step, None, start, time.perf_counter())

    def _drain(self, last: int) -> None:
        """Bring every row to version `last` and close the segment."""
        self._poll()
        self._retire(until=last)
        self._wait_until(lambda: self._board.retired == last, Unit(last, 0))
        with self._spans.span("row_update", last):
            advance_idle(self.primitives, last, self.job.table)
        with self._spans.span("wait", last):
            self._transport.close()
            self.group.barrier(f"after step {last}")
        self._transport = None
        with self._spans.span("structure", last):
            self.check_replicas(last)

    def check_replicas(self, step: int) -> None:
        """Raises RuntimeError where the replicas are not the same to the bit."""
        if self.group.world == 1:
            return
        hashes = self.group.gather(self.primitives.sha256())
        if len(set(hashes)) != 1:
            raise RuntimeError(
                f"after step {step} the replicas differ: "
                + ", ".join(f"rank {rank} {value[:12]}" for rank, value in enumerate(hashes))
            )

    # Waiting

    def _wait_until(self, condition: Callable[[], bool], about: Unit) -> None:
        if condition():
            return
        start = time.perf_counter()
        deadline = time.monotonic() + self.group.timeout_s
        spins = 0
        busy = 0.0
        while not condition():
            self._poll()
            if self._board.retirable() is not None:
                before = time.perf_counter()
                self._retire(until=self._board.opened)
                busy += time.perf_counter() - before
                continue
            spins = self._pause(spins, deadline, about)
        self._spans.add("wait", about.step, None, start, time.perf_counter() - busy)

    def _pause(self, spins: int, deadline: float, about: Unit) -> int:
        """Give the core away for a moment; raises PeerLost on a failed peer or when the time is up."""
        if spins < _SPINS:
            os.sched_yield()
        else:
            time.sleep(_SLEEP_S)
        if spins % 256 == 0:
            self._transport.check(self._step)
            if time.monotonic() > deadline:
                raise PeerLost(self._timeout_message(about))
        return spins + 1

    def _timeout_message(self, about: Unit) -> str:
        missing = self._board.outstanding(self._board.opened + 1)
        owed = [(unit, int(self.job.plan.rank_of[unit.step - 1, unit.index])) for unit in missing]
        others = [
            f"rank {rank} owes step {unit.step} unit {unit.index}" for unit, rank in owed if rank != self.group.rank
        ]
        return (
            f"rank {self.group.rank}, step {about.step}: nothing came for {self.group.timeout_s:g} s; "
            + ("; ".join(others[:4]) or "a peer has not retired its steps")
            + ". The peer died, hangs, or is slower than --timeout-s allows."
        )
