"""The newsletter's application: one task, EMAIL_SEND, that hands one message to a mail server over SMTP.

This is all of Duly that the product needs. A job carries the finished message, so a retry sends the same text, whatever
has become of the template meanwhile. What the mail server answers decides what becomes of the job:

======================  ==================  ==========================================================
the server says         the handler         the job
======================  ==================  ==========================================================
2yz                     returns             succeeded, EMAIL_SENT in the audit trail
4yz, or nothing at all  raises, or Retry    tries again after 1, 2, 4 … seconds, five times in all
5yz                     PermanentError      failed at once, JOB_FAILED_PERMANENT in the audit trail
======================  ==================  ==========================================================

Between the server's 250 and the settlement of the job lies a moment in which a killed worker leaves a message sent and a
job unsettled: the job runs again. SMTP knows no way around that. The second message has the Message-ID of the first,
by which mail programs and people recognise it.
"""

from __future__ import annotations

import os
from email.message import EmailMessage

import aiosmtplib
from letter import is_address

from duly import Backoff, Duly, Job, PermanentError, Retry

app = Duly()  # the database is DULY_DATABASE_URL, or ./duly.db

SENDER = "The orchard <letter@example.org>"


@app.task(
    "EMAIL_SEND",
    queue="mail",
    max_attempts=5,
    backoff=Backoff(base=1, factor=2),  # short, for an example; the default begins at 10 seconds
    timeout=30,
    audit_action="EMAIL_SENT",
)
async def send_email(to: str, subject: str, text: str, html: str, *, job: Job) -> dict[str, str]:
    """Send one message to one mailbox. ``job`` is handed in by the worker; whoever enqueues leaves it out."""
    if not is_address(to):
        raise PermanentError(f"{to!r} is not an e-mail address")
    message = EmailMessage()
    message["From"] = SENDER
    message["To"] = to
    message["Subject"] = subject
    message["Date"] = job.created_at
    message["Message-ID"] = message_id(job)
    message["List-Unsubscribe"] = "<mailto:leave@example.org>"
    message.set_content(text)
    message.add_alternative(html, subtype="html")
    host, _, port = os.environ.get("NEWSLETTER_SMTP", "127.0.0.1:8025").rpartition(":")
    try:
        _, answer = await aiosmtplib.send(
            message, hostname=host, port=int(port), local_hostname="localhost", start_tls=False, timeout=20
        )
    except aiosmtplib.SMTPRecipientsRefused as refused:
        raise verdict(refused.recipients[0]) from None
    except aiosmtplib.SMTPResponseException as refusal:
        raise verdict(refusal) from None
    except aiosmtplib.SMTPNotSupported as unable:  # an address in another script, and a server that takes ASCII only
        raise PermanentError(unable.message) from None
    return {"message_id": message["Message-ID"], "answer": answer}


def message_id(job: Job) -> str:
    """The same for every attempt of this job, and another for every other job, also of another database."""
    assert job.created_at is not None
    return f"<{job.id}.{job.created_at:%Y%m%d%H%M%S%f}@letters.example.org>"


def verdict(answer: aiosmtplib.SMTPResponseException) -> PermanentError | Retry:
    """What a refusal means: 5yz is for good, everything else is for now."""
    said = f"{answer.code} {answer.message}"
    return PermanentError(said) if 500 <= answer.code < 600 else Retry(said)
