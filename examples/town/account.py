"""What there is in the town: counted in its mailbox, its folders and its database, and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from town import app, outbox, rooms

from duly import Status
from duly.publishing.view import PublicationFilter
from duly.rounds import Round
from duly.rounds import Status as RoundStatus

#: A round that is planned for later than this is not waited for.
SOON = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class Account:
    #: Messages in the mailbox, and letters that the database says were taken, refused for good, and are still to be sent.
    messages: int
    taken: int
    refused: int
    unsent: int
    #: Folders of posts, and posts whose time has come: there by the database, and not yet.
    posts: int
    published: int
    unpublished: int
    #: Group → its round that was closed last, and the one that is open now, if any.
    groups: dict[str, tuple[Round | None, Round | None]]
    #: Groups of which no round was closed yet, or of which none is open though it could be.
    unturned: tuple[str, ...]
    #: The briefing's file is there.
    briefing: bool
    #: Messages of the outbox that were sent, and those that wait; notices on the board.
    sent: int
    waiting: int
    notices: int
    #: The state of the permit's run, its number, and whether the permit is there.
    permit: str
    permit_run: int
    permitted: bool
    #: Jobs that failed on purpose.
    failed: int

    @property
    def closed(self) -> int:
        return sum(1 for closed, _ in self.groups.values() if closed)

    @property
    def opened(self) -> int:
        """Groups whose new round is open."""
        return sum(1 for closed, opened in self.groups.values() if closed and opened)

    def missing(self, *, permit: bool = True) -> list[str]:
        """What is not as it should be when all is done, in words. ``permit``: it belongs to that."""
        checks = (
            (self.unsent > 0, f"{self.unsent} letters are not sent"),
            (self.messages == 0 or self.messages < self.taken, f"{self.messages} of {self.taken} messages are in the mailbox"),
            (self.unpublished > 0, f"{self.unpublished} posts are not published"),
            (self.posts == 0 or self.posts != self.published, f"{self.posts} of {self.published} posts are on disk"),
            (bool(self.unturned), f"no round has closed and opened for the {' and the '.join(self.unturned)}"),
            (not self.briefing, "there is no briefing"),
            (not self.sent, "no message was relayed"),
            (self.notices == 0, "there is no notice on the board"),
            (permit and not self.permitted, f"there is no permit: its run is {self.permit}"),
        )  # fmt: skip
        return [words for wrong, words in checks if wrong]


def take(folder: Path, turning: frozenset[str], now: datetime) -> Account:
    """Look at everything. ``turning``: the groups whose rounds are to close and open."""
    jobs = app.jobs
    posts = rooms.publishing.list(PublicationFilter(run_until=now), limit=1000)
    published = sum(1 for one in posts if one.status == "completed")
    groups = {name: _rounds(name) for name in sorted(turning)}
    unturned = tuple(name for name in groups if not _turned(name, now))
    # in the order in which one makes the other: a round that opens, a notice to a member, a letter
    live = (Status.QUEUED, Status.RUNNING)
    unsent = jobs.count(queue="rounds-notify", status=live) + jobs.count(task="EMAIL_SEND", status=live)
    runs = app.workflows.list("stall permit", limit=1)
    status = outbox.status()
    return Account(
        messages=_files(folder / "mail" / "new", "*"),
        taken=jobs.count(task="EMAIL_SEND", status=(Status.SUCCEEDED,)),
        refused=jobs.count(task="EMAIL_SEND", status=(Status.FAILED,)),
        unsent=unsent,
        posts=_files(folder / "posts", "*/*/index.md"),
        published=published,
        unpublished=len(posts) - published,
        groups=groups,
        unturned=unturned,
        briefing=(folder / "briefing.md").is_file(),
        sent=status.sent or 0,
        waiting=status.pending,
        notices=_files(folder / "notices", "*.txt"),
        permit=runs[0].state if runs else "not there",
        permit_run=runs[0].id if runs else 0,
        permitted=(folder / "permit.txt").is_file(),
        failed=jobs.count(task="TURN_WEATHERCOCK", status=(Status.FAILED,)),
    )


def _rounds(group: str) -> tuple[Round | None, Round | None]:
    found = rooms.rounds.list(group, limit=10)
    closed = next((one for one in found if one.status is RoundStatus.CLOSED), None)
    return closed, next((one for one in found if one.status is RoundStatus.OPEN), None)


def _turned(group: str, now: datetime) -> bool:
    """Has a round closed, and is the next one open, or planned for an hour that is still to come?"""
    found = rooms.rounds.list(group, limit=10)
    if not any(one.status is RoundStatus.CLOSED for one in found):
        return False
    newest = found[0]
    if newest.status is RoundStatus.SCHEDULED:
        return newest.due_at is not None and newest.due_at > now + SOON
    return newest.status is RoundStatus.OPEN


def _files(folder: Path, pattern: str) -> int:
    return sum(1 for _ in folder.glob(pattern)) if folder.is_dir() else 0
