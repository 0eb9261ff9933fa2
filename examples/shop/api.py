"""The shop's API: ``POST /orders``, behind the middleware that makes it safe to repeat.

A client that got no answer asks again with the same ``Idempotency-Key`` and gets the answer of the first time. The
middleware remembers answers for a day, in Duly's database. One thing it cannot do: a process that dies between the
commit of the order and the record of the answer leaves a key behind that nobody knows the answer of, and the next try
runs ``post_order`` again. So the order has a number that is unique, and an order that is there is not placed again.

``run.py`` starts it. In a terminal of its own: ``python examples/shop/api.py --port 8000``.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import click
import uvicorn
from fastapi import FastAPI, HTTPException, Response
from orders import NewOrder
from pydantic import BaseModel
from shop import Order, create_tables, engine, place
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from tasks import app

from duly.idempotency import IdempotencyMiddleware
from duly.monitoring.logs import event_log
from duly.outbox import set_post_commit_sender

#: Bound to this machine: an example is nobody else's to call.
HOST = "127.0.0.1"


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    create_tables()
    app.listen(event_log(app.settings, sys.stderr))
    set_post_commit_sender(app)
    yield
    app.close()
    engine.dispose()


web = FastAPI(title="Shop", lifespan=lifespan)
# ``wait``: who asks again while the first request is in progress gets its answer a moment later, instead of a 409.
# ``lock``: when this process is killed, its keys are free again after so many seconds.
web.add_middleware(IdempotencyMiddleware, required=True, wait=10, lock=6, heartbeat=2)


class Placed(BaseModel):
    number: int
    cents: int


@web.post("/orders", status_code=201)
def post_order(new: NewOrder, answer: Response) -> Placed:
    """Place an order: 201. 200 when it is there already, 409 when its number belongs to another one."""
    try:
        with Session(engine) as session, session.begin():
            place(session, new)
    except IntegrityError:
        with Session(engine) as session:
            known = session.get(Order, new.number)
        if known is None:
            raise
        if not known.says(new):
            raise HTTPException(409, f"Order {new.number} is another one.") from None
        answer.status_code = 200
    return Placed(number=new.number, cents=new.cents)


@click.command()
@click.option("--port", default=8000, show_default=True, help="The port to listen on; 0 takes a free one.")
def main(port: int) -> None:
    """Take orders until Ctrl-C."""
    config = uvicorn.Config(web, HOST, port, log_level="warning")
    listening = config.bind_socket()
    click.echo(f"http://{HOST}:{listening.getsockname()[1]}")
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main()
