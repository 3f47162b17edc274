"""The shortlist head over ranks: the short list and the middle everywhere, the rows of the tail by turns."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from lstlm.distributed.ranks import Ranks, even_total
from lstlm.distributed.spherical import ShardedOutput
from lstlm.outputs.rows import RowGradient
from lstlm.outputs.shortlist import ShortlistOutput
from lstlm.outputs.shortlist_step import Route
from lstlm.protocol.scan import Scan


class ShardedShortlist(ShortlistOutput):
    """`ShortlistOutput` over the ranks of a group: the same losses, gradients and weights as one process would have.

    In training mode h and the targets are this rank's even part of the global minibatch; for reading, all ranks pass
    the same ones. A step sends the gradient of the short list, O(k·hidden), and what belongs to examples of the middle,
    which every rank works on, and of the tail.
    """

    def __init__(self, ranks: Ranks, *arguments: Any, **settings: Any) -> None:
        """Take the arguments of the layer of one process, and draw the same weights from the same generator."""
        self.ranks, self.examples = ranks, 0
        super().__init__(*arguments, make_tail=partial(ShardedOutput, ranks), **settings)

    def _minibatch(self, m: int) -> int:
        self.examples = even_total([row[0] for row in self.ranks.numbers([m])])
        return self.examples

    def _route(self, pairs: int) -> TailRoute:
        return TailRoute(self.ranks, pairs)

    def _mid_route(self, pairs: int) -> AllRoute:
        return AllRoute(self.ranks, pairs)

    def _summed(self, gradient: RowGradient) -> RowGradient:
        both = torch.cat([gradient.weight, gradient.bias[:, None]], 1)
        self.ranks.total_(both)
        return gradient._replace(weight=both[:, :-1].contiguous(), bias=both[:, -1].contiguous())

    def _best_of_all(self, scores: Tensor, ids: Tensor, k: int) -> tuple[Tensor, Tensor]:
        return self.tail._best_of_all(scores, ids, k)

    def _total(self, x: Tensor) -> Tensor:
        return self.ranks.total_(x)

    def _scan(self, h: Tensor) -> Scan:
        """The words of this rank; the short list and the middle count as the first one's."""
        shared = 1 + (0 if self.middle is None else self.middle.classes)
        blocks, first = super()._scan(h), 0 if self.ranks.first else shared
        return lambda: list(blocks())[first:]


class AllRoute(Route):
    """Where the examples of the middle are worked on: everywhere, so that all ranks take the same step of its rows."""

    def __init__(self, ranks: Ranks, pairs: int) -> None:
        """Learn how many pairs (example, target) every rank has. Collective."""
        self.ranks, self.sizes = ranks, [row[0] for row in ranks.numbers([pairs])]
        self.total = sum(self.sizes)
        super().__init__(self.total)

    def rows(self, x: Tensor) -> Tensor:
        """Return everyone's x (n,…). Collective."""
        return self.ranks.gather(x.contiguous(), self.sizes)

    def home(self, x: Tensor) -> Tensor:
        """Return what belongs to the pairs of this rank."""
        start = sum(self.sizes[: self.ranks.rank])
        return x[start : start + self.sizes[self.ranks.rank]]


class TailRoute(AllRoute):
    """Where the examples of the tail are worked on: in even parts, although ranks have different numbers of them."""

    def __init__(self, ranks: Ranks, pairs: int) -> None:
        """Learn how many pairs (example, target) of the tail every rank has. Collective."""
        super().__init__(ranks, pairs)
        self.padded = max(self.total, ranks.world)  # every rank works on one at least, if with weight 0

    def rows(self, x: Tensor) -> Tensor:
        """Return this rank's even part of everyone's x (n,…), filled up with zeros where there are few. Collective."""
        whole = super().rows(x)
        fill = self.padded - self.total
        if fill:
            whole = pad(whole, (0, 0) * (whole.ndim - 1) + (0, fill))
        return whole[self.ranks.part(self.padded)].contiguous()

    def home(self, x: Tensor) -> Tensor:
        """Return what belongs to the pairs of this rank, given what belongs to its even part. Collective."""
        return super().home(self.ranks.gather(x.contiguous(), self.ranks.parts(self.padded)))
