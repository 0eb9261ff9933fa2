"""Entry of a measured process, run by the contender's own interpreter: `python -m bench.child MODULE COMMAND [N]`.

Commands are functions of `bench.MODULE` (`contenders.huey`, `pairs`, …); what one returns is printed as a JSON line for the driver.
"""

import importlib
import json
import sys


def main() -> None:
    module, command, *rest = sys.argv[1:]
    function = getattr(importlib.import_module("bench." + module), command)
    answer = function(*(int(x) for x in rest))
    print("BENCH " + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
