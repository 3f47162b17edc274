"""A minibatch on its way through the shortlist head, and how its rare targets get to where they are worked on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lstlm.kernels.ops import RowValues, add_rows
from lstlm.outputs.base import RecordedStep
from lstlm.outputs.middle import MiddleStep
from lstlm.outputs.rows import Gradient, take
from lstlm.outputs.softmax import SoftmaxProduct

if TYPE_CHECKING:
    from lstlm.outputs.shortlist import ShortlistOutput


class Route:
    """The way of pairs (example, target) to where they are worked on; in one process they stay where they are."""

    def __init__(self, pairs: int) -> None:
        self.any = pairs > 0

    def rows(self, x: Tensor) -> Tensor:
        """Return what is worked on here, of x (n,…), one row a pair."""
        return x

    def home(self, x: Tensor) -> Tensor:
        """Return one row a pair, given one for each that was worked on here."""
        return x


class Pairs:
    """The pairs (example, target) of a minibatch whose ranks (m,K) are in one part of the words, [first, last)."""

    def __init__(self, rank: Tensor, t: Tensor, first: int, last: int) -> None:
        flat = rank.reshape(-1)
        self.at = ((flat >= first) & (flat < last)).nonzero()[:, 0]  # which of all pairs these are
        self.example = self.at if rank.shape[1] == 1 else self.at // rank.shape[1]  # several times, if it has several
        self.rows, self.t = flat[self.at] - first, t.reshape(-1)[self.at]

    def __len__(self) -> int:
        return len(self.example)

    def read(self, x: Tensor) -> Tensor:
        """Return the rows of x (m,…) that belong to the pairs, as columns in memory where x has columns."""
        return take(x, self.example)

    def add_to(self, x: Tensor, rows: Tensor) -> None:
        """Add one row a pair to x (m,…)."""
        if x.ndim == 2 and x.stride(0) == 1:
            x.T.index_add_(1, self.example, rows.T)
        elif x.ndim == 2:
            add_rows(x, RowValues(self.example, rows))
        else:
            x.index_add_(0, self.example, rows)


class ShortlistStep(RecordedStep):
    """A softmax of the top, one within a class for each pair of the middle, and the factored layer for the tail."""

    def __init__(
        self, layer: ShortlistOutput, h: Tensor, ids: Tensor, t: Tensor, upstream: Tensor | None = None
    ) -> None:
        self.layer, self.h = layer, h
        rank, listed, near = layer.rank[ids], layer.shortlist, layer.vocab - layer.tail.vocab
        self.top = SoftmaxProduct(h, layer.head, slice(None), layer.top_of(rank), t, upstream)
        self.mid, self.far = Pairs(rank, t, listed, near), Pairs(rank, t, near, layer.vocab)
        self.mid_route = Route(0) if layer.middle is None else layer._mid_route(len(self.mid))
        self.route = layer._route(len(self.far))
        self.middle: MiddleStep | None = None
        self.tail_losses: Tensor | None = None

    def forward(self) -> Tensor:
        """Return the losses (m,)."""
        losses = self.top.losses
        if self.mid_route.any:
            losses = losses.clone()
            self._work_on_middle(self.h.new_ones(len(self.h)), losses)
        if self.route.any:
            with torch.enable_grad():
                self.tail_h = self.route.rows(self.far.read(self.layer.tail_part(self.h))).requires_grad_()
                self.tail_losses = self.layer.tail(self.tail_h, self.route.rows(self.far.rows))
            losses = self._with_tail(losses, self.tail_losses.detach())
        return losses

    def backward(self, upstream: Tensor) -> Tensor:
        gradient = self.top.backward(upstream)
        if self.mid_route.any:
            self._work_on_middle(upstream, None, gradient)
        if self.tail_losses is not None:
            weight = self.route.rows(self.far.t * upstream[self.far.example])
            (tail,) = torch.autograd.grad(self.tail_losses, self.tail_h, weight)
            self.far.add_to(self.layer.tail_part(gradient), self.route.home(tail))
        return gradient

    def at_once(self, upstream: Tensor) -> tuple[Tensor, Tensor]:
        """Return the losses (m,) and the gradient to h of Σ upstream·loss."""
        losses, gradient = self.top.losses, self.top.backward()
        if self.mid_route.any:
            losses = losses.clone()
            self._work_on_middle(upstream, losses, gradient)
        if not self.route.any:
            return losses, gradient
        far = self.far
        given = far.read(self.layer.tail_part(self.h)), far.rows, far.t * upstream[far.example]
        h, rows, weight = (self.route.rows(x) for x in given)
        tail_losses, tail = self.layer.tail.value_and_grad(h, rows, None, weight)
        far.add_to(self.layer.tail_part(gradient), self.route.home(tail))
        return self._with_tail(losses, tail_losses), gradient

    def _work_on_middle(self, upstream: Tensor, losses: Tensor | None = None, gradient: Tensor | None = None) -> None:
        """Add the losses and the gradient to h of the pairs of the middle; keep the gradient of its rows."""
        middle, mid, route = self.layer.middle, self.mid, self.mid_route
        assert middle is not None
        given = mid.read(middle.part(self.h)), mid.rows, mid.t, upstream[mid.example]
        self.middle = MiddleStep(middle, *(route.rows(x) for x in given))
        if losses is not None:
            mid.add_to(losses, route.home(self.middle.losses()))
        if gradient is not None:
            mid.add_to(middle.part(gradient), route.home(self.middle.grad_h()))

    def _with_tail(self, losses: Tensor, tail_losses: Tensor) -> Tensor:
        return losses.index_add(0, self.far.example, self.far.t * self.route.home(tail_losses))

    def apply(self, lr: float, keep: float) -> None:
        for table in self.layer.tables():
            table.decay_(keep)
        for gradient in (gradient.whole() for gradient in self.gradients()):
            rows, table = gradient.rows, gradient.table
            rows = torch.arange(len(table.matrix), device=self.h.device)[rows]
            table.add_(rows, gradient.weight, gradient.bias, -lr)

    def gradients(self) -> Sequence[Gradient]:
        top = self.layer._summed(self.top.gradient())
        return [top] if self.middle is None else [top, self.middle.gradient()]
