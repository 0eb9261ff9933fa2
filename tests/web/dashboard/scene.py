"""A town in which every room has something to show: what the tests of the pages look at, and the pictures in the documentation.

Time stands still at ``NOW``; three hours of work lie behind it. Everything that people can name or write is named ``free``, so that a test can
make all of it hostile.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import insert

from duly import Cron, Daily, Duly, Every, PermanentError
from duly.automations import Automations
from duly.automations.protocol import FINISH
from duly.automations.providers.base import Answer, Question, ToolCall, Usage
from duly.idempotency.plan import Admit
from duly.idempotency.reservation import Ask, Terms
from duly.idempotency.store import Holding
from duly.jobs.tables import workers
from duly.jobs.task import Task
from duly.kernel.windows import Window
from duly.outbox import Outbox
from duly.publishing.door import Publishing
from duly.rounds import Rounds
from duly.testing import ManualClock, drain
from duly.workflows import WorkflowContext

NOW = datetime(2026, 3, 27, 9, 7, 30, tzinfo=UTC)
START = NOW.replace(hour=6, minute=2, second=0)

#: Of the application: alerts come early enough to be seen.
SETTINGS: dict[str, Any] = {
    "sqlite_synchronous": "NORMAL",
    "alerts_gate": 300.0,
    "alerts_failures": 0.05,
    "alerts_samples": 5,
}


class Clerk:
    """An AI that reads from a script."""

    name, prices = "clerk", None

    def __init__(self) -> None:
        self.script: list[Answer] = []

    async def is_reachable(self) -> bool:
        return True

    async def check(self) -> str:
        return "reads from a script"

    async def ask(self, question: Question, say: Any) -> Answer:
        answer = self.script.pop(0) if self.script else Answer("", (ToolCall("end", FINISH, {"completed": True, "summary": "All is in order."}),), Usage(310, 44))  # fmt: skip
        if answer.text:
            say(answer.text)
        return answer


@dataclass
class Town:
    """What there is, by the numbers that pages are asked for."""

    app: Duly
    failed: int
    queued: int
    running_parent: int
    succeeded: int
    schedule: str
    automation: int
    session: int
    chat: int
    alert: int
    run: int
    message: int
    post: int
    #: A group, its open round, and one of another that is closed.
    group: int
    round: int
    closed: int

    def pages(self) -> dict[str, str]:
        """Every page that there is to look at, by the name of its picture."""
        return {
            "overview": "/",
            "jobs": "/jobs",
            "jobs-filtered": "/jobs?status=failed&queue=reports",
            "jobs-replay": "/jobs/act?event=replay&queue=reports",
            "job-failed": f"/jobs/{self.failed}",
            "job-waiting": f"/jobs/{self.queued}",
            "job-parent": f"/jobs/{self.running_parent}",
            "job-done": f"/jobs/{self.succeeded}",
            "queues": "/queues",
            "schedules": "/schedules",
            "schedule": f"/schedules/show?name={self.schedule}&tenant=default",
            "automations": "/automations",
            "automation": f"/automations/{self.automation}",
            "session": f"/automations/sessions/{self.session}",
            "chat": f"/automations/sessions/{self.chat}",
            "workflows": "/workflows",
            "workflow": f"/workflows/{self.run}",
            "publishing": "/publishing",
            "publication": f"/publishing/{self.post}",
            "outbox": "/outbox",
            "message": f"/outbox/{self.message}",
            "keys": "/keys",
            "keys-of-jobs": "/keys/jobs",
            "failures": "/failures",
            "jobs-failures": "/jobs?status=failed&error=PermanentError&since=24h",
            "calendar": "/calendar?tz=Europe/Rome",
            "calendar-month": "/calendar?view=month&tz=Europe/Rome",
            "calendar-impact": "/calendar/impact?scope=queue&of=mail&start=08:00&end=12:30&tz=Europe/Rome",
            "calendar-blackout": "/calendar/blackout?name=quiet+hours",
            "rounds": "/rounds",
            "round": f"/rounds/{self.round}",
            "round-closed": f"/rounds/{self.closed}",
            "round-group": f"/rounds/groups/{self.group}",
            "audit": "/audit",
            "alerts": "/alerts",
            "not-found": "/jobs/999999999",
        }


def clock() -> ManualClock:
    return ManualClock(START)


def fill(app: Duly, time: ManualClock, free: str = "", busy: bool = True) -> Town:
    """Three hours of work. ``free`` stands in everything that somebody can write; ``busy``: enough of it for charts to be looked at."""
    dice = random.Random(8)
    x = f" {free}" if free else ""
    rounds = _rounds(app, time, free, x)
    crafts = _crafts(app, x)
    send, resize, report, fetch, sync, broken = crafts
    _timetable(app, crafts, x)
    app.open()
    app.schedules.sync()
    shut, still, opened = (8, 9, 10) if busy else (0, 12, 24)
    for step in range(0, 37, 1 if busy else 12):
        broken["reports"] = step in (20, 21, 30)
        if step == shut:
            app.gate.offline(f"the bank is closed{x}", "user:ann")
        if step in (shut, still, opened):
            app.alerts.judge("worker-1")
        if step == opened:
            app.gate.online("the bank is open", "user:ann")
        for n in range(dice.randint(4, 16) if busy else 1):
            send.enqueue(f"reader{step}-{n}@example.org", f"News{x}")
        for n in range(dice.randint(1, 7) if busy else 1):
            resize.enqueue(f"/pictures/{step}-{n}.png{x}")
        report.enqueue(f"2026-{step % 12 + 1:02}{x}", token="s3cret-value")
        if step % 4 == 0:
            sync.enqueue(step // 4 % 5)
        time.advance(dice.random() * (4 if step % 9 else 40))
        drain(app)
        time.set(START + timedelta(minutes=5) * (step + 1))
    broken["reports"] = True
    lost = report.using(key=f"march{x}").enqueue(f"2026-03{x}", token="s3cret-value").job
    fetch.enqueue(f"https://feeds.example.org/{free or 'town'}")
    parent = app.enqueue("import.book", {"book": f"registry{x}"}, queue="media", tenant="default").job
    for part in range(3):
        app.enqueue("image.resize", {"path": f"page {part}{x}"}, queue="media", parent=parent.id)
    done = send.using(key=f"welcome{x}").enqueue("ann@example.org", f"Welcome{x}").job
    drain(app, queues=["mail", "reports", "default"])
    run = app.workflows.start("onboarding", {"name": f"ann{x}"}).job.id
    for _ in range(3):
        drain(app, queues=["workflows", "default", "mail"])
    time.set(max(NOW, time.now()))
    drain(app, queues=["mail", "reports"])
    app.enqueue(f"{free}task"[:200] if free else "map.render", {"area": f"harbour{x}"}, queue=f"{free}queue"[:200] if free else "maps", tenant=f"{free}town"[:200] if free else "harbour")  # fmt: skip
    later = (
        send.using(run_in=timedelta(hours=2), priority=5, concurrency_key=f"ann{x}")
        .enqueue("ann@example.org", "Tonight")
        .job
    )
    gone = resize.enqueue("/pictures/wrong.png").job
    app.jobs.cancel(gone.id, f"the wrong picture{x}", f"user:ann{x}")
    app.queues.pause("media", f"the disk is nearly full{x}", "user:ann")
    app.queues.set("mail", limit=4, rate=(100, 60.0), actor="user:ann")
    app.queues.hold("default", time.now() + timedelta(minutes=9), f"the other side is tired{x}", "worker-1")
    app.schedules.pause("newsletter", f"no news this week{x}", actor="user:ann")
    town = Town(
        app,
        lost.id,
        later.id,
        parent.id,
        done.id,
        "feeds",
        *_automations(app, free, x),
        _alert(app, x),
        run,
        _outbox(app, x),
        _publishing(app, time, x),
        *rounds,
    )
    _keys(app, x)
    _blackouts(app, x)
    _worker(app, "worker-1", ["default", "mail", "media", "reports", "automations"])
    return town


class Crafts(NamedTuple):
    """What the town can do. ``broken``: whether reports fail."""

    send: Task[..., Any]
    resize: Task[..., Any]
    report: Task[..., Any]
    fetch: Task[..., Any]
    sync: Task[..., Any]
    broken: dict[str, bool]


def move_in(app: Duly, town: Town) -> Town:
    """The same town, in an application over a copy of its database: one that knows the tasks, the tools and the channels by which it came to be."""
    Rounds(app, draw=lambda: 0.5)
    crafts = _crafts(app, "")
    crafts.broken["reports"] = True
    _timetable(app, crafts, "")
    app.open()
    Outbox(app)
    Publishing.of(app).channel("board", _putting_up(""))
    _clerk(app, "")
    return replace(town, app=app)


def _crafts(app: Duly, x: str) -> Crafts:
    broken = {"reports": False}

    @app.task("newsletter.send", queue="mail")
    def send(to: str, subject: str = "") -> dict[str, str]:
        return {"message": f"{to}-{subject}"}

    @app.task("image.resize", queue="media")
    def resize(path: str, width: int = 800) -> dict[str, int]:
        return {"bytes": width * 311}

    @app.task("report.build", queue="reports", max_attempts=2)
    def report(month: str, token: str = "") -> str:
        if broken["reports"]:
            raise PermanentError(f"the ledger of {month} is not closed yet{x}")
        return f"report of {month}"

    @app.task("feed.fetch", queue="default", max_attempts=5)
    def fetch(url: str) -> str:
        raise OSError(f"{url} did not answer{x}")

    @app.task("bank.sync", queue="default", max_attempts=1)
    def sync(account: int) -> None:
        raise (ConnectionError, TimeoutError, KeyError)[account % 3](f"account {account}{x}")

    @app.workflow("onboarding")
    async def onboarding(ctx: WorkflowContext, name: str) -> str:
        await ctx.step("make account", dict, name=name)
        await ctx.enqueue(send, to=f"{name}@example.org", subject="Come in")
        await ctx.approve(f"give {name} a key")
        return "welcome"

    return Crafts(send, resize, report, fetch, sync, broken)


def _timetable(app: Duly, crafts: Crafts, x: str) -> None:
    send, report = crafts.send, crafts.report
    app.schedule("feeds", Every(timedelta(minutes=15)), task=report, input={"month": f"2026-02{x}"})
    app.schedule("nightly report", Daily("02:30", tz="Europe/Rome"), task=report, input={"month": "2026-03"})
    app.schedule("newsletter", Cron("0 9 * * mon,thu", tz="America/New_York"), task=send, input={"to": "readers"})
    app.schedule("tide tables", Cron("0 8,14,20 * * *", tz="Europe/Rome"), task=send, input={"to": "sailors"})
    app.schedule(
        "month's end",
        Cron("0 18 28-31 * *", tz="Europe/Rome"),
        task=report,
        input={"month": "2026-03"},
        blackout="skip",
    )


def _rounds(app: Duly, time: ManualClock, free: str, x: str) -> tuple[int, int, int]:
    """Groups around the world, and two days of theirs before the town's day begins: rounds that are open, and some that are over."""
    room = Rounds(app, draw=lambda: 0.5)
    app.open()
    time.set(START - timedelta(hours=60))
    made = []
    for name, place, drop in (
        ("choir", "Europe/Paris", "18:00"), ("book club", "America/New_York", "12:00"), ("early birds", "Asia/Tokyo", "07:30"),
        ("night shift", "Australia/Sydney", "22:15"), ("harbour watch", "UTC", "06:00"),
    ):  # fmt: skip
        made.append(room.groups.add(f"{free}{name}"[:200], place, drop_time=drop, cooldown=0, actor="user:ann"))
        room.prompts.add(made[-1].id, f"What did you hear today?{x}", f"Which song stays with you?{x}")
        for name in ("Ann", "Ben", "Cleo"):
            room.members.add(made[-1].id, f"{free}{name}"[:200], email=f"{name.lower()}@example.org")
    room.groups.add("sleepers", "Europe/Rome", is_active=False)
    choir, members = made[0], room.members.all(made[0].id)
    while time.now() < START - timedelta(minutes=10):
        room.tick()
        for one in room.list(choir.id, status="open", limit=1):
            if room.show(one.id).submissions:
                continue
            answers = [
                room.submit(one.id, who.id, f"{word}{x}")
                for who, word in zip(members, ("The bells, at noon.", "Rain on the roof."), strict=False)
            ]
            room.comment(answers[0].id, members[1].id, f"I heard them too.{x}")
            for who in members[1:]:
                room.vote(answers[0].id, who.id)
        time.advance(timedelta(hours=2))
    time.set(START)
    island = room.groups.add(f"{free}island post"[:200], "Pacific/Honolulu", drop_time="23:30")
    room.prompts.add(island.id, f"What came with the tide?{x}")
    room.tick()
    room.members.set(choir.id, members[0].id, channels=["email", "log"], actor="user:ann")
    return choir.id, room.list(choir.id, status="open")[0].id, room.list(choir.id, status="closed")[0].id


