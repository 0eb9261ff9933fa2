"""``duly mail``: sending by hand, looking whether the provider works, previews of templates, and who is not written to."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from duly.cli import show
from duly.cli.command import ID, Group, actor, complain, state
from duly.cli.times import stamp
from duly.kernel.errors import WrongState

if TYPE_CHECKING:
    from duly.app import Duly
    from duly.jobs.job import Job
    from duly.mail.mail import Mail, ProviderState
    from duly.mail.suppressions import Suppressions

#: The queue of what is sent at once, so that nothing else is run on the way. As ``mail.plan.NOW``, which is not loaded for a help text.
NOW = "mail-now"


@click.group(cls=Group)
def mail() -> None:
    """Send mail, check its provider, and say who gets none."""


def _mail(app: Duly) -> Mail:
    from duly.mail.mail import Mail

    return Mail.of(app)


# ---------------------------------------------------------------------- sending


@mail.command()
@click.option("--to", multiple=True, metavar="ADDRESS", help="To whom; may be given again.")
@click.option("--cc", multiple=True, metavar="ADDRESS", help="A copy.")
@click.option("--bcc", multiple=True, metavar="ADDRESS", help="A blind copy.")
@click.option("--subject", "-s", help="The subject; that of the template if there is one.")
@click.option("--text", "-t", help="The text, or - for stdin.")
@click.option("--html", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A file with the HTML.")
@click.option("--template", metavar="NAME", help="A template of the folder mail_templates.")
@click.option("--data", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Its data, a JSON object.")
@click.option(
    "--attach",
    "-a",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file to go with it.",
)
@click.option("--from", "from_", metavar="ADDRESS", help="The sender; else the setting mail_from.")
@click.option("--reply-to", multiple=True, metavar="ADDRESS", help="Where answers go.")
@click.option("--key", help="An idempotency key: one message per key. --now has keys of its own.")
@click.option("--tenant", help="The tenant, where it is not the application's.")
@click.option("--now", is_flag=True, help="Send it here and at once, and say what became of it.")
def send(
    text: str | None, html: Path | None, template: str | None, data: Path | None, attach: tuple[Path, ...], from_: str | None,
    key: str | None, tenant: str | None, now: bool, **fields: Any,
) -> int:  # fmt: skip
    """Send a message: as a job, or at once with --now.

    Ends with 1 when --now did not send it to everybody who is written to, and when the key's message has failed or was cancelled. What
    could not be sent at once is cancelled: nobody sends it later.
    """
    app = state().open(make=True)
    given: dict[str, Any] = {name: list(v) if isinstance(v, tuple) else v for name, v in fields.items() if v}
    given |= {
        n: v
        for n, v in (("text", sys.stdin.read() if text == "-" else text), ("template", template), ("from_", from_))
        if v
    }
    if html is not None:
        given["html"] = _utf8(html)
    if data is not None:
        given["data"] = _object(data)
    if attach:
        given["attachments"] = [_attachment(file) for file in attach]
    options = {n: v for n, v in (("key", key), ("tenant", tenant), ("queue", NOW if now else None)) if v}
    return _sent(app, given, options, now)


def _sent(app: Duly, given: dict[str, Any], options: dict[str, Any], now: bool) -> int:
    from duly.jobs.job import LIVE, Status

    job, created = _mail(app).send(given.pop("to", ()), **given, **options)
    if now and (created or job.status in LIVE):
        return _told(app, _run_now(app, job))
    lost = not created and job.status in (Status.FAILED, Status.CANCELLED)
    if state().json:
        show.as_json({"id": job.id, "created": created, "queue": job.queue, "status": job.status})
    elif created:
        show.say(f"Job {job.id} of task {job.task} is waiting in queue {job.queue}.")
    elif not lost:
        show.say(f"Key {job.key} has job {job.id} already ({job.status}). Nothing was written.")
    if lost:
        complain(
            f"key {job.key} has job {job.id} already ({job.status}), and nothing was written. {_who(app, job)}".rstrip()
        )
    return 1 if lost else 0


def _run_now(app: Duly, job: Job) -> Job:
    """Run a job of queue ``mail-now``, and leave none that could be run by somebody else later. Returns it as it ended; still running
    only when somebody else has it and does not come to an end.
    """
    import time

    from duly.jobs.job import LIVE, Status
    from duly.jobs.worker import Worker

    give_up = time.monotonic() + 4 * app.settings.mail_timeout
    while True:
        Worker(app.engine, {NOW: 1}).run(until_idle=True)
        job = app.jobs.get(job.id, job.tenant)
        late = time.monotonic() >= give_up
        if job.status not in LIVE or (late and job.cancel_requested):
            return job
        if job.status is Status.QUEUED or late:
            with contextlib.suppress(WrongState):  # it has ended meanwhile
                job = app.jobs.cancel(job.id, "it could not be sent at once", actor(), job.tenant)
                if job.status not in LIVE:
                    return job
        if job.status is Status.RUNNING:
            time.sleep(0.2)  # another --now has taken it on its way


def _told(app: Duly, job: Job) -> int:
    """What became of a message that was to be sent at once."""
    from duly.jobs.job import Status

    error = str((job.error or {}).get("message") or "")
    done = job.status is Status.SUCCEEDED
    paused = app.queues.get(NOW).paused_reason
    out: dict[str, Any] = job.output if done and isinstance(job.output, dict) else {}
    if state().json:
        show.as_json({
            "id": job.id, "status": job.status, "output": job.output if done else None, "error": error or None, "paused": paused,
            "recipients": _mail(app).standing(job.id, tenant=job.tenant),
        })  # fmt: skip
    elif done:
        show.say(f"Job {job.id}: {_outcome(out)}")
    if done:
        return 1 if out.get("refused") else 0
    if job.status is Status.FAILED:
        became = f"has failed: {error}"
    elif job.status is Status.RUNNING:
        became = "is run by somebody else, who was asked to stop."
    elif paused:
        became = (
            f"is cancelled, because queue {NOW} is paused ({paused}). `duly queues resume {NOW}` when it is mended."
        )
    else:
        became = f"is cancelled, so that nobody sends it later. {_sentence(error)}".rstrip()
    told = f"`duly mail resend {job.id}`" in became  # the error has said so itself
    complain(f"job {job.id} {became}" if told else f"job {job.id} {_sentence(became, keep=True)} {_who(app, job)}")
    return 1


def _who(app: Duly, job: Job) -> str:
    """Who has the message of a job that was not sent to everybody, and how the others get it. Never says what nobody knows."""
    found = _mail(app).standing(job.id, tenant=job.tenant)
    resend = f"`duly mail resend {job.id}`"
    if not found.accepted and not found.unknown:
        return f"It was not sent to anybody; {resend} tries again."
    counted = (
        (found.accepted, "has it", "have it"),
        (found.unknown, "may have it", "may have it"),
        (found.lacking, "does not", "do not"),
    )
    who = ", ".join(f"{n} {one if n == 1 else more}" for n, one, more in counted if n)
    text = f"Of {show.count(found.recipients, 'recipient')} {who}. Do not give the command again: {resend} sends it to the others"
    return f"{text}; look at the mail server's log first." if found.unknown else f"{text}."


def _sentence(text: str, keep: bool = False) -> str:
    """``keep``: the first letter as it is."""
    return f"{text[:1] if keep else text[:1].upper()}{text[1:].rstrip('.')}." if text else ""


def _outcome(out: dict[str, Any]) -> str:
    if out.get("outcome") == "suppressed":
        return "nothing was sent, every recipient is on the list of those who are not written to."
    told = f"sent through {out.get('provider')} to {show.count(int(out.get('accepted', 0)), 'recipient')}"
    for name in ("suppressed", "refused"):
        number = out.get(name)
        number = len(number) if isinstance(number, list) else number
        told += f", {number} {name}" if number else ""
    return f"{told}. {out.get('message_id')}"


def _utf8(file: Path) -> str:
    from duly.kernel.errors import InvalidArgument

    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgument("html", f"is not UTF-8: byte {error.start}.", "Save the file as UTF-8.") from None


def _attachment(file: Path) -> dict[str, str]:
    import base64
    import mimetypes

    kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
    return {"filename": file.name, "content": base64.b64encode(file.read_bytes()).decode(), "content_type": kind}


def _object(file: Path) -> dict[str, Any]:
    from duly.kernel.errors import InvalidArgument
    from duly.kernel.payload import read_json

    value = read_json(file.read_bytes(), "data")
    if not isinstance(value, dict):
        raise InvalidArgument("data", "is not a JSON object.")
    return value


@mail.command()
@click.argument("job", type=ID)
@click.option("--reason", default="", help="Why, for those who look at it later.")
@click.option("--tenant", help="The job's tenant, where it is not the application's.")
def resend(job: int, reason: str, tenant: str | None) -> int:
    """Send a message again to those who may not have it.

    That is those of whom nobody knows whether it reached them, too: look at the mail server's log first. Who is known to have it is left
    out. A message of --now is sent at once.
    """
    from duly.jobs.job import LIVE

    app = state().open()
    room, found = _mail(app), app.jobs.get(job, tenant)
    if found.queue == NOW and found.status in LIVE:  # its command was killed, or somebody has replayed it
        return _told(app, _run_now(app, found))
    again = room.resend(job, reason, tenant=tenant, actor=actor())
    if again.queue == NOW:  # no other worker looks there
        return _told(app, _run_now(app, again))
    if state().json:
        show.as_json({"id": again.id, "queue": again.queue, "status": again.status})
    else:
        show.say(f"Job {again.id} is waiting in queue {again.queue} again.")
    return 0


# ---------------------------------------------------------------------- the provider


@mail.command("test")
@click.option("--to", metavar="ADDRESS", help="Send a message there; without it nothing is sent.")
def test_(to: str | None) -> int:
    """Check the provider: log in, or fetch a token."""
    from duly.mail.verdict import Undelivered

    app = state().duly() if to is None else state().open(make=True)
    try:
        provider = _mail(app).provider()
        import asyncio

        found = asyncio.run(provider.check())
    except Undelivered as error:
        if state().json:
            show.as_json({"works": False, "kind": error.verdict.kind, "problem": error.verdict.reason})
        complain(error.verdict.reason)
        return 1
    if to is not None:
        text = "This message shows that mail can be sent from here.\n"
        return _sent(app, {"to": to, "subject": "A test of mail", "text": text}, {"queue": NOW}, True)
    if state().json:
        show.as_json({"works": True, "provider": provider.name, "found": found})
    else:
        show.say(f"{provider.name}: {found}. Nothing was sent.")
    return 0


@mail.command()
def providers() -> None:
    """List the providers: which is chosen, and what each lacks."""
    found = _mail(state().duly()).providers()
    if state().json:
        show.as_json(found)
        return
    show.table(
        "!provider !chosen lacks",
        ((p.name, "yes" if p.chosen else "", _lacks(p)) for p in found),
    )


def _lacks(provider: ProviderState) -> str:
    if not provider.known:
        return "there is no such provider"
    return ", ".join(f"DULY_{name.upper()}" for name in provider.missing)


@mail.command()
@click.argument("template")
@click.option("--data", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Its data, a JSON object.")
def preview(template: str, data: Path | None) -> None:
    """Show a template filled in, without sending anything."""
    made = _mail(state().duly()).preview(template, _object(data) if data is not None else {})
    if state().json:
        show.as_json(made)
        return
    show.say(f"Subject: {made.subject or ''}")
    for body in (made.text, made.html):
        if body is not None:
            show.say(f"\n{body.rstrip()}")


# ---------------------------------------------------------------------- bounces


@mail.command()
@click.argument("file", type=click.File("rb"))
@click.option("--tenant", help="Only on this tenant's list.")
def bounce(file: Any, tenant: str | None) -> None:
    """Read a bounce or a complaint from a file, or - for stdin.

    Recipients whose mailbox is gone, and those who complain, are not written to any more if Duly wrote to them.
    """
    from duly.mail.bounces import Bounces

    found = Bounces(state().open()).read(file.read(), tenant=tenant, actor=actor())
    if state().json:
        show.as_json(found)
    elif found.repeated:
        show.say("This report came before. Nothing was done.")
    else:
        counted = ((found.suppressed, "suppressed"), (found.known, "suppressed before"), (found.soft, "soft"), (found.strangers, "unknown"))  # fmt: skip
        told = ", ".join(f"{n} {word}" for n, word in counted if n)
        show.say(f"A {found.kind}. Recipients: {told or 'none'}.")


# ---------------------------------------------------------------------- suppressions


@mail.group()
def suppressions() -> None:
    """Who is not written to."""


def _suppressions(make: bool = False) -> Suppressions:
    from duly.mail.suppressions import Suppressions

    return Suppressions(state().open(make))


_tenant = click.option("--tenant", help="Whose list, where it is not the application's.")
_reason = click.option("--reason", default="", help="Why, for those who look at it later.")


@suppressions.command("list")
@click.option("--tenant", help="Of this tenant.")
@click.option(
    "--limit",
    "-n",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    metavar="N",
    help="At most so many.",
)
def list_(tenant: str | None, limit: int) -> None:
    """List them, by tenant and address."""
    found = _suppressions().list(tenant=tenant, limit=limit)
    if state().json:
        show.as_json(found)
        return
    show.table(
        "!tenant !address !since by source reason",
        ((s.tenant, s.address, stamp(s.created_at), s.created_by, s.source or "", s.reason or "") for s in found),
        empty="Everybody is written to.",
    )


@suppressions.command()
@click.argument("address")
@_reason
@_tenant
def add(address: str, reason: str, tenant: str | None) -> None:
    """Write to an address no more."""
    new = _suppressions(make=True).add(address, reason, tenant=tenant, actor=actor())
    if state().json:
        show.as_json({"added": new})
    else:
        show.say("It is not written to any more." if new else "It was on the list already.")


@suppressions.command()
@click.argument("address")
@_reason
@_tenant
def remove(address: str, reason: str, tenant: str | None) -> int:
    """Write to an address again. Ends with 1 when it was not on the list."""
    gone = _suppressions().remove(address, reason, tenant=tenant, actor=actor())
    if state().json:
        show.as_json({"removed": gone})
    elif gone:
        show.say("It is written to again.")
    if not gone:
        complain("the address is not on the list.")
    return 0 if gone else 1
