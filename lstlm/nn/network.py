"""The network: word vectors of the context, hidden layers, one output layer.

    h = f(… f(A₁ combine(E[context]) + a₁) …),   losses = output(h, target)

Nothing here is of the size of the vocabulary but the tables themselves: a step reads and writes only the rows of E
that its context names, and the output layer takes its own exact SGD step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lstlm.config import Config
from lstlm.distributed import Ranks, ShardedEmbedding
from lstlm.errors import ConfigError, DataError
from lstlm.kernels.ops import outside
from lstlm.nn.layers import HiddenLayers, HiddenPass, SparseEmbedding
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
        h: Tensor = self.hidden(self._read(self.embedding, context))
        return h

    def begin(self, context: Tensor) -> Encoding:
        """Do the same without autograd, which would cost a twentieth of a step."""
        embedding = self.embedding
        return Encoding(embedding, self.hidden.run(self._read(embedding.read, context)))

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

    def _read(self, read: Callable[[Tensor], Tensor], context: Tensor) -> Tensor:
        """Return what the embedding reads for a context, or say what is wrong with the context."""
        if context.ndim != 2 or context.numel() == 0 or context.dtype not in (torch.int64, torch.int32):
            raise ConfigError(
                f"context is {context.dtype} {tuple(context.shape)}: word ids are int64 (examples, words)"
            )
        if self.combine == "concat" and context.shape[1] != (words := self.config.data.context_words):
            raise ConfigError(
                f"context has {context.shape[1]} words an example, the model was made for {words}: "
                "model.combine concat fixes the number; use sum or mean, or change data.context"
            )
        try:
            return read(context)
        except IndexError:
            vocab = self.embedding.vocab
            wrong = outside(context, vocab)
            raise DataError(
                f"context holds word id {wrong}: ids run from 0 to {vocab - 1}; is the vocabulary another one?"
            ) from None


class Encoding:
    """A minibatch between forward and backward: h (m,hidden), and `backward`, which leaves the gradients in place."""

    def __init__(self, embedding: SparseEmbedding | ShardedEmbedding, hidden: HiddenPass) -> None:
        self._embedding, self._hidden = embedding, hidden
        self.h = hidden.h
        self._version = self.h._version

    def backward(self, gradient: Tensor) -> None:
        """Give hidden layers and word vectors their gradients, given that of h."""
        if self.h._version != self._version:
            raise ConfigError("h was changed in place after it was computed; backward() needs it as it was")
        self._embedding.backward(self._hidden.backward(gradient))
