"""The naive layer with the rows of W shared out: every rank computes the outputs of its own rows for all examples."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lstlm.distributed.ranks import Ranks
from lstlm.distributed.shards import join_rows
from lstlm.kernels.targets import Targets
from lstlm.spherical.steps.common import with_bias
from lstlm.spherical.steps.dense import Dense, DenseState


class ShardedDenseState(DenseState):
    """The rows `rank`, rank + world, … of W (D,d); p (D,) is kept whole. Slices count the rows that are here."""

    def __init__(self, W: Tensor, vocab: int, ranks: Ranks, p: Tensor | None = None) -> None:
        super().__init__(W, p)
        self.ranks, self.vocab = ranks, vocab
        if p is None:
            self.p_norm2 = float(vocab)

    @property
    def D(self) -> int:
        return self.vocab

    def begin(self, h: Tensor, targets: Targets) -> DenseHere:
        return DenseHere(self, h, targets)

    def p_of(self, p: Tensor, ids: Tensor | slice) -> Tensor:
        return p[self.ranks.rank :: self.ranks.world][ids] if isinstance(ids, slice) else p[ids]

    def materialise(self) -> Tensor:
        """Return W (D,d) on every rank: all of W over the wire."""
        return join_rows(self.ranks, self.W, self.vocab)

    def reset(self, W: Tensor) -> None:
        super().reset(W[self.ranks.rank :: self.ranks.world])

    def squared_norm(self) -> float:
        mine = torch.tensor(super().squared_norm(), dtype=torch.float64, device=self.W.device)
        return float(self.ranks.total_(mine))


class DenseHere(Dense):
    """One global minibatch H (m,d) through the rows that are here: O(Dmd/world), and O(md) sent."""

    state: ShardedDenseState

    def read(self) -> None:
        """Compute the outputs, summed over the ranks."""
        state, ranks = self.state, self.state.ranks
        self.H = with_bias(self.h, state.d)
        O = self.O = self.H @ state.W.T  # noqa: E741  (the paper's letter)
        ids = self.targets.ids
        self.here = ids % ranks.world == ranks.rank
        self.example, self.place = self.targets.example[self.here], ids[self.here] // ranks.world
        s = O.sum(1) if state.p is None else O @ state.p_of(state.p, slice(None))
        figures = torch.cat([torch.linalg.vecdot(O, O), s, O.new_zeros(len(ids))])
        figures[2 * len(O) :][self.here] = O[self.example, self.place]
        self.outputs = ranks.total_(figures).to(torch.float64)

    def backward(self, partials: Tensor) -> Tensor:
        """Return this rank's rows of ∇H = ∇O W, summed over the ranks, with ∇O = 2 dq ∘ O + ds ⊗ p + Y."""
        self.partials, state = partials, self.state
        dO = self.dO = self.O.mul_((2 * self.dq)[:, None])
        if self.ds is not None:
            p = dO.new_ones(dO.shape[1]) if state.p is None else state.p_of(state.p, slice(None))
            dO.addr_(self.ds, p)
        # accumulate: a word that is the target twice, even within one example, must count twice
        dO.index_put_((self.example, self.place), self.do[self.here], accumulate=True)
        return state.ranks.total_(dO @ state.W)[state.ranks.part(len(self.H))]

    def grad_norm(self) -> float:
        """Return ‖∇W‖_F = ‖∇OᵀH‖_F. Collective."""
        squared = ((self.dO @ self.dO.T) * (self.H @ self.H.T)).sum().to(torch.float64)
        return math.sqrt(max(0.0, float(self.state.ranks.total_(squared))))
