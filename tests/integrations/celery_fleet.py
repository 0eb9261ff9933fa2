"""What ``celery -A integrations.celery_fleet worker`` runs in these tests; its surroundings say on which database and broker."""

from __future__ import annotations

import json
import os
from typing import Any

from celery import Celery, signals

from duly import Duly
from duly.integrations.celery import apply_robust_settings, install_executor
from integrations.celery_tasks import define, hear, write

duly_app = define(Duly(**json.loads(os.environ["FLEET_DULY"])), os.environ.get("FLEET_WITHOUT", ""))
duly_app.listen(hear)
app = Celery("fleet", broker=os.environ["FLEET_BROKER"])
app.conf.update(
    worker_enable_remote_control=False,
    worker_hijack_root_logger=False,
    broker_connection_max_retries=None,
)
apply_robust_settings(app, **json.loads(os.environ.get("FLEET_SETTINGS", "{}")))
install_executor(app, duly_app)


@signals.worker_ready.connect
def ready(**_: Any) -> None:
    write("ready")


@signals.task_postrun.connect
def over(task_id: str, retval: Any, **_: Any) -> None:
    write("message", id=task_id, answer=str(retval))
