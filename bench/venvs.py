"""The peers' interpreters: one virtual environment each under `.bench/venvs/`, made on first use and kept.

Versions are pinned so that two runs compare with the same peer; change a pin and the environment is rebuilt.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENVS = ROOT / ".bench" / "venvs"

REQUIREMENTS: dict[str, list[str]] = {
    "pgqueuer": ["pgqueuer[asyncpg]==1.6.0", "uvloop==0.23.0"],
    "huey": ["huey==3.5.4"],
    "procrastinate": ["procrastinate==3.10.0", "psycopg-binary", "uvloop==0.23.0"],
    "oban": ["oban==0.7.0", "psycopg-binary", "uvloop==0.23.0"],
}
#: Peers that want a newer Python than Duly's oldest.
NEEDS: dict[str, tuple[int, int]] = {"oban": (3, 12)}

_failed: dict[str, str] = {}


class Unavailable(Exception):
    """A contender that cannot run here; its row says why and the run goes on."""


def interpreter(least: tuple[int, int] | None) -> str:
    """A Python of at least that version: ours, one on the path that runs, or one that pyenv keeps."""
    if least is None or sys.version_info >= least:
        return sys.executable
    candidates = [
        found for minor in range(least[1], least[1] + 3) if (found := shutil.which(f"python{least[0]}.{minor}"))
    ]
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates += [str(p / "bin" / "python") for p in sorted(kept.glob(f"{least[0]}.*"))]
    for python in candidates:
        code = f"import sys; sys.exit(sys.version_info < {least!r})"
        try:
            if subprocess.run([python, "-c", code], capture_output=True, timeout=20).returncode == 0:
                return python
        except (OSError, subprocess.TimeoutExpired):
            pass
    raise Unavailable("no Python {}.{} found".format(*least))


def python_for(peer: str) -> str:
    """The interpreter with this peer installed; builds the environment when missing or outdated."""
    if peer in _failed:
        raise Unavailable(_failed[peer])
    home, wanted = VENVS / peer, "\n".join(REQUIREMENTS[peer])
    python, stamp = home / "bin" / "python", home / "requirements"
    if python.exists() and stamp.exists() and stamp.read_text() == wanted:
        return str(python)
    try:
        base = interpreter(NEEDS.get(peer))
        shutil.rmtree(home, ignore_errors=True)
        home.parent.mkdir(parents=True, exist_ok=True)
        print(f"installing {peer} …", file=sys.stderr, flush=True)
        subprocess.run([base, "-m", "venv", str(home)], check=True, capture_output=True, text=True, timeout=120)
        subprocess.run(
            [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *REQUIREMENTS[peer]],
            check=True,
            capture_output=True,
            text=True,
            timeout=300,
        )
    except Unavailable as e:
        _failed[peer] = str(e)
        raise
    except subprocess.CalledProcessError as e:
        said = [line for line in e.stderr.splitlines() if line.startswith("ERROR")] or e.stderr.splitlines()[-1:]
        _failed[peer] = "cannot be installed: " + (said[0] if said else f"exit {e.returncode}")
        raise Unavailable(_failed[peer]) from e
    except (OSError, subprocess.TimeoutExpired) as e:
        _failed[peer] = f"cannot be installed: {e}"
        raise Unavailable(_failed[peer]) from e
    stamp.write_text(wanted)
    return str(python)


def version(peer: str) -> str:
    return REQUIREMENTS[peer][0].split("==")[1]
