"""The relay: takes what the shop has published from the outbox to where it goes. Any number may run.

It is a process of its own, and it may be killed at any moment: what it had sent and not marked yet is sent again, under
the same message id, by the next relay once the lease has lapsed. ``run.py`` starts one. In a terminal of its own:
``duly outbox relay examples/shop/relay.py``.
"""

from __future__ import annotations

import os

from shop import engine
from tasks import app

from duly import Backoff
from duly.outbox import Outbox
from duly.outbox.transports.duly import DulyTransport
from duly.outbox.transports.webhook import WebhookTransport

outbox = Outbox(
    engine,
    transports={
        "duly": DulyTransport(app),
        "webhook": WebhookTransport(
            {"billing": os.environ.get("BILLING_URL", "http://127.0.0.1:8001/orders")},
            secret=os.environ.get("BILLING_SECRET"),
            # real endpoints are on the Internet and speak TLS, and nothing else is reached unless it is allowed
            allow_http=True,
            allow_private=True,
        ),
    },
    # twelve times in all, after 0.3, 0.6, 1.2 and then 1.5 seconds: short, for an example. The default is more patient
    max_attempts=12,
    backoff=Backoff(base=0.3, factor=2, max=1.5),
    # for how long the messages of a killed relay are left alone
    lease=3,
    # of each destination so many are on their way at once
    per_destination=8,
)
