"""Any program of savepoints, commits and failures sends exactly what a plain model says, which is what the database keeps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import insert
from sqlalchemy.exc import DBAPIError, IntegrityError, PendingRollbackError
from sqlalchemy.orm import SessionTransaction

from outbox.post_commit_hands import Line, Order, Shop, open_shop

#: How often each step is drawn. What throws everything away is rare, so that something is left to tell about.
WEIGHTS = {
    "order": 8, "register": 2, "begin_nested": 5, "release": 3, "rollback_to": 4, "commit": 2,
    "end": 1, "break_flush": 1, "fail_statement": 1, "fail_commit": 1,
}  # fmt: skip
STEPS = [name for name, weight in WEIGHTS.items() for _ in range(weight)]
ENDS = ["rollback", "close", "reset", "invalidate"]
DEEPEST = 4


class Model:
    """What must be sent: a stack of lists, and nothing else."""

    def __init__(self) -> None:
        self.levels: list[list[int]] = [[]]
        self.sent: list[int] = []
        self.dropped = 0

    def register(self, number: int) -> None:
        self.levels[-1].append(number)

    def begin(self) -> None:
        self.levels.append([])

    def release(self, level: int) -> None:
        inside = [number for one in self.levels[level:] for number in one]
        del self.levels[level:]
        self.levels[-1] += inside

    def drop(self, level: int) -> None:
        self.dropped += sum(map(len, self.levels[level:]))
        del self.levels[level:]
        if not self.levels:
            self.levels.append([])

    def commit(self) -> None:
        self.sent += sorted(number for one in self.levels for number in one)
        self.levels = [[]]


class Program:
    """Does each step on a session and in the model; leaves out what would be nonsense at that point."""

    def __init__(self, shop: Shop) -> None:
        self.shop, self.model = shop, Model()
        self.session = shop.session()
        self.savepoints: list[SessionTransaction] = []
        self.number = 0
        #: A flush has failed in the innermost level: nothing but a rollback helps.
        self.broken = False
        #: A statement has failed there, after which PostgreSQL takes no other, and answers COMMIT with ROLLBACK.
        self.failed = False

    def run(self, steps: list[tuple[str, int]]) -> None:
        for name, which in steps:
            getattr(self, name)(which)
            assert self.shop.sent == self.model.sent, f"after {name}"
        self.commit(0)
        self.end(0)

    def order(self, _which: int) -> None:
        self.number += 1
        self.model.register(self.number)
        if self.broken or self.failed:
            with pytest.raises(PendingRollbackError if self.broken else DBAPIError):
                self.shop.order(self.session, self.number)
        else:
            self.shop.order(self.session, self.number)

    def register(self, _which: int) -> None:
        """Beside an order that the unit of work holds back until something flushes."""
        if not self.broken and not self.failed:
            self.number += 1
            self.session.add(Order(id=self.number))
            self.shop.register(self.session, self.number)
            self.model.register(self.number)

    def begin_nested(self, _which: int) -> None:
        if len(self.savepoints) < DEEPEST and not self.broken and not self.failed:
            self.savepoints.append(self.session.begin_nested())
            self.model.begin()

    def release(self, which: int) -> None:
        if self.savepoints and not self.broken and not self.failed:
            position = which % len(self.savepoints)
            self.savepoints[position].commit()
            del self.savepoints[position:]
            self.model.release(position + 1)

    def rollback_to(self, which: int) -> None:
        if self.savepoints:
            position = which % len(self.savepoints)
            self.savepoints[position].rollback()
            del self.savepoints[position:]
            self.model.drop(position + 1)
            self.broken = self.failed = False

    def commit(self, _which: int) -> None:
        if self.broken:
            with pytest.raises(PendingRollbackError):
                self.session.commit()
        elif self.failed and self.savepoints:
            with pytest.raises(DBAPIError):
                self.session.commit()
            self.end(0)
        elif self.failed:
            self.session.commit()
            self.model.drop(0)
            self.failed = False
        else:
            self.session.commit()
            self.savepoints.clear()
            self.model.commit()

    def end(self, which: int) -> None:
        getattr(self.session, ENDS[which % len(ENDS)])()
        self.savepoints.clear()
        self.model.drop(0)
        self.broken = self.failed = False

    def break_flush(self, _which: int) -> None:
        if not self.broken and not self.failed:
            self.session.flush()  # what was added before is not to blame
            self.shop.break_flush(self.session)
            self.broken = True

    def fail_statement(self, _which: int) -> None:
        if not self.broken and not self.failed:
            self.session.flush()
            with pytest.raises(IntegrityError):
                self.session.execute(insert(Order).values(id=0))
            self.failed = not self.shop.is_sqlite

    def fail_commit(self, _which: int) -> None:
        if not self.broken and not self.failed:
            self.session.execute(insert(Line).values(id=1, order_id=-1))
            with pytest.raises(IntegrityError):
                self.session.commit()
            self.end(0)


def check(shop: Shop, steps: list[tuple[str, int]]) -> None:
    shop.clear()
    with shop.engine.begin() as connection:
        connection.execute(insert(Order).values(id=0))  # for what collides
    program = Program(shop)
    with program.session:  # also when it goes wrong: SQLite's lock must not outlive the example
        program.run(steps)
    assert shop.orders() == [0, *shop.sent]
    told: dict[str, Any] = {"enqueued": len(program.model.sent), "rolled_back": program.model.dropped}
    assert shop.told == {result: count for result, count in told.items() if count}


PROGRAMS = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, DEEPEST)), min_size=4, max_size=30)
CALM = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@pytest.fixture
def sqlite_shop(sqlite_url: str) -> Iterator[Shop]:
    with open_shop(sqlite_url) as shop:
        yield shop


@pytest.fixture
def postgres_shop(pg_url: str) -> Iterator[Shop]:
    with open_shop(pg_url) as shop:
        yield shop


@settings(max_examples=80, suppress_health_check=CALM)
@given(PROGRAMS)
def test_any_program_sends_what_its_model_says_on_sqlite(sqlite_shop: Shop, steps: list[tuple[str, int]]) -> None:
    check(sqlite_shop, steps)


@settings(max_examples=50, suppress_health_check=CALM)
@given(PROGRAMS)
def test_any_program_sends_what_its_model_says_on_postgresql(postgres_shop: Shop, steps: list[tuple[str, int]]) -> None:
    check(postgres_shop, steps)
