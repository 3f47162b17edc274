"""A small corpus, runs in processes of their own, and what makes two runs equal."""

import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lstlm.config import Config, parse_config
from lstlm.data.inputs import FileSource
from lstlm.data.prepare import PrepareOptions, prepare
from lstlm.distributed import Ranks
from lstlm.errors import LstlmError
from lstlm.files import HashingWriter
from lstlm.training.loop.learner import Learner
from lstlm.training.loop.ranked import RankLearner
from lstlm.training.run.checkpoint import newest_valid, step_folders
from lstlm.training.run.folders import CHECKPOINTS
from lstlm.training.run.session import Options, train

STEPS = 24
HANG_S = 3600.0  # a busy machine is no hang
UNEXPECTED, HUNG = 99, 98  # exit codes of processes that end as none should
_SETTINGS = f"""
data: {{context: 3}}
model: {{embedding: 8, hidden: [12]}}
output: {{loss: taylor}}
optim: {{output_lr: 0.5}}
train: {{batch_size: 16, dtype: float64, max_epochs: null, max_steps: {STEPS}, log_every: 4, eval_every: 12,
        eval_examples: 100, checkpoint_every: 4, keep_checkpoints: 3, simlex: false}}
"""
_COUNTED = "events.txt"  # how many there were in a run
_EVENTS: list[tuple[Any, str]] = [(os, name) for name in ("fsync", "rename", "replace", "symlink", "mkdir", "unlink")]


class Workbench:
    """A folder with a corpus, the runs of it that nobody disturbs, and processes for those that are disturbed.

    This process computes nothing itself: it forks, and a process that has begun to use threads must not be forked.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.chance = folder, random.Random()
        self.corpus, self.log = folder / "corpus", folder / "log.txt"
        text = folder / "text.txt"
        text.write_text(_text(random.Random(0)))
        prepare(FileSource(name="selftest", files=[(str(text), "train")]), self.corpus, PrepareOptions(min_count=1))
        self.config: Config = parse_config(_SETTINGS, "selftest", [f"data.dir={self.corpus}"])
        self._made = 0

    def new(self, name: str) -> Path:
        """Return a path that is not taken."""
        self._made += 1
        return self.folder / f"{name}-{self._made}"

    def in_child(self, work: Callable[[], int]) -> int:
        """Return the process id of a fork that does `work` and ends with the exit code that it returns."""
        if pid := os.fork():
            return pid
        code = UNEXPECTED
        try:
            log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            torch.set_num_threads(1)
            code = work()
        except LstlmError as error:
            print(error, file=sys.stderr, flush=True)
            code = error.exit_code
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def undisturbed(self, ranks: int = 1) -> Path:
        """Return the run that the others must be equal to, made when it is first asked for."""
        run = self.folder / f"undisturbed-{ranks}"
        if not run.exists():
            only_count = partial(after_events, 0, lambda: None)
            codes = [self.train(run, only_count)] if ranks == 1 else self.train_ranks(run, only_count)
            if any(codes) or isinstance(fingerprint(run), str):
                raise LstlmError(f"selftest: a run without faults ended with {codes}; see {self.log}")
        return run

    def some_event(self, ranks: int = 1, *, first: int = 1) -> int:
        """Choose one of the events of a run: a step, a write, a rename …; they are counted from 1."""
        return self.chance.randint(first, int((self.undisturbed(ranks) / _COUNTED).read_text()))

    def train(self, run: Path, before: Callable[[], object] = lambda: None, *, quiet: bool = True) -> int:
        """Train in a process of its own, from wherever the run is; return its exit code, −9 where it was killed."""

        def work() -> int:
            events = before()
            summary = train(self.config, run, Options(device=torch.device("cpu"), resume="auto", quiet=quiet))
            _note(run, events)
            return 0 if summary.signal is None else 128 + summary.signal

        return exit_code(self.in_child(work))

    def train_ranks(self, run: Path, before: Callable[[], object] = lambda: None) -> list[int]:
        """Train by two ranks; `before` is called on the second one. Returns their exit codes."""
        store = self.new("store")

        def work(rank: int) -> int:
            events = before() if rank == 1 else None
            ranks = Ranks.through_file(store, rank, 2, torch.device("cpu"), HANG_S)
            train(self.config, run, Options(device=ranks.device, resume="auto", quiet=True, ranks=ranks))
            ranks.close()
            _note(run, events)
            return 0

        return [exit_code(pid) for pid in [self.in_child(lambda rank=rank: work(rank)) for rank in range(2)]]  # type: ignore[misc]


def _note(run: Path, events: object) -> None:
    if callable(events):
        (run / _COUNTED).write_text(str(events()))


def exit_code(pid: int) -> int:
    """Wait for a process; one that hangs is killed, and has an exit code of its own."""
    deadline = time.monotonic() + HANG_S
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return HUNG
        time.sleep(0.005)


def after_events(count: int, act: Callable[[], object]) -> Callable[[], int]:
    """Let this process `act` when it has taken so many steps, writes, renames …: the same place on every machine.

    Returns a function that says how many there have been.
    """
    left = count

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                act()
            return call(*arguments, **options)

        return wrapped

    steps = [(kind, "step") for kind in (Learner, RankLearner) if "step" in vars(kind)]
    for owner, name in [*_EVENTS, (HashingWriter, "write"), *steps]:
        setattr(owner, name, counted(getattr(owner, name)))
    return lambda: count - left


def fingerprint(run: Path) -> dict[str, str] | str:
    """Return the hashes of all tensors of a run that has ended, or what is wrong with it."""
    checkpoint, skipped = newest_valid(step_folders(run / CHECKPOINTS))
    if skipped or checkpoint is None:
        return f"no whole checkpoint: {skipped}"
    if checkpoint.step != STEPS:
        return f"ended at step {checkpoint.step}, not {STEPS}"
    state = json.loads((run / "status.json").read_text())["state"]
    files = checkpoint.manifest["files"]
    found = {name: str(record["sha256"]) for name, record in files.items() if name.endswith(".pt")}
    return found if state == "finished" else f"status.json says {state}"


def _text(chance: random.Random) -> str:
    """Return some hundred sentences of words of very different frequency."""
    words = [f"w{number}" for number in range(60)]
    weights = [1 / (number + 1) for number in range(60)]
    lines = [" ".join(chance.choices(words, weights, k=chance.randint(2, 12))) for _ in range(300)]
    return "\n".join(lines) + "\n"