def _keys(app: Duly, x: str) -> None:
    """Calls that are in progress, done and failed; and jobs that hold keys until they start, end, a day later and forever."""
    terms = Terms(timedelta(minutes=6), timedelta(seconds=10))
    for n, end in enumerate((None, Holding.succeed, Holding.fail)):
        key = f"duly:v1:task:{hashlib.sha256(bytes([n])).hexdigest()}"
        decision = app.reservations.reserve(Ask("default", key, f"shop.print_label{x}", f"job:{n + 40}", key, terms))
        assert isinstance(decision, Admit)
        if end is not None:
            end(Holding(app.reservations, decision.reservation, terms), None)
    for task, key, unique in (
        ("newsletter.print", "readers-2026-03-27", timedelta(days=1)), ("search.index", "index-4711", "start"), ("bank.match", "account-7", "done"),
        ("invoice.charge", "charge-2026-03-0000017-of-the-harbour-master-and-company", "forever"),
    ):  # fmt: skip
        app.enqueue(task, {"n": 1}, queue="ledger", key=f"{key}{x}"[:200], unique_until=unique)


def _blackouts(app: Duly, x: str) -> None:
    quiet = Window(
        days=["wed", "sat", "sun"], start="22:00", end="07:00", tz="Europe/Rome", name="quiet hours", scope="queue:mail"
    )
    app.calendars.set(quiet, f"people sleep{x}", "user:ann")
    app.calendars.set(
        Window(dates=("2026-03-30", "2026-03-30"), tz="Europe/Rome", name=f"inventory{x}"[:200], scope="queue:reports"),
        f"counting{x}",
        "user:ann",
    )


