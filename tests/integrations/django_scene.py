"""A Django project in a folder of the test's own, and programs that run in it.

Django is set up once in a process and never again, so everything happens in processes of its own: forked from one that has imported Django
and set up nothing (`nursery.py`), but for the commands that tests of the command line ask for, which are started as people start them.
What a program says with ``tell`` comes back as values.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from sqlalchemy.engine import make_url

import nursery
from duly import Duly

SETTINGS = """
SECRET_KEY = "for tests"
INSTALLED_APPS = ["duly.integrations.django", "shop"]
DATABASES = {databases!r}
DULY = {duly!r}
TASKS = {tasks!r}
USE_TZ = {use_tz!r}
TIME_ZONE = "Europe/Paris"
ROOT_URLCONF = "shop.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ALLOWED_HOSTS = ["testserver"]
"""

MODELS = """
from django.db import models


class Order(models.Model):
    item = models.CharField(max_length=40)
    confirmed = models.BooleanField(default=False)


class Line(models.Model):
    said = models.CharField(max_length=400)


def note(said):
    Line.objects.create(said=said)
"""

TASKS_MODULE = """
import asyncio

from django.db import connection, transaction

from duly.integrations.django import app
from shop.models import Line, Order, note


@app.task
def confirm(order: int) -> None:
    Order.objects.filter(pk=order).update(confirmed=True)


@app.task(queue="mail")
async def greet(name: str) -> str:
    await Line.objects.acreate(said=f"hello {name}")
    return name


@app.task
def twice(order: int) -> None:
    with transaction.atomic():
        note("first")
        confirm.enqueue(order)


@app.task(max_attempts=1)
def half(order: int) -> None:
    with transaction.atomic():
        note("half")
        confirm.enqueue(order)
        raise RuntimeError("no")
"""

DJANGO_TASKS = """
import django

if django.VERSION >= (6, 0):
    from django.tasks import task
else:
    from django_tasks import task

from duly import PermanentError
from shop.models import Line, note


class OutOfStock(Exception):
    pass


@task
def pack(order, *, gift=False):
    note(f"packed {order} {gift}")
    return {"order": order, "gift": gift}


@task(queue_name="mail", priority=10)
async def post(order):
    await Line.objects.acreate(said=f"posted {order}")


@task(takes_context=True)
def count(context, upto):
    note(f"attempt {context.attempt} of {context.task_result.id}")
    if context.attempt < upto:
        raise OutOfStock("not yet")
    return context.attempt


@task
def broken():
    raise PermanentError("for ever")
"""

URLS = """
from django.db import transaction
from django.http import HttpResponse
from django.urls import path

from shop.models import Order
from shop.tasks import confirm, greet


def order(request):
    with transaction.atomic():
        made = Order.objects.create(item="book")
        job = confirm.enqueue(made.pk).job
        if "fail" in request.GET:
            raise RuntimeError("no")
    return HttpResponse(str(job.id))


async def hello(request):
    enqueued = await greet.aenqueue("ada")
    return HttpResponse(str(enqueued.job.id))


urlpatterns = [path("order", order), path("hello", hello)]
"""

#: What every program begins with.
HEAD = """
import json, os, sys
import django
django.setup()
from django.db import connection, transaction
from duly.integrations.django import app
from shop.models import Line, Order, note
from shop import tasks

def tell(*values):
    print("TOLD " + json.dumps(values, default=str))

def jobs(**filters):
    return sorted(job.id for job in app.jobs.find(1000, **filters))
