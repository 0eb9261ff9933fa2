"""Every setting, once: its name, variable, unit, default and reason.

A setting ``lease`` is read from ``DULY_LEASE``. Arguments of ``Duly(...)`` win over the environment, the environment wins
over the default. ``duly doctor --settings`` prints this table, and the reference in the docs is made from it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_type_hints

from duly.kernel.duration import REMEDY, parse_duration
from duly.kernel.errors import InvalidArgument
from duly.kernel.names import nearest

PREFIX = "DULY_"
#: Variables with this prefix that are read elsewhere: by the command line, by commands that pages show, and by tests of Duly itself.
ELSEWHERE, OF_TESTS = ("DULY_APP", "DULY_DEBUG", "DULY_TOKEN"), "DULY_TEST_"


def _setting(
    default: Any, unit: str, reason: str, *, low: float | None = None, high: float | None = None, choices: tuple[str, ...] = (),
    secret: bool = False,
) -> Any:  # fmt: skip
    """``secret``: it is not in the ``repr`` of settings."""
    metadata = {"unit": unit, "reason": reason, "low": low, "high": high, "choices": choices}
    return field(default=default, repr=not secret, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings with their values. Times are seconds unless the unit says otherwise."""

    database_url: str = _setting(
        "sqlite:///duly.db", "URL", "An SQLite file to begin with, a postgresql:// URL when that is outgrown."
    )
    lease: float = _setting(
        30.0,
        "s",
        "How long a worker holds a job without renewing. A crash is noticed within this plus one pass.",
        low=0.5,
    )
    grace: float = _setting(
        25.0, "s", "How long a stopping worker lets running jobs finish before it cancels them.", low=0
    )
    poll: float = _setting(
        1.0,
        "s",
        "How often an idle worker looks for work when no wake-up comes. Wake-ups are hints, polling is the rule.",
        low=0.01,
    )
    loop_block: float = _setting(
        0.25,
        "s",
        "A task that blocks the worker's event loop for longer is told with its stack (loop_blocked). 0: never.",
        low=0,
    )
    concurrency: int = _setting(
        20, "jobs", "How many jobs of one queue a worker runs at once, unless the queue is given its own number.", low=1
    )
    claim_batch: int = _setting(
        0,
        "jobs",
        "The most jobs taken in one claim. 0: 500 on SQLite, where nobody else writes meanwhile, and 1,000 on PostgreSQL.",
        low=0,
    )
    max_attempts: int = _setting(4, "attempts", "How often a job may run in all: 3 retries are 4 attempts.", low=1)
    unreadable_wait: float = _setting(
        3600.0,
        "s",
        "How long a worker leaves a job to others whose input it cannot read, before the job fails: longer than a deploy takes. 0: it fails at once.",
        low=0,
    )
    max_payload: int = _setting(262_144, "bytes", "The largest input or output of a job, encoded.", low=256)
    workflow_steps_warn: int = _setting(
        2_000,
        "",
        "A run of a workflow with this many steps is named in an event and on its page: each turn goes through all of them.",
        low=1,
    )
    workflow_steps_max: int = _setting(
        50_000,
        "",
        "The most steps of one run. Beyond that it fails, and is undone: a loop that never ends uses ctx.continue_as_new.",
        low=1,
    )
    retention: float = _setting(
        14 * 86_400.0,
        "s",
        "How long finished jobs are kept before the worker prunes them. 0 keeps them for ever.",
        low=0,
    )
    schedule_grace: float = _setting(
        15.0,
        "s",
        "An occurrence of a schedule that is found within this span of its planned instant is not late.",
        low=0,
    )
    schedule_retention: float = _setting(
        400 * 86_400.0,
        "s",
        "How long the ledger keeps occurrences of schedules. 0 keeps them for ever.",
        low=0,
    )
    key_retention: float = _setting(
        0.0,
        "s",
        "How long the idempotency key of a finished job is remembered. 0 remembers it for ever.",
        low=0,
    )
    alerts_every: float = _setting(30.0, "s", "How often alerts are judged, by one of all workers.", low=1)
    alerts_off: str = _setting("", "", "Names of rules that are not judged, with commas between them.")
    alerts_idle: float = _setting(
        3600.0, "s", "Longer without a job or a tick, although work is due, is an alert.", low=1
    )
    alerts_failures: float = _setting(0.10, "ratio", "A larger share of failures within the window is an alert.", low=0)
    alerts_window: float = _setting(
        1800.0, "s", "The window over which failures and late openings are counted.", low=60
    )
    alerts_samples: int = _setting(10, "samples", "With fewer of them in the window failures are not judged.", low=1)
    alerts_late: float = _setting(300.0, "s", "A round that opens later than this after its time is an alert.", low=1)
    alerts_backlog: float = _setting(
        900.0, "s", "A job that has been due for longer in an open queue is an alert.", low=1
    )
    alerts_leases: float = _setting(60.0, "s", "A lease that lapsed longer ago and was not rescued is an alert.", low=1)
    alerts_worker: float = _setting(
        60.0, "s", "A worker that has been silent for longer, or due work without a worker, is an alert.", low=1
    )
    alerts_paused: float = _setting(14_400.0, "s", "A queue that is paused for longer is an alert.", low=1)
    alerts_gate: float = _setting(1800.0, "s", "A gate that is closed for longer is an alert.", low=1)
    alerts_outbox: float = _setting(900.0, "s", "A message of the outbox that waits for longer is an alert.", low=1)
    alerts_outbox_away: float = _setting(
        120.0, "s", "A destination of the outbox that cannot be reached for longer is an alert.", low=1
    )
    alerts_schedule: float = _setting(
        300.0, "s", "A schedule that nobody looks at for longer after its moment is an alert.", low=1
    )
    alerts_automation: float = _setting(
        3600.0, "s", "An automation that is due, or a session that waits for its AI, for longer is an alert.", low=1
    )
    alerts_code: float = _setting(
        300.0,
        "s",
        "A run of a workflow that waits longer for a worker whose code can go on with it is an alert.",
        low=1,
    )
    alerts_seals: float = _setting(600.0, "s", "An audit trail that is not sealed for longer is an alert.", low=1)
    alerts_retention: float = _setting(
        90 * 86_400.0, "s", "How long cleared alerts are kept. 0 keeps them for ever.", low=0
    )
    alerts_email: str = _setting("", "addresses", "Who is told by jobs of task EMAIL_SEND; commas between them.")
    alerts_webhook: str = _setting("", "URL", "An https:// endpoint that is told by a signed CloudEvent.")
    alerts_webhook_secret: str = _setting(
        "", "", "What that CloudEvent is signed with, at least 16 bytes; whsec_ works.", secret=True
    )
    alerts_webhook_private: bool = _setting(
        False, "", "The endpoint may be plain http:// and lie on this machine or in a private network."
    )
    alerts_queue: str = _setting("", "", "The queue of the jobs that tell people; else that of EMAIL_SEND, or default.")
    alerts_most: int = _setting(20, "alerts", "The most alerts in an hour that people are told of by job.", low=1)
    rounds_drop_time: str = _setting(
        "18:00", "local time", "When rounds of a group open that names no time of its own, by the clock of its zone."
    )
    rounds_cooldown: float = _setting(
        86_400.0,
        "s",
        "How long after a round has closed the next may be planned. With 24 h open a day's wait makes a round every 48 h; 0 makes one a day, but for the day on which clocks go forward.",
        low=0,
    )
    rounds_late_open_limit: float = _setting(
        7_200.0,
        "s",
        "A round that opens later than this after its hour counts its 24 hours from the real opening and not from the planned one; once its date is over, too, it waits for its group's next hour. From ten minutes (the ticks' own lateness) to twelve hours.",
        low=600,
        high=43_200,
    )
    rounds_tick_retention: float = _setting(
        7 * 86_400.0, "s", "How long the ledger of the ticks of rounds is kept. 0 keeps it for ever.", low=0
    )
    mail_provider: str = _setting(
        "",
        "",
        "Who carries mail: smtp, graph, resend, maildir or console. Empty: a maildir beside an SQLite file, nobody elsewhere.",
    )
    mail_from: str = _setting(
        "", "address", "The sender of messages that name none. A display name may stand before it."
    )
    mail_folder: str = _setting("", "folder", "The maildir of the provider maildir; empty: beside the SQLite file.")
    mail_templates: str = _setting(
        "", "folder", "Where templates of messages lie: NAME.subject.txt, NAME.txt, NAME.html."
    )
    mail_unknown: str = _setting(
        "hold",
        "",
        "A message may have been taken, and nobody knows: hold fails the job and says so, resend sends it again.",
        choices=("hold", "resend"),
    )
    mail_attempts: int = _setting(
        40,
        "attempts",
        "How often a message is tried that is refused for now. With waits of 1, 2, 4 … minutes and then 3 hours, 40 attempts take about 4 days (RFC 5321, 4.5.4.1).",
        low=1,
    )
    mail_timeout: float = _setting(
        30.0,
        "s",
        "How long a mail provider may take over one step of an exchange; an HTTP API, over all of it.",
        low=0.1,
    )
    mail_attachments: int = _setting(
        3_000_000, "bytes", "The most that the attachments of one message may have together, decoded.", low=0
    )
    smtp_url: str = _setting(
        "",
        "URL",
        "smtp://user:password@host:587 (STARTTLS) or smtps://…:465; plain on this machine and to hosts of smtp_plain.",
        secret=True,
    )
    smtp_ehlo: str = _setting("", "host name", "The name that this machine gives itself in EHLO; empty: its host name.")
    smtp_plain: str = _setting(
        "",
        "hosts",
        "Hosts that are reached without TLS, inside your own network; commas between them. The port is 25 then unless smtp_url names one.",
    )
    smtp_plain_password: bool = _setting(
        False, "", "A password may go to a host of smtp_plain, where everyone on the way can read it."
    )
    smtp_ca: str = _setting(
        "", "file", "Certificates (PEM) of your own authority, trusted for the mail server beside those of the system."
    )
    graph_tenant: str = _setting("", "", "The directory that the application of Microsoft Graph belongs to.")
    graph_client_id: str = _setting("", "", "The application of Microsoft Graph.")
    graph_client_secret: str = _setting("", "", "Its secret.", secret=True)
    graph_url: str = _setting("https://graph.microsoft.com/v1.0", "URL", "Where Microsoft Graph is.")
    graph_save: bool = _setting(True, "", "Microsoft Graph keeps a copy of each message in Sent Items.")
    graph_message_size: int = _setting(
        36_700_160,
        "bytes",
        "The largest message, as it travels in base64, that your Exchange takes through Microsoft Graph: 35 MiB unless an administrator has changed it.",
        low=4_194_304,
        high=157_286_400,
    )
    graph_token_url: str = _setting(
        "https://login.microsoftonline.com", "URL", "Where tokens of Microsoft Graph are given out."
    )
    resend_api_key: str = _setting("", "", "The key of Resend.", secret=True)
    resend_webhook_secret: str = _setting(
        "", "", "What Resend signs its webhooks with (whsec_…); without it reports of bounces are refused.", secret=True
    )
    resend_url: str = _setting("https://api.resend.com", "URL", "Where Resend is.")
    automation_tick: float = _setting(
        300.0,
        "s",
        "How often a worker looks at the slots of automations at the latest; it looks sooner when something is due.",
        low=1,
    )
    automation_max_session_duration: float = _setting(
        600.0, "s", "How long nothing may happen in an automation before the watchdog ends it.", low=1
    )
    chat_max_inactivity_before_automation_eviction: float = _setting(
        300.0, "s", "How long a chat may be left alone before an automation that is due takes its slot.", low=1
    )
    automation_crash_cap: int = _setting(
        3, "crashes", "How often in a row a session goes on after it has lost its worker (T001-z).", low=0
    )
    automation_network_retry: float = _setting(
        30.0, "s", "How long an automation waits before it tries again to reach its provider.", low=1
    )
    automation_max_unanswered: int = _setting(
        8,
        "",
        "After this many answers in a row that broke off an automation ends. The waits between them double, up to an hour.",
        low=1,
    )
    automation_max_tokens_per_day: int = _setting(
        1_000_000,
        "tokens",
        "What an automation may use in a day, told and answered, where its limits name no max_tokens_per_day; 0 for no bound.",
        low=0,
    )
    automation_retention: float = _setting(
        90 * 86_400.0, "s", "How long ended sessions are kept. 0 keeps them for ever.", low=0
    )
    publish_channels: str = _setting(
        "",
        "file",
        "Channels of publications, as YAML or JSON: a name, its connector and its options. ${NAME} is a variable.",
    )
    publish_max_attempts: int = _setting(
        5,
        "attempts",
        "How often a publication may run in all (queue.max_attempts), unless its channel says otherwise.",
        low=1,
    )
    publish_backoff_base: float = _setting(
        60.0,
        "s",
        "Before the second run of a publication (queue.retry_backoff). Up to half of it is added at random.",
        low=0,
    )
    publish_backoff_factor: float = _setting(2.0, "", "How that wait grows with each failure.", low=1)
    publish_backoff_max: float = _setting(3600.0, "s", "The longest wait between two runs of a publication.", low=0)
    ai_provider: str = _setting(
        "scripted",
        "",
        "Which AI answers automations that name none: scripted, openai, anthropic, or one of another package.",
    )
    ai_script: str = _setting(
        "",
        "file",
        "The answers of the provider scripted, as YAML or JSON; empty: no AI is set up, and every question is refused.",
    )
    ai_base_url: str = _setting(
        "https://api.openai.com/v1",
        "URL",
        "Where the provider openai asks; any API that is like OpenAI's, also a model on this machine.",
    )
    ai_model: str = _setting("", "", "The model of the provider openai.")
    ai_api_key: str = _setting(
        "", "", "The key of the provider openai; a model on this machine may need none.", secret=True
    )
    anthropic_base_url: str = _setting("https://api.anthropic.com", "URL", "Where the provider anthropic asks.")
    anthropic_model: str = _setting("", "", "The model of the provider anthropic.")
    anthropic_api_key: str = _setting("", "", "The key of the provider anthropic.", secret=True)
    ai_timeout: float = _setting(
        120.0,
        "s",
        "The longest silence of an AI before and within its answer. The whole of an answer may take longer.",
        low=0.1,
    )
    ai_max_tokens: int = _setting(4096, "tokens", "The longest answer, unless the automation says otherwise.", low=1)
    ai_max_tool_result: int = _setting(
        32_768,
        "bytes",
        "The longest result of a tool that the AI is told. The whole, up to max_payload, stays on record for people.",
        low=1_000,
    )
    ai_prices: str = _setting(
        "",
        "JSON",
        'Prices of models in cents per million tokens, input and output: {"gpt-5-mini": [25, 200], "openai/*": [0, 0]}.',
    )
    ai_price_input: float | None = _setting(
        None,
        "cents per million tokens",
        "The price of what the model of the settings is told. Unset: that of the list of genai-prices, if it knows the model.",
        low=0,
    )
    ai_price_output: float | None = _setting(
        None, "cents per million tokens", "The price of what the model of the settings answers.", low=0
    )
    web_token: str = _setting("", "", "What callers of the REST door send as a bearer token.", secret=True)
    oidc_issuer: str = _setting(
        "",
        "URL",
        "Whose people may log in to the dashboard: the provider as its discovery document calls it. Empty: nobody's.",
    )
    oidc_client_id: str = _setting("", "", "What the provider calls this dashboard.")
    oidc_client_secret: str = _setting("", "", "The secret of that client; empty for a public client.", secret=True)
    oidc_scopes: str = _setting("openid profile email", "", "What the provider is asked for; blanks between.")
    oidc_redirect_url: str = _setting(
        "",
        "URL",
        "Where the provider sends browsers back to: https://…/login/oidc/callback. Empty: where the browser came from.",
    )
    oidc_name_claim: str = _setting(
        "email",
        "",
        "Claims that name a user, the first that is there; commas between. An address that is not verified is none.",
    )
    oidc_roles_claim: str = _setting(
        "", "", "The claim that roles are given by, such as groups; dots lead inside: realm_access.roles."
    )
    oidc_roles: str = _setting(
        "", "", "Which role each value of it is: ops=operator, heads=admin; or a JSON object. The highest counts."
    )
    oidc_groups_url: str = _setting(
        "",
        "URL",
        "Where groups are asked for that are too many for a token; for Entra https://graph.microsoft.com/v1.0/me/getMemberObjects, with a scope such as User.Read in oidc_scopes. Empty: such a login is refused with the reason.",
    )
    oidc_default_role: str = _setting(
        "none",
        "",
        "The role of who is given none; none: they are not let in.",
        choices=("none", "viewer", "operator", "admin"),
    )
    oidc_tenant_claim: str = _setting(
        "", "", "The claim that names the tenant; who has none is not let in. Empty: everybody sees every tenant."
    )
    oidc_domains: str = _setting(
        "", "domains", "Only verified addresses of these domains are let in; commas between. Empty: any."
    )
    oidc_label: str = _setting("Log in with single sign-on", "", "What the button on the login page says.")
    sqlite_synchronous: str = _setting(
        "FULL",
        "",
        "FULL survives a power cut; NORMAL may lose the last commits, but is never corrupt.",
        choices=("FULL", "NORMAL", "EXTRA"),
    )
    schema: str = _setting(
        "",
        "",
        "The schema of Duly's tables on PostgreSQL, made by `duly migrate`. Empty: where the search_path of Duly's own connections finds them, or would make them.",
    )
    busy_timeout: float = _setting(
        30.0, "s", "How long a write waits for another process that is writing to the same SQLite file.", low=0
    )
    pool_size: int = _setting(
        10, "connections", "The most PostgreSQL connections this process opens, besides the listener.", low=3
    )
    session_pool: int = _setting(
        10,
        "connections",
        "The most PostgreSQL connections for transactional handlers and sessions of app.db.session_engine.",
        low=1,
    )
    pooler: str = _setting(
        "none",
        "",
        "'transaction' behind PgBouncer in transaction mode: no prepared statements, no LISTEN.",
        choices=("none", "transaction"),
    )
    notify: bool = _setting(
        True,
        "",
        "Send one NOTIFY per enqueueing transaction and queue on PostgreSQL, so that idle workers wake at once.",
    )
    audit_success: bool = _setting(
        True,
        "",
        "Write an audit row for each job that succeeds. Failures and operators' acts are always audited.",
    )
    strict_names: bool = _setting(
        False,
        "",
        "Refuse names of tasks, queues, workflows, destinations and channels that neither this application nor a running worker knows, instead of warning.",
    )
    tenant: str = _setting("default", "", "The tenant of jobs that name none.")
    log_level: str = _setting(
        "info", "", "The least important events that are logged.", choices=("debug", "info", "warning", "error")
    )
    log_format: str = _setting(
        "auto", "", "json, console, or auto: console on a terminal.", choices=("auto", "json", "console")
    )

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None, **given: Any) -> Settings:
        """Settings from arguments, then the environment, then defaults.

        Raises InvalidArgument naming the setting or the variable.
        """
        environ = os.environ if environ is None else environ
        hints = get_type_hints(cls)
        values: dict[str, Any] = {}
        for f in fields(cls):
            variable = PREFIX + f.name.upper()
            if given.get(f.name) is not None:
                source, raw = f.name, given.pop(f.name)
            elif variable in environ:
                given.pop(f.name, None)
                source, raw = variable, environ[variable]
            else:
                given.pop(f.name, None)
                continue
            values[f.name] = _parse(f.name, source, raw, hints[f.name], f.metadata)
        if given:
            known = ", ".join(f.name for f in fields(cls))
            raise InvalidArgument(next(iter(given)), "is not a setting of Duly.", f"Settings are: {known}.")
        return cls(**values)

    @classmethod
    def describe(cls) -> list[dict[str, Any]]:
        """One entry per setting: name, variable, unit, default, reason."""
        return [
            {
                "name": f.name,
                "variable": PREFIX + f.name.upper(),
                "unit": f.metadata["unit"],
                "default": f.default,
                "reason": f.metadata["reason"],
            }
            for f in fields(cls)
        ]


