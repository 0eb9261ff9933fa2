"""A newsletter makes jobs of the mail room, each of them once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from duly import Duly
from duly.kernel.errors import DatabaseError, DatabaseUnavailable, InvalidArgument, UnknownName
from duly.kernel.verdict import Kind
from duly.mail import Mail
from duly.publishing.connectors.newsletter import NewsletterConnector
from duly.publishing.post import Asset, Post
from duly.testing import drain, enqueued
from duly.testing.connectors import MemoryNotebook
from publishing.connectors.hands import refused, run

POST = Post("news", "Come and see.", title="Sale", link="https://example.org", assets=(Asset(url="https://example.org/a.jpg"),))  # fmt: skip


def test_each_reader_gets_one_letter_however_often_it_is_published(db_url: str, tmp_path: Path) -> None:
    app = Duly(db_url, mail_from="shop@example.org", mail_folder=str(tmp_path / "mail"))
    Mail(app)
    one = NewsletterConnector(to=["ada@example.org", "bob@example.org", "ada@example.org"], enqueue=app.aenqueue)

    async def thrice() -> Any:
        await one.publish(POST, MemoryNotebook())
        await one.publish(POST, MemoryNotebook())
        return await one.publish(POST, MemoryNotebook())

    answer = run(thrice())
    jobs = enqueued(app, "EMAIL_SEND")
    assert answer.remote_id == str(jobs[0].id)
    assert [job.input["to"] for job in jobs] == ["ada@example.org", "bob@example.org"]  # type: ignore[index]
    assert jobs[0].input["text"] == "Come and see.\n\nhttps://example.org\n\nhttps://example.org/a.jpg\n"  # type: ignore[index]
    drain(app)
    assert len(list((tmp_path / "mail" / "new").iterdir())) == 2
    app.close()


def test_a_template_is_given_the_post() -> None:
    made: list[Any] = []
    one = NewsletterConnector(to="news@example.org", enqueue=lambda *a, **o: made.append((a, o)), template="issue", queue="bulk")  # fmt: skip
    run(one.publish(POST, MemoryNotebook(facts={"tenant": "acme"})))
    (name, fields), options = made[0]
    assert (name, fields["template"], fields["data"]["title"], fields["subject"]) == ("EMAIL_SEND", "issue", "Sale", "Sale")  # fmt: skip
    assert (options["queue"], options["tenant"]) == ("bulk", "acme")


def test_what_cannot_be_made_says_whether_it_may_go_better_later() -> None:
    def fails(error: Exception) -> NewsletterConnector:
        def enqueue(*_: Any, **__: Any) -> None:
            raise error

        return NewsletterConnector(to="news@example.org", enqueue=enqueue)

    for error, kind, owner in (  # F
        (DatabaseUnavailable("gone"), Kind.AWAY, "network"), (DatabaseError("odd"), Kind.TRANSIENT, "database"), (InvalidArgument("to", "no"), Kind.PERMANENT, "post"),
        (InvalidArgument("queue", "no"), Kind.AUTH, "channel"), (UnknownName("task", "EMAIL_SEND", "no such task"), Kind.AUTH, "channel"),
    ):  # fmt: skip
        verdict = refused(fails(error).publish(POST, MemoryNotebook()))
        assert (verdict.kind, verdict.owner) == (kind, owner), error
    assert refused(fails(ValueError()).publish(Post("news"), MemoryNotebook())).kind is Kind.PERMANENT


@pytest.mark.parametrize("to", [[], "", "nobody", ["a@example.org", 5], ["a@example.org\nBcc: b@example.org"], [f"{n}@example.org" for n in range(1001)]])  # fmt: skip
def test_readers_are_addresses_and_not_too_many(to: Any) -> None:
    with pytest.raises(InvalidArgument, match="to"):
        NewsletterConnector(to=to, enqueue=print)
    assert "example.org" not in repr(NewsletterConnector(to="a@example.org", enqueue=print))
