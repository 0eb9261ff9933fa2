"""``duly alerts``: what a person must know, who took note of it, and the same rules for other monitoring."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from duly.cli import show
from duly.cli.command import ID, Group, actor, complain, state
from duly.cli.times import relative, stamp

if TYPE_CHECKING:
    from duly.monitoring.alerts.alert import Alert


@click.group(cls=Group)
def alerts() -> None:
    """Judge alerts, look at them, take note of them."""


@alerts.command("list")
@click.option("--all", "every", is_flag=True, help="Also those that were cleared, newest first.")
@click.option("--rule", metavar="NAME", help="Of this rule.")
@click.option("--subject", help="About this queue, worker, destination, schedule or tick.")
@click.option(
    "--limit", "-n", type=click.IntRange(1, 10_000), default=50, show_default=True, metavar="N", help="At most so many."
)
@click.option("--below", type=ID, metavar="ID", help="The page behind: only ids below this one.")
def list_(every: bool, rule: str | None, subject: str | None, limit: int, below: int | None) -> None:
    """List alerts that are raised or pending.

    As they were judged last; `duly alerts check` judges now.
    """
    asked = state()
    app = asked.open()
    found = app.alerts.find(limit, below, () if every else ("pending", "raised"), rule, subject)
    standing = app.alerts.standing()
    if standing.stale:
        complain(f"warning: {standing.stale}")
    if asked.json:
        show.as_json(found)
        return
    _table(found, standing.now)
    if not found:
        judged = standing.judged
        told = (
            f"It was judged {relative(judged.at, standing.now)}."
            if judged
            else "Nobody has judged yet: duly alerts check."
        )
        show.say(
            f"{'There is no alert' if every or rule or subject else 'Nothing was raised' if standing.stale and standing.judged else 'Nothing is raised'}. {told}"
        )
    for name, problem in standing.unknown.items():
        click.echo(f"Rule {name} could not be judged: {problem}", err=True)
    if len(found) == limit:
        click.echo(f"There may be more: --below {found[-1].id}", err=True)


def _table(found: list[Alert] | tuple[Alert, ...], now: Any) -> None:
    show.table(
        "!#id !state !severity !rule subject since noted_by what",
        (
            (a.id, str(a.state), str(a.severity), a.rule, a.subject, relative(a.since, now), a.acked_by, a.detail)
            for a in found
        ),
    )


@alerts.command("show")
@click.argument("alert", type=ID)
def show_(alert: int) -> None:
    """Show one alert and what to do about it."""
    asked = state()
    app = asked.open()
    found = app.alerts.get(alert)
    rule = _rule(app.settings, found.rule)
    if asked.json:
        show.as_json(
            {**asdict(found), "remedy": rule.remedy if rule else None, "terms": rule.terms() if rule else None}
        )
        return
    show.facts([
        ("alert", found.id), ("rule", found.rule), ("subject", found.subject), ("state", str(found.state)), ("severity", str(found.severity)),
        ("what", found.detail), ("since", stamp(found.since)), ("raised", stamp(found.raised_at)), ("fine since", stamp(found.fine_since)),
        ("cleared", stamp(found.cleared_at)), ("last look", stamp(found.last_seen)), ("people told", stamp(found.noticed_at)),
        ("noted", f"{stamp(found.acked_at)} by {found.acked_by}" if found.acked_at else ""), ("words", found.ack_reason),
        ("terms", rule.terms() if rule else "this version has no such rule"), ("what to do", rule.remedy if rule else ""),
    ])  # fmt: skip


def _rule(settings: Any, name: str) -> Any:
    from duly.monitoring.alerts.rules import every_rule

    return next((rule for rule in every_rule(settings) if rule.name == name), None)


@alerts.command()
@click.argument("alert", type=ID)
@click.option("--reason", default="", help="What is being done, for those who look at it later.")
def ack(alert: int, reason: str) -> None:
    """Take note of a raised alert.

    It stays raised until it is fine again; the others see that somebody knows.
    """
    found = state().open().alerts.ack(alert, reason, actor())
    if state().json:
        show.as_json(found)
        return
    show.say(
        f"Alert {found.id} ({found.rule}{f' {found.subject}' if found.subject else ''}): noted by {found.acked_by}."
    )


@alerts.command()
@click.option("--unacked", is_flag=True, help="End with 1 only for alerts that nobody took note of.")
def check(unacked: bool) -> int:
    """Judge now, from outside.

    For cron, or a monitoring that runs commands: ends with 1 when something is raised, or a rule cannot be judged. What has to hold for a while
    is pending at first and raised by a later check.
    """
    asked = state()
    app = asked.open()
    app.alerts.judge(actor())
    standing = app.alerts.standing()
    raised = [a for a in standing.raised if not (unacked and a.is_acked)]
    if asked.json:
        judged = standing.judged
        show.as_json({
            "raised": standing.raised, "pending": standing.pending, "unknown": standing.unknown,
            "judged_at": judged.at if judged else None, "judged_by": judged.by if judged else None,
        })  # fmt: skip
    else:
        _table(standing.alerts, standing.now)
        for name, problem in standing.unknown.items():
            show.say(f"Rule {name} could not be judged: {problem}")
        told = [
            show.count(len(standing.raised), "alert") + " raised" if standing.raised else "",
            f"{len(standing.pending)} pending" if standing.pending else "",
        ]
        show.say(f"{', '.join(t for t in told if t) or 'Nothing is raised'}.")
    return 1 if raised or standing.unknown else 0


@alerts.command()
def rules() -> None:
    """List the rules with their thresholds."""
    from duly.monitoring.alerts.alert import shown
    from duly.monitoring.alerts.rules import every_rule

    asked = state()
    app = asked.duly()
    judged = {rule.name for rule in app.alerts.rules}
    every = every_rule(app.settings)
    if asked.json:
        show.as_json([{**asdict(rule), "judged": rule.name in judged} for rule in every])
        return
    show.table(
        "!rule !severity of threshold setting !judged when",
        (
            (
                r.name,
                str(r.severity),
                r.noun,
                shown(r.threshold, r.unit),
                r.setting,
                "yes" if r.name in judged else "no",
                r.terms(),
            )
            for r in every
        ),
    )


@alerts.command()
@click.argument("kind", type=click.Choice(["prometheus", "grafana"]))
@click.option("--output", "-o", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write it there.")
def export(kind: str, output: Path | None) -> None:
    """Write the rules for Prometheus, or a dashboard for Grafana.

    They are made from the rules that are judged here, with the thresholds of these settings.
    """
    from duly.monitoring.alerts.export import grafana, prometheus

    asked = state()
    app = asked.duly()
    made = app.alerts.rules
    text = prometheus(made, app.settings.alerts_every) if kind == "prometheus" else grafana(made)
    if output is not None:
        try:
            output.write_text(text, encoding="utf-8")
        except OSError as error:
            raise click.ClickException(f"{output} cannot be written: {error.strerror or error}.") from None
        show.as_json({"written": str(output)}) if asked.json else show.say(f"Wrote {output}.")
    elif asked.json:
        show.as_json({kind: text})
    else:
        click.echo(text, nl=False)