def _outbox(app: Duly, x: str) -> int:
    """Some messages, one of which was put aside."""
    box = Outbox(app)
    for n in range(4):
        told = {"greeting": f"hello {n}{x}", "api_key": "s3cret-value"}
        app.db.write(lambda c, told=told: box.publish(c, "webhook:town", told))  # type: ignore[misc]
    second = box.find(10)[-2].id
    box.park(second, reason=f"the town is closed{x}", actor="user:ann")
    return second


def _publishing(app: Duly, time: ManualClock, x: str) -> int:
    """A channel on which one post is out, one was refused, and one is planned."""
    room = Publishing.of(app)
    room.channel("board", _putting_up(x))
    for caption in ("Market on Saturday", "A storm is near"):
        room.enqueue("board", {"caption": f"{caption}{x}"}, actor="user:ann")
    drain(app, queues=["board"])
    for caption, hours in (("The ferry is late", 3), ("Fish on Sunday", 49), ("Choir at six", 74)):
        room.enqueue(
            "board", {"caption": f"{caption}{x}"}, run_at=time.now() + timedelta(hours=hours), actor="user:ann"
        )
    return next(one.id for one in room.list() if one.status == "failed")


def _putting_up(x: str) -> Callable[[Any], None]:
    def put(run: Any) -> None:
        if "storm" in str(run.payload["caption"]):
            run.mark_failed(f"the picture is too large{x}")
        else:
            run.mark_completed(f"board-{run.publication.id}")

    return put


