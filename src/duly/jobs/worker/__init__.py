"""The worker: claims, runs, settles, and stops in good order.

Handlers live on the event loop; storage lives on threads of its own, so that neither waits for the other::

    claim thread ──rows──▶ event loop: start → run → outcome ──settlements──▶ settle thread
                                ▲                                                  │
    heartbeat thread ── lost, cancelled ──┘        housekeeping thread ◀── database ┘

* The claim thread asks for as much as its lanes have room for and sleeps on a bell otherwise.
* The settle thread takes what gathered while its last statement ran: load makes batches, idleness adds no delay.
* The heartbeat thread renews leases until the last job is settled, also while draining, and cannot be blocked by
  handlers (case B032). Which jobs are held is known from ``_held``: entered before a run starts, removed after its
  settlement is written.

What can run twice: a job whose worker lost its lease between the effect and the settlement. The second run is fenced by
another token; the late settlement of the first changes nothing and is told as the event ``lease_lost``.

Read the files in this order; each is one step and stands on the one before: ``state`` (what a worker knows), ``accounts``
(letting go of what was settled, and telling it), ``running`` (handlers, on the event loop), ``claiming``, ``settling`` (the
two storage threads), ``life`` (start, heartbeat, drain, end).
"""

from duly.jobs.worker.life import Worker
from duly.jobs.worker.state import Tally

__all__ = ["Tally", "Worker"]
