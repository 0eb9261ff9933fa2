"""Is everything in order? Facts in, findings out. Pure: no database, no clock, no machine (``examine`` asks those).

Each finding is ok, warn or fail, says what is the case, and, unless it is ok, what to do. A fail is something that keeps
work from being done or endangers it now; a warning is something a person should know about.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duly.audit.read import Tail
    from duly.jobs.lapsed import Lapsed
    from duly.jobs.survey import Waiting

#: Seconds of difference between the clocks that are worth a word. Claims and leases do not suffer (they go by the
#: database's clock); instants that people compute on this machine do.
SKEW = 2.0
#: A job that has been ready for this many seconds while its queue is open is a backlog worth a word.
BACKLOG = 300.0
#: Audit rows are sealed within seconds; a tail older than this, while workers live, means that sealing does not work.
SEAL_LAG = 120.0
SMALL_DISK, TINY_DISK = 1 << 30, 64 << 20
#: SQLite's locks do not hold on these, so two machines (or two containers) can corrupt the file.
NETWORK = (
    "nfs",
    "nfs4",
    "cifs",
    "smb",
    "smb3",
    "smbfs",
    "9p",
    "afs",
    "ceph",
    "glusterfs",
    "fuse.sshfs",
    "fuse.glusterfs",
    "beegfs",
    "lustre",
)


class Grade(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    check: str
    grade: Grade
    detail: str
    #: What to do; empty when all is well.
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class FileFacts:
    """The file of an embedded database, and where it lies."""

    path: str
    exists: bool = True
    journal: str = "wal"
    synchronous: str = "FULL"
    size: int = 0
    wal_size: int = 0
    free: int = 0
    #: As the mount table calls it; empty when that is not known.
    filesystem: str = ""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a PostgreSQL sets that Duly, or a handler, would suffer from."""

    database: str
    #: Versions of the collation: as recorded in the database, and as the machine has it now. None where there are none.
    collation: tuple[str, str] | None = None
    #: Indexes of Duly's tables over texts that are sorted by that collation.
    indexes: Sequence[str] = ()
    #: (setting, value) of limits that end statements, transactions or sessions.
    limits: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class WakeFacts:
    """NOTIFY and what stands between us and the server."""

    #: The server process we were promised is not the one that answers: a pooler is in between.
    pooled: bool
    #: Seconds a NOTIFY took; None when it did not arrive or was not tried.
    heard_in: float | None
    tried: bool
    #: As set: "none" or "transaction".
    pooler: str
    notify: bool
    poll: float


@dataclass(frozen=True, slots=True)
class GateFacts:
    online: bool
    since: datetime | None = None
    by: str = ""
    reason: str = ""
    #: Is it open for the relays of the outbox?
    outbox: bool = True


@dataclass(frozen=True, slots=True)
class PausedQueue:
    name: str
    since: datetime | None
    by: str | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class AlertFacts:
    """Alerts that are raised, and what the rules say at this moment."""

    #: (id, sentence, is it critical, who took note) of each.
    raised: Sequence[tuple[int, str, bool, str | None]] = ()
    #: Sentences about values that are beyond their thresholds and not raised, yet or at all.
    beyond: Sequence[str] = ()
    #: Rules that cannot be judged, and why.
    unknown: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class HeldScope:
    """A blackout that holds now, or that cannot be read and holds until it is mended."""

    name: str
    scope: str
    #: None while no end is in sight.
    until: datetime | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ScheduleFacts:
    """How schedules stand."""

    count: int
    paused: int
    #: (name, when) of the next planned instant of all.
    next: tuple[str, datetime] | None
    #: (name, why, since when) of those that cannot be planned.
    broken: Sequence[tuple[str, str, datetime]] = ()
    #: (name, since when) of those that nobody looks at.
    overdue: Sequence[tuple[str, datetime]] = ()


