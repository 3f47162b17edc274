"""The full softmax: exact, O(D·m·hidden) a step, and the yardstick for everything cheaper."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lstlm.kernels.ops import exponentials, gemm
from lstlm.outputs.base import RecordedOutput, RecordedStep
from lstlm.outputs.rows import Making, RowGradient, ScaledRows
from lstlm.protocol.scan import Scan

if TYPE_CHECKING:
    from lstlm.config import OutputConfig


class SoftmaxProduct:
    """−Σₖ tₖ log softmax(h Wᵀ + b)[idₖ], its gradient and its SGD step, with a single (m,D) tensor in memory.

    Replaces `F.cross_entropy(h @ W.T + b, …)`, which keeps the scores, their log-softmax and its gradient:
    here the scores are overwritten by exp(scores − max), and those by the gradient.
    W = scale·matrix, b = scale·bias; h (m,hidden), ids and t (m,K).
    """

    def __init__(self, h: Tensor, rows: ScaledRows, part: slice, ids: Tensor, t: Tensor) -> None:
        self.h, self.ids, self.t = h, ids, t
        self.rows, self.part = rows, part
        scale = float(rows.scale)
        self.G = gemm(h, rows.matrix[part].T, alpha=scale)
        bias = None if rows.bias is None else rows.bias[part] * scale
        target = self.G.gather(1, ids) if bias is None else self.G.gather(1, ids) + bias[ids]
        top, self.total = exponentials(self.G, bias)
        self.losses = (t * ((self.total.log() + top)[:, None] - target)).sum(1)

    def backward(self, upstream: Tensor) -> Tensor:
        """Return ∂/∂h (m,hidden) and turn the (m,D) tensor into G = ∂/∂scores = upstream·(Σt·p − t at ids)."""
        c = upstream[:, None] * self.t
        self.G.mul_((c.sum(1) / self.total)[:, None])
        # scatter_add_, not G[ids] -= c: a word that is a target twice must count twice
        self.G.scatter_add_(1, self.ids, -c)
        return gemm(self.G, self.rows.matrix[self.part], alpha=float(self.rows.scale))

    def apply(self, lr: float, keep: float = 1.0) -> None:
        """W ← keep·W − lr·Gᵀh on these rows alone; b alike.  (keep is for a layer that owns all of its rows here.)"""
        alpha = -lr / float(self.rows.scale)
        self.rows.matrix[self.part].addmm_(self.G.T, self.h, beta=keep, alpha=alpha)
        if self.rows.bias is not None:
            ones = self.G.new_ones(len(self.G))
            self.rows.bias[self.part].addmv_(self.G.T, ones, beta=keep, alpha=alpha)

    def gradient(self) -> RowGradient:
        """Return ∂/∂W and ∂/∂b of these rows."""
        return RowGradient(self.rows, self.part, gemm(self.G.T, self.h), self.G.sum(0))


class LinearSoftmax(RecordedOutput):
    """p(j | h) = softmax(h Wᵀ + b)ⱼ: what the full and the sampled softmax share, which is all but training."""

    def __init__(self, hidden: int, vocab: int, **making: Any) -> None:
        """Make a layer for `vocab` words; the keywords are those of `Making`."""
        super().__init__(hidden, vocab)
        self.rows = Making(**making).rows(vocab, hidden)

    @property
    def like(self) -> Tensor:
        return self.rows.matrix

    @torch.no_grad()
    def log_prob(self, h: Tensor, ids: Tensor) -> Tensor:
        """Return log p(ids | h) in the shape of ids, (m,) or (m,K); O(D·m·hidden), nothing of size m·D."""
        self._check(h, ids)
        return self.rows.log_softmax(h, ids)

    @torch.no_grad()
    def topk(self, h: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return (log-probabilities, ids), both (m,k), of the k likeliest words, best first."""
        scores, ids = super().topk(h, k)
        return scores - self.rows.log_normaliser(h)[:, None], ids

    def _scan(self, h: Tensor) -> Scan:
        return partial(self.rows.score_blocks, h)  # the normaliser, the same for all words, does not change their order

    def weight(self) -> Tensor:
        """Return W (D,hidden), a copy."""
        return self.rows.weight()

    def bias_vector(self) -> Tensor:
        """Return b (D,), a copy; zeros without a bias."""
        return self.rows.bias_vector()


class FullSoftmax(LinearSoftmax):
    """The softmax over the whole vocabulary, trained exactly: three products of D·m·hidden a step."""

    def _losses(self, h: Tensor, ids: Tensor, t: Tensor) -> tuple[Tensor, RecordedStep]:
        product = SoftmaxProduct(h, self.rows, slice(None), ids, t)
        return product.losses, _FullStep(product)


class _FullStep(RecordedStep):
    def __init__(self, product: SoftmaxProduct) -> None:
        self.product = product

    def backward(self, upstream: Tensor) -> Tensor:
        return self.product.backward(upstream)

    def apply(self, lr: float, keep: float) -> None:
        self.product.apply(lr, keep)

    def gradients(self) -> list[RowGradient]:
        return [self.product.gradient()]


def full(config: OutputConfig, hidden: int, counts: Tensor, **making: Any) -> FullSoftmax:
    """Return the layer of `output.kind: softmax`."""
    return FullSoftmax(hidden, len(counts), **making)
