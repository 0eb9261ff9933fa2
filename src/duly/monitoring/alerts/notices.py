"""Telling people: the jobs that are made in the transaction in which an alert is raised or cleared.

A job of task EMAIL_SEND for each address, and one of task DULY_ALERT that posts a signed CloudEvent. Its key is the alert and the
move, so nothing is sent twice, whoever judges. A flood is bounded: of more than ``alerts_most`` alerts in an hour nobody is told
by job (the log, the list, ``/health`` and the metrics tell of all), and the end is told only of those whose beginning was.

These jobs need a worker. That there is none is told by ``duly alerts check``, ``/health`` and Prometheus, from outside.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import orjson
from sqlalchemy import Connection

from duly.jobs.codec import encode_plain
from duly.jobs.engine import Engine
from duly.jobs.enqueue import NewJob
from duly.kernel.errors import DestinationUnavailable, InvalidArgument, Retry
from duly.monitoring.alerts.alert import Alert, Severity
from duly.monitoring.alerts.rules import every_rule
from duly.monitoring.alerts.store import AlertStore, Moved

EMAIL, WEBHOOK = "EMAIL_SEND", "DULY_ALERT"
_HOUR = timedelta(hours=1)
_WORD = {"raise": "raised", "clear": "cleared"}


def addresses(text: str) -> list[str]:
    """The addresses of the setting ``alerts_email``."""
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


class Notices:
    """Makes the jobs."""

    def __init__(self, engine: Engine, store: AlertStore) -> None:
        self.engine, self.store, self.settings = engine, store, engine.settings
        self.to = addresses(self.settings.alerts_email)
        #: How many alerts of the last judgement people were not told of, because there were too many.
        self.withheld = 0

    @property
    def wanted(self) -> bool:
        return bool(self.to or self.settings.alerts_webhook)

    def make(self, connection: Connection, moved: Sequence[Moved], now: datetime) -> list[int]:
        """Make jobs for what was raised and cleared. Returns the ids of the raised alerts that people are told of."""
        self.withheld = 0
        raised = [move for move in moved if move.event == "raise"]
        ended = [move for move in moved if move.event == "clear" and move.alert.noticed_at is not None]
        if not raised and not ended:
            return []
        room = max(0, self.settings.alerts_most - self.store.told_lately(connection, now - _HOUR))
        # the critical ones first; what is left out is counted
        raised.sort(key=lambda move: move.alert.severity is not Severity.CRITICAL)
        told, self.withheld = raised[:room], max(0, len(raised) - room)
        new = [job for move in (*told, *ended) for job in self.jobs(move)]
        if new:
            self.engine.maker.make_in(connection, new)
        return [move.alert.id for move in told]

    def jobs(self, move: Moved) -> list[NewJob]:
        alert, word = move.alert, _WORD[move.event]
        out = []
        for address in self.to:
            mark = hashlib.sha256(address.encode()).hexdigest()[:12]
            out.append(
                self._job(
                    EMAIL,
                    {"to": address, "subject": subject(alert, word), "text": self.text(move)},
                    f"{word}:{mark}",
                    alert,
                )
            )
        if self.settings.alerts_webhook:
            out.append(self._job(WEBHOOK, {"alert": described(move)}, word, alert))
        return out

    def _job(self, task: str, arguments: Mapping[str, Any], mark: str, alert: Alert) -> NewJob:
        known, s = self.engine.tasks.get(task), self.settings
        encoded = (
            known.codec.encode(arguments, s.max_payload)
            if known is not None
            else encode_plain(dict(arguments), "input", s.max_payload)
        )
        queue = s.alerts_queue or (known.queue if known is not None else "default")
        attempts = (known.max_attempts if known is not None else None) or s.max_attempts
        meta = orjson.dumps({"alert": alert.id, "rule": alert.rule}).decode()
        # whatever job holds the key of a notice, somebody is told
        return NewJob(
            s.tenant, queue, task, encoded, attempts, 10, key=f"alert:{alert.id}:{mark}", on_conflict="apart", meta=meta
        )

    def text(self, move: Moved) -> str:
        """A letter in plain text."""
        alert = move.alert
        lines = [alert.detail, ""]
        lines += [
            f"rule      {alert.rule}",
            f"severity  {alert.severity}",
            f"since     {alert.since.isoformat(timespec='seconds')}",
        ]
        if alert.cleared_at is not None:
            lines.append(f"cleared   {alert.cleared_at.isoformat(timespec='seconds')}")
        else:
            remedy = next((r.remedy for r in every_rule(self.settings) if r.name == alert.rule), "")
            lines += ["", f"What to do: {remedy}", f"Take note of it: duly alerts ack {alert.id}"]
        return "\n".join(lines) + "\n"


def subject(alert: Alert, word: str) -> str:
    """One line."""
    about = f" {alert.subject}" if alert.subject else ""
    return f"[duly] {alert.severity if word == 'raised' else 'cleared'}: {alert.rule}{about}"[:200]


def described(move: Moved) -> dict[str, Any]:
    """An alert as the webhook tells it. Instants are ISO 8601 in UTC."""
    alert = move.alert
    return {
        "id": alert.id, "move": _WORD[move.event], "rule": alert.rule, "subject": alert.subject, "severity": str(alert.severity),
        "detail": alert.detail, "value": alert.value, "threshold": move.threshold, "since": _iso(alert.since),
        "raised_at": _iso(alert.raised_at), "cleared_at": _iso(alert.cleared_at),
    }  # fmt: skip


def _iso(instant: datetime | None) -> str | None:
    return None if instant is None else instant.isoformat()


def poster(engine: Engine) -> Callable[[dict[str, Any]], None]:
    """The handler of DULY_ALERT: posts one alert to the endpoint of the settings, signed and guarded as the outbox's webhooks are.

    Raises InvalidArgument when the endpoint cannot be used. Needs ``duly[webhook]``.
    """
    try:
        from duly.outbox.message import Message
        from duly.outbox.transports.webhook import WebhookTransport
    except ImportError as error:
        raise InvalidArgument(
            "alerts_webhook", f"needs a library that is not there: {error}.", "pip install duly[webhook]"
        ) from None

    s = engine.settings
    private = s.alerts_webhook_private
    transport = WebhookTransport(
        s.alerts_webhook, secret=s.alerts_webhook_secret or None, source="/duly/alerts", type="duly.alert", allow_http=private,
        allow_private=private, clock=engine.clock,
    )  # fmt: skip

    def post(alert: dict[str, Any]) -> None:
        ident, move = int(alert["id"]), str(alert["move"])
        happened = datetime.fromisoformat(str(alert["cleared_at" if move == "cleared" else "raised_at"]))
        message = Message(
            ident,
            f"duly-alert-{ident}-{move}",
            s.tenant,
            "webhook:alerts",
            alert,
            {"ce-type": f"duly.alert.{move}"},
            created_at=happened,
        )
        try:
            transport.send(message)
        except DestinationUnavailable as error:
            raise Retry(error.problem, after=error.after) from error

    return post
