"""Copies that handlers make with ``os.fork``: of a worker, or of the process that a handler has to itself.

A copy has one thread of the original, and everything else of it: its connections, its locks, the jobs that it holds. It is there for what the
handler does in it. As soon as it comes back to the engine it has to go, and touch none of that.
"""

from __future__ import annotations

import os
import traceback
from typing import NoReturn


def leave(error: BaseException | None = None) -> NoReturn:
    """End this copy as a program would end: with the code of SystemExit, with 1 and its traceback for another ``error``, else with 0.

    Nothing is closed or flushed: that is the original's to do.
    """
    code = 0
    try:
        said = ""
        if isinstance(error, SystemExit):
            if isinstance(error.code, int):
                code = error.code & 0xFF
            elif error.code is not None:
                code, said = 1, f"{error.code}\n"
        elif error is not None:
            code, said = 1, "".join(traceback.format_exception(error))
        if said:
            # not print(): the lock of the stream may be held by a thread that is not here
            os.write(2, said.encode(errors="backslashreplace"))
    finally:
        os._exit(code)
