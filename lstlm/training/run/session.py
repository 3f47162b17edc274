"""One process of a run, from an empty or an older folder to its summary."""

import hashlib
import json
import os
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

import lstlm
from lstlm.config import Config, dump_config, to_dict, with_rates
from lstlm.data import Corpus, Vocabulary
from lstlm.distributed import Ranks
from lstlm.errors import ConfigError
from lstlm.training.log.console import Console
from lstlm.training.log.runlog import RunLog
from lstlm.training.loop.cooccurrence import check_embedding, make_learner
from lstlm.training.loop.ranked import RankLearner, RankTrainer, Votes
from lstlm.training.loop.schedule import Budget
from lstlm.training.loop.signals import Interrupts
from lstlm.training.loop.trainer import Trainer
from lstlm.training.loop.validate import Scorer, Validator
from lstlm.training.run.checkpoint import newest_name, reopen, understood, write_failure
from lstlm.training.run.folders import CHECKPOINTS, claim
from lstlm.training.run.resume import changed_settings, choose_checkpoint
from lstlm.training.run.saved import describe
from lstlm.training.run.shards import world_of
from lstlm.training.run.threads import set_threads
from lstlm.vectors import Vectors, write_projector

PROJECTOR_WORDS = 10_000
T = TypeVar("T")


@dataclass(frozen=True)
class Summary:
    """How a process ended: `state` is finished or interrupted (then `signal` tells by what)."""

    run: Path
    state: str
    signal: int | None
    report: dict[str, Any]


def use_device(name: str) -> torch.device:
    """Return the device called `name`; ConfigError where there is no such device."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # a value, so that `meta`, which has none, is refused
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].split(". ")[0]  # torch goes on to list all its backends
        raise ConfigError(f"--device {name}: not usable here ({reason}); use cpu, or see `lstlm env`") from error
    return device


def budget_of(config: Config, batches_per_epoch: int) -> Budget:
    """Return the budget that the configuration describes."""
    train = config.train
    return Budget.of(train.max_steps, train.max_epochs, train.max_minutes, batches_per_epoch)


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to train, besides the configuration.

    resume        None: anew; "auto" or a path: from a checkpoint
    threads       None for as many as a step is worth
    scorer        gives further figures of the network, logged with those of every evaluation
    ranks         where several processes train together: all of them call `train` alike, the first writes and logs
    now           the clock of train.max_minutes and of the log
    aside_counts  whether evaluations and checkpoints count for train.max_minutes
    """

    device: torch.device
    resume: str | None = None
    threads: int | None = None
    force: bool = False
    quiet: bool = False
    scorer: Scorer | None = None
    ranks: Ranks | None = None
    now: Callable[[], float] = time.perf_counter
    aside_counts: bool = True

    @property
    def first(self) -> bool:
        """Whether this process writes and logs."""
        return self.ranks is None or self.ranks.first

    def on_first(self, work: Callable[[], T]) -> T:
        """Return what `work` returns on the process that writes, on all of them."""
        return work() if self.ranks is None else self.ranks.on_first(work)


def train(config: Config, folder: Path, options: Options) -> Summary:
    """Train in `folder`."""
    corpus = Corpus.open(Path(config.data.dir))
    check_embedding(config, corpus)  # now, before a folder is made
    config = with_rates(config, len(corpus.vocabulary))  # written down, so that a later version goes on with the same
    with ExitStack() as held:
        held.callback(torch.set_num_threads, torch.get_num_threads())  # what a program had before is its own affair
        set_threads(config, len(corpus.vocabulary), options.threads)

        def take() -> None:
            held.callback(claim(folder, resuming=options.resume is not None, force=options.force).close)

        options.on_first(take)
        try:
            return _train(config, folder, corpus, options)
        except OSError as error:
            name = error.filename  # TensorBoard's are bytes
            where = Path(os.fsdecode(name)) if isinstance(name, str | bytes) else folder
            raise write_failure(error, where, newest_name(folder / CHECKPOINTS)) from error


