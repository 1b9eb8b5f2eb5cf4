"""The board: who still owes what to which rows, and so which unit may start.

A pure state machine of one rank in the replicated layout. Events come in as method calls (`open_step`, `announce`,
`deliver`, `retire`), answers go out as values (`Start`, `Wait`, a step that may be retired). It holds no rows: the
driver applies row updates and tells the board when a step is retired.

A unit *claims* rows: first its conservative scope, and from its announcement on exactly the rows it sees. A row
is published for step t once every unit of the steps up to t that claims it has delivered.

Legend: N rows, L words of 64 rows, R ring slots, B units of a step.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import numpy as np

from odin.runtime.bitset import first_outside, intersects, num_words


class UnitState(IntEnum):
    CLOSED = 0  # its step is not open yet, or retired
    PLANNED = 1  # claims its scope
    ANNOUNCED = 2  # claims what it sees
    DELIVERED = 3  # claims nothing


@dataclass(frozen=True, slots=True, order=True)
class Unit:
    """One view of one step; `index` is its place in the batch, which is its place in every sum."""

    step: int
    index: int


@dataclass(frozen=True, slots=True)
class Start:
    unit: Unit


@dataclass(frozen=True, slots=True)
class Wait:
    """No candidate may start. `blockers` are those of the first candidate, in canonical order."""

    unit: Unit
    blockers: tuple[Unit, ...]


class ReadRule(Protocol):
    """The consistency rule of a mode."""

    #: whether a unit's claims matter to the rule, i.e. whether scopes and announcements are needed
    needs_claims: bool

    def blockers(self, board: Board, unit: Unit) -> tuple[Unit, ...]:
        """Undelivered units that `unit` has to wait for; empty where it may start."""
        ...


class Board:
    """State of all units in the ring of open steps, as one rank knows it."""

    def __init__(self, *, num_rows: int, batch: int, ring: int, rule: ReadRule, first_step: int = 1) -> None:
        self.num_rows = num_rows
        self.batch = batch
        self.ring = ring
        self.rule = rule
        self.retired = first_step - 1  # every step up to here is closed for good
        self.opened = first_step - 1
        self.claims = np.zeros((ring, batch, num_words(num_rows)), np.uint64)  # [R, B, L]
        self._state = [[UnitState.CLOSED] * batch for _ in range(ring)]  # [R][B]
        self._story: deque[tuple[Unit | int, str]] = deque(maxlen=16 * ring * batch)

    # Events

    def can_open(self, step: int) -> bool:
        """Whether the ring has a slot for `step` (the step that held it is retired)."""
        return self.retired >= step - self.ring

    def open_step(self, step: int) -> np.ndarray:
        """Open the next step; returns its claims [B, L], to be filled with the units' scopes."""
        if step != self.opened + 1 or not self.can_open(step):
            self._refuse(
                step, f"cannot open step {step}: opened {self.opened}, retired {self.retired}, ring {self.ring}"
            )
        slot = step % self.ring
        self.opened = step
        self._state[slot] = [UnitState.PLANNED] * self.batch
        self._story.append((step, "opened"))
        return self.claims[slot]

    def narrow(self, unit: Unit, claim: np.ndarray) -> None:
        """Replace a planned unit's claim by a tighter one (its rows have been brought up to date meanwhile)."""
        self._expect(unit, UnitState.PLANNED)
        np.bitwise_and(self.claims[unit.step % self.ring, unit.index], claim, out=self.claim(unit))
        self._story.append((unit, "narrowed"))

    def announce(self, unit: Unit, visible: np.ndarray) -> None:
        """The unit has projected its rows and sees exactly `visible` [L]. Refused where its scope lacked one."""
        self._expect(unit, UnitState.PLANNED)
        claim = self.claim(unit)
        if self.rule.needs_claims and (row := first_outside(visible, claim)) >= 0:
            self._refuse(
                unit, f"unit {unit} sees row {row}, which its scope does not hold: the scope was not conservative"
            )
        claim[:] = visible
        self._state[unit.step % self.ring][unit.index] = UnitState.ANNOUNCED
        self._story.append((unit, "announced"))

    def deliver(self, unit: Unit) -> None:
        """The unit's gradients have arrived on this rank."""
        if self.unit_state(unit) not in (UnitState.PLANNED, UnitState.ANNOUNCED):
            self._refuse(unit, f"unit {unit} was delivered in state {self.unit_state(unit).name}")
        self._state[unit.step % self.ring][unit.index] = UnitState.DELIVERED
        self._story.append((unit, "delivered"))

    def retire(self, step: int) -> None:
        """All gradients of `step` are in the rows: its slot may be used again."""
        if self.retirable() != step:
            self._refuse(step, f"cannot retire step {step}: retired {self.retired}, opened {self.opened}")
        self._state[step % self.ring] = [UnitState.CLOSED] * self.batch
        self.retired = step
        self._story.append((step, "retired"))

    # Answers

    def retirable(self) -> int | None:
        """The oldest step that is not retired, where all its units have delivered."""
        step = self.retired + 1
        if step > self.opened:
            return None
        return step if all(state is UnitState.DELIVERED for state in self._state[step % self.ring]) else None

    def outstanding(self, before: int) -> tuple[Unit, ...]:
        """Undelivered units of open steps below `before`, in canonical order."""
        return tuple(
            Unit(step, index)
            for step in range(self.retired + 1, min(before, self.opened + 1))
            for index, state in enumerate(self._state[step % self.ring])
            if state is not UnitState.DELIVERED
        )

    def next_unit(self, candidates: list[Unit]) -> Start | Wait:
        """The first candidate that may start, else why the first one may not."""
        assert candidates, "no candidate units"
        reason: Wait | None = None
        for unit in candidates:
            blockers = self.rule.blockers(self, unit)
            if not blockers:
                self._story.append((unit, "started"))
                return Start(unit)
            reason = reason or Wait(unit, blockers)
        assert reason is not None
        return reason

    def conflict(self, unit: Unit, other: Unit) -> bool:
        """Whether the rows the two units claim meet."""
        return intersects(self.claim(unit), self.claim(other))

    def claim(self, unit: Unit) -> np.ndarray:
        return self.claims[unit.step % self.ring, unit.index]

    def unit_state(self, unit: Unit) -> UnitState:
        if not self.retired < unit.step <= self.opened:
            return UnitState.CLOSED
        return self._state[unit.step % self.ring][unit.index]

    def story(self, about: Unit | int) -> str:
        """What happened to a unit and to its step, oldest first."""
        step = about.step if isinstance(about, Unit) else about
        lines = [
            f"{subject if isinstance(subject, Unit) else f'step {subject}'}: {event}"
            for subject, event in self._story
            if subject in (about, step) or isinstance(about, int) and getattr(subject, "step", None) == step
        ]
        return "\n  ".join(lines) or "(nothing recorded)"

    def check(self) -> None:
        """Invariants, for tests: what is retired is closed, what is open has a state."""
        assert self.retired <= self.opened <= self.retired + self.ring
        for step in range(self.retired + 1, self.opened + 1):
            assert UnitState.CLOSED not in self._state[step % self.ring], step
        if self.opened - self.retired < self.ring:
            assert set(self._state[(self.opened + 1) % self.ring]) == {UnitState.CLOSED}

    def _expect(self, unit: Unit, state: UnitState) -> None:
        if self.unit_state(unit) is not state:
            self._refuse(unit, f"unit {unit} is {self.unit_state(unit).name}, expected {state.name}")

    def _refuse(self, about: Unit | int, what: str) -> None:
        raise RuntimeError(f"{what}. Story:\n  {self.story(about)}")
