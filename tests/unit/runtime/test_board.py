"""The board, driven by random event orders over toy replicas.

A toy row is an integer; a unit's gradient for a row depends on every row it reads, and the row update does not
commute. So any read of an unpublished row, any lost, doubled or reordered update changes the final integers.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odin.runtime.bitset import first_outside, intersects, list_members, num_words
from odin.runtime.board import Board, Start, Unit, UnitState, Wait
from odin.runtime.modes import QualityRule, SyncRule

RING = 3


def bits(ids, num_rows):
    out = np.zeros(num_words(num_rows), np.uint64)
    for p in ids:
        out[p // 64] |= np.uint64(1) << np.uint64(p % 64)
    return out


class Problem:
    """Visible sets (sparse), scopes around them and the ranks of all units."""

    def __init__(self, seed, num_rows=70, steps=7, batch=3, ranks=2):
        rng = np.random.default_rng(seed)
        self.num_rows, self.steps, self.batch, self.ranks = num_rows, steps, batch, ranks
        self.visible, self.scope = {}, {}
        for step in range(1, steps + 1):
            for index in range(batch):
                centre, size = rng.integers(0, num_rows), rng.integers(0, 14)
                seen = {int(p) % num_rows for p in range(centre, centre + size)}
                self.visible[step, index] = frozenset(seen)
                self.scope[step, index] = frozenset(seen | {int(p) for p in rng.integers(0, num_rows, 3)})
        self.rank_of = rng.integers(0, ranks, (steps, batch))

    def gradients(self, unit, read):
        seen = sorted(self.visible[unit.step, unit.index])
        context = hash(tuple(read[p] for p in seen))
        return {p: hash((context, unit.step, unit.index, p)) for p in seen}

    def reference(self):
        rows = list(range(self.num_rows))
        for step in range(1, self.steps + 1):
            units = [self.gradients(Unit(step, i), rows) for i in range(self.batch)]
            rows = [hash((x, step, tuple(g[p] for g in units if p in g))) for p, x in enumerate(rows)]
        return rows


class ToyRank:
    """A replica and its board, stepped by the test: the logic of the real driver without its kernels."""

    def __init__(self, problem, rank, rule):
        self.problem, self.rank = problem, rank
        self.board = Board(num_rows=problem.num_rows, batch=problem.batch, ring=RING, rule=rule())
        self.rows, self.version = list(range(problem.num_rows)), [0] * problem.num_rows
        self.arrived, self.todo = {}, []
        self.inboxes = [[] for _ in range(problem.ranks)]  # one a sender, as a stalled one must not hold up the rest

    @property
    def done(self):
        return self.board.retired == self.problem.steps

    def advance(self, p, target):
        for step in range(self.version[p] + 1, target + 1):
            gradients = [
                self.arrived[step, i][p] for i in range(self.problem.batch) if p in self.arrived.get((step, i), {})
            ]
            self.rows[p] = hash((self.rows[p], step, tuple(gradients)))
        self.version[p] = max(self.version[p], target)

    def receive(self, sender):
        kind, unit, payload = self.inboxes[sender].pop(0)
        if kind == "deliver":
            assert all(self.version[p] < unit.step for p in payload), "an update would be lost"
            self.arrived[unit.step, unit.index] = payload
            self.board.deliver(unit)
        elif self.board.rule.needs_claims and self.board.unit_state(unit) is UnitState.PLANNED:
            self.board.announce(unit, bits(payload, self.problem.num_rows))

    def retire(self):
        step = self.board.retirable()
        for index in range(self.problem.batch):
            for p in self.arrived[step, index]:
                self.advance(p, step)
        self.board.retire(step)

    def open(self):
        step = self.board.opened + 1
        claims = self.board.open_step(step)
        for index in range(self.problem.batch):
            claims[index] = bits(self.problem.scope[step, index], self.problem.num_rows)
        self.todo = [Unit(step, int(i)) for i in np.flatnonzero(self.problem.rank_of[step - 1] == self.rank)]

    def start(self, unit):
        """Read now; the result is delivered later, as other events may come between."""
        self.todo.remove(unit)
        for p in self.problem.scope[unit.step, unit.index]:
            self.advance(p, unit.step - 1)
            assert self.version[p] == unit.step - 1
        return self.problem.gradients(unit, self.rows)

    def moves(self):
        options = [
            ("receive", sender)
            for sender, inbox in enumerate(self.inboxes)
            if inbox and inbox[0][1].step <= self.board.opened
        ]
        if self.board.retirable() is not None:
            options.append("retire")
        if not self.todo and self.board.opened < self.problem.steps and self.board.can_open(self.board.opened + 1):
            options.append("open")
        if self.todo and isinstance(answer := self.board.next_unit(self.todo), Start):
            options.append(("start", answer.unit))
        return options


def play(problem, rule, rng):
    """Random moves of random ranks until all are done. A rank's messages stay in order, as transports keep them."""
    ranks = [ToyRank(problem, r, rule) for r in range(problem.ranks)]
    overlaps = 0
    for _ in range(20_000):
        choices = [(rank, move) for rank in ranks for move in rank.moves()]
        if not choices:
            assert all(rank.done for rank in ranks), "deadlock"
            break
        rank, move = choices[rng.integers(len(choices))]
        if move[0] == "receive":
            rank.receive(move[1])
        elif move == "retire":
            rank.retire()
        elif move == "open":
            rank.open()
        else:
            unit = move[1]
            overlaps += bool(rank.board.outstanding(unit.step))
            gradients = rank.start(unit)
            visible = problem.visible[unit.step, unit.index]
            for peer in ranks:
                if peer is not rank:
                    peer.inboxes[rank.rank].append(("announce", unit, visible))
                    peer.inboxes[rank.rank].append(("deliver", unit, gradients))
            rank.arrived[unit.step, unit.index] = gradients
            rank.board.deliver(unit)
        rank.board.check()
    for rank in ranks:
        for p in range(problem.num_rows):
            rank.advance(p, problem.steps)
    return [rank.rows for rank in ranks], overlaps


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 4))
def test_quality_gives_the_reference_for_any_order_of_events(seed, ranks, batch):
    problem = Problem(seed, ranks=ranks, batch=batch)
    replicas, _ = play(problem, QualityRule, np.random.default_rng(seed))
    assert all(rows == problem.reference() for rows in replicas)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 3))
