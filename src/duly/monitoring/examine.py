"""Looking: gathers from the database and this machine what ``health`` judges.

Only reads. It does not make the database, does not migrate it, and takes no lock; what cannot be asked is left out.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import re
import shutil
import time
import zoneinfo
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import Connection, select
from sqlalchemy.exc import SQLAlchemyError

from duly._version import __version__
from duly.accounts.account import ProviderFailed
from duly.audit import read as trail
from duly.jobs import survey
from duly.jobs.ask import WORKER_GONE
from duly.jobs.engine import Engine
from duly.jobs.lapsed import lapsed
from duly.jobs.tables import GATE_KEY, workers
from duly.kernel.errors import DulyError, InvalidArgument, SchemaMissing, SchemaTooNew, UnsuitableDatabase
from duly.kernel.localtime import differs_from_package, zone
from duly.kernel.windows import Calendar
from duly.monitoring.alerts.alert import Severity
from duly.monitoring.alerts.judge import words
from duly.monitoring.alerts.watch import Alerts
from duly.monitoring.health import (
    AlertFacts,
    Facts,
    FileFacts,
    GateFacts,
    HeldScope,
    LiveWorker,
    LoginFacts,
    PausedQueue,
    ScheduleFacts,
    ServerFacts,
    WakeFacts,
)
from duly.monitoring.redact import bare_url, hide_parts, hide_passwords
from duly.schedules.read import standing
from duly.settings import Settings, unknown_variables
from duly.storage import migrate
from duly.storage.database import Database
from duly.storage.qualified import text
from duly.storage.session_settings import LIMITS, encoding

_SYNCHRONOUS = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}


def examine(engine: Engine) -> Facts:
    """Everything ``health.judge`` wants to know."""
    db = engine.db
    zones, zone_data = zone_facts()
    found: dict[str, Any] = {
        "zones": zones,
        "zone_data": zone_data,
        "version": "",
        "login": login_facts(engine.settings),
        "variables": unknown_variables(os.environ, engine.settings.publish_channels),
    }
    try:
        if db.is_sqlite and not db.memory:
            found["file"] = file = _file(db)
            if not file.exists:
                return _facts(db, **found)
        found |= _answer(db)
        if found["revision"] is None or found["barred"] or found["revision"] < migrate.HEAD:
            return _facts(db, **found)  # what an older schema lacks cannot be asked
        found |= db.read(lambda c: _work(engine, c))
        if found["revision"] == migrate.HEAD:
            found["alerts"] = alert_facts(engine)
            found["schedules"] = db.read(lambda c: schedule_facts(c, found["now"]))
            found |= db.read(lambda c: zones_in_use(c, found["now"]))
        if not db.is_sqlite and not found["read_only"]:  # where nothing is written, nobody is woken
            found["wake"] = wake_facts(db)
    except DulyError as error:
        found["problem"] = _said(db, str(error))
    except SQLAlchemyError as error:  # not a database, a table that is not ours, a right that is missing
        first = str(getattr(error, "orig", None) or error).strip().splitlines()
        found["problem"] = _said(db, f"{db.shown_url}: {first[0] if first else type(error).__name__}")
    return _facts(db, **found)


def _said(db: Database, problem: str) -> str:
    """A problem of the database without any piece of its password."""
    told = hide_parts(problem, db.settings.database_url)
    if not db.is_sqlite and "@" in f"{db.url.host}{db.url.database}":
        told += " (an @ within a password is written %40, a slash %2F)"
    return told


def _facts(db: Database, **found: Any) -> Facts:
    found.setdefault("now", db.clock.now())
    return Facts(url=hide_parts(db.shown_url, db.settings.database_url), duly=__version__, head=migrate.HEAD, **found)


# ---------------------------------------------------------------------- this machine


def zone_facts() -> tuple[int, str]:
    """How many zones this machine knows, and from where."""
    zones = len(zoneinfo.available_timezones())
    for folder in zoneinfo.TZPATH:
        for name in ("tzdata.zi", "+VERSION"):
            try:
                with (Path(folder) / name).open(encoding="ascii") as file:
                    return zones, f"version {file.readline().strip().removeprefix('# version ')} of the system"
            except (OSError, UnicodeDecodeError):
                continue
        if (Path(folder) / "UTC").exists():
            return zones, "of the system"
    try:
        return zones, f"version {importlib.metadata.version('tzdata')} of the package tzdata"
    except importlib.metadata.PackageNotFoundError:
        return zones, ""


#: Where zones stand in the database: a column of names, or a definition with ``tz`` somewhere in it.
_ZONES = {"groups": "zone", "schedules": "recurrence", "blackouts": "definition", "automations": "schedule"}
#: Definitions that are looked through, of each table.
_MOST_ZONES = 10_000


def zones_in_use(connection: Connection, now: datetime) -> dict[str, list[str]]:
    """Zones that rounds, schedules, blackouts and automations go by, of which this machine knows nothing or something else than the package."""
    names = set[str]()
    for table, column in _ZONES.items():
        rows = connection.execute(text(f"SELECT DISTINCT CAST({column} AS text) FROM {table} LIMIT {_MOST_ZONES}"))
        for said in rows.scalars():
            names |= {said} if column == "zone" else set(_TZ.findall(said or ""))
    unknown, differ = [], []
    for name in sorted(names):
        try:
            zone(name)
        except InvalidArgument:
            unknown.append(name)
        else:
            if differs_from_package(name, now.year):
                differ.append(name)
    return {"zones_unknown": unknown, "zones_differ": differ}


#: Strings of a definition that are called a zone.
_TZ = re.compile(r'"tz" *: *"([^"\\]{1,64})"')


def login_facts(settings: Settings) -> LoginFacts | None:
    """Whether people can log in through OpenID Connect; None where nobody is to. The provider is asked once."""
    from duly.accounts.oidc.door import ready

    try:
        options = ready(settings)
    except InvalidArgument as error:
        return LoginFacts(
            bare_url(settings.oidc_issuer), hide_passwords(f"{error.field} {error.problem}"), error.remedy
        )
    if options is None:
        return None
    from duly.accounts.oidc.provider import Provider

    try:
        asyncio.run(Provider(options).discover())
    except ProviderFailed as failed:
        return LoginFacts(bare_url(options.issuer), failed=hide_passwords(failed.told))
    return LoginFacts(bare_url(options.issuer))


def _file(db: Database) -> FileFacts:
    path = Path(db.url.database or "").expanduser().resolve()
    usage = shutil.disk_usage(path.parent)
    system = file_system(path.parent)
    if not path.exists() or not path.stat().st_size:
        return FileFacts(str(path), exists=False, free=usage.free, filesystem=system)
    wal = path.with_name(path.name + "-wal")
    journal, synchronous = db.read(
        lambda c: (c.execute(text("PRAGMA journal_mode")).scalar(), db.settings.sqlite_synchronous)
    )
    return FileFacts(
        str(path),
        journal=str(journal),
        synchronous=synchronous,
        size=path.stat().st_size,
        wal_size=wal.stat().st_size if wal.exists() else 0,
        free=usage.free,
        filesystem=system,
    )


def file_system(folder: Path, mounts: str | None = None) -> str:
    """The kind of file system a folder lies on, from the mount table; empty where there is none to read."""
    if mounts is None:
        try:
            mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
    best, kind = "", ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ")
        inside = folder == Path(point) or Path(point) in folder.parents
        if inside and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind


# ---------------------------------------------------------------------- the database


def _answer(db: Database) -> dict[str, Any]:
    def ask(connection: Connection) -> dict[str, Any]:
        version = connection.execute(
            text("SELECT 'SQLite ' || sqlite_version()" if db.is_sqlite else "SELECT current_setting('server_version')")
        ).scalar_one()
        trips = []
        for _ in range(3):
            begun = time.perf_counter()
            connection.execute(text("SELECT 1"))
            trips.append(time.perf_counter() - begun)
        out: dict[str, Any] = {
            "version": version if db.is_sqlite else f"PostgreSQL {version}",
            "latency": min(trips),
            "encoding": encoding(connection),
            "revision": migrate.current(connection),
            "barred": _barred(connection, db.shown_url),
            "now": db.clock.now(),
            "read_only": "",
        }
        if not db.is_sqlite:
            out["read_only"] = _read_only(connection)
            before = db.clock.now()
            there: datetime = connection.execute(text("SELECT clock_timestamp()")).scalar_one()
            after = db.clock.now()
            out["skew"] = (before + (after - before) / 2 - there).total_seconds()
            out["now"] = there
            out["server"] = server_facts(connection)
        return out

    return db.read(ask)


def _read_only(connection: Connection) -> str:
    """Why PostgreSQL takes no writes; empty where it does."""
    standby, always = connection.execute(
        text("SELECT pg_is_in_recovery(), current_setting('transaction_read_only') = 'on'")
    ).one()
    return "a standby" if standby else "default_transaction_read_only is on" if always else ""


#: The database's own collation, as it was recorded and as it is now (PostgreSQL 15 and later).
_COLLATION = text("""
    SELECT datcollversion, pg_database_collation_actual_version(oid) FROM pg_database
     WHERE datname = current_database() AND datcollversion IS DISTINCT FROM pg_database_collation_actual_version(oid)""")
#: Duly's indexes over a text whose collation is the database's.
_SORTED = text("""
    SELECT DISTINCT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_attribute a ON a.attrelid = i.indexrelid
     WHERE i.indrelid = ANY(CAST(:tables AS regclass[])) AND a.attcollation = (SELECT oid FROM pg_collation WHERE collname = 'default')
     ORDER BY 1""")
_LIMITS = text("SELECT name, setting || coalesce(unit, '') FROM pg_settings WHERE name = ANY(:names) AND setting <> '0' ORDER BY name")  # fmt: skip


def server_facts(connection: Connection) -> ServerFacts:
    """A changed collation with the indexes that it matters to, and limits that cut off work."""
    database = str(connection.execute(text("SELECT current_database()")).scalar_one())
    limits = [(name, value) for name, value in connection.execute(_LIMITS, {"names": list(LIMITS)})]
    if int(connection.execute(text("SELECT current_setting('server_version_num')")).scalar_one()) < 150000:
        return ServerFacts(database, limits=limits)
    changed = connection.execute(_COLLATION).first()
    if changed is None or None in tuple(changed):
        return ServerFacts(database, limits=limits)
    found = connection.execute(_SORTED, {"tables": migrate.tables(connection)}).scalars()
    return ServerFacts(database, (changed[0], changed[1]), list(found), limits)


def _barred(connection: Connection, where: str) -> str:
    """What every other command says of a database that a newer Duly has barred for this code; else empty."""
    try:
        migrate.check(connection, where)
    except SchemaTooNew as error:
        return str(error)
    except (SchemaMissing, UnsuitableDatabase):
        pass  # the revision and the encoding say so
    return ""


def wake_facts(db: Database) -> WakeFacts:
    """Try a NOTIFY, and look for a pooler: behind one, the server process that answers is not the one it promised."""
    s = db.settings
    conninfo = db.url.set(drivername="postgresql").render_as_string(hide_password=False)
    pooled, tried = False, False
    heard_in: float | None = None
    try:
        with psycopg.connect(conninfo, autocommit=True, connect_timeout=10, prepare_threshold=None) as connection:
            row = connection.execute("SELECT pg_backend_pid()").fetchone()
            pooled = row is not None and row[0] != connection.info.backend_pid
            tried = db.prepares and s.notify
            heard_in = _hear(connection, conninfo) if tried else None
    except psycopg.Error:
        pass  # no connection left, or a pooler that refuses LISTEN: nothing was heard
    return WakeFacts(pooled, heard_in, tried, s.pooler, s.notify, s.poll)


def _hear(ear: psycopg.Connection[Any], conninfo: str) -> float | None:
    """Seconds from a NOTIFY to its arrival; None when it does not come within two seconds."""
    ear.execute("LISTEN duly_doctor")
    with psycopg.connect(conninfo, autocommit=True, connect_timeout=10, prepare_threshold=None) as mouth:
        begun = time.perf_counter()
        mouth.execute("NOTIFY duly_doctor")
        for _ in ear.notifies(timeout=2, stop_after=1):
            return time.perf_counter() - begun
    return None


# ---------------------------------------------------------------------- the work


def _work(engine: Engine, connection: Connection) -> dict[str, Any]:
    db = engine.db
    # an embedded database has the clock of this machine
    now = db.present(connection)
    settings = engine.queues.all(connection)
    patience = min(engine.settings.lease / 3, 10.0) + 5.0  # one pass of the rescue, and some seconds
    return {
        "now": now,
        "gate": gate_facts(engine, connection),
        "paused": [
            PausedQueue(q.name, q.paused_at, q.paused_by, q.paused_reason)
            for q in settings.values()
            if q.paused_at is not None
        ],
        "blackouts": [
            HeldScope(b.name, b.scope, Calendar(b.windows).ends_after(now), b.problem)
            for b in engine.calendars.all(connection)
            if b.enabled and any(window.covers(now) for window in b.windows)
        ],
        "workers": [
            LiveWorker(w["name"], w["state"], w["reason"], frozenset(w["queues"]), frozenset(w["tasks"]), w["version"])
            for w in engine.reader.live_workers(connection, WORKER_GONE)
        ],
        "left": left_to_others(connection, now - timedelta(seconds=WORKER_GONE)),
        "waiting": survey.waiting(connection, now),
        "lapsed": lapsed(connection, now - timedelta(seconds=patience)),
        "tail": trail.tail(connection),
    }


def left_to_others(connection: Connection, since: datetime) -> list[tuple[str, str, str]]:
    """What living workers cannot read and leave to others: (host, what, why)."""
    said = connection.execute(select(workers.c.host, workers.c.leaves).where(workers.c.seen_at >= since))
    return sorted({(host, what, why) for host, leaves in said for what, why in (leaves or {}).items()})


def alert_facts(engine: Engine) -> AlertFacts:
    """What is raised, and what the rules say now. Nothing is judged: that would write."""
    alerts = Alerts(engine)
    standing, facts = alerts.standing(), alerts.look()
    raised = {(a.rule, a.subject): a for a in standing.raised}
    beyond = [
        words(rule, sample)
        for rule in alerts.rules
        for sample in (facts.readings[rule.name].samples if rule.name in facts.readings else ())
        if sample.value > rule.threshold
        and (sample.samples is None or sample.samples >= rule.samples)
        and (rule.name, sample.subject) not in raised
    ]
    return AlertFacts(
        [(a.id, a.detail, a.severity is Severity.CRITICAL, a.acked_by) for a in raised.values()],
        beyond,
        list(facts.unknown.items()),
    )


def schedule_facts(connection: Connection, now: datetime) -> ScheduleFacts:
    """How schedules stand. A scheduler looks within some seconds, so after a minute nobody does."""
    found = standing(connection, now - timedelta(seconds=60))
    return ScheduleFacts(
        found.count,
        found.paused,
        (found.next.name, found.next.at) if found.next else None,
        found.broken,
        found.overdue,
    )


def gate_facts(engine: Engine, connection: Connection) -> GateFacts:
    """Whether the gate is open, and who moved it last, as the trail remembers."""
    online, outbox = engine.queues.online(connection), engine.queues.outbox_online(connection)
    last = trail.find(connection, trail.TrailFilter(entity="gate", entity_id=GATE_KEY), limit=1)
    if not last or last[0].action != ("ATLAS_ONLINE" if online else "ATLAS_OFFLINE"):
        return GateFacts(online, outbox=outbox)  # nobody moved it through Duly
    reason = last[0].meta.get("reason", "") if isinstance(last[0].meta, dict) else ""
    return GateFacts(online, last[0].at, last[0].actor, reason or "", outbox)
