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


def interpreters(oldest: tuple[int, int], newest: tuple[int, int]) -> dict[tuple[int, int], str]:
    """Version → a CPython of it that runs here: ours, one on the path or in the usual folders, or one that pyenv or uv keeps."""
    found = {sys.version_info[:2]: sys.executable} if oldest <= sys.version_info[:2] <= newest else {}
    home = Path.home()
    kept = [
        Path(os.environ.get("PYENV_ROOT", home / ".pyenv")) / "versions",
        Path(
            os.environ.get(
                "UV_PYTHON_INSTALL_DIR", Path(os.environ.get("XDG_DATA_HOME", home / ".local/share")) / "uv/python"
            )
        ),
    ]
    for version in [(oldest[0], minor) for minor in range(oldest[1], newest[1] + 1)]:
        name = "python{}.{}".format(*version)
        candidates = [shutil.which(name), *(f"{folder}/{name}" for folder in ("/usr/bin", "/usr/local/bin"))]
        candidates += [str(path) for folder in kept for path in sorted(folder.glob(f"*/bin/{name}"), reverse=True)]
        runs = (one for one in candidates if one and version not in found and _is(one, version))
        if (one := next(runs, None)) is not None:
            found[version] = one
    return found


def _is(python: str, version: tuple[int, int]) -> bool:
    """Does it run, and is it that version? A shim of pyenv is there whether or not it does."""
    code = f"import sys, venv; sys.exit(sys.version_info[:2] != {version!r} or sys.implementation.name != 'cpython')"
    try:
        return subprocess.run([python, "-c", code], capture_output=True, timeout=20).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def interpreter(least: tuple[int, int] | None) -> str:
    """A Python of at least that version: ours if it is, else the oldest that is there."""
    if least is None or sys.version_info >= least:
        return sys.executable
    there = interpreters(least, (least[0], least[1] + 2))
    if not there:
        raise Unavailable("no Python {}.{} found".format(*least))
    return there[min(there)]


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
