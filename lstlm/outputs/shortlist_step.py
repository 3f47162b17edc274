"""A minibatch on its way through the shortlist head, and how its rare targets get to where they are worked on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lstlm.kernels.ops import RowValues, add_rows
from lstlm.outputs.base import RecordedStep
from lstlm.outputs.rows import RowGradient
from lstlm.outputs.softmax import SoftmaxProduct

if TYPE_CHECKING:
    from lstlm.outputs.shortlist import ShortlistOutput


class Route:
    """The way of the pairs of the tail to where they are worked on; in one process they stay where they are."""

    def __init__(self, pairs: int) -> None:
        self.any = pairs > 0

    def rows(self, x: Tensor) -> Tensor:
        """Return what is worked on here, of x (n,…), one row a pair."""
        return x

    def home(self, x: Tensor) -> Tensor:
        """Return one row a pair, given one for each that was worked on here."""
        return x


class ShortlistStep(RecordedStep):
    """The product with the k + 1 rows, and the factored layer for the pairs (example, target) in the tail."""

    def __init__(
        self, layer: ShortlistOutput, h: Tensor, ids: Tensor, t: Tensor, upstream: Tensor | None = None
    ) -> None:
        self.layer, self.h, self.t = layer, h, t
        rank = layer.rank[ids]
        self.top = SoftmaxProduct(h, layer.head, slice(None), rank.clamp(max=layer.shortlist), t, upstream)
        in_tail = rank >= layer.shortlist
        self.pairs = in_tail.nonzero()[:, 0]  # the examples; one with several targets in the tail comes several times
        self.route = layer._route(len(self.pairs))
        self.tail_ids, self.tail_t = rank[in_tail] - layer.shortlist, t[in_tail]
        self.tail_losses: Tensor | None = None

    def forward(self) -> Tensor:
        """Return the losses (m,)."""
        if not self.route.any:
            return self.top.losses
        with torch.enable_grad():
            self.tail_h = self.route.rows(self.layer.tail_part(self.h)[self.pairs]).requires_grad_()
            self.tail_losses = self.layer.tail(self.tail_h, self.route.rows(self.tail_ids))
        return self._total(self.tail_losses.detach())

    def backward(self, upstream: Tensor) -> Tensor:
        gradient = self.top.backward(upstream)
        if self.tail_losses is not None:
            weight = self.route.rows(self.tail_t * upstream[self.pairs])
            (tail,) = torch.autograd.grad(self.tail_losses, self.tail_h, weight)
            self.layer.tail_part(gradient).index_add_(0, self.pairs, self.route.home(tail))
        return gradient

    def at_once(self, upstream: Tensor) -> tuple[Tensor, Tensor]:
        """Return the losses (m,) and the gradient to h of Σ upstream·loss."""
        gradient = self.top.backward()
        if not self.route.any:
            return self.top.losses, gradient
        h, into = self.layer.tail_part(self.h), self.layer.tail_part(gradient)
        columns = h.stride(0) == 1  # whether examples are columns in memory, of h as of the gradient
        tail_h = h.T.index_select(1, self.pairs).T if columns else h.index_select(0, self.pairs)
        given = tail_h, self.tail_ids, self.tail_t * upstream[self.pairs]
        h, ids, weight = (self.route.rows(x) for x in given)
        losses, tail = self.layer.tail.value_and_grad(h, ids, None, weight)
        tail = self.route.home(tail)
        if columns:
            into.T.index_add_(1, self.pairs, tail.T)
        else:
            add_rows(into, RowValues(self.pairs, tail))
        return self._total(losses), gradient

    def _total(self, tail_losses: Tensor) -> Tensor:
        return self.top.losses.index_add(0, self.pairs, self.tail_t * self.route.home(tail_losses))

    def apply(self, lr: float, keep: float) -> None:
        table, (gradient,) = self.layer.head, self.gradients()
        table.decay_(keep)
        table.add_(torch.arange(len(table.matrix), device=self.h.device), gradient.weight, gradient.bias, -lr)

    def gradients(self) -> list[RowGradient]:
        return [self.layer._summed(self.top.gradient())]
