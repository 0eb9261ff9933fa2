"""How long to wait before trying again. The one place that knows.

Delays grow by a factor and are capped *before* the power is taken, so no exponent overflows (case B031). Randomness is
handed in as a number, so a test names it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta

from duly.kernel.errors import InvalidArgument
from duly.kernel.payload import read_seconds


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff: ``min(max, base * factor ** (failures - 1) + u * jitter)`` seconds.

    The default is the jobs specification's 10 s × 2ⁿ (R003-5): 10, 20, 40 … with a cap of an hour (T003-b).
    """

    #: Seconds before the second attempt. 0 retries at once.
    base: float = 10.0
    #: Growth per failure, at least 1.
    factor: float = 2.0
    #: The longest delay, in seconds, jitter included.
    max: float = 3600.0
    #: Up to this many seconds are added at random (R002-11 uses base / 2). 0 adds nothing.
    jitter: float = 0.0

    def __post_init__(self) -> None:
        for name, low in (("base", 0.0), ("factor", 1.0), ("max", 0.0), ("jitter", 0.0)):
            value = getattr(self, name)
            if name != "factor" and isinstance(value, str | timedelta):
                value = read_seconds(value, f"Backoff.{name}")
                object.__setattr__(self, name, value)
            if not math.isfinite(value) or value < low:
                raise InvalidArgument(f"Backoff.{name}", f"is {value!r}; it must be a finite number, at least {low:g}.")

    def delay(self, failures: int, u: float = 0.0) -> float:
        """Seconds to wait after the ``failures``-th failure (1 for the first). ``u`` is drawn from [0, 1)."""
        if failures < 1:
            raise InvalidArgument("failures", f"is {failures}; the first failure is number 1.")
        return min(self.max, self._grown(failures - 1) + u * self.jitter)

    def _grown(self, steps: int) -> float:
        if self.base == 0 or self.factor == 1:
            return min(self.base, self.max)
        growth = steps * math.log(self.factor)
        if self.max <= self.base or growth >= math.log(self.max) - math.log(self.base):
            return self.max
        # the power alone may overflow where a tiny base brings the product back below the cap
        return self.base * self.factor**steps if growth < 700 else math.exp(math.log(self.base) + growth)