def _clerk(app: Duly, x: str) -> tuple[Automations, Clerk]:
    room, clerk = Automations.of(app), Clerk()
    room.use("clerk", clerk)

    @room.tool
    def weather(town: str) -> dict[str, Any]:
        """The weather of a town."""
        return {"town": town, "sky": f"clear{x}", "degrees": 14}

    return room, clerk


def _automations(app: Duly, free: str, x: str) -> tuple[int, int, int]:
    room, clerk = _clerk(app, x)
    made = room.create({
        "name": f"{free}morning briefing"[:200], "prompt": f"Write the morning briefing of the town.{x}", "provider": "clerk", "tools": ["weather"],
        "schedule": {"kind": "daily", "at": ["07:00"], "tz": "Europe/Rome"},
    })  # fmt: skip
    clerk.script = [
        Answer(f"I begin with the weather.{x}", (ToolCall("c1", "weather", {"town": f"Harbour{x}"}),), Usage(420, 36)),
        Answer(f"Good morning. The sky is clear, 14 degrees. Nothing is overdue, and the market is open until noon.{x}", (), Usage(610, 92)),
    ]  # fmt: skip
    ran = room.run(made.id, actor="user:ann").session
    drain(app, queues=["automations"])
    drain(app, queues=["automations"])
    off = room.create({"name": "evening tidy", "prompt": "Tidy up.", "provider": "clerk"}, enabled=False)
    assert not off.is_enabled
    chat = room.chat(f"about the harbour{x}", provider="clerk", actor="user:ann").session
    room.say(chat.id, f"Which ships are due today?{x}")
    clerk.script = [Answer(f"Two: the mail boat at ten, the ferry at noon.{x}", (), Usage(130, 21))]
    drain(app, queues=["automations"])
    room.run(made.id, actor="user:ann")
    return made.id, ran.id, chat.id


def _alert(app: Duly, x: str) -> int:
    app.alerts.judge("worker-1")
    raised = [alert for alert in app.alerts.find() if alert.state == "raised"]
    if len(raised) > 1:
        app.alerts.ack(raised[-1].id, f"it is known{x}", "user:ann")
    return raised[0].id if raised else 0


def _worker(app: Duly, name: str, queues: list[str]) -> None:
    """A worker that was seen a moment ago."""
    now = app.engine.clock.now()
    row = {
        "name": name,
        "queues": queues,
        "tasks": sorted(app.engine.tasks),
        "state": "running",
        "started_at": now,
        "seen_at": now,
    }
    known = {column.name for column in workers.columns}
    more = {"pid": 1, "host": "town", "version": "1", "concurrency": 20, "running": 1}
    app.db.write(lambda c: c.execute(insert(workers).values({**row, **{k: v for k, v in more.items() if k in known}})))
