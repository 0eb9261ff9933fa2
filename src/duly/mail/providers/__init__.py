"""Who carries mail. One small protocol; each provider in a file of its own."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from duly.kernel.verdict import Kind
from duly.mail.verdict import undelivered

if TYPE_CHECKING:
    from duly.kernel.clock import Clock
    from duly.mail.providers.base import Provider
    from duly.settings import Settings

#: Name → (module, class, the settings it cannot do without).
KNOWN: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "smtp": ("smtp", "SmtpProvider", ("smtp_url",)),
    "graph": ("graph", "GraphProvider", ("graph_tenant", "graph_client_id", "graph_client_secret")),
    "resend": ("resend", "ResendProvider", ("resend_api_key",)),
    "maildir": ("maildir", "MaildirProvider", ()),
    "console": ("console", "ConsoleProvider", ()),
}


def missing(name: str, settings: Settings) -> list[str]:
    """The settings that a provider needs and does not have."""
    wanted = [setting for setting in KNOWN[name][2] if not getattr(settings, setting)]
    if name == "maildir" and not settings.mail_folder and not _beside(settings):
        wanted.append("mail_folder")
    return wanted


def chosen(settings: Settings) -> str:
    """The name of the provider that the settings choose; empty when they choose none."""
    return settings.mail_provider or ("maildir" if settings.mail_folder or _beside(settings) else "")


def make(name: str, settings: Settings, clock: Clock) -> Provider:
    """A provider by its name. Raises Undelivered: for good when nobody knows the name, else until it is configured."""
    if not name:
        raise undelivered(Kind.AUTH, "no provider of mail is chosen: set mail_provider (DULY_MAIL_PROVIDER)")
    if name not in KNOWN:
        raise undelivered(Kind.PERMANENT, f"mail_provider: there is no provider {name!r}; there are {', '.join(KNOWN)}")
    lacking = missing(name, settings)
    if lacking:
        variables = ", ".join(f"DULY_{setting.upper()}" for setting in lacking)
        raise undelivered(Kind.AUTH, f"the provider {name} is not configured: set {variables}")
    module, kind, _ = KNOWN[name]
    try:
        made: Provider = getattr(import_module(f"duly.mail.providers.{module}"), kind)(settings, clock)
    except ImportError as error:
        raise undelivered(Kind.AUTH, f'the provider {name} needs {error.name}: install "duly[mail]"') from None
    return made


def _beside(settings: Settings) -> bool:
    from duly.mail.providers.maildir import folder_of

    return folder_of(settings) is not None
