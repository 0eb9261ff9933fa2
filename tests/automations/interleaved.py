"""A program that does what people, workers and schedules do to one slot, at random: ``python -m automations.interleaved URL SEED COUNT``.

Any number of them may run at once. Each has a clock of its own, which runs ahead of, and behind, those of the others. What it prints at its end
is how many of each act succeeded; an error that is no answer ends it with a traceback.
"""

from __future__ import annotations

import json
import random
import sys
import threading
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

from automations.hands import Ai
from duly import Duly
from duly.automations import Automations
from duly.kernel.errors import InvalidArgument, NotFound, WrongState
from duly.testing import ManualClock, drain

START = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)
NAMES = ("north", "south", "east", "west")


class Somebody:
    """One thread of one process."""

    def __init__(self, room: Automations, clock: ManualClock, seed: int, work: bool) -> None:
        self.room, self.clock, self.random, self.work = room, clock, random.Random(seed), work
        self.done: Counter[str] = Counter()
        self.acts = [self.tick, self.tick, self.tick, self.run, self.chat, self.close, self.stop, self.pause, self.resume, self.create, self.update,
                     self.toggle, self.delete, self.fire, self.time, self.time]  # fmt: skip

    def go(self, count: int) -> None:
        for _ in range(count):
            act = self.random.choice(self.acts)
            try:
                act()
            except (WrongState, NotFound, InvalidArgument):
                continue
            self.done[act.__name__] += 1
            self.check()

    def check(self) -> None:
        active = self.room.sessions(100, status=["active"])
        slots = Counter(s.slot for s in active)
        assert all(count == 1 for count in slots.values()), f"two sessions have one slot: {active}"

    def time(self) -> None:
        self.clock.advance(timedelta(seconds=self.random.choice([1, 20, 60, 400])))
        if self.random.random() < 0.1:
            self.clock.set(self.clock.now() - timedelta(seconds=90))

    def tick(self) -> None:
        self.room.tick()
        if self.work and self.random.random() < 0.3:
            drain(self.room._app)  # type: ignore[arg-type]

    def _any(self, *status: str) -> int:
        found = self.room.sessions(50, status=status)
        if not found:
            raise NotFound("session", "any")
        return self.random.choice(found).id

    def run(self) -> None:
        self.room.run(self.random.choice(NAMES), key=self.random.choice([None, f"k{self.random.randrange(20)}"]))

    def chat(self) -> None:
        self.room.chat("hello")

    def close(self) -> None:
        self.room.close(self._any("active", "queued"))

    def stop(self) -> None:
        self.room.stop(self._any("active", "queued", "interrupted"))

    def pause(self) -> None:
        self.room.pause(self._any("active"), span=self.random.choice([None, 30.0]))

    def resume(self) -> None:
        self.room.resume(self._any("interrupted"))

    def create(self) -> None:
        self.room.create(self._definition(self.random.choice(NAMES)))

    def _definition(self, name: str) -> dict[str, Any]:
        every = {"kind": "every", "duration": self.random.choice([60, 120, 300]), "anchor": START.isoformat()}
        return {"name": name, "prompt": f"Go {name}.", "schedule": every, "provider": "ai", "triggers": ["wind"],
                "dismiss_older_instances": self.random.random() < 0.3}  # fmt: skip

    def update(self) -> None:
        self.room.update(self.random.choice(NAMES), self._definition(self.random.choice(NAMES)))

    def toggle(self) -> None:
        self.random.choice([self.room.enable, self.room.disable])(self.random.choice(NAMES))

    def delete(self) -> None:
        if self.random.random() < 0.3:
            self.room.delete(self.random.choice(NAMES))

    def fire(self) -> None:
        self.room.fire("wind", {"from": "north"}, key=f"w{self.random.randrange(30)}")


def main(url: str, seed: int, count: int) -> None:
    clock = ManualClock(START + timedelta(seconds=seed * 7))
    app = Duly(url, clock=clock, sqlite_synchronous="NORMAL")
    room = Automations(app)
    room.use("ai", Ai())
    people = [Somebody(room, clock, seed * 100 + n, work=n == 0) for n in range(3)]
    failed: list[BaseException] = []

    def act(one: Somebody) -> None:
        try:
            one.go(count)
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=act, args=(one,)) for one in people]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    app.close()
    if failed:
        sys.exit(1)
    print(json.dumps(sum((one.done for one in people), Counter())))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
