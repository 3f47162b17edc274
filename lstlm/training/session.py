"""One process of a run, from an empty or an older folder to its summary."""

import hashlib
import json
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import lstlm
from lstlm.config import Config, dump_config, to_dict
from lstlm.data import Corpus, Vocabulary
from lstlm.errors import ConfigError
from lstlm.training.checkpoint import newest_name, write_failure
from lstlm.training.console import Console
from lstlm.training.folders import CHECKPOINTS, claim
from lstlm.training.resume import changed_settings, choose_checkpoint
from lstlm.training.run import describe
from lstlm.training.runlog import RunLog
from lstlm.training.schedule import Budget
from lstlm.training.signals import Interrupts
from lstlm.training.sweeps import make_learner
from lstlm.training.trainer import Trainer
from lstlm.training.validate import Scorer, Validator
from lstlm.vectors import Vectors, write_projector

PROJECTOR_WORDS = 10_000


@dataclass(frozen=True)
class Summary:
    """How a process ended: `state` is finished or interrupted (then `signal` tells by what)."""

    run: Path
    state: str
    signal: int | None
    report: dict[str, Any]


def use_device(name: str, threads: int | None) -> torch.device:
    """Return the device called `name` and set the number of threads; ConfigError where there is no such device."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"--device {name}: not usable here ({reason}); use cpu, or see `lstlm env`") from error
    if threads is not None:
        torch.set_num_threads(threads)
    return device


def budget_of(config: Config, batches_per_epoch: int) -> Budget:
    """Return the budget that the configuration describes."""
    train = config.train
    return Budget.of(train.max_steps, train.max_epochs, train.max_minutes, batches_per_epoch)


def train(
    config: Config,
    folder: Path,
    *,
    resume: str | None = None,
    device: torch.device,
    force: bool = False,
    quiet: bool = False,
    scorer: Scorer | None = None,
) -> Summary:
    """Train in `folder`: anew, or with `resume` ("auto" or a path) from a checkpoint.

    `scorer` gives further figures of the network, logged with those of every evaluation.
    """
    corpus = Corpus.open(Path(config.data.dir))
    lock = claim(folder, resuming=resume is not None, force=force)
    try:
        return _train(config, folder, corpus, _Options(resume, device, force, quiet, scorer))
    except OSError as error:
        raise write_failure(error, Path(error.filename or folder), newest_name(folder / CHECKPOINTS)) from error
    finally:
        lock.close()


@dataclass(frozen=True)
class _Options:
    resume: str | None
    device: torch.device
    force: bool
    quiet: bool
    scorer: Scorer | None = None


def _train(config: Config, folder: Path, corpus: Corpus, options: _Options) -> Summary:
    checkpoint, notes = choose_checkpoint(folder, options.resume, force=options.force)
    if checkpoint is not None:
        changes = changed_settings(checkpoint, config, corpus.vocabulary)
        notes += [f"continuing from {checkpoint.folder}", *(f"changed: {change}" for change in changes)]
        if checkpoint.manifest["threads"] != torch.get_num_threads():
            threads = f"{checkpoint.manifest['threads']} threads then, {torch.get_num_threads()} now"
            notes.append(
                f"{threads}: the last bits may differ; --threads {checkpoint.manifest['threads']} repeats them"
            )
    describe(folder, config, corpus.vocabulary, options.device)
    learner = make_learner(config, corpus, options.device)
    budget = budget_of(config, learner.examples.batches_per_epoch)
    step = 0 if checkpoint is None else checkpoint.step
    console = Console(budget, learner.words_per_step, step=step, quiet=options.quiet)
    learner.say = console.say
    for note in notes:
        console.say(note)
    log = RunLog(folder, console, step=step)
    try:
        log.board.settings(to_dict(config), dump_config(config))
        trainer = Trainer(
            learner, Validator(config, corpus, options.scorer), budget, log, folder, _facts(config, corpus)
        )
        if checkpoint is not None:
            trainer.load(checkpoint)
        return _run(trainer, folder, corpus)
    finally:
        log.close()


def _run(trainer: Trainer, folder: Path, corpus: Corpus) -> Summary:
    """Run the trainer with signals handled, and leave status.json true however it ends."""
    with Interrupts() as interrupts:
        try:
            trainer.log.status("running", trainer.report(), durable=True)
            trainer.run(lambda: interrupts.received is not None)
            if interrupts.received is None:
                _leave_projector(trainer, folder, corpus.vocabulary)
                trainer.log.board.finish(trainer.progress.step)
        except BaseException as error:
            with suppress(OSError):
                reason = {"error": f"{type(error).__name__}: {error}"}
                trainer.log.status("failed", {**trainer.report(), **reason}, durable=True)
            raise
        state = "finished" if interrupts.received is None else "interrupted"
        trainer.log.status(state, trainer.report(), durable=True)
        return Summary(folder, state, interrupts.received, trainer.report())


def _leave_projector(trainer: Trainer, folder: Path, vocabulary: Vocabulary) -> None:
    """Write the vectors of the most frequent words where TensorBoard's projector looks for them."""
    counts = torch.as_tensor(vocabulary.counts)
    rows = counts.argsort(descending=True, stable=True)[:PROJECTOR_WORDS]
    table = trainer.learner.network.input_vectors()
    vectors = table[rows.to(table.device)].detach().float().cpu().numpy()
    words = [vocabulary.words[row] for row in rows.tolist()]
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
