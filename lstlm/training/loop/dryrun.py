"""`--dry-run`: what a run would need and how fast it would go, from twenty real steps and no file written."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from lstlm import environment
from lstlm.config import Config
from lstlm.data import Corpus
from lstlm.training.loop.cooccurrence import RefitLearner, make_learner
from lstlm.training.loop.learner import Learner
from lstlm.training.run.session import budget_of

TIMED_STEPS = 20
_WARM_UP = 3


def tensor_bytes(value: Any) -> int:
    """Return the bytes of all tensors inside nested dictionaries and lists."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, dict):
        return sum(map(tensor_bytes, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(tensor_bytes, value))
    return 0


def count_parameters(learner: Learner) -> dict[str, int]:
    """Return the numbers of learned weights: embeddings, hidden layers, output (as the D×d matrix it stands for)."""
    network = learner.network
    vocab, width = network.input_vectors().shape
    hidden = sum(parameter.numel() for parameter in network.hidden.parameters())
    output = network.output.vocab * (network.output.hidden + int(learner.config.output.bias))
    counts = {"embedding": vocab * width, "hidden": hidden, "output": output}
    return {**counts, "total": sum(counts.values())}


def peak_memory(device: torch.device) -> int:
    """Return the most bytes that this process has held: on the GPU, or resident in main memory, libraries included."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return environment.peak_memory()


@dataclass(frozen=True)
class Estimate:
    """The outcome of a dry run; sizes in bytes, times in seconds or milliseconds as named."""

    vocabulary: int
    parameters: dict[str, int]
    state_bytes: int
    copy_bytes: int  # in main memory: what checkpoints are written from while training goes on
    peak_memory_bytes: int
    checkpoint_bytes: int
    disk_bytes: int
    steps: int | None
    steps_per_epoch: int
    step_ms: float
    words_per_s: float
    estimated_s: float | None


def dry_run(config: Config, corpus: Corpus, device: torch.device, now: Callable[[], float] = perf_counter) -> Estimate:
    """Build the model, take 20 timed steps after 3 untimed ones, and estimate."""
    learner = make_learner(config, corpus, device)
    # a pass takes as long as thousands of steps
    warm_up, timed = (_WARM_UP, TIMED_STEPS) if not isinstance(learner, RefitLearner) else (1, 1)
    parameters = count_parameters(learner)
    for _ in range(warm_up):
        learner.step(1.0, measured=False)
    milliseconds = []
    for _ in range(timed):
        began = now()
        learner.step(1.0, measured=False)
        milliseconds.append(1e3 * (now() - began))
    step_ms = statistics.median(milliseconds)
    state = tensor_bytes(learner.tensors())
    budget = budget_of(config, learner.examples.batches_per_epoch)
    seconds = [] if budget.seconds is None else [budget.seconds]
    if budget.steps is not None:
        seconds.append(budget.steps * step_ms / 1e3)
    return Estimate(
        vocabulary=len(corpus.vocabulary),
        parameters=parameters,
        state_bytes=state,
        copy_bytes=state,
        peak_memory_bytes=peak_memory(device) + (0 if device.type == "cuda" else state),
        checkpoint_bytes=state,
        # One more than is kept while the next is being written, and the best.
        disk_bytes=state * (config.train.keep_checkpoints + 2),
        steps=budget.steps,
        steps_per_epoch=learner.examples.batches_per_epoch,
        step_ms=step_ms,
        words_per_s=1e3 * learner.words_per_step / step_ms,
        estimated_s=min(seconds) if seconds else None,
    )
