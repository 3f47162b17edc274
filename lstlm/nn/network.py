"""The network: word vectors of the context, hidden layers, one output layer; and the optimisers that train them.

    h = f(… f(A₁ combine(E[context]) + a₁) …),   losses = output(h, target)

Nothing here is of the size of the vocabulary but the tables themselves: a step reads and writes only the rows of E
that its context names, and the output layer takes its own exact SGD step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lstlm.config import Config, OptimConfig, output_rate
from lstlm.distributed import Ranks, ShardedEmbedding
from lstlm.errors import CheckpointError, ConfigError, DataError
from lstlm.kernels.ops import adagrad_rows, add_rows, outside
from lstlm.nn.layers import HiddenLayers, SparseEmbedding, compiled_step
from lstlm.outputs import OutputLayer, make_output
from lstlm.outputs.rows import uniform_rows

_EMBEDDING_STD = 0.1


class Network(nn.Module):
    """An n-gram language model: `encode` words to h (m,hidden), and one loss an example from the output layer."""

    unexplained: Tensor

    def __init__(
        self,
        config: Config,
        counts: np.ndarray[Any, np.dtype[Any]] | Tensor,
        *,
        device: torch.device | str | None = None,
        generator: torch.Generator | None = None,
        ranks: Ranks | None = None,
        classes: Tensor | None = None,
    ) -> None:
        """Make the network that `config` describes for words with these counts (D,); with `ranks`, this rank's part.

        `classes` are those of the middle of a shortlist; a network that is to be loaded brings its own.
        """
        super().__init__()
        self.config = config
        self.combine = combine = config.model.combine
        dtype: torch.dtype = getattr(torch, config.train.dtype)
        size = config.model.embedding
        like = torch.empty(0, size, dtype=dtype, device=device)
        kept = range(len(counts)) if ranks is None else range(ranks.rank, len(counts), ranks.world)
        table = uniform_rows(len(counts), size, _EMBEDDING_STD, like, generator, kept)
        if ranks is None:
            self.embedding: SparseEmbedding | ShardedEmbedding = SparseEmbedding(table, combine)
        else:
            self.embedding = ShardedEmbedding(table, combine, len(counts), ranks)
        self.hidden = HiddenLayers(config.combined, config.model, table, generator)
        self.sides = 2 if config.data.context_kind == "cooccurrence" else 1
        counts = torch.as_tensor(counts).repeat(self.sides)
        if self.sides == 2:  # the share of the squared targets that the last refit leaves unexplained
            self.register_buffer("unexplained", torch.ones((), dtype=torch.float64, device=device))
        place: dict[str, Any] = {"dtype": dtype, "device": device, "generator": generator}
        place |= {"optimiser": config.optim.output, "squares": config.optim.output_squares}
        place |= {"ranks": ranks, "classes": classes}
        self.output: OutputLayer = make_output(config.output, config.width, counts, **place)

    def encode(self, context: Tensor) -> Tensor:
        """Return h (m,hidden) of context (m,n) word ids."""
        self._check_context(context)
        h: Tensor = self.hidden(self.embedding(context))
        return h

    def begin(self, context: Tensor) -> Encoding:
        """Do the same without autograd, which would cost a twentieth of a step."""
        self._check_context(context)
        return Encoding(self, context)

    def forward(
        self,
        context: Tensor,
        target_ids: Tensor,
        target_values: Tensor | None = None,
        weight: Tensor | None = None,
    ) -> Tensor:
        """Return losses (m,).  context (m,n); target_ids and target_values (m,) or (m,K); weight (m,)."""
        losses: Tensor = self.output(self.encode(context), target_ids, target_values, weight)
        return losses

    def input_vectors(self) -> Tensor:
        """Return the word vectors of the input side (D,embedding): the table itself, not a copy."""
        return self.embedding.table()

    def input_rows(self, ids: Tensor) -> Tensor:
        """Return the word vectors of the input side of some words (k,embedding), a copy."""
        return self.embedding.rows(ids)

    def output_vectors(self) -> Tensor:
        """Return the word vectors of the output side (D,hidden); left and right added up where they are apart."""
        weight = self.output.weight()
        return weight if self.sides == 1 else weight.view(self.sides, -1, weight.shape[1]).sum(0)

    def _check_context(self, context: Tensor) -> None:
        if context.ndim != 2 or context.numel() == 0 or context.dtype not in (torch.int64, torch.int32):
            raise ConfigError(
                f"context is {context.dtype} {tuple(context.shape)}: word ids are int64 (examples, words)"
            )
        words = self.config.data.context_words
        if self.combine == "concat" and context.shape[1] != words:
            raise ConfigError(
                f"context has {context.shape[1]} words an example, the model was made for {words}: "
                "model.combine concat fixes the number; use sum or mean, or change data.context"
            )
        last = self.embedding.vocab - 1
        if (bad := outside(context, last + 1)) is not None:
            raise DataError(f"context holds word id {bad}: ids run from 0 to {last}; is the vocabulary another one?")


class Encoding:
    """A minibatch between forward and backward: h (m,hidden), and `backward`, which leaves the gradients in place."""

    def __init__(self, network: Network, context: Tensor) -> None:
        self._read = network.embedding(context)
        self._pass = network.hidden.run(self._read.detach())
        self.h = self._pass.h
        self._version = self.h._version

    def backward(self, gradient: Tensor) -> None:
        """Give hidden layers and word vectors their gradients, given that of h."""
        if self.h._version != self._version:
            raise ConfigError("h was changed in place after it was computed; backward() needs it as it was")
        dx, gradients = self._pass.backward(gradient)
        for parameter, found in zip(self._pass.parameters, gradients, strict=True):
            if parameter.requires_grad:
                parameter.grad = found
        if self._read.is_leaf:
            self._read.grad = dx
        else:
            self._read.backward(dx)


class Optimisers:
    """One step of everything: the output layer by its own SGD, the hidden layers by torch.optim, E row by row."""

    def __init__(self, network: Network, config: OptimConfig) -> None:
        self.network, self.config = network, config
        self.weight_decay = network.config.output.weight_decay
        chosen = config.output_lr
        self.output_lr = output_rate(network.config, network.embedding.vocab) if chosen is None else chosen
        self._parameters = list(network.hidden.parameters())
        self.hidden = _hidden_optimiser(self._parameters, config)
        table = network.embedding.weight
        self.squares = table.new_zeros(len(table)) if config.embedding == "adagrad" else None

    def zero(self) -> None:
        """Forget the gradients of the last batch."""
        for parameter in self._parameters:  # less than a tenth of the time of the optimiser's own zero_grad
            parameter.grad = None
        self.network.embedding.discard()
        self.network.output.discard()

    def step(self, lr_scale: float = 1.0) -> None:
        """Update everything, each rate times lr_scale. The output layer first: if it refuses, nothing moved."""
        self.step_output(lr_scale)
        self.step_hidden(lr_scale)
        self.step_embedding(lr_scale)

    def step_output(self, lr_scale: float = 1.0) -> None:
        """Update the output layer."""
        self.network.output.update(self.output_lr * lr_scale, self.weight_decay)

    def step_hidden(self, lr_scale: float = 1.0) -> None:
        """Update the hidden layers."""
        if self.hidden is not None:
            for group in self.hidden.param_groups:
                group["lr"] = self.config.hidden_lr * lr_scale
            if not compiled_step(self.hidden):
                self.hidden.step()

    def step_embedding(self, lr_scale: float = 1.0) -> None:
        """Update the rows of the embedding table that the batch read. O(m·n·size), free of the vocabulary."""
        embedding, lr = self.network.embedding, self.config.embedding_lr * lr_scale
        if self.squares is None:
            add_rows(embedding.weight, embedding.gradient(), -lr)
        else:
            adagrad_rows(embedding.weight, self.squares, embedding.gradient(), lr)
        embedding.discard()

    def state_dict(self) -> dict[str, Any]:
        """Return {"hidden": torch's state or None, "squares": (D,) or None}; the output layer's state is its own."""
        return {"hidden": None if self.hidden is None else self.hidden.state_dict(), "squares": self.squares}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state of the same optimisers."""
        squares, hidden = state["squares"], state["hidden"]
        if (squares is None) != (self.squares is None) or (hidden is None) != (self.hidden is None):
            raise CheckpointError("optimiser state: made with other optim.embedding or model.hidden than this run's")
        if self.squares is not None and squares is not None:
            if squares.shape != self.squares.shape:
                raise CheckpointError(f"optimiser state: {len(squares)} words, this vocabulary has {len(self.squares)}")
            self.squares.copy_(squares)
        if self.hidden is not None:
            _check_like(self.hidden, hidden["state"])
            # the settings are the configuration's; those of the file may have been changed since
            self.hidden.load_state_dict({**self.hidden.state_dict(), "state": hidden["state"]})


def _check_like(optimiser: torch.optim.Optimizer, state: dict[int, dict[str, Any]]) -> None:
    """Raise unless a saved state is one of this optimiser: torch would find out in the middle of a step, or never."""
    names = {
        torch.optim.Adagrad: {"step", "sum"},
        torch.optim.Adam: {"step", "exp_avg", "exp_avg_sq"},
        torch.optim.SGD: {"momentum_buffer"},
    }[type(optimiser)]
    for number, parameter in enumerate(optimiser.param_groups[0]["params"]):
        saved = state.get(number, {})
        fits = all(
            value is None or (isinstance(value, Tensor) and value.shape in (parameter.shape, torch.Size([])))
            for value in saved.values()
        )
        may_be_empty = type(optimiser) is not torch.optim.Adagrad  # the others make their state in the first step
        if not fits or not (set(saved) == names or (may_be_empty and not saved)):
            raise CheckpointError("optimiser state: made with other optim.hidden or model.hidden than this run's")


def _hidden_optimiser(parameters: list[nn.Parameter], config: OptimConfig) -> torch.optim.Optimizer | None:
    """Return the torch optimiser that the configuration names; None where there is nothing to optimise."""
    if not parameters:
        return None
    device = parameters[0].device.type
    # fused: one pass over the parameters instead of one an operation, 2 to 3 times faster on a CPU
    fused = device in ("cpu", "cuda")
    match config.hidden:
        case "adagrad":
            return torch.optim.Adagrad(parameters, lr=config.hidden_lr, fused=device == "cpu")
        case "adam":
            return torch.optim.Adam(parameters, lr=config.hidden_lr, fused=fused)
        case "sgd":
            return torch.optim.SGD(parameters, lr=config.hidden_lr, momentum=config.momentum, fused=fused)
    raise ConfigError(f"optim.hidden {config.hidden!r}: choose adagrad, adam or sgd")
