"""``duly queues``, ``duly gate``, ``duly why``: holding work, and saying what holds it."""

from __future__ import annotations

from cli.hands import Run
from duly import Duly
from duly.kernel.gate import Rate


def test_queues_are_listed_with_what_waits_and_what_governs_them(on: Run, app: Duly) -> None:
    assert on("queues", "list").out == "No queue has a job, a worker or a setting.\n"
    assert on("queues", "list", "--json").json == []
    app.enqueue("A", queue="mail")
    app.enqueue("A", queue="mail", run_in=3600)
    app.queues.set("video", limit=2)
    mail, video = on("queues", "list", "--json").json
    assert (mail["queue"], mail["ready"], mail["later"], mail["running"], mail["limit"]) == ("mail", 1, 1, 0, None)
    assert (video["queue"], video["ready"], video["limit"], video["workers"]) == ("video", 0, 2, 0)
    assert on("queues", "list").out.splitlines()[1].split()[:4] == ["mail", "1", "0", "1"]


def test_a_queue_is_paused_with_a_reason_and_resumed(on: Run, app: Duly) -> None:
    said = on("queues", "pause", "mail", "--reason", "provider down")
    assert said.code == 0
    assert "Queue mail is paused by cli:" in said.out
    paused = app.queues.get("mail")
    assert paused.paused_reason == "provider down"
    assert paused.paused_by is not None
    assert paused.paused_by.startswith("cli:")
    assert on("queues", "resume", "mail", "--json").json["paused_at"] is None
    actions = [e["action"] for e in on("audit", "list", "--entity", "queue", "--json").json]
    assert actions == ["QUEUE_RESUMED", "QUEUE_PAUSED"]


def test_limits_are_set_one_by_one_and_taken_away(on: Run, app: Duly) -> None:
    assert on("queues", "limit", "mail", "--limit", "3", "--rate", "50/86400").code == 0
    assert on("queues", "limit", "mail", "--key-limit", "2", "--fair").code == 0
    now = app.queues.get("mail")
    assert (now.limit, now.key_limit, now.rate, now.fair) == (3, 2, Rate(50, 86_400), True)
    assert on("queues", "limit", "mail", "--no-limit", "--no-rate", "--no-key-limit", "--no-fair").code == 0
    now = app.queues.get("mail")
    assert (now.limit, now.key_limit, now.rate, now.fair) == (None, None, None, False)


def test_a_rate_is_a_number_and_a_span(on: Run) -> None:
    for text, rate in (("10/s", (10, 1)), ("100/15min", (100, 900)), ("50/1d", (50, 86_400)), ("5/0.5", (5, 0.5))):
        told = on("queues", "limit", "mail", "--rate", text, "--json").json["rate"]
        assert (told["count"], told["seconds"]) == rate


def test_the_gate_is_moved_for_the_outbox_alone(on: Run, app: Duly) -> None:  # R003-14
    said = on("gate", "offline", "--scope", "outbox", "--json").json
    assert (said["online"], said["outbox"]) == (True, False)
    assert "The outbox is offline." in on("gate").out
    assert app.gate.is_online
    assert not app.gate.is_outbox_online
    for words, holds in (
        (("offline", "--scope", "jobs"), (False, False)), (("online", "--scope", "outbox"), (False, True)),
        (("offline", "--scope", "jobs", "--scope", "outbox"), (False, False)), (("online", "--scope", "jobs"), (True, False)),
    ):  # fmt: skip
        assert on("gate", *words).code == 0
        assert (app.gate.is_online, app.gate.is_outbox_online) == holds
    assert on("gate", "offline", "--scope", "rounds").code == 2


def test_the_gate_is_shown_and_moved_with_a_reason(on: Run, app: Duly) -> None:
    assert on("gate").out == "online\n"
    said = on("gate", "offline", "--reason", "deploy", "--json")
    assert (said.json["online"], said.json["reason"]) == (False, "deploy")
    assert not app.gate.is_online
    shown = on("gate")
    assert (shown.code, shown.out.startswith("offline since ")) == (0, True)
    assert "by cli:" in shown.out
    assert shown.out.endswith(": deploy\n")
    assert on("gate", "online").out.startswith("online since")
    assert app.gate.is_online


def test_why_names_each_condition_and_the_remedy(on: Run, app: Duly) -> None:
    job = app.enqueue("A", queue="mail").job.id
    app.queues.pause("mail", "provider down")
    checks = {c["name"]: c for c in on("why", str(job), "--json").json}
    assert checks["due"]["met"]
    assert not checks["paused"]["met"]
    assert not checks["worker"]["met"]
    said = on("why", str(job))
    assert said.code == 0
    assert "queue mail is paused: provider down" in said.out
    assert "paused: duly queues resume mail" in said.out
    assert on("why", str(job), "--tenant", "other").code == 1
