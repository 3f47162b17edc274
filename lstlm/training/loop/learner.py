"""What learns: network, optimisers, the stream of examples and the source of randomness; one step, save, restore."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lstlm.config import Config
from lstlm.data import Batch, Corpus, Examples
from lstlm.data.classes import find_classes
from lstlm.distributed import Ranks
from lstlm.errors import NumericsError
from lstlm.kernels.ops import total
from lstlm.nn.network import Network
from lstlm.nn.optimisers import Optimisers
from lstlm.outputs.shortlist import parts_of
from lstlm.training.loop.clock import PhaseClock
from lstlm.training.run.checkpoint import Checkpoint
from lstlm.training.run.shards import load_network, training_state


class StepResult(NamedTuple):
    """What a step tells: the mean loss of its batch, before the update, and the number of examples."""

    loss: float
    examples: int


class Stream(Protocol):
    """Where the batches come from, with a position that can be saved."""

    batches_per_epoch: int

    def __next__(self) -> Batch: ...

    def coming(self) -> NDArray[np.int64] | None:
        """Return the targets of the next batches, now and then; else None."""

    def state(self) -> dict[str, int]:
        """Return the position."""

    def restore(self, state: dict[str, int]) -> None:
        """Return to a position."""


class Learner:
    """Everything that a step changes. Two learners in the same state take the same steps, bit for bit."""

    rank, world = 0, 1  # which of how many processes
    has_rates = True  # whether lower learning rates may help where numbers go wrong

    def __init__(
        self,
        config: Config,
        corpus: Corpus,
        device: torch.device,
        examples: Stream | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.config = config
        self.device = device
        torch.manual_seed(config.train.seed)
        self.generator = torch.Generator(device=device).manual_seed(config.train.seed)
        counts = corpus.vocabulary.shown_counts(config.data.unknown)
        place: dict[str, Any] = {"device": device, "generator": self.generator, "ranks": ranks}
        self.network = Network(config, counts, classes=middle_classes(config, corpus, ranks), **place)
        self.optimisers = Optimisers(self.network, config.optim)
        self.examples: Stream = examples or open_examples(config, corpus, self.rank, self.world)
        self.words_per_step = config.train.batch_size * self.world
        self.say: Callable[[str], None] = lambda line: None  # where remarks of a step go
        self.seconds_before = 0.0  # spent by an earlier run on what this one found ready
        self.clock = PhaseClock(torch.cuda.synchronize if device.type == "cuda" else None)
        self.grad_norm: float | None = None  # of the output weights, at the last measured step
        self._batch: Batch | None = None  # taken from the stream, not yet learned from

    def step(self, lr_scale: float, *, measured: bool = True) -> StepResult:
        """Take one step on the next batch.

        Raises NumericsError, with nothing updated, where the loss or its gradient is not finite; the batch is then
        kept, and the next call tries it again.
        """
        self.clock.start(measured=measured)
        coming = None if self._batch else self.examples.coming()
        batch = self._batch = self._batch or next(self.examples)
        context, ids = self._place(batch.context), self._place(batch.target_ids)
        values = None if batch.target_values is None else self._place(batch.target_values)
        self.clock.lap("data")
        if coming is not None:
            self.network.output.expect(self._place(coming))
            self.clock.lap("stabilise")
        self.optimisers.zero()
        value = self.gradients(context, ids, values, self.clock.lap)
        if measured:
            norm = self.network.output.grad_norm()
            self.grad_norm = None if math.isnan(norm) else norm
        self.optimisers.step(lr_scale)
        # The layer times its own repairs, which happen inside its update.
        self.clock.lap("update", of_which={"stabilise": 1e-3 * self.network.output.last_stabilise_ms})
        self._batch = None
        return StepResult(value, self._examples_of(batch))

    def gradients(self, context: Tensor, ids: Tensor, values: Tensor | None, lap: Callable[[str], None]) -> float:
        """Return the mean loss and leave all gradients to the optimisers; `lap` is called at the end of a phase."""
        encoding = self.network.begin(context)
        lap("hidden_forward")
        losses, gradient = self.network.output.value_and_grad(encoding.h, ids, values)
        lap("output")
        encoding.backward(gradient)
        value = self._check_finite(*self._reduce_gradients(self._mean(losses), total(gradient)))
        lap("backward")
        return value

    def _mean(self, losses: Tensor) -> Tensor:
        """Return the mean loss of the minibatch."""
        return losses.mean()

    def _examples_of(self, batch: Batch) -> int:
        """Return the size of the minibatch that `batch` belongs to."""
        return len(batch)

    def _place(self, array: Any) -> Tensor:
        return torch.as_tensor(array).to(self.device, non_blocking=True)

    def _reduce_gradients(self, loss: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss and the sum of the gradient at the output layer: of all ranks, where there are several."""
        return loss, total

    def _check_finite(self, loss: Tensor, total: Tensor) -> float:
        """Return the loss; raise where it or the sum of the gradient at the output layer is not finite."""
        value = float(loss)
        if not math.isfinite(value):
            raise NumericsError(f"the loss of the batch is {value}")
        if not math.isfinite(float(total)):
            raise NumericsError(f"the gradient at the output layer is not finite (the loss is {value:.6g})")
        return value

    def restore_output(self) -> bool:
        """Fold the factors of the output layer into plain weights, where it has factors; say whether it had."""
        with torch.no_grad():
            return self.network.output.restore()

    def tensors(self) -> dict[str, dict[str, Any]]:
        """Return the tensors to save, by file: references, not copies."""
        state = {"optimisers": self.optimisers.state_dict(), "generator": self.generator.get_state()}
        state["rng"] = torch.get_rng_state()
        if self.device.type == "cuda":
            state["cuda_rng"] = torch.cuda.get_rng_state(self.device)
        return {"network.pt": self.network.state_dict(), "training.pt": state}

    def load(self, checkpoint: Checkpoint, position: dict[str, int]) -> None:
        """Return to the state of a checkpoint; `position` is that of the examples."""
        load_network(self.network, checkpoint, self.rank, self.world)
        state = training_state(checkpoint, self.rank, self.world)
        self.optimisers.load_state_dict(state["optimisers"])
        self.generator.set_state(state["generator"].clone())
        torch.set_rng_state(state["rng"].clone())
        if "cuda_rng" in state and self.device.type == "cuda":
            torch.cuda.set_rng_state(state["cuda_rng"].clone(), self.device)
        self.examples.restore(position)
        self._batch = None


def middle_classes(config: Config, corpus: Corpus, ranks: Ranks | None = None) -> Tensor | None:
    """Return the classes of the middle of a shortlist, found in the text; on every rank those of the first."""
    if config.output.kind != "shortlist":
        return None
    counts = corpus.vocabulary.shown_counts(config.data.unknown)
    listed, words, number = parts_of(config.output, len(counts))
    if words < 1:
        return None
    rank = np.argsort(np.argsort(-counts, kind="stable"), kind="stable")
    found = torch.as_tensor(find_classes(corpus.train.ids, rank, listed, words, number))
    if ranks is not None:
        ranks.copy_from_first_([found])
    return found


def open_examples(config: Config, corpus: Corpus, rank: int = 0, world: int = 1) -> Examples:
    """Return the endless stream of training batches that the configuration describes, for one of `world` ranks."""
    data, train = config.data, config.train
    return Examples(
        corpus.train,
        corpus.vocabulary,
        context=data.context,
        kind=data.context_kind,
        batch_size=train.batch_size,
        seed=train.seed,
        subsample=data.subsample,
        unknown=data.unknown,
        rank=rank,
        world=world,
    )