"""

MANAGE = """
import os, sys
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
from django.core.management import execute_from_command_line
execute_from_command_line(sys.argv)
"""


class Project:
    """A project with one app, ``shop``."""

    def __init__(self, folder: Path, url: str, **settings: Any) -> None:
        self.folder, self.url = folder, url
        shop = folder / "shop"
        shop.mkdir(parents=True)
        for name, text in (
            ("__init__", ""), ("models", MODELS), ("tasks", TASKS_MODULE), ("urls", URLS), ("later", DJANGO_TASKS),
        ):  # fmt: skip
            (shop / f"{name}.py").write_text(text)
        (folder / "manage.py").write_text(MANAGE)
        self.configure(**settings)

    def configure(
        self, *, duly: Any = None, tasks: Any = None, use_tz: bool = True, databases: Any = None, options: Any = None
    ) -> None:
        """Write the settings."""
        values: dict[str, Any] = {
            "duly": {} if duly is None else duly, "use_tz": use_tz, "databases": databases or {"default": self.database(options)},
            "tasks": tasks or {"default": {"BACKEND": "duly.integrations.django.backend.DulyBackend", "QUEUES": ["default", "mail"], "OPTIONS": {"backoff": 0.1}}},
        }  # fmt: skip
        (self.folder / "settings.py").write_text(SETTINGS.format(**values))

    def database(self, options: Any = None) -> dict[str, Any]:
        """The test's database in Django's words."""
        url = make_url(self.url)
        if url.get_backend_name() == "sqlite":
            mode = {"transaction_mode": "IMMEDIATE", "timeout": 30} if options is None else options
            return {"ENGINE": "django.db.backends.sqlite3", "NAME": url.database, "OPTIONS": mode}
        return {
            "ENGINE": "django.db.backends.postgresql", "NAME": url.database, "USER": url.username or "", "PASSWORD": url.password or "",
            "HOST": url.host or url.query.get("host", ""), "PORT": url.port or url.query.get("port", ""), "OPTIONS": options or {},
        }  # fmt: skip

    def _environment(self) -> dict[str, str]:
        own = {k: v for k, v in os.environ.items() if not k.startswith(("DULY_", "DJANGO_"))}
        return {**own, "DJANGO_SETTINGS_MODULE": "settings", "PYTHONPATH": str(self.folder)}

    def manage(self, *arguments: str, code: int = 0) -> str:
        """``manage.py …``: everything it said."""
        return self._run([sys.executable, "manage.py", *arguments], code)

    def duly(self, *arguments: str, code: int = 0) -> str:
        return self._run([sys.executable, "-m", "duly", *arguments], code)

    def _run(self, command: list[str], code: int = 0) -> str:
        done = subprocess.run(
            command, cwd=self.folder, env=self._environment(), capture_output=True, text=True, timeout=100
        )
        assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def _fork(self, arguments: list[str], text: str, code: int = 0) -> str:
        """Run a program with these arguments in a process that need not import Django first."""
        nursery.start()
        said = self.folder / "said.txt"
        process = nursery.CONTEXT.Process(
            target=_begin, args=(str(self.folder), self._environment(), str(said), arguments, text)
        )
        process.start()
        process.join(100)
        try:
            assert process.exitcode == code, f"{process.exitcode}\n{said.read_text()}"
        finally:
            process.kill()
        return said.read_text()

    def migrate(self) -> str:
        return self._fork(["manage.py", "migrate", "--run-syncdb"], MANAGE)

    def program(self, text: str) -> list[Any]:
        """Run a program in the project. What each ``tell(…)`` said, one value bare, several as a list."""
        said = self._fork(["-c"], HEAD + text)
        told = [json.loads(line[5:]) for line in said.splitlines() if line.startswith("TOLD ")]
        return [values[0] if len(values) == 1 else values for values in told]

    def work(self, code: int = 0) -> str:
        """A worker that ends when nothing is left to run; with 1 when jobs have failed."""
        return self._fork(["manage.py", "duly", "worker", "--until-idle", "--patience", "30"], MANAGE, code)

    def app(self) -> Duly:
        """Duly on the same database, without Django."""
        return Duly(self.url)


def _begin(folder: str, environment: dict[str, str], said: str, arguments: list[str], text: str) -> None:
    """Be what ``python -c`` or ``python manage.py`` is, in a process that was forked."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv, sys.path[:0] = arguments, [folder]
    out = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    exec(compile(text, arguments[0], "exec"), {"__name__": "__main__"})
