"""Processes without the three seconds of importing torch: forked from a server that has, and has no threads."""

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

import torch.multiprocessing as multiprocessing

from tests.helpers import PATIENCE_S


class Done(NamedTuple):
    """How a process ended, −n where by signal n, and what it wrote."""

    code: int | None
    out: str
    err: str


def warm() -> ForkServerContext:
    """Return what starts such processes; the server itself starts with the first of them."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "lstlm.training.run.session"])
    return context  # type: ignore[no-any-return]


def close(*numbers: int) -> None:
    """Close standard streams, as `2>&-` does, and as Python finds them then."""
    for number in numbers:
        os.close(number)
        setattr(sys, ("stdin", "stdout", "stderr")[number], None)


def redirect(number: int, path: str) -> None:
    """Let a standard stream go to a file, as `2>path` does."""
    os.dup2(os.open(path, os.O_WRONLY), number)


def _be_lstlm(arguments: Sequence[str], folder: Path, before: Callable[[], object]) -> None:
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.argv = ["lstlm", *arguments]
    from lstlm.cli import main

    try:
        before()
        main()
    except Exception:
        traceback.print_exc()
        raise


def _nothing() -> None: ...


def start_lstlm(arguments: Sequence[object], folder: Path, before: Callable[[], object] = _nothing) -> BaseProcess:
    """Start `lstlm …` in a process of its own, in which `before`, a function of a module, is called first.

    What it writes goes to the files `out` and `err` of `folder`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    process = warm().Process(target=_be_lstlm, args=([str(argument) for argument in arguments], folder, before))
    process.start()
    return process


def run_lstlm(arguments: Sequence[object], folder: Path, before: Callable[[], object] = _nothing) -> Done:
    """Do the same, and wait for its end."""
    process = start_lstlm(arguments, folder, before)
    process.join(PATIENCE_S)
    process.kill()  # where it hangs
    out, err = ((folder / name).read_text(encoding="utf-8") for name in ("out", "err"))
    return Done(process.exitcode, out, err)
