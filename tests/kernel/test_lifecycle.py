"""A lifecycle is a table; every question about states is answered from it."""

from __future__ import annotations

import sqlite3
from enum import StrEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.kernel.errors import WrongState
from duly.kernel.lifecycle import Lifecycle, Move


class Door(StrEnum):
    OPEN = "open"
    SHUT = "shut"
    GONE = "gone"


DOOR: Lifecycle[Door] = Lifecycle(
    "door",
    (
        Move(None, "build", Door.OPEN),
        Move(Door.OPEN, "shut", Door.SHUT),
        Move(Door.SHUT, "open", Door.OPEN),
        Move(Door.SHUT, "burn", Door.GONE),
        Move(Door.GONE, "replay", Door.OPEN),
    ),
)


@given(
    source=st.sampled_from([None, *Door]), event=st.sampled_from(["build", "shut", "open", "burn", "replay", "paint"])
)
def test_a_move_is_made_when_and_only_when_the_table_has_it(source: Door | None, event: str) -> None:
    row = [m for m in DOOR.moves if (m.source, m.event) == (source, event)]
    assert DOOR.allows(source, event) is bool(row)
    if row:
        assert DOOR.target(source, event) is row[0].target
    else:
        with pytest.raises(WrongState):
            DOOR.target(source, event)


def test_a_refused_move_says_where_the_thing_stands_and_from_where_it_could_move() -> None:
    with pytest.raises(WrongState) as refused:
        DOOR.target(Door.OPEN, "burn")
    assert (refused.value.current, refused.value.event, refused.value.allowed) == ("open", "burn", ("shut",))
    assert str(refused.value) == "door is open, so it cannot burn. Allowed from: shut."


def test_a_table_with_two_answers_to_one_event_is_refused() -> None:
    with pytest.raises(ValueError, match="two moves from open on shut"):
        Lifecycle("door", (Move(Door.OPEN, "shut", Door.SHUT), Move(Door.OPEN, "shut", Door.GONE)))


def test_a_state_that_only_a_replay_leads_out_of_is_final() -> None:
    assert DOOR.final == {Door.GONE}


def test_states_stand_in_the_order_of_first_mention() -> None:
    assert DOOR.states == (Door.OPEN, Door.SHUT, Door.GONE)


def test_the_check_constraint_accepts_the_states_and_nothing_else() -> None:
    with sqlite3.connect(":memory:") as connection:
        connection.execute(f"CREATE TABLE doors (state TEXT CHECK ({DOOR.check('state')}))")
        connection.executemany("INSERT INTO doors VALUES (?)", [(str(s),) for s in Door])
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute("INSERT INTO doors VALUES ('ajar')")
    connection.close()


def test_the_diagram_shows_every_move_and_every_end() -> None:
    diagram = DOOR.mermaid()
    for move in DOOR.moves:
        assert f"{move.source or '[*]'} --> {move.target}: {move.event}" in diagram
    assert "gone --> [*]" in diagram
    assert "open --> [*]" not in diagram
