"""The table of word vectors with its rows shared out: a rank asks the owners for the rows that its examples need."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lstlm.distributed.ranks import Ranks
from lstlm.distributed.shards import check_enough_words, join_rows, rows_of_rank
from lstlm.errors import ConfigError
from lstlm.kernels.ops import RowValues, outside


class ShardedEmbedding(nn.Module):
    """`SparseEmbedding` over the ranks of a group. weight (D/world, size) holds the rows `rank`, rank + world, …

    Every word is asked for once, however often the batch has it, and its summed gradient goes back once: a rank sends
    and receives at most 2·m·n·size numbers a step, whatever the vocabulary.
    """

    weight: Tensor

    def __init__(self, weight: Tensor, combine: str, vocab: int, ranks: Ranks) -> None:
        super().__init__()
        check_enough_words(vocab, ranks.world)
        self.register_buffer("weight", weight)
        self.combine, self.vocab, self.ranks = combine, vocab, ranks
        self._request: _Request | None = None
        self._rows: Tensor | None = None
        self._combined: Tensor | None = None

    def forward(self, context: Tensor) -> Tensor:
        """Return the combined rows of this rank's context (m,n). Collective; the result is this rank's own."""
        if (wrong := outside(context, self.vocab)) is not None:
            raise IndexError(f"row {wrong} of a table that has {self.vocab}")
        request = _Request(context.reshape(-1), self.vocab, self.ranks)
        rows = request.fetch(self.weight)
        if self.training and torch.is_grad_enabled():
            self._request, self._rows = request, rows.requires_grad_()
        rows = rows.view(*context.shape, -1)
        if self.combine == "concat":
            return rows.flatten(1)
        return rows.sum(1) if self.combine == "sum" else rows.mean(1)

    def read(self, context: Tensor) -> Tensor:
        """Do the same for a caller without autograd; `backward` comes next."""
        with torch.enable_grad():
            combined: Tensor = self(context)
        self._combined = combined
        return combined.detach()

    def backward(self, gradient: Tensor) -> None:
        """Take the gradient of what `read` returned."""
        if self._combined is not None:
            self._combined.backward(gradient)  # type: ignore[no-untyped-call]
        self._combined = None

    def gradient(self) -> RowValues:
        """Return the gradients of the rows here that any rank read, by their places; a place may occur twice."""
        if self._request is None or self._rows is None or self._rows.grad is None:
            raise ConfigError("embedding: step without a backward before it; run forward, backward, step in turn")
        return RowValues(self._request.wanted, self._request.give_back(self._rows.grad))

    def discard(self) -> None:
        """Forget the last batch."""
        self._request = self._rows = self._combined = None

    def rows(self, ids: Tensor) -> Tensor:
        """Return rows by id (k,size), the same ids on all ranks. Collective."""
        return _Request(ids, self.vocab, self.ranks).fetch(self.weight)

    def table(self) -> Tensor:
        """Return all rows (D,size). Collective; all of it over the wire."""
        return join_rows(self.ranks, self.weight, self.vocab)


class _Request:
    """The rows that the ranks want from each other for one batch."""

    def __init__(self, ids: Tensor, vocab: int, ranks: Ranks) -> None:
        self.ranks = ranks
        # the words by owner, then by place there: one sort finds the distinct ones and puts them in the order to send
        most = rows_of_rank(vocab, 0, ranks.world)
        words, self.where = torch.unique(ids % ranks.world * most + ids // ranks.world, return_inverse=True)
        self.asked: list[int] = torch.bincount(words // most, minlength=ranks.world).tolist()
        self.to_give = [row[ranks.rank] for row in ranks.numbers(self.asked)]
        self.wanted = ranks.exchange(words % most, self.asked, self.to_give)

    def fetch(self, weight: Tensor) -> Tensor:
        """Return the row of every id, repeated as the ids are."""
        rows = self.ranks.exchange(weight.index_select(0, self.wanted), self.to_give, self.asked)
        return rows.index_select(0, self.where)

    def give_back(self, gradient: Tensor) -> Tensor:
        """Send gradients (one for each id) to the owners, summed by word; return those of the rows here."""
        summed = gradient.new_zeros(sum(self.asked), gradient.shape[1]).index_add_(0, self.where, gradient)
        return self.ranks.exchange(summed, self.asked, self.to_give)
