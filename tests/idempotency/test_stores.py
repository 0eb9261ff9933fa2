"""One contract for reservations in memory, SQLite, PostgreSQL and Valkey."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
import redis
from sqlalchemy import Connection, inspect, text

from contract.hands import together
from duly import Duly, InvalidArgument
from duly.idempotency import MemoryStore, RedisStore, SqlStore, Store
from duly.idempotency.keeper import Keeper
from duly.idempotency.plan import Admit, Busy, Done
from duly.idempotency.reservation import Ask, Reservation, State, Terms
from duly.idempotency.store import Holding, renew_all
from duly.kernel.errors import SchemaMissing, StoreUnavailable
from duly.kernel.events import PROCESS, Event
from duly.testing import ManualClock
from servers import PostgresServer, ValkeyServer

TERMS = Terms(lock=timedelta(seconds=60), heartbeat=timedelta(seconds=10))


def ask(owner: str = "a", key: str = "k", tenant: str = "default", terms: Terms = TERMS) -> Ask:
    return Ask(tenant, key, "task", owner, "print", terms)


def reserve(store: Store, owner: str = "a", terms: Terms = TERMS) -> Holding:
    decision = store.reserve(ask(owner, terms=terms))
    assert isinstance(decision, Admit)
    return Holding(store, decision.reservation, terms)


def test_what_is_written_is_read_as_it_was(store: Store) -> None:
    written = reserve(store).reservation
    assert store.look("default", "k") == written
    held = Holding(store, written, TERMS)
    assert held.succeed('{"b":[1,2.5,null,"é\\u2028"],"a":{}}')
    read = store.look("default", "k")
    assert read is not None
    assert read.state is State.SUCCEEDED
    assert read.result is not None
    assert orjson.loads(read.result) == {"b": [1, 2.5, None, "é\u2028"], "a": {}}
    assert read.token == written.token


def test_of_many_at_once_one_is_admitted(store: Store) -> None:  # R004-9
    barrier = threading.Barrier(16)

    def go(n: int) -> Any:
        barrier.wait()
        return store.reserve(ask(f"owner-{n}"))

    with ThreadPoolExecutor(16) as pool:
        decisions = list(pool.map(go, range(16)))
    assert sum(isinstance(d, Admit) for d in decisions) == 1
    assert sum(isinstance(d, Busy) for d in decisions) == 15


def test_of_many_who_take_over_at_once_one_is_admitted(store: Store) -> None:  # T004-c
    short = Terms(lock=timedelta(seconds=0.3), heartbeat=timedelta(seconds=0.1))
    first = reserve(store, terms=short)
    barrier = threading.Barrier(8)
    won: list[Reservation] = []

    def go(n: int) -> None:
        barrier.wait()
        while not won:
            decision = store.reserve(ask(f"owner-{n}"))
            if isinstance(decision, Admit):
                assert decision.took_over
                won.append(decision.reservation)
                return

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(go, range(8)))
    assert len(won) == 1
    assert won[0].token > first.reservation.token
    assert not first.succeed("1"), "a late finisher writes nothing"
    assert store.look("default", "k") == won[0]


def test_renewing_keeps_others_out(store: Store) -> None:
    short = Terms(lock=timedelta(seconds=0.6), heartbeat=timedelta(seconds=0.2))
    held = reserve(store, terms=short)
    for _ in range(8):
        threading.Event().wait(0.15)
        assert held.renew()
        assert isinstance(store.reserve(ask("b")), Busy)


def test_the_end_is_written_once(store: Store) -> None:
    held = reserve(store)
    assert held.succeed("1")
    assert not held.fail(None)
    assert not held.release()
    assert not held.renew()
    assert isinstance(store.reserve(ask("b")), Done)


def test_a_release_leaves_nothing(store: Store) -> None:  # T004-f
    assert reserve(store).release()
    assert store.look("default", "k") is None
    reserve(store, "b")


def test_tenants_and_keys_do_not_meet(store: Store) -> None:  # B053
    for tenant, key in [("a", "k"), ("b", "k"), ("a", "k2"), ("a:k", "2"), ("a", "k:2"), ("", ":a:k"), ("é", "\u2028")]:
        assert isinstance(store.reserve(ask(key=key, tenant=tenant)), Admit), (tenant, key)


def test_an_answer_that_is_lost_after_the_write_loses_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    held = reserve(store)
    real: Callable[..., bool] = store.replace

    def deaf(old: Reservation, new: Reservation | None) -> bool:
        real(old, new)
        raise StoreUnavailable("gone")

    for step in (held.renew, lambda: held.succeed("1")):
        monkeypatch.setattr(store, "replace", deaf)
        with pytest.raises(StoreUnavailable):
            step()
        monkeypatch.setattr(store, "replace", real)
    assert held.succeed("1")
    found = store.look("default", "k")
    assert found is not None
    assert found.state is State.SUCCEEDED


def test_what_need_not_be_remembered_is_forgotten(store: Store) -> None:
    brief = Terms(lock=timedelta(seconds=0.3), heartbeat=timedelta(seconds=0.1), keep=timedelta(seconds=0.2))
    assert reserve(store, terms=brief).succeed(None)
    threading.Event().wait(0.3)
    assert store.look("default", "k") is None
    store.prune()
    assert store.read("default", "k")[0] is None
    reserve(store, "b")


def test_nothing_that_valkey_keeps_stays_for_ever(redis_url: str) -> None:  # B050
    store = RedisStore(redis_url)
    with redis.Redis.from_url(redis_url) as client:

        def left() -> float:
            [name] = client.keys()
            ttl: int = client.pttl(name)  # type: ignore[assignment]
            return ttl / 1000

        held = reserve(store)
        assert 86_000 < left() <= 86_460
        held.renew()
        assert 86_000 < left() <= 86_460
        held.succeed("1")
        assert 86_000 < left() <= 86_400
    store.close()


@pytest.mark.postgres
def test_machines_with_skewed_clocks_agree_on_postgresql(pg_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app = Duly(pg_url)
    held = reserve(SqlStore(app.db))
    assert abs(held.reservation.seen_at - datetime.now(UTC)) < timedelta(minutes=5)
    monkeypatch.setattr("duly.clock.SystemClock.now", lambda _: datetime.now(UTC) + timedelta(days=3))
    other = Duly(pg_url)
    assert isinstance(SqlStore(other.db).reserve(ask("b")), Busy)
    app.close()
    other.close()


def test_a_manual_clock_moves_the_store(db_url: str) -> None:
    clock = ManualClock(datetime(2026, 3, 2, 12, 0, tzinfo=UTC))
    app = Duly(db_url, clock=clock)
    store = SqlStore(app.db)
    held = reserve(store)
    clock.advance(59)
    assert held.renew()
    clock.advance(59)
    assert isinstance(store.reserve(ask("b")), Busy)
    clock.advance(1)
    assert isinstance(store.reserve(ask("b")), Admit)
    clock.advance(86_400 + 60)
    assert store.prune() == 1
    app.close()


# --- A store that is away -----------------------------------------------------------------------------------------------


def test_a_valkey_that_is_away_says_so_and_is_used_again_when_it_is_back(own_valkey: ValkeyServer) -> None:  # T004-g
    store = RedisStore(own_valkey.url, timeout=0.5)
    held = reserve(store)
    own_valkey.stop()
    with pytest.raises(StoreUnavailable):
        store.reserve(ask("b"))
    with pytest.raises(StoreUnavailable):
        held.succeed("1")
    own_valkey.start()
    assert held.succeed("1"), "it remembers its data"
    assert isinstance(store.reserve(ask("b")), Done)
    store.close()


@pytest.mark.postgres
def test_a_postgresql_that_is_away_says_so(own_postgres: PostgresServer) -> None:  # T004-g
    app = Duly(own_postgres.url)
    store = SqlStore(app.db)
    held = reserve(store)
    own_postgres.stop("immediate")
    with pytest.raises(StoreUnavailable):
        store.reserve(ask("b"))
    with pytest.raises(StoreUnavailable):
        held.renew()
    own_postgres.start()
    assert held.succeed("1")
    app.close()


# --- Signs of life --------------------------------------------------------------------------------------------------------


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> None:
    for _ in range(int(seconds / 0.02)):
        if condition():
            return
        threading.Event().wait(0.02)
    raise AssertionError("it did not come to pass")


def test_the_keeper_renews_until_it_is_told_to_stop() -> None:
    store, keeper = MemoryStore(), Keeper()
    quick = Terms(lock=timedelta(seconds=0.4), heartbeat=timedelta(seconds=0.05))
    held = reserve(store, terms=quick)
    first = held.reservation.seen_at
    keeper.keep(held)
    wait_until(lambda: held.reservation.seen_at > first + timedelta(seconds=0.5))
    assert isinstance(store.reserve(ask("b")), Busy)
    keeper.let_go(held)
    assert keeper.count == 0
    wait_until(lambda: isinstance(store.reserve(ask("b")), Admit))


def test_the_keeper_lets_go_of_what_is_lost() -> None:
    store, keeper = MemoryStore(), Keeper()
    held = reserve(store, terms=Terms(lock=timedelta(seconds=0.4), heartbeat=timedelta(seconds=0.05)))
    store.replace(held.reservation, replace(held.reservation, owner="b", token=held.reservation.token + 1))
    keeper.keep(held)
    wait_until(lambda: keeper.count == 0)
    assert not held.held


def test_the_keeper_writes_an_end_as_soon_as_the_store_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    store, keeper = MemoryStore(), Keeper()
    held = reserve(store)
    real, failures = store.replace, 0

    def away(old: Reservation, new: Reservation | None) -> bool:
        nonlocal failures
        failures += 1
        if failures < 2:
            raise StoreUnavailable("away")
        return real(old, new)

    monkeypatch.setattr(store, "replace", away)
    keeper.end_later(held, lambda: held.succeed("1"))
    wait_until(lambda: keeper.count == 0)
    found = store.look("default", "k")
    assert found is not None
    assert found.state is State.SUCCEEDED


def test_a_store_that_is_away_takes_no_other_stores_signs_of_life_along(monkeypatch: pytest.MonkeyPatch) -> None:
    away, well, keeper, gate = MemoryStore(), MemoryStore(), Keeper(), threading.Event()
    quick = Terms(lock=timedelta(seconds=60), heartbeat=timedelta(seconds=0.05))
    stuck, alive = reserve(away, terms=quick), reserve(well, terms=quick)

    def hang(*_: Any) -> list[bool]:
        gate.wait(20)
        raise StoreUnavailable("away")

    monkeypatch.setattr(away, "replace_many", hang)
    keeper.keep(stuck)
    keeper.keep(alive)
    first = alive.reservation.seen_at
    wait_until(lambda: alive.reservation.seen_at > first + timedelta(seconds=0.3))
    gate.set()
    keeper.let_go(alive)
    keeper.let_go(stuck)


def test_many_are_renewed_in_one_go_and_each_hears_of_its_own_loss(store: Store) -> None:
    held = []
    for n in range(40):
        decision = store.reserve(ask(key=f"k{n}"))
        assert isinstance(decision, Admit)
        held.append(Holding(store, decision.reservation, TERMS))
    for holding in held[::4]:
        r = holding.reservation
        assert store.replace(r, replace(r, owner="b", token=r.token + 1))
    lost = renew_all(held)
    assert lost == held[::4]
    assert [h.held for h in held] == [n % 4 != 0 for n in range(40)]
    assert all(store.look("default", f"k{n}") == held[n].reservation for n in range(40) if n % 4)


# --- A store that forgets -------------------------------------------------------------------------------------------------


def test_a_server_that_may_drop_keys_is_told_once(own_valkey: ValkeyServer) -> None:  # T004-h
    told: list[Event] = []
    remove = PROCESS.listen(told.append)
    store = RedisStore(own_valkey.url)
    reserve(store)
    assert (store.evicts, told) == (False, [])
    with redis.Redis.from_url(own_valkey.url) as client:
        client.config_set("maxmemory", "100mb")
        client.config_set("maxmemory-policy", "allkeys-lru")
    careless = RedisStore(own_valkey.url)
    for _ in range(3):
        careless.reserve(ask("b"))
    remove()
    assert careless.evicts
    assert [(e.name, e.level, e.facts["policy"]) for e in told] == [
        ("idempotency_store_evicts", "warning", "allkeys-lru")
    ]
    store.close()
    careless.close()


def test_what_valkey_forgets_runs_again_and_what_the_database_keeps_does_not(
    redis_url: str, sqlite_url: str
) -> None:  # T004-h
    app = Duly(sqlite_url)
    valkey = RedisStore(redis_url)
    for store in (valkey, app.reservations):
        assert reserve(store).succeed("1")
    with redis.Redis.from_url(redis_url) as client:
        client.flushdb()
    assert isinstance(valkey.reserve(ask("b")), Admit)
    assert isinstance(app.reservations.reserve(ask("b")), Done)
    valkey.close()
    app.close()


# --- In a database that is not Duly's ---------------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return (
        request.getfixturevalue("empty_pg_url") if request.param == "postgres" else f"sqlite:///{tmp_path / 'shop.db'}"
    )


def test_without_its_table_a_store_says_how_it_is_made(place: str, tmp_path: Path) -> None:
    store = SqlStore(place)
    with pytest.raises(SchemaMissing, match=r"no table idempotency .*create_table\(\)"):
        store.reserve(ask())
    assert not (tmp_path / "shop.db").exists()
    assert [store.create_table(), store.create_table()] == [True, False]
    assert reserve(store)
    assert isinstance(SqlStore(place).reserve(ask("b")), Busy)
    assert set(inspect(store.db.engine).get_table_names()) == {"idempotency"}, "nothing else of Duly is there"
    store.close()


def test_the_statements_of_a_store_make_the_same_table(place: str) -> None:
    store = SqlStore(place)

    def run(connection: Connection) -> None:
        for statement in store.sql().split(";\n"):
            if statement.strip():
                connection.execute(text(statement))

    store.db.write(run)
    assert store.create_table() is False
    assert reserve(store)
    store.close()


def test_a_table_of_that_name_that_is_somebody_elses_is_refused(place: str) -> None:
    store = SqlStore(place)
    store.db.write(lambda c: c.execute(text("CREATE TABLE idempotency (tenant text, key text)")))
    with pytest.raises(SchemaMissing, match="has no attempts and no created_at"):
        store.reserve(ask())
    store.close()


def test_many_that_make_the_table_at_once_make_one(place: str) -> None:
    stores = [SqlStore(place) for _ in range(4)]
    assert sorted(map(str, together(*[store.create_table for store in stores]))) == ["False", "False", "False", "True"]
    for store in stores:
        store.close()


def test_a_store_without_workers_forgets_by_itself(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    store = SqlStore(place, clock)
    store.create_table()
    reserve(store, "old").succeed(None)
    clock.advance(30 * 86_400)
    store.reserve(ask(key="new"))
    assert store.db.read(lambda c: c.execute(text("SELECT count(*) FROM idempotency")).scalar()) == 2, (
        "once a minute is enough"
    )
    monkeypatch.setattr(store, "_prune_due", 0.0)
    store.reserve(ask(key="newer"))
    assert store.db.read(lambda c: c.execute(text("SELECT count(*) FROM idempotency")).scalar()) == 2
    store.close()


@pytest.mark.parametrize("wrong", [None, 3, "mysql://x/y", "not a url"], ids=str)
def test_a_store_in_what_is_no_database_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidArgument):
        SqlStore(wrong)


def test_a_worker_forgets_what_others_have_reserved_although_its_program_reserves_nothing(db_url: str) -> None:
    clock = ManualClock(datetime(2026, 3, 2, 12, tzinfo=UTC))
    ours, theirs = Duly(db_url, clock=clock), Duly(db_url, clock=clock)
    ours.task("X")(lambda: None)
    prune = next(duty.act for duty in ours.worker().house.duties if duty.name == "reservations")
    prune()
    assert ours._reservations is None, "nothing is reserved, so nothing is loaded for it"

    reserve(theirs.reservations).succeed("1")
    assert theirs.reservations.read("default", "k")[0] is not None
    prune()
    assert theirs.reservations.read("default", "k")[0] is not None, "it is remembered"
    clock.advance(2 * 86_400)
    prune()
    assert theirs.reservations.read("default", "k")[0] is None
    ours.close()
    theirs.close()