def _begin(config: Config, folder: Path, corpus: Corpus, options: Options) -> tuple[str | None, list[str]]:
    """Choose and check the checkpoint to continue from, and describe the run; return its folder and remarks."""
    checkpoint, notes = choose_checkpoint(folder, options.resume, force=options.force)
    if checkpoint is not None:
        with understood(checkpoint):
            changes = changed_settings(checkpoint, config, corpus.vocabulary)
            threads_then, before = int(checkpoint.manifest["threads"]), world_of(checkpoint)
        notes += [f"continuing from {checkpoint.folder}", *(f"changed: {change}" for change in changes)]
        if threads_then != torch.get_num_threads():
            threads = f"{threads_then} threads then, {torch.get_num_threads()} now"
            notes.append(f"{threads}: the last bits may differ; --threads {threads_then} repeats them")
        world = 1 if options.ranks is None else options.ranks.world
        if world != before:
            examples = config.train.batch_size * world
            notes.append(f"{before} ranks then, {world} now: a step takes {examples} examples, {world} × batch_size")
    describe(folder, config, corpus, options.device)
    return None if checkpoint is None else str(checkpoint.folder), notes


def _train(config: Config, folder: Path, corpus: Corpus, options: Options) -> Summary:
    ranks = options.ranks
    found, notes = options.on_first(lambda: _begin(config, folder, corpus, options))
    checkpoint = None if found is None else reopen(Path(found))
    learner = (
        make_learner(config, corpus, options.device)
        if ranks is None
        else RankLearner(config, corpus, options.device, ranks)
    )
    budget = budget_of(config, learner.examples.batches_per_epoch)
    step = 0 if checkpoint is None else checkpoint.step
    console = Console(budget, learner.words_per_step, step=step, quiet=options.quiet or not options.first)
    learner.say = console.say
    for note in (f"run folder {folder}" + ("" if ranks is None else f", {ranks.world} ranks"), *notes):
        console.say(note)
    if checkpoint is not None and budget.spent(step, 0.0):
        limits = "train.max_steps and train.max_epochs"
        console.say(f"nothing is left to train: {limits} end the run at step {budget.steps}; raise them to go on")
    log = RunLog(folder if options.first else None, console, step=step)
    try:
        log.board.settings(to_dict(config), dump_config(config))
        make = Trainer if ranks is None else RankTrainer
        trainer = make(learner, Validator(config, corpus, options.scorer), budget, log, folder, _facts(config, corpus))
        trainer.now, trainer.aside_counts = options.now, options.aside_counts
        if checkpoint is not None:
            trainer.load(checkpoint)
        return _run(trainer, folder, corpus, ranks)
    finally:
        log.close()


def _run(trainer: Trainer, folder: Path, corpus: Corpus, ranks: Ranks | None) -> Summary:
    """Run the trainer with signals handled, and leave status.json true however it ends."""
    with Interrupts() as interrupts:
        votes = None if ranks is None else Votes(ranks, lambda: interrupts.received)
        try:
            trainer.log.status("running", trainer.report(), durable=True)
            trainer.run(votes or (lambda: interrupts.received is not None))
            received = interrupts.received if votes is None else votes.signal
            if received is None:
                _leave_projector(trainer, folder, corpus.vocabulary)
                trainer.log.board.finish(trainer.progress.step)
        except BaseException as error:
            with suppress(OSError):
                reason = {"error": f"{type(error).__name__}: {error}"}
                trainer.log.status("failed", {**trainer.report(), **reason}, durable=True)
            raise
        state = "finished" if received is None else "interrupted"
        trainer.log.status(state, trainer.report(), durable=True)
        return Summary(folder, state, received, trainer.report())


def _leave_projector(trainer: Trainer, folder: Path, vocabulary: Vocabulary) -> None:
    """Write the vectors of the most frequent words where TensorBoard's projector looks for them."""
    counts = torch.as_tensor(vocabulary.counts)
    rows = counts.argsort(descending=True, stable=True)[:PROJECTOR_WORDS]
    vectors = trainer.learner.network.input_rows(rows.to(trainer.learner.device)).float().cpu().numpy()
    words = [vocabulary.words[row] for row in rows.tolist()]
    if trainer.learner.rank == 0:
        write_projector(Vectors(words, vectors, counts[rows].tolist()), folder)


def _facts(config: Config, corpus: Corpus) -> dict[str, Any]:
    """Return what every checkpoint's manifest says about its origin."""
    settings = to_dict(config)
    return {
        "config": settings,
        "config_sha256": hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest(),
        "vocabulary_sha256": corpus.vocabulary.hash,
        "lstlm": lstlm.__version__,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "run_started": time.time(),
    }
