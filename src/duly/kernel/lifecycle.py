"""A lifecycle is a table: from where, on what event, to where.

Everything that must agree about states derives from that table: the CHECK constraint in the database, the diagram in
the docs, the name of the audit action, and the refusal of every other move. Rooms declare one and import nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from duly.kernel.errors import WrongState

S = TypeVar("S", bound=str)


@dataclass(frozen=True, slots=True)
class Move(Generic[S]):
    """One allowed move. ``source`` None means birth."""

    source: S | None
    event: str
    target: S
    #: Why this row is there, when it is not obvious.
    remark: str = ""


@dataclass(frozen=True)
class Lifecycle(Generic[S]):
    """A named table of moves.

    A state without a move out of it is final. ``target`` is the only way to ask for a move.
    """

    noun: str
    moves: tuple[Move[S], ...]
    _table: dict[tuple[S | None, str], S] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        table: dict[tuple[S | None, str], S] = {}
        for move in self.moves:
            if (move.source, move.event) in table:
                raise ValueError(f"{self.noun}: two moves from {move.source} on {move.event}")
            table[move.source, move.event] = move.target
        object.__setattr__(self, "_table", table)

    def target(self, source: S | None, event: str) -> S:
        """The state after ``event``. Raises WrongState when the table has no such row."""
        try:
            return self._table[source, event]
        except KeyError:
            raise WrongState(self.noun, str(source), event, tuple(sorted(self.sources(event)))) from None

    def allows(self, source: S | None, event: str) -> bool:
        return (source, event) in self._table

    def sources(self, event: str) -> set[str]:
        """The states from which ``event`` may happen."""
        return {str(m.source) for m in self.moves if m.event == event and m.source is not None}

    @property
    def states(self) -> tuple[S, ...]:
        """Every state, in the order of first mention."""
        seen: dict[S, None] = {}
        for move in self.moves:
            for state in (move.source, move.target):
                if state is not None:
                    seen.setdefault(state)
        return tuple(seen)

    @property
    def final(self) -> frozenset[S]:
        """States that nothing leads out of, moves marked as replay aside."""
        return frozenset(self.states) - {m.source for m in self.moves if m.source is not None and m.event != "replay"}

    def check(self, column: str, states: Iterable[S] | None = None) -> str:
        """The body of a CHECK constraint on ``column``."""
        names = ", ".join(f"'{s}'" for s in (states if states is not None else self.states))
        return f"{column} IN ({names})"

    def mermaid(self) -> str:
        """The lifecycle as a Mermaid state diagram, for the docs."""
        lines = ["stateDiagram-v2"]
        for m in self.moves:
            lines.append(f"    {m.source or '[*]'} --> {m.target}: {m.event}")
        lines += [f"    {state} --> [*]" for state in self.states if state in self.final]
        return "\n".join(lines)
