"""Acts on many jobs that begin a moment after somebody has pressed the button, can be undone until then, and tell how far they are.

They live in the process that was asked: when it ends before one has begun nothing is done, and what one has done by then stays done, each job on its own.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from duly.accounts.account import Forbidden, Identity, Role
from duly.accounts.door import Accounts
from duly.app import Duly
from duly.kernel.errors import DulyError, InvalidArgument, NotFound
from duly.kernel.payload import MOST_ID
from duly.monitoring.redact import visible
from duly.web.dashboard.words import plural
from duly.web.gate import LOCAL

#: Seconds in which an act can be undone; for how long one that is over is told of; jobs of one step.
WINDOW, KEPT, STEP = 8.0, 600.0, 200
#: For how long a button that was pressed is known again.
PRESSED = 24 * 3600.0
#: Acts that wait or run at once, of one who asks and of one process; jobs of one act.
EACH, MOST = 5, 50
MOST_JOBS = 10_000
WHAT = {"cancel": "cancelled, or asked to stop", "replay": "queued again"}


@dataclass(slots=True)
class BulkAct:
    """An act on many, as it stands. ``state``: waits, runs, done, undone, failed. Instants are monotonic seconds."""

    name: str
    who: Identity
    event: str
    ids: Sequence[int]
    reason: str
    force: bool
    #: The page that leads back.
    back: str
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

    @property
    def words(self) -> str:
        """What it has done."""
        said = f"{plural(self.done, 'job')} {'is' if self.done == 1 else 'are'} {WHAT[self.event]}."
        if self.refused:
            said += f" {plural(len(self.refused), 'job')} could not be: {next(iter(self.refused.values()))}"
        return said


class BulkActs:
    """The acts of this process."""

    def __init__(self, app: Duly, accounts: Accounts) -> None:
        self._app, self._accounts = app, accounts
        self._acts, self._lock = dict[str, BulkAct](), threading.Lock()
        #: The act that each button has begun, by (whose, its mark), and when.
        self._pressed = dict[tuple[str, str], tuple[str, float]]()

    def pressed(self, owner: str, mark: str) -> str | None:
        """The name of the act that somebody's button has begun already. The act may be forgotten by now."""
        found = self._pressed.get((owner, mark))
        return None if found is None else found[0]

    def begin(self, who: Identity, event: str, ids: Sequence[int], reason: str, force: bool, back: str, mark: str) -> str:  # fmt: skip
        """Plan an act, once for each ``mark``: pressed again, a button begins nothing. Returns its name. Raises Busy where too many wait or run."""
        made = BulkAct(secrets.token_urlsafe(12), who, event, ids, reason, force, back, time.monotonic() + WINDOW)
        with self._lock:
            now = time.monotonic()
            self._acts = {n: a for n, a in self._acts.items() if a.over_at is None or now - a.over_at < KEPT}
            self._pressed = {m: p for m, p in self._pressed.items() if now - p[1] < PRESSED}
            if (who.key, mark) in self._pressed:
                return self._pressed[who.key, mark][0]
            going = [a.who.key for a in self._acts.values() if a.over_at is None]
            if going.count(who.key) >= EACH:
                raise Busy(f"{EACH} of your acts")
            if len(going) >= MOST:
                raise Busy(f"{MOST} acts")
            self._acts[made.name], self._pressed[who.key, mark] = made, (made.name, now)
        threading.Thread(target=self._run, args=(made,), name="duly bulk act", daemon=True).start()
        return made.name

    def get(self, name: str, owner: str) -> BulkAct:
        """Raises NotFound, also for somebody else's."""
        found = self._acts.get(name)
        if found is None or found.who.key != owner:
            raise NotFound("act", name[:40])
        return found

    def undo(self, name: str, owner: str) -> BulkAct:
        """Have it not done, if it has not begun. Raises NotFound."""
        found = self.get(name, owner)
        with self._lock:
            if found.state == "waits":
                found.state, found.over_at = "undone", time.monotonic()
        found.undone.set()
        return found

    def _may_still(self, who: Identity) -> bool:
        """May who has asked still act on jobs? Rights can be taken away while an act waits or runs; a login may end."""
        if who == LOCAL:
            return not self._accounts.exist()
        if who.user is not None:
            try:
                user = self._accounts.user(who.user)
            except NotFound:
                return False
            there, role = user.disabled_at is None and who.key == f"user {user.id}", user.role
        elif who.key.startswith("token "):
            now = self._app.db.read(self._app.db.present)
            token = next((one for one in self._accounts.tokens(who.tenant) if who.key == f"token {one.id}"), None)
            there, role = token is not None and token.state(now) == "active", who.role
        else:
            there, role = True, who.role
        return there and replace(who, role=role).may("jobs", Role.OPERATOR)

    def _run(self, act: BulkAct) -> None:
        act.undone.wait(max(0.0, act.begins_at - time.monotonic()))
        with self._lock:
            if act.state != "waits":
                return
            act.state = "runs"
        try:
            for start in range(0, len(act.ids), STEP):
                part = act.ids[start : start + STEP]
                if not self._may_still(act.who):
                    raise Forbidden(f"{act.who.actor} may not do this any more.")
                bulk = self._app.jobs.admin.act_on(
                    act.event, part, act.who.actor, act.reason, act.who.tenant, act.force
                )
                act.done += len(bulk.done)
                act.refused.update(bulk.refused)
            act.state = "done"
        except Exception as error:  # the database went away, the application was closed, or what nobody has thought of
            act.problem = visible(str(error)) if isinstance(error, DulyError) else f"{type(error).__name__}."
            act.state = "failed"
        finally:
            act.over_at = time.monotonic()


class Busy(DulyError):
    """Too many acts wait or run."""

    def __init__(self, which: str) -> None:
        super().__init__(f"{which} on many jobs wait or run already; try again when one of them is over.")


def packed(ids: Sequence[int]) -> str:
    """Numbers of jobs, in order, in few characters: how far each is from the one before, and how many follow it without a gap. ``7.3-2`` is
    7, 10, 11, 12."""
    runs: list[list[int]] = []
    last = 0
    for ident in ids:
        if runs and ident == last + 1:
            runs[-1][1] += 1
        else:
            runs.append([ident - last, 0])
        last = ident
    return ".".join(f"{gap}-{more}" if more else str(gap) for gap, more in runs)


_RUN = re.compile(r"([1-9][0-9]{0,18})(?:-([1-9][0-9]{0,4}))?", re.ASCII)


def unpacked(text: str) -> list[int]:
    """The numbers again. Raises InvalidArgument."""
    out: list[int] = []
    last = 0
    for part in text.split("."):
        run = _RUN.fullmatch(part)
        more = int(run[2] or 0) if run else 0
        if run is None or len(out) + 1 + more > MOST_JOBS or last + int(run[1]) + more > MOST_ID:
            raise InvalidArgument(
                "jobs", "names no jobs of a page that was shown.", "Load the page again, and press its button."
            )
        first = last + int(run[1])
        out.extend(range(first, first + more + 1))
        last = out[-1]
    return out
