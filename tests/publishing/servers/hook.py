"""An endpoint that takes posts by webhook."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from publishing.servers.http import Api, Asked, Reply


@dataclass
class Hook(Api):
    #: Does it know an Idempotency-Key that came before?
    remembers: bool = True
    #: What it took in, in order.
    taken: list[Any] = field(default_factory=list)
    keys: dict[str, str] = field(default_factory=dict)

    def real(self, asked: Asked) -> Reply:
        key = asked.headers.get("idempotency-key", "")
        if self.remembers and key in self.keys:
            return 200, {}, {"id": self.keys[key]}
        self.taken.append(asked.fields)
        self.keys[key] = f"taken-{len(self.taken)}"
        return 201, {}, {"id": self.keys[key], "url": f"https://example.org/{self.keys[key]}"}