@dataclass(frozen=True, slots=True)
class LoginFacts:
    """The provider that people log in through."""

    issuer: str
    #: What is wrong with the settings, and what to do.
    wrong: str = ""
    remedy: str = ""
    #: What the provider did when it was asked from here; empty: it answered as it should.
    failed: str = ""


@dataclass(frozen=True, slots=True)
class LiveWorker:
    """A worker as it last said it was."""

    name: str
    state: str
    reason: str | None
    queues: frozenset[str]
    tasks: frozenset[str]
    version: str


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that was found. What could not be asked is None, and nothing is said about it."""

    url: str
    now: datetime
    version: str
    #: What this code knows: its own version, its schema.
    duly: str
    head: str
    #: Seconds for one round trip, and why there is none.
    latency: float | None = None
    problem: str = ""
    revision: str | None = None
    #: Why nothing can be written; empty where it can.
    read_only: str = ""
    #: Why this code may not run on the database, where a newer Duly has barred it.
    barred: str = ""
    #: How the database stores texts; empty where that was not asked.
    encoding: str = ""
    server: ServerFacts | None = None
    skew: float | None = None
    zones: int | None = None
    zone_data: str = ""
    #: Zones of this database that the ``tzdata`` package says something else of, and those that this machine does not know.
    zones_differ: Sequence[str] = ()
    zones_unknown: Sequence[str] = ()
    #: Variables of the environment that look like settings and that nothing reads, each with the one that was probably meant.
    variables: Mapping[str, str | None] = field(default_factory=dict)
    file: FileFacts | None = None
    login: LoginFacts | None = None
    wake: WakeFacts | None = None
    gate: GateFacts | None = None
    paused: Sequence[PausedQueue] = ()
    blackouts: Sequence[HeldScope] = ()
    workers: Sequence[LiveWorker] | None = None
    #: What living workers cannot read and leave to others: (host, what, why).
    left: Sequence[tuple[str, str, str]] = ()
    waiting: Sequence[Waiting] = ()
    lapsed: Lapsed | None = None
    tail: Tail | None = None
    alerts: AlertFacts | None = None
    schedules: ScheduleFacts | None = None
    #: Anything else worth keeping for the JSON form.
    extra: dict[str, Any] = field(default_factory=dict)


def judge(f: Facts) -> list[Finding]:
    """The findings, in the order in which one would look."""
    return [*_machine(f), *_database(f), *_work(f)]


def worst(findings: Iterable[Finding]) -> Grade:
    grades = {x.grade for x in findings}
    return Grade.FAIL if Grade.FAIL in grades else Grade.WARN if Grade.WARN in grades else Grade.OK


def ok(check: str, detail: str) -> Finding:
    return Finding(check, Grade.OK, detail)


def warn(check: str, detail: str, remedy: str) -> Finding:
    return Finding(check, Grade.WARN, detail, remedy)


def fail(check: str, detail: str, remedy: str) -> Finding:
    return Finding(check, Grade.FAIL, detail, remedy)


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


# ---------------------------------------------------------------------- this machine


def _machine(f: Facts) -> Iterator[Finding]:
    if f.zones is not None:
        if f.zones:
            yield ok("time zones", f"{f.zones} zones, {f.zone_data or 'of unknown version'}")
        else:
            yield fail("time zones", "this machine has no zone data: schedules cannot be read", "pip install tzdata")
    if f.zones_unknown:
        yield fail(
            "zones in use", f"this machine does not know {_few(f.zones_unknown)}, which rounds, schedules or blackouts here go by",
            "Install tzdata and tzdata-legacy, or pip install -U tzdata; restart the workers of this machine.",
        )  # fmt: skip
    if f.zones_differ:
        yield warn(
            "zones in use", f"{_few(f.zones_differ)}: this machine's zone data ({f.zone_data}) and the tzdata package give other local times",
            "Update the system's tzdata, or use the package's: PYTHONTZPATH= (empty). Use the same data on all machines.",
        )  # fmt: skip
    if f.variables:
        named = [f"{name} ({near}?)" if near else name for name, near in f.variables.items()]
        yield warn(
            "settings",
            f"nothing reads {_few(named)}",
            "Correct the name, or remove it; duly doctor --settings lists all.",
        )
    if f.file is not None:
        yield from _file(f.file)
    if f.login is not None:
        yield _login(f.login)


def _login(login: LoginFacts) -> Finding:
    if login.wrong:
        return fail("log in", f"nobody can log in through OpenID Connect: {login.wrong}", login.remedy or "mend the setting")  # fmt: skip
    if login.failed:
        return warn("log in", f"{login.issuer} {login.failed}", "if the dashboard is served from here, mend that; elsewhere, look there")  # fmt: skip
    return ok("log in", f"through {login.issuer}, which answers as it should")


def _file(file: FileFacts) -> Iterator[Finding]:
    if file.filesystem.lower() in NETWORK:
        yield fail(
            "file system",
            f"{file.path} lies on {file.filesystem}, a network file system, where SQLite's locks do not hold",
            "move the file to a local disk, or use PostgreSQL",
        )
    elif file.filesystem:
        yield ok("file system", f"{file.filesystem}, a local one")
    free = f"{_bytes(file.free)} free"
    if file.free < TINY_DISK:
        yield fail("disk", f"{free}: the next writes may fail", "make room")
    elif file.free < SMALL_DISK:
        yield warn("disk", free, "make room before it runs out")
    else:
        yield ok("disk", free)
    if not file.exists:
        return
    if file.journal != "wal":
        detail = f"journal mode is {file.journal!r}: readers and the writer wait for each other"
        yield warn("journal", detail, "let nothing else set the journal mode of this file; WAL needs shared memory")
    elif file.wal_size > max(1 << 30, 4 * file.size):
        detail = f"the write-ahead log has grown to {_bytes(file.wal_size)}: some reader never ends its transaction"
        yield warn("journal", detail, "end that reader; the log shrinks at the next checkpoint")
    elif file.synchronous == "NORMAL":
        yield ok("journal", "WAL, synchronous NORMAL: a power cut may take the last commits")
    else:
        yield ok("journal", f"WAL, synchronous {file.synchronous}: a commit survives a power cut")


def _bytes(n: int) -> str:
    size = float(n)
    for unit in ("bytes", "KB", "MB", "GB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" or size >= 10 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TB"


# ---------------------------------------------------------------------- the database


def _database(f: Facts) -> Iterator[Finding]:
    if f.problem:
        yield fail("database", f.problem, "start it, or name another with --database-url or DULY_DATABASE_URL")
        return
    if f.file is not None and not f.file.exists:
        yield ok("database", f"{f.file.path} does not exist yet; it is made when it is first used")
        return
    assert f.latency is not None
    answer = f"{f.version} at {f.url}, a round trip takes {_span(f.latency)}"
    if f.read_only:
        remedy = "name the primary of this standby" if f.read_only == "a standby" else "let it be written to: ALTER DATABASE … or ALTER ROLE … SET default_transaction_read_only = off"  # fmt: skip
        yield fail("database", f"the database is read-only ({f.read_only}): {answer}", remedy)
    elif f.latency > 0.05:
        yield warn(
            "database", answer, "bring the worker nearer to its database; each claim and settlement waits this long"
        )
    else:
        yield ok("database", answer)
    if f.encoding.upper().replace("-", "") not in ("", "UTF8"):
        detail = f"the encoding of the database is {f.encoding}, and Duly needs UTF8: texts would be refused, or come back as other texts"
        yield fail("encoding", detail, "createdb --encoding=UTF8 --template=template0 NAME, and name that database")
    yield _schema(f)
    if f.server is not None:
        yield from _server(f.server)
    if f.skew is not None:
        ahead = "ahead of" if f.skew > 0 else "behind"
        if abs(f.skew) > SKEW:
            detail = f"this machine's clock is {_span(abs(f.skew))} {ahead} the database's"
            yield warn("clock", detail, "keep both in time with NTP")
        else:
            yield ok("clock", f"within {_span(abs(f.skew))} of the database's")
    if f.wake is not None:
        yield _wake(f.wake)


def _schema(f: Facts) -> Finding:
    if f.revision is None:
        return fail("schema", "the tables of Duly are not there", "duly migrate")
    if f.revision < f.head:
        return fail("schema", f"at revision {f.revision}; this version needs {f.head}", "duly migrate")
    if f.barred:
        return fail("schema", f.barred, "upgrade this program")
    if f.revision > f.head:
        detail = f"at revision {f.revision}, made by a newer Duly; this one ({f.duly}) knows {f.head}"
        return warn("schema", detail, "upgrade this program")
    return ok("schema", f"at revision {f.revision}, as this version needs")


def _server(server: ServerFacts) -> Iterator[Finding]:
    if server.collation is not None:
        recorded, actual = server.collation
        name = '"' + server.database.replace('"', '""') + '"'
        which = (
            f"these indexes of Duly may be wrong: {', '.join(server.indexes)}"
            if server.indexes
            else "Duly's own keys and names do not depend on it; other indexes over texts in this database may be wrong"
        )
        yield warn(
            "collation",
            f"the collation of this database has changed from version {recorded} to {actual} (another C library or image): {which}",
            f"REINDEX DATABASE {name}; ALTER DATABASE {name} REFRESH COLLATION VERSION",
        )
    if server.limits:
        said = ", ".join(f"{name} = {value}" for name, value in server.limits)
        yield warn(
            "limits",
            f"the server ends what takes longer than this: {said}; a handler with an open transaction fails with the limit's name",
            "if handlers or looks back need longer, ALTER ROLE … SET the limit higher for the role of the workers",
        )


def _wake(w: WakeFacts) -> Finding:
    polling = f"idle workers look every {w.poll:g} s"
    if w.pooler == "transaction":
        return ok("wake-ups", f"off behind a pooler (pooler=transaction): {polling}")
    if w.pooled and w.heard_in is None and w.tried:
        detail = "a connection pooler stands in between and NOTIFY does not arrive"
        return fail(
            "wake-ups", detail, "set DULY_POOLER=transaction: prepared statements do not survive such a pooler either"
        )
    if w.pooled:
        return warn(
            "wake-ups",
            "a connection pooler stands in between",
            "if it pools by transaction, set DULY_POOLER=transaction",
        )
    if not w.notify:
        return ok("wake-ups", f"off (notify=false): {polling}")
    if not w.tried:
        return warn("wake-ups", "they could not be tried: no further connection was to be had", "raise max_connections")
    if w.heard_in is None:
        return warn("wake-ups", f"a NOTIFY was sent and did not arrive: {polling}", "look for what filters LISTEN")
    return ok("wake-ups", f"a NOTIFY arrives within {_span(w.heard_in)}")


# ---------------------------------------------------------------------- the work


def _work(f: Facts) -> Iterator[Finding]:
    if f.gate is not None:
        yield _gate(f.gate, f.now)
        yield from _paused(f)
        yield from _blackouts(f)
    if f.workers is not None:
        yield from _workers(f)
        yield from _unserved(f)
        yield _backlog(f)
    if f.lapsed is not None:
        yield _leases(f.lapsed, f.now)
    if f.schedules is not None and f.schedules.count:
        yield from _schedules(f.schedules, f.now)
    if f.tail is not None:
        yield _tail(f)
    if f.alerts is not None:
        yield from _alerts(f.alerts)


def _gate(g: GateFacts, now: datetime) -> Finding:
    if g.online and not g.outbox:
        return warn(
            "gate", "online, and offline for the outbox: no relay sends anything", "duly gate online --scope outbox"
        )
    if g.online:
        return ok("gate", "online")
    since = f" for {_span((now - g.since).total_seconds())}" if g.since else ""
    by = f", closed by {g.by}" if g.by else ""
    why = f": {g.reason}" if g.reason else ""
    return warn(
        "gate",
        f"offline{since}{by}{why}; no worker claims anything{'' if g.outbox else ', and no relay sends anything'}",
        "duly gate online",
    )


def _paused(f: Facts) -> Iterator[Finding]:
    if not f.paused:
        yield ok("paused", "no queue is paused")
    for q in f.paused:
        since = f" for {_span((f.now - q.since).total_seconds())}" if q.since else ""
        by = f" by {q.by}" if q.by else ""
        why = f": {q.reason}" if q.reason else ""
        yield warn("paused", f"queue {q.name} is paused{since}{by}{why}", f"duly queues resume {q.name}")


def _blackouts(f: Facts) -> Iterator[Finding]:
    if not f.blackouts:
        yield ok("blackouts", "none holds now")
    for b in f.blackouts:
        if b.problem:
            detail = f"{b.name} cannot be read, and holds {b.scope} until it is mended: {b.problem}"
            yield fail("blackouts", detail, f"duly blackouts set {b.name} …, or duly blackouts remove {b.name}")
        else:
            until = f"until {b.until:%Y-%m-%d %H:%M:%S}Z" if b.until else "without an end in sight"
            yield ok("blackouts", f"{b.name} holds {b.scope} {until}")


def _ready(f: Facts) -> int:
    return sum(w.count for w in f.waiting)


def _workers(f: Facts) -> Iterator[Finding]:
    assert f.workers is not None
    if not f.workers:
        if _ready(f):
            yield fail("workers", f"none is alive, and {_jobs(_ready(f))} could run now", "duly worker")
        else:
            yield warn("workers", "none is alive", "duly worker")
        return
    unready = [w for w in f.workers if w.state == "unready"]
    for w in unready:
        yield fail("workers", f"{w.name} is not ready: {w.reason or 'it does not say why'}", "look at its log")
    good = len(f.workers) - len(unready)
    if good:
        yield ok("workers", f"{good} alive: {', '.join(w.name for w in f.workers if w not in unready)}")
    for host in sorted({host for host, _, _ in f.left}):
        mine = [(what, why) for h, what, why in f.left if h == host]
        yield warn(
            "workers", f"{host} cannot read {_few([f'{what} ({why})' for what, why in mine])} and leaves them to other workers",
            "Update that machine: its zone data, or the code of its workers.",
        )  # fmt: skip
    other = sorted({w.version for w in f.workers} - {f.duly})
    if other:
        yield warn("workers", f"some run version {', '.join(other)}; this is {f.duly}", "finish the deploy")


def _unserved(f: Facts) -> Iterator[Finding]:
    """Ready jobs that no live worker can take: nobody serves their queue, or nobody there knows their task."""
    assert f.workers is not None
    if not f.workers:
        return
    found = False
    by_queue: dict[str, list[Waiting]] = {}
    for w in f.waiting:
        by_queue.setdefault(w.queue, []).append(w)
    for queue, waiting in by_queue.items():
        serving = [w for w in f.workers if queue in w.queues]
        if not serving:
            n = sum(w.count for w in waiting)
            yield fail(
                "queues", f"no worker serves queue {queue}, where {_jobs(n)} wait", f"duly worker --queue {queue}"
            )
            found = True
            continue
        for w in waiting:
            if not any(w.task in worker.tasks for worker in serving):
                detail = f"no worker of queue {queue} knows task {w.task}, of which {_jobs(w.count)} wait"
                yield fail("tasks", detail, "deploy the code that defines it, or look for a misspelt name")
                found = True
    if not found:
        yield ok("queues", "every waiting job has a worker that serves its queue and knows its task")


def _backlog(f: Facts) -> Finding:
    held = {q.name for q in f.paused} | {b.scope.removeprefix("queue:").removeprefix("channel:") for b in f.blackouts}
    everything = any(b.scope == "all" for b in f.blackouts)
    oldest: dict[str, datetime] = {}
    for w in f.waiting:
        if w.queue not in held and not everything:
            oldest[w.queue] = min(w.oldest, oldest.get(w.queue, w.oldest))
    old = {q: (f.now - at).total_seconds() for q, at in oldest.items() if f.now - at > timedelta(seconds=BACKLOG)}
    if old and (f.gate is None or f.gate.online):
        told = ", ".join(f"{q} ({_span(age)})" for q, age in sorted(old.items(), key=lambda x: -x[1])[:5])
        return warn("backlog", f"jobs have waited long in {told}", "start more workers, or raise their concurrency")
    return ok("backlog", f"{_jobs(_ready(f))} ready" if _ready(f) else "nothing waits")


def _leases(x: Lapsed, now: datetime) -> Finding:
    if not x.count:
        return ok("leases", "none has lapsed")
    age = f", the first {_span((now - x.oldest).total_seconds())} ago" if x.oldest else ""
    detail = f"the leases of {_jobs(x.count)} have lapsed{age}, and nobody has rescued them"
    return fail("leases", detail, "start a worker: any worker rescues them")


def _schedules(x: ScheduleFacts, now: datetime) -> Iterator[Finding]:
    for name, problem, since in x.broken:
        detail = f"{name} could not be planned for {_span((now - since).total_seconds())}: {problem}"
        yield fail("schedules", detail, f"duly schedules set {name} …, or duly schedules remove {name}")
    if x.overdue:
        name, since = x.overdue[0]
        more = f" and {len(x.overdue) - 1} more" if len(x.overdue) > 1 else ""
        detail = f"nobody has looked at {name}{more} since {_span((now - since).total_seconds())} ago, when it was due"
        yield fail("schedules", detail, "start a worker: each one looks at the schedules")
    if not x.broken and not x.overdue:
        paused = f", {x.paused} paused" if x.paused else ""
        following = f"; next is {x.next[0]} in {_span((x.next[1] - now).total_seconds())}" if x.next else ""
        yield ok("schedules", f"{x.count}{paused}{following}")


def _tail(f: Facts) -> Finding:
    assert f.tail is not None
    if not f.tail.rows or f.tail.oldest_at is None:
        return ok("audit trail", "sealed to its end")
    age = (f.now - f.tail.oldest_at).total_seconds()
    rows = "1 row is" if f.tail.rows == 1 else f"{f.tail.rows:,} rows are"
    detail = f"{rows} not sealed yet, the oldest from {_span(age)} ago"
    if age > SEAL_LAG and f.workers:
        return warn("audit trail", detail, "look at the workers' logs for duty_failed: they seal it")
    return ok("audit trail", detail if f.workers else f"{detail}; the next worker seals them")


def _alerts(a: AlertFacts) -> Iterator[Finding]:
    """What is raised, what would be if somebody judged now (T000-o), and what cannot be judged."""
    for ident, sentence, critical, noted in a.raised:
        detail = f"{sentence} Noted by {noted}." if noted else sentence
        grade = Grade.FAIL if critical else Grade.WARN
        yield Finding("alerts", grade, detail, f"duly alerts show {ident}")
    for sentence in a.beyond:
        yield warn("alerts", sentence, "duly alerts check judges it; duly alerts rules says what is done about it")
    for rule, problem in a.unknown:
        yield warn("alerts", f"the rule {rule} cannot be judged: {problem}", "mend what keeps it from being read")
    if not (a.raised or a.beyond or a.unknown):
        yield ok("alerts", "none is raised")


def _jobs(n: int) -> str:
    return f"{n:,} job" + ("" if n == 1 else "s")


def _span(seconds: float) -> str:
    seconds = max(0.0, seconds)
    if seconds < 0.0001:
        return "less than 0.1 ms"
    if seconds < 0.9995:
        return f"{seconds * 1000:.{1 if seconds < 0.00995 else 0}f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    for size, unit in ((86_400, "days"), (3_600, "hours"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
