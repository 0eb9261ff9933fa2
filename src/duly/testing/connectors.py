"""What every connector of the publishing room keeps to, as tests that you run against one of your own.

::

    class TestMine(ConnectorContract):
        def connector(self): return MyConnector(url=self.server.url, token="…")
        def post(self): return Post("mine", caption="Hello")
        def published(self): return len(self.server.posts)

A test runner finds the methods that begin with ``test_`` (pytest and unittest do). What the other side can be made to do is told by the
methods ``lose_answer``, ``unreachable`` and ``refuse``; a test of what yours cannot do is skipped. None of this needs pytest.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar
from unittest import SkipTest

from duly.kernel.clock import Clock
from duly.kernel.verdict import Kind, Refusal
from duly.publishing.connectors.base import Comments, Connector
from duly.publishing.post import Limits, Post, Published, Rules

__all__ = ["ConnectorContract", "MemoryNotebook"]

T = TypeVar("T")
#: The fields of a preview, whoever made it.
PREVIEW = frozenset({
    "connector", "channel", "brand", "title", "caption", "length", "link", "assets", "first_comment", "options", "extra",
})  # fmt: skip


class MemoryNotebook:
    """A notebook in memory, as a run of a job hands it to a connector.

    ``key``: the idempotency key of the job. ``facts``: what an earlier run left. ``at_note`` and ``at_ahead`` are called at those moments,
    before anything is written; what they raise is raised.
    """

    def __init__(
        self, key: str = "key-1", facts: Mapping[str, Any] | None = None, *, at_note: Callable[[Mapping[str, Any]], None] | None = None,
        at_ahead: Callable[[], None] | None = None, clock: Clock | None = None,
    ) -> None:  # fmt: skip
        self._facts = {"key": key, "tenant": "default", **(facts or {})}
        self._at_note, self._at_ahead, self._clock = at_note, at_ahead, clock
        #: How often it was said that what follows cannot be taken back.
        self.aheads = 0

    @property
    def facts(self) -> Mapping[str, Any]:
        return dict(self._facts)

    async def note(self, **facts: Any) -> None:
        if self._at_note is not None:
            self._at_note(facts)
        json.dumps(facts)  # they are kept as JSON
        merged = {**self._facts, **facts}
        self._facts = {name: value for name, value in merged.items() if value is not None}

    async def ahead(self) -> None:
        if self._at_ahead is not None:
            self._at_ahead()
        now = self._clock.now() if self._clock is not None else datetime.now(UTC)
        self._facts["ahead_at"] = now.isoformat()
        self.aheads += 1

    def later(self) -> MemoryNotebook:
        """What the next run of the same job finds."""
        return MemoryNotebook(facts=self._facts, clock=self._clock)


class _Killed(BaseException):
    """The end of a process, as far as a connector can tell."""


class ConnectorContract:
    """Subclass it, and say how yours is made and what the other side has."""

    #: May a post be published twice because the other side (or a key) sees to it that it is there once? ``reconcile`` may say None then.
    repeatable = False
    #: What must not be seen in errors and in ``repr``: tokens, passwords.
    secrets: tuple[str, ...] = ()

    def connector(self) -> Connector:
        """A connector, made as after a restart: it knows nothing of those before it."""
        raise NotImplementedError

    def post(self) -> Post:
        """A post that it can publish; the same each time."""
        raise NotImplementedError

    def published(self) -> int:
        """How many posts are there, on the other side, for all to see."""
        raise NotImplementedError

    def requests(self) -> int | None:
        """How many requests the other side has had; None when nobody counts."""
        return None

    def lose_answer(self) -> None:
        """Let the next post be published without an answer."""
        raise SkipTest("the other side cannot lose an answer")

    def unreachable(self) -> Connector:
        """A connector whose other side is not there."""
        raise SkipTest("there is no connector without another side")

    def refuse(self, kind: Kind) -> None:
        """Let the next post be refused with an answer of this kind."""
        raise SkipTest(f"the other side cannot answer {kind}")

    # ------------------------------------------------------------------ publishing

    def test_a_post_is_published_once_and_nothing_is_there_before_that_was_said(self) -> None:
        before: list[int] = []
        notebook = MemoryNotebook(at_ahead=lambda: before.append(self.published()))
        answer = _run(self.connector().publish(self.post(), notebook))
        assert isinstance(answer, Published)
        assert self.published() == 1
        assert before, "notebook.ahead() was not awaited"
        assert set(before) == {0}, "something was published before notebook.ahead()"
        assert answer.remote_id is None or (isinstance(answer.remote_id, str) and answer.remote_id)

    def test_a_lost_answer_is_no_second_post(self) -> None:
        self.lose_answer()
        notebook = MemoryNotebook()
        told = _told(self.connector().publish(self.post(), notebook))
        if isinstance(told, Refusal):
            assert told.verdict.kind is Kind.UNKNOWN, f"nobody knows, and it says {told.verdict}"
            self._told_nothing_secret(told)
            if self._reconciled(notebook) is None:
                assert self.repeatable, "it is there, and reconcile() says that it is certainly not"
                _run(self.connector().publish(self.post(), notebook.later()))
        assert self.published() == 1

    def test_a_run_that_was_killed_before_it_published_left_nothing(self) -> None:
        def die() -> None:
            raise _Killed

        notebook = MemoryNotebook(at_ahead=die)
        try:
            _run(self.connector().publish(self.post(), notebook))
        except _Killed:
            pass
        else:
            raise AssertionError("notebook.ahead() was not awaited")
        assert self.published() == 0
        assert not isinstance(self._reconciled(notebook), Published)
        _run(self.connector().publish(self.post(), notebook.later()))
        assert self.published() == 1

    def test_a_run_that_was_killed_after_any_of_its_notes_is_taken_up(self) -> None:
        for number in range(1, 50):
            left = number

            def die(facts: Mapping[str, Any]) -> None:
                nonlocal left
                left -= 1
                if not left:
                    raise _Killed

            notebook = MemoryNotebook(f"key-{number}", at_note=die)
            before = self.published()
            try:
                _run(self.connector().publish(self.post(), notebook))
                return  # it writes fewer notes than that
            except _Killed:
                assert self.published() == before
            _run(self.connector().publish(self.post(), notebook.later()))
            assert self.published() == before + 1
        raise AssertionError("it writes fifty notes")

    def test_what_is_there_is_not_called_missing(self) -> None:
        notebook = MemoryNotebook()
        answer = _run(self.connector().publish(self.post(), notebook))
        found = self._reconciled(notebook)
        if isinstance(found, Published):
            assert found.remote_id in (None, answer.remote_id)
        assert found is not None or self.repeatable
        if found is None:
            _run(self.connector().publish(self.post(), notebook.later()))
        assert self.published() == 1

    def test_a_lost_lease_ends_the_run_before_anything_is_published(self) -> None:
        class Lost(Exception):
            pass

        def lose(*_: object) -> None:
            raise Lost

        for notebook in (MemoryNotebook(at_ahead=lose), MemoryNotebook(at_note=lose, at_ahead=lose)):
            try:
                _run(self.connector().publish(self.post(), notebook))
            except Lost:
                pass
            else:
                raise AssertionError("the error of the notebook was swallowed")
            assert self.published() == 0

    # ------------------------------------------------------------------ refusals

    def test_another_side_that_is_not_there_is_tried_again_later(self) -> None:
        error = self._refused(self.unreachable())
        assert error.verdict.kind in (Kind.TRANSIENT, Kind.AWAY), error.verdict

    def test_a_refusal_that_passes(self) -> None:
        self._refuses(Kind.TRANSIENT, Kind.AWAY)

    def test_too_many_requests(self) -> None:
        error = self._refuses(Kind.THROTTLED)
        assert error.verdict.after is None or error.verdict.after >= 0

    def test_a_refusal_for_good(self) -> None:
        self._refuses(Kind.PERMANENT)

    def test_a_configuration_that_is_refused(self) -> None:
        self._refuses(Kind.AUTH)

    def test_a_quota_that_is_used_up(self) -> None:
        error = self._refuses(Kind.QUOTA)
        assert error.verdict.until is not None or error.verdict.after is not None
        assert error.verdict.until is None or error.verdict.until.tzinfo is not None

    # ------------------------------------------------------------------ what else is asked

    def test_a_preview_asks_nobody_and_is_json(self) -> None:
        asked = self.requests()
        one, other = self.connector(), self.connector()
        shown = one.preview(self.post())
        json.dumps(shown)
        assert set(shown) == PREVIEW
        assert shown == other.preview(self.post())
        assert self.requests() == asked
        assert self.published() == 0

    def test_limits_are_none_or_numbers(self) -> None:
        found = _run(self.connector().limits())
        assert found is None or (
            isinstance(found, Limits) and found.used >= 0 and found.total > 0 and found.seconds > 0
        )

    def test_a_check_says_what_it_found_and_publishes_nothing(self) -> None:
        found = _run(self.connector().check())
        assert found
        self._told_nothing_secret(found)
        assert self.published() == 0

    def test_it_has_a_name_and_rules_and_shows_no_secret(self) -> None:
        one = self.connector()
        assert one.name
        assert isinstance(one.rules, Rules)
        assert one.rules.first_comment == isinstance(one, Comments)
        self._told_nothing_secret(repr(one))
        for method in (one.publish, one.reconcile, one.limits, one.check):
            assert inspect.iscoroutinefunction(method)

    def test_comments_are_written_and_found(self) -> None:
        one = self.connector()
        if not isinstance(one, Comments):
            raise SkipTest("it knows no comments")
        answer = _run(one.publish(self.post(), MemoryNotebook()))
        assert answer.remote_id is not None
        ident = _run(one.comment(answer.remote_id, "First!"))
        found = _run(_all(one, answer.remote_id))
        assert [(c.id, c.text) for c in found] == [(ident, "First!")]
        assert isinstance(_run(one.account()), str)

    # ------------------------------------------------------------------ hands

    def _reconciled(self, notebook: MemoryNotebook) -> Published | Refusal | None:
        told = _told(self.connector().reconcile(self.post(), notebook.later()))
        if isinstance(told, Refusal):
            assert told.verdict.kind is Kind.UNKNOWN, f"it could be asked, and it says {told.verdict}"
        return told

    def _refused(self, connector: Connector) -> Refusal:
        before = self.published()
        told = _told(connector.publish(self.post(), MemoryNotebook()))
        assert isinstance(told, Refusal), "it was not refused"
        assert self.published() == before
        assert told.verdict.reason
        self._told_nothing_secret(told)
        return told

    def _refuses(self, kind: Kind, *also: Kind) -> Refusal:
        self.refuse(kind)
        error = self._refused(self.connector())
        assert error.verdict.kind in (kind, *also), error.verdict
        return error

    def _told_nothing_secret(self, told: object) -> None:
        for word in self.secrets:
            assert word not in f"{told} {told!r}", "a secret is shown"


async def _all(one: Comments, remote_id: str) -> list[Any]:
    return [comment async for comment in one.comments(remote_id)]


def _told(what: Coroutine[Any, Any, T]) -> T | Refusal:
    try:
        return _run(what)
    except Refusal as error:
        return error


def _run(what: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(what)
