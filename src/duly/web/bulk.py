"""Acts on many jobs that begin a moment after they were asked for, can be undone until then, and tell how far they are.

They live in the process that was asked: when it ends before one has begun nothing is done, and what one has done by then stays done, each job on its own.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from duly.accounts.account import Forbidden, Identity, Role
from duly.accounts.door import Accounts
from duly.app import Duly
from duly.audit.store import record
from duly.jobs.filter import JobFilter
from duly.kernel.errors import DulyError, NotFound
from duly.monitoring.redact import visible
from duly.web.problems import Busy

#: For how many seconds an act that is over is told of; jobs of one step.
KEPT, STEP = 600.0, 200
#: For how long a button that was pressed is known again.
PRESSED = 24 * 3600.0
#: Acts that wait or run at once, of one who asks, of one tenant, and of one process; those of one who asks that are over and told of; jobs of
#: one act.
EACH, OF_TENANT, MOST, TOLD = 5, 20, 100, 20
MOST_JOBS = 10_000
#: Audit actions.
PLANNED, UNDONE, ENDED = "BULK_PLANNED", "BULK_UNDONE", "BULK_ENDED"


@dataclass(slots=True)
class BulkAct:
    """An act on many, as it stands. ``state``: waits, runs, done, undone, failed. Monotonic seconds, but for ``planned_for``."""

    name: str
    #: In the order in which they were asked for, in this process.
    number: int
    who: Identity
    event: str
    #: None once it is over.
    ids: Sequence[int]
    count: int
    reason: str
    force: bool
    #: What they were found by: one that does not fit it any more when the act begins is refused.
    fits: JobFilter | None
    #: The page that leads back.
    back: str
    #: When it begins, unless it is undone: for people, aware, in UTC.
    planned_for: datetime
    asked_at: datetime
    begins_at: float
    state: str = "waits"
    done: int = 0
    refused: dict[int, str] = field(default_factory=dict)
    problem: str = ""
    over_at: float | None = None
    undone: threading.Event = field(default_factory=threading.Event)

    @property
    def looked_at(self) -> int:
        """Jobs that it is through with."""
        return self.done + len(self.refused)

    @property
    def begins_in(self) -> float:
        return max(0.0, self.begins_at - time.monotonic())


class BulkActs:
    """The acts of this process: one for each application, whichever door they are asked for at."""

    def __init__(self, app: Duly, accounts: Accounts) -> None:
        self._app, self._accounts = app, accounts
        self._acts, self._lock, self._numbers = dict[str, BulkAct](), threading.Lock(), itertools.count(1)
        #: The act that each button has begun, by (whose, its mark), and when.
        self._pressed = dict[tuple[str, str], tuple[str, float]]()

    def pressed(self, owner: str, mark: str) -> str | None:
        """The name of the act that somebody's button has begun already. The act may be forgotten by now."""
        found = self._pressed.get((owner, mark))
        return None if found is None else found[0]

    def begin(
        self, who: Identity, event: str, ids: Sequence[int], reason: str, force: bool, *, window: float, fits: JobFilter | None = None, back: str = "/jobs",
        mark: str | None = None,
    ) -> str:  # fmt: skip
        """Plan an act that can be undone for ``window`` seconds. Returns its name. Once for each ``mark``: pressed again, a button begins nothing.
        Raises Busy where too many wait or run."""
        now = self._app._read(self._app.db.present)
        made = BulkAct(
            secrets.token_urlsafe(12), next(self._numbers), who, event, ids, len(ids), reason, force, fits, back, now + timedelta(seconds=window), now,
            time.monotonic() + window,
        )  # fmt: skip
        with self._lock:
            self._forget()
            if mark is not None and (who.key, mark) in self._pressed:
                return self._pressed[who.key, mark][0]
            going = [a.who for a in self._acts.values() if a.over_at is None]
            if sum(one.key == who.key for one in going) >= EACH:
                raise Busy(f"{EACH} of your acts")
            if who.tenant is not None and sum(one.tenant == who.tenant for one in going) >= OF_TENANT:
                raise Busy(f"{OF_TENANT} acts of your tenant")
            if len(going) >= MOST:
                raise Busy(f"{MOST} acts")
            self._acts[made.name] = made
            if mark is not None:
                self._pressed[who.key, mark] = made.name, time.monotonic()
        try:
            self._record(made, PLANNED, window=window, reason=reason)
        except BaseException:
            with self._lock:
                self._acts.pop(made.name, None)
                self._pressed = {m: p for m, p in self._pressed.items() if p[0] != made.name}
            raise
        threading.Thread(target=self._run, args=(made,), name="duly bulk act", daemon=True).start()
        return made.name

    def _forget(self) -> None:
        now = time.monotonic()
        over: dict[str, list[BulkAct]] = {}
        for act in self._acts.values():
            if act.over_at is not None:
                over.setdefault(act.who.key, []).append(act)
        gone = {a.name for acts in over.values() for place, a in enumerate(reversed(acts)) if place >= TOLD or now - (a.over_at or now) >= KEPT}  # fmt: skip
        self._acts = {name: act for name, act in self._acts.items() if name not in gone}
        self._pressed = {m: p for m, p in self._pressed.items() if now - p[1] < PRESSED}

    def of(self, owner: str) -> list[BulkAct]:
        """Somebody's acts that are known, the newest first."""
        with self._lock:
            self._forget()
            return sorted((a for a in self._acts.values() if a.who.key == owner), key=lambda a: -a.number)

    def get(self, name: str, owner: str) -> BulkAct:
        """Raises NotFound, also for somebody else's."""
        found = self._acts.get(name)
        if found is None or found.who.key != owner:
            raise NotFound("act", name[:40])
        return found

    def undo(self, name: str, owner: str, reason: str = "") -> BulkAct:
        """Have it not done, if it has not begun. Raises NotFound."""
        found = self.get(name, owner)
        with self._lock:
            if waited := found.state == "waits":
                found.state, found.over_at, found.ids = "undone", time.monotonic(), ()
        found.undone.set()
        if waited:
            self._record(found, UNDONE, reason=reason)
        return found

    def _record(self, act: BulkAct, action: str, **more: object) -> None:
        meta = {"event": act.event, "jobs": act.count, **{name: value for name, value in more.items() if value != ""}}
        self._app._write(
            lambda c: record(
                self._app.db, c, actor=act.who.actor, action=action, entity="bulk", entity_id=act.name, tenant=act.who.tenant or "system", meta=meta
            )
        )  # fmt: skip

    def _may_still(self, act: BulkAct) -> bool:
        """May who has asked still act on these jobs? Rights can be taken away while an act waits or runs, and people are moved to another tenant.

        Who logs out has meant what they asked for; of whose password was replaced meanwhile, nobody knows who has asked.
        """
        who = act.who
        now = self._accounts.still(who)
        if now is None and who.login and who.user is not None:
            now = self._accounts.still(replace(who, login=""))
            if now is not None and self._accounts.user(who.user).updated_at > act.asked_at:
                return False
        return now is not None and now.tenant == who.tenant and now.may("jobs", Role.OPERATOR)

    def _run(self, act: BulkAct) -> None:
        act.undone.wait(max(0.0, act.begins_at - time.monotonic()))
        with self._lock:
            if act.state != "waits":
                return
            act.state = "runs"
        try:
            for start in range(0, len(act.ids), STEP):
                part = act.ids[start : start + STEP]
                if not self._may_still(act):
                    raise Forbidden(f"{act.who.actor} may not do this any more.")
                bulk = self._app.jobs.admin.act_on(
                    act.event, part, act.who.actor, act.reason, act.who.tenant, act.force, act.fits
                )
                act.done += len(bulk.done)
                act.refused.update(bulk.refused)
            act.state = "done"
        except Exception as error:  # the database went away, the application was closed, or what nobody has thought of
            act.problem = visible(str(error)) if isinstance(error, DulyError) else f"{type(error).__name__}."
            act.state = "failed"
        finally:
            # the jobs have rows of their own; this one says how it went altogether
            with contextlib.suppress(Exception):
                self._record(act, ENDED, done=act.done, refused=len(act.refused), problem=act.problem)
            act.ids, act.over_at = (), time.monotonic()
