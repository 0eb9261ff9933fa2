"""A client of the REST API: every operation by its name, with types that follow from the API's own description.

```python
from duly.client import Client

with Client("http://127.0.0.1:8787", token="…") as duly:
    made = duly.jobs.enqueue(task="greet", input={"name": "Ada"}, idempotency_key="order-7")
    for job in duly.every(duly.jobs.find, status=["failed"]):
        duly.jobs.replay(job["id"], reason="the printer is back")
```

Needs the extra ``client``. What is sent and answered is JSON as the reference describes it; instants are texts in UTC.
"""

from __future__ import annotations

from duly.client._calls import *  # noqa: F403
from duly.client.client import ApiError, Change, Client

__all__ = ["ApiError", "Change", "Client"]
