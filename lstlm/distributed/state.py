"""The factored weights with the rows of V shared out over the ranks; everything of size d is on all of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lstlm.distributed.ranks import Ranks
from lstlm.distributed.shards import join_rows, rows_of_rank
from lstlm.errors import ConfigError
from lstlm.spherical.state import FactoredState


class ShardedState(FactoredState):
    """W = V U + p ωᵀ, of which this rank keeps the rows `rank`, rank + world, … of V; p (D,) is kept whole.

    Rows are named by their ids in tensors, and by their places here in slices. Whatever takes ids is collective: all
    ranks call it with the same ids. The changes of the d-sized state are computed by every rank from the same numbers
    in the same order, so that the replicas stay equal to the last bit.
    """

    def __init__(self, W: Tensor, vocab: int, ranks: Ranks, p: Tensor | None = None, **settings: Any) -> None:
        """Start from this rank's rows of W."""
        self.ranks, self.vocab = ranks, vocab  # plain attributes: super().__init__ already asks for D and sums
        super().__init__(W, p, **settings)

    @property
    def D(self) -> int:
        return self.vocab

    def _rows_of_history(self) -> int:
        # The same on all ranks, though shards may differ by a row: only the stamps are a rank's own.
        return rows_of_rank(self.vocab, 0, self.ranks.world)

    def total(self, x: Tensor) -> Tensor:
        return self.ranks.total_(x)

    def p_of(self, p: Tensor, ids: Tensor | slice) -> Tensor:
        return p[self.ranks.rank :: self.ranks.world][ids] if isinstance(ids, slice) else p[ids]

    def owned(self, ids: Tensor) -> Tensor:
        """Return which of the ids live here, a mask like ids."""
        return ids % self.ranks.world == self.ranks.rank

    def read_here(self, ids: Tensor) -> Tensor:
        """Return rows (n,d) of V in the current frame, of ids that live here. Not collective."""
        places = ids // self.ranks.world
        return self.history.bring_forward(self.V.index_select(0, places), places)

    def read(self, ids: Tensor | slice) -> Tensor:
        if isinstance(ids, slice):
            return super().read(ids)
        owner = ids % self.ranks.world
        order = owner.argsort(stable=True)
        sizes = torch.bincount(owner, minlength=self.ranks.world).tolist()
        rows = self.ranks.gather(self.read_here(ids[self.owned(ids)]), sizes)
        return torch.empty_like(rows).index_copy_(0, order, rows)

    def write(self, ids: Tensor | slice, rows: Tensor) -> None:
        if isinstance(ids, slice):
            super().write(ids, rows)
            return
        here = self.owned(ids)
        places = ids[here] // self.ranks.world
        self.V[places] = rows[here]
        self.history.written(places)

    def bring_forward(self, ids: Tensor) -> None:
        """Do nothing: which rows of this rank the others' minibatches touch is not known here."""

    def add_to_rows(self, ids: Tensor, rows: Tensor, change: Tensor, times: float) -> None:
        if not self.history.empty:
            self.write(ids, rows)
        here = self.owned(ids)
        self.V.index_add_(0, ids[here] // self.ranks.world, change[here], alpha=times)

    def materialise(self) -> Tensor:
        """Return W (D,d) on every rank. O(Dd²/world), and all of W over the wire."""
        return join_rows(self.ranks, super().materialise(), self.vocab)

    def reset(self, W: Tensor) -> None:
        super().reset(W[self.ranks.rank :: self.ranks.world])

    def resize(self, keep: Tensor | None, W_new: Tensor) -> None:
        raise ConfigError("a layer that is spread over ranks cannot be resized: do it in one process")