def test_sync_gives_the_reference_and_never_overlaps(seed, ranks):
    problem = Problem(seed, ranks=ranks)
    replicas, overlaps = play(problem, SyncRule, np.random.default_rng(seed))
    assert overlaps == 0
    assert all(rows == problem.reference() for rows in replicas)


def test_quality_does_overlap_and_the_toy_notices_a_rule_that_reads_too_early():
    class Careless(QualityRule):
        def blockers(self, board, unit):
            return ()

    problem = Problem(3, ranks=2)
    _, overlaps = play(problem, QualityRule, np.random.default_rng(0))
    assert overlaps > 0
    wrong = 0
    for seed in range(10):
        try:
            replicas, _ = play(problem, Careless, np.random.default_rng(seed))
            wrong += any(rows != problem.reference() for rows in replicas)
        except AssertionError:
            wrong += 1
    assert wrong > 0


@pytest.fixture
def board():
    board = Board(num_rows=100, batch=2, ring=2, rule=QualityRule())
    claims = board.open_step(1)
    claims[0], claims[1] = bits({1, 2, 3}, 100), bits({90, 91}, 100)
    claims = board.open_step(2)
    claims[0], claims[1] = bits({3, 4}, 100), bits({50}, 100)
    return board


def test_a_unit_waits_exactly_for_the_claims_that_meet_its_own(board):
    assert board.next_unit([Unit(2, 0)]) == Wait(Unit(2, 0), (Unit(1, 0),))
    assert board.next_unit([Unit(2, 0), Unit(2, 1)]) == Start(Unit(2, 1))
    board.announce(Unit(1, 0), bits({1, 2}, 100))
    assert board.next_unit([Unit(2, 0)]) == Start(Unit(2, 0))


def test_a_narrowed_claim_counts(board):
    board.narrow(Unit(2, 0), bits({4}, 100))
    assert board.next_unit([Unit(2, 0)]) == Start(Unit(2, 0))


def test_steps_retire_in_order_and_free_their_slot(board):
    assert board.retirable() is None and not board.can_open(3)
    board.deliver(Unit(2, 0))
    board.deliver(Unit(2, 1))
    assert board.retirable() is None
    board.deliver(Unit(1, 1))
    board.deliver(Unit(1, 0))
    assert board.retirable() == 1
    board.retire(1)
    assert board.can_open(3) and board.retirable() == 2
    assert board.outstanding(9) == ()


@pytest.mark.parametrize(
    "event, message",
    [
        (lambda b: b.deliver(Unit(3, 0)), "delivered in state CLOSED"),
        (lambda b: (b.deliver(Unit(1, 0)), b.deliver(Unit(1, 0))), "delivered in state DELIVERED"),
        (lambda b: b.announce(Unit(1, 0), bits({1, 77}, 100)), "sees row 77"),
        (lambda b: (b.announce(Unit(1, 0), bits({1}, 100)), b.announce(Unit(1, 0), bits({1}, 100))), "is ANNOUNCED"),
        (lambda b: b.retire(1), "cannot retire step 1"),
        (lambda b: b.open_step(3), "cannot open step 3"),
    ],
)
def test_impossible_events_are_refused_with_the_story(board, event, message):
    with pytest.raises(RuntimeError, match=f"{message}.*Story:"):
        event(board)


@given(st.sets(st.integers(0, 199)), st.sets(st.integers(0, 199)))
def test_bitsets_agree_with_sets(a, b):
    x, y = bits(a, 200), bits(b, 200)
    assert intersects(x, y) == bool(a & b)
    assert first_outside(x, y) == min(a - b, default=-1)
    ids = np.empty(200, np.int32)
    assert ids[: list_members(x, ids)].tolist() == sorted(a)
