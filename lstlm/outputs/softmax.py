"""The full softmax: exact, O(D·m·hidden) a step, and the yardstick for everything cheaper."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lstlm.kernels.ops import cross_entropy, gemm
from lstlm.outputs.base import RecordedOutput, RecordedStep
from lstlm.outputs.rows import Making, RowGradient, ScaledRows
from lstlm.protocol.scan import Scan

if TYPE_CHECKING:
    from lstlm.config import OutputConfig


class SoftmaxProduct:
    """−Σₖ tₖ log softmax(h Wᵀ + b)[idₖ], its gradient and its SGD step, with a single (m,D) tensor in memory.

    Replaces `F.cross_entropy(h @ W.T + b, …)`, which keeps the scores, their log-softmax and its gradient:
    here the gradient overwrites the scores.
    W = scale·matrix, b = scale·bias; h (m,hidden), ids and t (m,K).
    """

    def __init__(
        self, h: Tensor, rows: ScaledRows, part: slice, ids: Tensor, t: Tensor, upstream: Tensor | None = None
    ) -> None:
        """Take upstream (m,) where it is known beforehand; else `backward` does."""
        self.h, self.rows, self.part = h, rows, part
        bias, scale = None if rows.bias is None else rows.bias[part], float(rows.scale)
        self.G = gemm(h, rows.matrix[part].T, alpha=scale)
        self.losses = cross_entropy(self.G, ids, t, bias, scale, upstream)  # G = ∂/∂scores from now on

    def backward(self, upstream: Tensor | None = None) -> Tensor:
        """Return ∂/∂h (m,hidden), examples as columns in memory where h has them so, as hidden layers do."""
        if upstream is not None:
            self.G.mul_(upstream[:, None])
        W, scale = self.rows.matrix[self.part], float(self.rows.scale)
        return gemm(W.T, self.G.T, alpha=scale).T if self.h.stride(0) == 1 else gemm(self.G, W, alpha=scale)

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
