"""Looking at keys and forgetting one, in every store."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta

import pytest

from contract.hands import audit
from duly import Duly, InvalidArgument, NotFound, WrongState
from duly.idempotency import Store
from duly.idempotency.keys import Key, Keys
from duly.idempotency.plan import Admit
from duly.idempotency.reservation import Ask, State, Terms
from duly.idempotency.store import Holding

TERMS = Terms(lock=timedelta(seconds=60), heartbeat=timedelta(seconds=10))


def held(store: Store, key: str, tenant: str = "default", task: str = "charge") -> Holding:
    decision = store.reserve(Ask(tenant, key, task, "job:7", "print", TERMS))
    assert isinstance(decision, Admit)
    return Holding(store, decision.reservation, TERMS)


def test_keys_are_found_page_by_page_and_by_what_they_are(store: Store, sqlite_url: str) -> None:  # F9
    app = Duly(sqlite_url)
    app.open()
    keys = Keys(app.db, store)
    for n in range(25):
        held(store, f"k{n:02}").succeed('{"to":"secret"}')
    held(store, "busy")
    held(store, "theirs", tenant="t[1]*", task="send").fail('{"type":"OSError"}')
    seen: list[Key] = []
    cursor = None
    for _ in range(30):
        found, cursor = keys.find(10, cursor)
        seen += found
        if cursor is None:
            break
    assert cursor is None
    assert {one.key for one in seen} == {"busy", "theirs", *(f"k{n:02}" for n in range(25))}
    assert len(seen) == 27
    assert [one.key for one in keys.find(tenant="t[1]*")[0]] == ["theirs"]
    assert [one.key for one in keys.find(state="in_progress")[0]] == ["busy"]
    assert [one.key for one in keys.find(task="send")[0]] == ["theirs"]
    assert keys.find(older_than=timedelta(hours=1))[0] == []
    one = keys.get("k03")
    assert (one.state, one.owner, one.attempts, one.result_size) == (State.SUCCEEDED, "job:7", 1, 15)
    assert "result" not in {field.name for field in fields(Key)}, "what a call gave is not shown"
    for wrong in ("nonsense", "zz", "[]"):
        with pytest.raises(InvalidArgument, match="cursor"):
            keys.find(10, wrong)
    app.close()


def test_a_forgotten_key_is_free_and_its_owner_records_nothing(store: Store, sqlite_url: str) -> None:  # F9
    app = Duly(sqlite_url)
    app.open()
    keys = Keys(app.db, store)
    holding = held(store, "k")
    with pytest.raises(WrongState, match=r"in progress until .*owner job:7"):
        keys.forget("k", "it hangs", "cli:ann")
    with pytest.raises(InvalidArgument, match="reason"):
        keys.forget("k", " ", "cli:ann", force=True)
    with pytest.raises(NotFound):
        keys.forget("k", "another tenant's", tenant="other")
    assert audit(app, "k") == []
    gone = keys.forget("k", "it hangs", "cli:ann", force=True)
    assert (gone.state, gone.owner) == (State.IN_PROGRESS, "job:7")
    heir = held(store, "k")
    assert not holding.renew()
    assert not holding.succeed("1")
    assert heir.succeed("2")
    with pytest.raises(WrongState, match="another owner"):
        keys.forget("k", "looked at before", token=gone.token)
    keys.forget("k", "the wrong amount")
    with pytest.raises(NotFound):
        keys.get("k")
    told = [(row["actor"], row["action"], row["meta"]["reason"], row["meta"]["was"]) for row in audit(app, "k")]
    assert told == [
        ("cli:ann", "IDEMPOTENCY_KEY_FORGOTTEN", "it hangs", "in_progress"),
        ("code", "IDEMPOTENCY_KEY_FORGOTTEN", "the wrong amount", "succeeded"),
    ]
    app.close()
