"""Random programs of publishing, failing, waiting, putting aside and sending again, against what must be true of all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.orm import Session

from duly import Backoff, PermanentError, Retry
from duly.outbox.box import Outbox
from duly.outbox.message import Message, Status
from duly.testing import ManualClock
from outbox.hands import Recorder, change

FATES: dict[str, Callable[[], BaseException]] = {
    "fail": lambda: OSError("no"), "refuse": lambda: PermanentError("never"), "later": lambda: Retry("later", after=30),
}  # fmt: skip

publish = st.tuples(
    st.just("publish"), st.sampled_from(["t:x", "t:y"]), st.sampled_from([None, "a", "b"]), st.integers(1, 4)
)
run = st.tuples(st.just("run"), st.lists(st.sampled_from(["ok", "ok", "ok", *FATES]), max_size=8))
advance = st.tuples(st.just("advance"), st.sampled_from([0, 1, 5, 40]))
redrive = st.tuples(st.just("redrive"))
park = st.tuples(st.just("park"), st.integers(0, 5))
programs = st.lists(st.one_of(publish, publish, run, run, advance, redrive, park), max_size=25)


class Fates:
    """What becomes of each send: as drawn, and well once nothing is drawn any more."""

    def __init__(self) -> None:
        self.drawn: list[str] = []

    def __call__(self, message: Message) -> None:
        fate = self.drawn.pop(0) if self.drawn else "ok"
        if fate != "ok":
            raise FATES[fate]()


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=programs, batch=st.integers(1, 12))
def test_whatever_happens_every_message_is_sent_once_and_every_line_in_order(
    make: Callable[..., Outbox], recorder: Recorder, clock: ManualClock, program: list[Any], batch: int
) -> None:
    fates = recorder.then = Fates()
    recorder.sent.clear()
    box = make(batch=batch, max_attempts=3, backoff=Backoff(base=1, factor=2, max=300), per_destination=1)
    change(box, "DELETE FROM outbox")
    relay, written = box.relay(), list[str]()
    for step in program:
        match step:
            case ("publish", destination, key, count):
                with Session(box.db.session_engine) as session, session.begin():
                    made = box.publish_many(session, destination, range(count), ordering_key=key)
                written += [m.message_id for m in made]
            case ("run", drawn):
                fates.drawn = list(drawn)
                report = relay.run_once()
                assert report.claimed <= batch
                assert report.claimed == report.sent + report.failed + report.parked + report.released
            case ("advance", seconds):
                clock.advance(seconds)
            case ("redrive",):
                box.redrive_where()
            case ("park", place):
                waiting = box.find(status=Status.PENDING)
                if place < len(waiting):
                    box.park(waiting[place].id, reason="aside")
        _check(box, recorder)
    fates.drawn = []
    for message in box.find(status=Status.PARKED, limit=1000):  # by their ids: a filter leaves what a person has parked
        box.redrive(message.id)
    for _ in range(200):
        clock.advance(300)
        if not relay.run_once().claimed:
            break
    assert box.status().drained
    assert sorted(m.message_id for m in recorder.sent) == sorted(written)  # all, and each once: nobody died
    _check(box, recorder)


def _check(box: Outbox, recorder: Recorder) -> None:
    lines: dict[tuple[str, str], list[int]] = {}
    for m in list(recorder.sent):
        if m.ordering_key is not None:
            lines.setdefault((m.destination, m.ordering_key), []).append(m.id)
    for ids in lines.values():
        assert ids == sorted(ids), "one was overtaken"
    stored = box.find(limit=10_000)
    assert all(m.lease_until is None for m in stored), "something is still held"
    assert {m.message_id for m in stored if m.status is Status.SENT} == {m.message_id for m in recorder.sent}
    unsent = {(m.destination, m.ordering_key): m.id for m in stored if m.ordering_key and m.status is not Status.SENT}
    for place, first in unsent.items():  # newest first, so what is kept is the first of its line
        assert all(ident < first for ident in lines.get((place[0], place[1] or ""), [])), "sent past one that waits"
