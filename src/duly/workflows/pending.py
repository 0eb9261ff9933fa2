"""What a workflow has asked for and not awaited yet.

Nothing is done before it is awaited, so a forgotten ``await`` is work that is not done, and a question that nobody is asked. Therefore a
pending operation refuses every use but ``await`` and ``ctx.gather``, and each one leaves a note with its name and line until it is awaited.
An operation is only begun when no earlier one was forgotten: what is asked for is awaited in that order, or together in ``ctx.gather``.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

from duly.kernel.errors import PermanentError
from duly.workflows.step import Kind

if TYPE_CHECKING:
    from duly.workflows.context import Wanted

T = TypeVar("T")

#: The method of ``ctx`` that asks for each kind.
_VERBS = {
    Kind.STEP: "step", Kind.TASK: "enqueue", Kind.START: "start", Kind.SLEEP: "sleep", Kind.EVENT: "wait_event", Kind.APPROVAL: "approve",
    Kind.NOW: "now", Kind.PATCH: "patched",
}  # fmt: skip
#: The most forgotten operations that an error names.
MOST_NAMED = 3


class NotAwaited(PermanentError):
    """A workflow used an operation, or went on, without awaiting it."""


@dataclass(slots=True, eq=False)
class Note:
    """An operation that was asked for, until it is awaited. ``verb``: the method of ``ctx``; "" of a coroutine function that was given it."""

    verb: str
    name: str | None
    #: Its first position; of one that takes none, half a step behind the one before.
    position: float
    file: str
    line: int
    #: No variable holds it any more, so nothing can await it.
    dropped: bool = False

    def __str__(self) -> str:
        if not self.verb:
            return f"{self.name}(…) (defined in {Path(self.file).name}:{self.line})"
        return f"ctx.{self.verb}({'' if self.name is None else repr(self.name)}) ({Path(self.file).name}:{self.line})"

    @property
    def remedy(self) -> str:
        """What to write instead."""
        if not self.verb:
            return f"`await {self.name}(…)`"
        return f"`await ctx.{self.verb}({'…' if self.name is None else f'{self.name!r}, …'})`"


def verb_of(kind: Kind) -> str:
    """The method of ``ctx`` that asks for a kind."""
    return _VERBS.get(kind, str(kind))


def asking(here: str) -> FrameType:
    """The frame of the nearest code outside of the file ``here``: the workflow's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename in (here, __file__):
        frame = frame.f_back
    return frame


def forgotten(notes: Sequence[Note]) -> NotAwaited:
    """The error of a run in which these were never awaited."""
    named = ", ".join(map(str, notes[:MOST_NAMED])) + (
        f" and {len(notes) - MOST_NAMED} more" if len(notes) > MOST_NAMED else ""
    )
    return NotAwaited(
        f"{named} {'was' if len(notes) == 1 else 'were'} never awaited, so nothing of it was done. Write {notes[0].remedy} where you ask for it, "
        "or await several at once with `await ctx.gather(…)`. Then replay the run."
    )


def in_another_task(note: Note) -> NotAwaited:
    """The error of an operation that another task than the workflow's own awaits."""
    return NotAwaited(
        f"{note} is awaited in another task than the workflow's own (asyncio.gather, TaskGroup, create_task or wait_for). A run can be put "
        "down at each await, and other tasks would go on without it. Do several things at once with `await ctx.gather(…)`."
    )


class Operation(Awaitable[T]):
    """Asked for, and done when it is awaited, or handed to ``ctx.gather``. Anything else is refused: it has no value yet."""

    __slots__ = ("_act", "note", "owner", "wanted")

    def __init__(
        self, owner: object, note: Note, wanted: Sequence[Wanted], act: Callable[[], Generator[Any, Any, T]]
    ) -> None:
        #: Of which context, and what it is to do: nothing for one whose answer is known.
        self.owner, self.wanted, self.note, self._act = owner, wanted, note, act

    def __await__(self) -> Generator[Any, Any, T]:
        return self._act()

    def __del__(self) -> None:
        note = getattr(self, "note", None)
        if note is not None:
            note.dropped = True

    def __repr__(self) -> str:
        return f"<{self.note}, pending>"

    def _refuse(self, *others: Any) -> NoReturn:
        raise NotAwaited(
            f"{self.note} is used as a value before it is awaited: it has none yet, and nothing was done. Write {self.note.remedy}."
        )

    def _refuse_task(self, *others: Any) -> NoReturn:
        raise in_another_task(self.note)

    #: With these, ``asyncio.create_task`` takes it for a coroutine, and its refusal comes from within the task.
    send = throw = _refuse_task

    def close(self) -> None:
        """Nothing: nothing was begun."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in Operation.__slots__:  # of one that was never finished
            raise AttributeError(name)
        self._refuse()

    # By identity, as asyncio keeps awaitables in dictionaries. A comparison would have no answer.
    __hash__ = object.__hash__
    __bool__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __str__ = __format__ = __int__ = __float__ = __index__ = __bytes__ = __len__ = __iter__ = __contains__ = (
        __getitem__
    ) = _refuse
    __call__ = __enter__ = __aenter__ = __aiter__ = __next__ = __anext__ = __reversed__ = __reduce__ = __copy__ = (
        __deepcopy__
    ) = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __floordiv__ = (
        __mod__
    ) = __rmod__ = _refuse
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __invert__ = __neg__ = __pos__ = __abs__ = __round__ = __pow__ = (
        _refuse
    )


if TYPE_CHECKING:
    #: For type checkers an operation is a coroutine: they report one that is not awaited.
    Pending: TypeAlias = Coroutine[Any, Any, T]
else:
    Pending = Operation
