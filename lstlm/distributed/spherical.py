"""The output layers of a network that several ranks train: rows by turns, one global minibatch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from lstlm.distributed.dense import ShardedDenseState
from lstlm.distributed.ranks import Ranks, even_total
from lstlm.distributed.shards import check_enough_words
from lstlm.distributed.state import ShardedState
from lstlm.distributed.steps import SquareHere, begin, few
from lstlm.errors import ConfigError
from lstlm.kernels.targets import Targets
from lstlm.spherical.head import SphericalHead
from lstlm.spherical.layer import DenseSphericalOutput, SphericalOutput
from lstlm.spherical.steps import Step


class OverRanks(SphericalHead):
    """What a head does when every rank holds an even part of the global minibatch."""

    ranks: Ranks
    examples = 0  # of the global minibatch in the last forward pass; 0 where all ranks had the same examples

    def __init__(self, ranks: Ranks, hidden: int, vocab: int, *args: Any, **settings: Any) -> None:
        """Take the arguments of the layer of one process, and draw the same weights from the same generator."""
        check_enough_words(vocab, ranks.world)
        self.ranks, self._kept = ranks, (ranks.rank, ranks.world)  # before super().__init__, which asks for them
        super().__init__(hidden, vocab, *args, **settings)

    def _gather(self, h: Tensor, targets: Targets) -> tuple[Tensor, Targets]:
        self.examples = 0
        if not targets.each:
            raise ConfigError("a layer that is spread over ranks takes targets (m,) or (m,K), without offsets")
        if not self.training:
            return h, targets
        ids, values = targets.ids.view(len(h), -1), targets.values.view(len(h), -1)
        sizes, widths = zip(*self.ranks.numbers([len(h), ids.shape[1]]), strict=True)
        self.examples = even_total(sizes)
        if (fill := max(widths) - ids.shape[1]) > 0:  # up to the same K: an id of the same example, with value 0
            ids = torch.cat([ids, ids[:, :1].expand(-1, fill)], 1)
            values = pad(values, (0, fill))
        # one message: ids, values and h, where it is needed, side by side, as whatever they are all made of
        parts, unit = (
            ((ids, values, h), torch.uint8) if self._needs_all(self.examples) else ((ids, values), torch.int64)
        )
        rows = [part.contiguous().view(unit) for part in parts]
        found = torch.split(self.ranks.gather(torch.cat(rows, 1), sizes), [row.shape[1] for row in rows], dim=1)
        ids, values, *whole = (got.contiguous().view(part.dtype) for got, part in zip(found, parts, strict=True))
        gathered = Targets(ids.view(-1), values.view(-1), self.examples, impl=self.impl)
        return whole[0] if whole else h.contiguous(), gathered

    def _needs_all(self, m: int) -> bool:
        """Say whether every rank needs h of all m examples."""
        return True

    def _gather_upstream(self, upstream: Tensor) -> Tensor:
        return self.ranks.gather(upstream, self.ranks.parts(self.examples))

    def _own(self, x: Tensor) -> Tensor:
        return x[self.ranks.part(len(x))] if self.examples else x

    def _total(self, x: Tensor) -> Tensor:
        return self.ranks.total_(x)

    def _best_of_all(self, scores: Tensor, ids: Tensor, k: int) -> tuple[Tensor, Tensor]:
        ranks, missing = self.ranks, k - scores.shape[1]
        ids = pad(ids, (0, missing))
        scores = pad(scores, (0, missing), value=-torch.inf)
        everyone, names = (ranks.gather(x.T, [k] * ranks.world).T for x in (scores, ids))
        best, order = everyone.topk(k)
        return best, names.gather(1, order)


class ShardedOutput(OverRanks, SphericalOutput):
    """`SphericalOutput` over the ranks of a group: the same losses, gradients and weights as one process would have.

        losses = head(h, target_ids)        # this rank's examples, an even part of the global minibatch
        (losses.sum() / global_size).backward()
        head.update(lr)                     # the exact step for the examples of all ranks

    Every call is collective. In training mode h and the targets are this rank's part; in evaluation mode, and for
    `log_prob`, `topk` and `rank_of`, all ranks pass the same ones and get the same answer. A step sends O(m·d), or
    O(m·d + d²) for large minibatches: nothing of the size of the vocabulary.
    """

    state: ShardedState

    def _new_state(self, W: Tensor, p: Tensor | None, **settings: Any) -> ShardedState:
        return ShardedState(W, self._initial_shape[0], self.ranks, p, **settings)

    def _needs_all(self, m: int) -> bool:
        return few(self.state, m)

    def _new_step(self, h: Tensor, targets: Targets) -> Step:
        return begin(self.state, h, targets)

    def _pending_step(self) -> Step:
        if len(self._pending) > 1:  # merged, the examples of a rank are no longer its even part
            for pending in self._pending:
                if isinstance(pending.step, SquareHere):
                    pending.step.gather_h()
        return super()._pending_step()


class ShardedDenseOutput(OverRanks, DenseSphericalOutput):
    """`DenseSphericalOutput` over the ranks of a group: the naive baseline, O(Dmd/world) a step on each."""

    state: ShardedDenseState

    def __init__(self, ranks: Ranks, hidden: int, vocab: int, *args: Any, **settings: Any) -> None:
        super().__init__(ranks, hidden, vocab, *args, **settings)
        self.state = ShardedDenseState(self.state.W, vocab, ranks, self.state.p)
