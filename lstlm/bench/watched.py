"""A command of lstlm in a process of its own, and the memory that it and its children have while it runs."""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from lstlm.errors import LstlmError

TICK_S = 0.2


class Memory(NamedTuple):
    """Bytes in main memory: of the process's own, and pages of files (libraries, a corpus) that the system can drop."""

    own: int
    mapped: int


@dataclass(frozen=True)
class Watched:
    """How a command went: what it printed, its seconds, when `until` was first true, its largest memory (Linux)."""

    stdout: str
    seconds: float
    until_s: float | None
    peak: Memory | None


def memory_of(pid: int) -> Memory | None:
    """Return what a process and its descendants hold in memory; None where the system does not tell."""
    found = [memory for member in _tree(pid) if (memory := _memory(member)) is not None]
    return Memory(sum(m.own for m in found), sum(m.mapped for m in found)) if found else None


def _memory(pid: int) -> Memory | None:
    with suppress(OSError, ValueError):  # gone meanwhile, or not Linux
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
        kib = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith("Rss")}
        if kib:  # a process that has ended and was not waited for has no memory
            return Memory(1024 * kib["RssAnon"], 1024 * (kib["RssFile"] + kib["RssShmem"]))
    return None


def _tree(pid: int) -> Iterator[int]:
    yield pid
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text(encoding="ascii").split():
                yield from _tree(int(child))


def watch(arguments: Sequence[str], until: Callable[[], bool] = lambda: False) -> Watched:
    """Run `lstlm` with `arguments` to its end; LstlmError with its last line where it fails.

    `until` is asked five times a second. Whoever is interrupted here ends the process, too.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        began = perf_counter()
        process = subprocess.Popen([sys.executable, "-m", "lstlm", *arguments], stdout=out, stderr=err)
        until_s, peak = None, Memory(0, 0)
        try:
            while process.poll() is None:
                peak = max(peak, memory_of(process.pid) or peak, key=sum)
                if until_s is None and until():
                    until_s = perf_counter() - began
                with suppress(subprocess.TimeoutExpired):
                    process.wait(TICK_S)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        seconds = perf_counter() - began
        out.seek(0)
        err.seek(0)
        if process.returncode:
            last = (err.read().strip().splitlines() or ["nothing said"])[-1]
            raise LstlmError(f"lstlm {' '.join(arguments[:1])} ended with {process.returncode}: {last}")
        return Watched(out.read(), seconds, until_s, peak if sum(peak) else None)
