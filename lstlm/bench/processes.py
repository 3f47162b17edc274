"""Ranks that are started to measure something: processes of this machine, none of which outlives the measurement."""

import json
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import connection, get_context, resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from lstlm.distributed import Ranks
from lstlm.errors import LstlmError

TIMEOUT_S = 300.0

Work = Callable[[Ranks], Any]
"""What every rank does; it is sent to the processes by pickle, and its result, plain Python, back as JSON."""


def in_ranks(world: int, work: Work) -> Any:
    """Let `world` processes do `work` as the ranks of a group; return the first one's result.

    However this ends, none of them is left running.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        started = [
            get_context("spawn").Process(target=_reported, args=(work, rank, world, folder), daemon=True)
            for rank in range(world)
        ]
        try:
            with _ignoring_interrupts():
                for process in started:
                    process.start()
            _wait_for(started, folder)
        finally:
            for process in started:
                if process.pid is not None:
                    process.kill()  # they have nothing to tidy up
                    process.join()
        return json.loads((folder / "result.json").read_text())


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """Let processes that are started here ignore Ctrl-C: this one ends them.

    The mask of blocked signals is inherited; a handler of theirs would come too late, after they have imported torch.
    """
    resource_tracker.ensure_running()  # else the first start does it, and unblocks SIGINT again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wait_for(started: Sequence[BaseProcess], folder: Path) -> None:
    """Wait until all ranks have ended well; raise what the first to fail has left as its message."""
    running = list(started)
    while running:
        connection.wait([process.sentinel for process in running])
        ended = [process for process in running if process.exitcode is not None]
        running = [process for process in running if process not in ended]
        for process in ended:
            if process.exitcode != 0:
                raise _failure(started.index(process), process.exitcode, folder)


def _failure(rank: int, code: int | None, folder: Path) -> LstlmError:
    try:
        message, code = json.loads((folder / f"error-{rank}.json").read_text())
    except OSError:
        return LstlmError(f"bench distributed: rank {rank} ended with exit code {code}")
    error = LstlmError(f"bench distributed: {message}")
    error.exit_code = code
    return error


def _reported(work: Work, rank: int, world: int, folder: Path) -> None:
    """Be one rank; an error that a person can act on becomes a file, whose message the parent raises."""
    try:
        ranks = Ranks.through_file(folder / "store", rank, world, torch.device("cpu"), TIMEOUT_S)
        result = work(ranks)
        if ranks.first:
            (folder / "result.json").write_text(json.dumps(result))
        ranks.on_first(lambda: None)  # nobody leaves before the others have received everything
        ranks.close()
    except LstlmError as error:
        (folder / f"error-{rank}.json").write_text(json.dumps([str(error), error.exit_code]))
        os._exit(error.exit_code)  # at once: the threads of the group would outlive the interpreter