def unknown_variables(environ: Mapping[str, str], channels: str = "") -> dict[str, str | None]:
    """Variables of Duly's prefix that nothing reads, such as a mistyped setting, each with the one that was probably meant.

    ``channels``: the file of the setting ``publish_channels``. It may name any variable (``${DULY_INSTAGRAM_TOKEN}``).
    """
    known = {PREFIX + f.name.upper() for f in fields(Settings)} | set(ELSEWHERE)
    strange = [name for name in environ if name.upper().startswith(PREFIX) and name not in known]
    strange = [name for name in strange if not name.startswith(OF_TESTS)]
    if strange and channels:
        try:
            said = Path(channels).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return {}  # nobody can say what it names
        strange = [name for name in strange if f"${{{name}}}" not in said]
    # the prefix, which all have, makes none alike
    short = {name.removeprefix(PREFIX) for name in known}
    meant = {name: nearest(name[len(PREFIX) :], short, 0.7) for name in sorted(strange)}
    return {name: near and PREFIX + near for name, near in meant.items()}


def _parse(name: str, source: str, raw: Any, kind: Any, meta: Mapping[str, Any]) -> Any:
    choices, low = meta["choices"], meta["low"]
    if isinstance(raw, str) and choices:
        matches = [c for c in choices if c.lower() == raw.strip().lower()]
        if not matches:
            raise InvalidArgument(source, f"is {raw!r}.", f"Choose one of: {', '.join(choices)}.")
        return matches[0]
    value = (
        _read_span(source, raw)
        if meta["unit"] == "s" and isinstance(raw, str | timedelta)
        else _read(source, raw, kind)
    )
    if low is not None and not value >= low:
        raise InvalidArgument(source, f"is {value:g}; the least allowed is {low:g}.")
    if meta["high"] is not None and not value <= meta["high"]:
        raise InvalidArgument(source, f"is {value:g}; the most allowed is {meta['high']:g}.")
    return value


def _read_span(source: str, raw: str | timedelta) -> float:
    """Seconds of a duration such as ``5m``."""
    try:
        return parse_duration(raw).total_seconds()
    except ValueError:
        raise InvalidArgument(source, f"is {raw!r}.", REMEDY) from None


#: Texts of numbers that mean the same to everybody.
_WHOLE, _DECIMAL = re.compile(r"-?[0-9]{1,15}"), re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,15})?")


def _read(source: str, raw: Any, kind: Any) -> Any:
    """The value as its type. What is plain is read here, so that a worker need not load pydantic for its settings."""
    kinds = [one for one in (get_args(kind) if isinstance(kind, UnionType) else (kind,)) if one is not NoneType]
    text = raw.strip() if isinstance(raw, str) else None
    if type(raw) in kinds:
        return raw if text is None else text
    if text is not None and kinds == [int] and _WHOLE.fullmatch(text):
        return int(text)
    if text is not None and kinds == [float] and _DECIMAL.fullmatch(text):
        return float(text)
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_python(raw if text is None else text)
    except ValidationError as error:
        raise InvalidArgument(source, f"is {raw!r}: {error.errors()[0]['msg']}.") from None
