"""The modes' read rules: what a unit has to wait for. The rest of the runtime is the same for all."""

from __future__ import annotations

from odin.runtime.board import Board, ReadRule, Unit


class SyncRule:
    """Reference semantics: everything of the steps before has been delivered (a barrier between steps)."""

    needs_claims = False

    def blockers(self, board: Board, unit: Unit) -> tuple[Unit, ...]:
        return board.outstanding(unit.step)


class QualityRule:
    """A unit starts once every row of its scope is published: same bits as `SyncRule`, for any timing."""

    needs_claims = True

    def blockers(self, board: Board, unit: Unit) -> tuple[Unit, ...]:
        return tuple(other for other in board.outstanding(unit.step) if board.conflict(unit, other))


RULES: dict[str, type[ReadRule]] = {"sync": SyncRule, "quality": QualityRule}
