"""A (D, hidden) matrix with a bias whose rows are touched one by one, and whose decay costs nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from lstlm.spherical.sweep import Block

_BLOCK = 16384  # rows drawn at once
_SWEPT = 2048  # columns of scores held at once when the whole vocabulary is swept: of 1000 examples, near the cache
_SMALLEST_SCALE = 2.0**-10


class ScaledRows(nn.Module):
    """W = scale·matrix and b = scale·bias: multiplying all of W by a number is O(1), adding to n rows O(n·hidden).

    matrix (D,hidden), bias (D,) or None, scale a number in a 0-d buffer (so that a state_dict holds everything).
    """

    matrix: Tensor
    bias: Tensor | None
    scale: Tensor

    def __init__(self, matrix: Tensor, bias: bool) -> None:
        super().__init__()
        self.register_buffer("matrix", matrix)
        self.register_buffer("bias", matrix.new_zeros(len(matrix)) if bias else None)
        self.register_buffer("scale", torch.ones((), dtype=torch.float64))

    def weight(self) -> Tensor:
        """Return W (D,hidden), a copy."""
        return self.matrix * float(self.scale)

    def bias_vector(self) -> Tensor:
        """Return b (D,), a copy; zeros without a bias."""
        return self.matrix.new_zeros(len(self.matrix)) if self.bias is None else self.bias * float(self.scale)

    def rows(self, ids: Tensor) -> Tensor:
        """Return W[ids] (n,hidden)."""
        rows = self.matrix.index_select(0, ids)
        scale = float(self.scale)
        return rows if scale == 1.0 else rows.mul_(scale)

    def biases(self, ids: Tensor) -> Tensor:
        """Return b[ids] (n,)."""
        if self.bias is None:
            return self.matrix.new_zeros(len(ids))
        return self.bias.index_select(0, ids) * float(self.scale)

    def decay_(self, keep: float) -> None:
        """W ← keep·W. O(1), but for one pass over W each time that `scale` has shrunk a thousandfold."""
        self.scale.mul_(keep)
        if float(self.scale) < _SMALLEST_SCALE:
            self.matrix.mul_(float(self.scale))
            if self.bias is not None:
                self.bias.mul_(float(self.scale))
            self.scale.fill_(1.0)

    def add_(self, ids: Tensor, rows: Tensor, biases: Tensor, alpha: float) -> None:
        """W[ids] += alpha·rows and b[ids] += alpha·biases; an id that occurs twice counts twice."""
        alpha /= float(self.scale)
        self.matrix.index_add_(0, ids, rows, alpha=alpha)
        if self.bias is not None:
            self.bias.index_add_(0, ids, biases, alpha=alpha)

    def scores(self, h: Tensor, rows: slice) -> Tensor:
        """Return h W[rows]ᵀ + b[rows].  h (m,hidden) → (m,n)."""
        scale = float(self.scale)
        if self.bias is None:
            return (h @ self.matrix[rows].T).mul_(scale)
        return torch.addmm(self.bias[rows], h, self.matrix[rows].T, beta=scale, alpha=scale)

    def score_blocks(self, h: Tensor) -> Iterator[Block]:
        """Sweep the whole vocabulary by at most 2048 rows: O(D·m·hidden), memory free of D."""
        for start in range(0, len(self.matrix), _SWEPT):
            rows = slice(start, min(start + _SWEPT, len(self.matrix)))
            yield torch.arange(rows.start, rows.stop, device=h.device), partial(self.scores, h, rows)

    def log_normaliser(self, h: Tensor) -> Tensor:
        """Return log Σⱼ exp(h·Wⱼ + bⱼ) (m,), swept in blocks."""
        total = h.new_full((len(h),), -torch.inf)
        for _, compute in self.score_blocks(h):
            total = torch.logaddexp(total, compute().logsumexp(1))
        return total

    def log_softmax(self, h: Tensor, ids: Tensor) -> Tensor:
        """Return log softmax(h Wᵀ + b)[ids] in the shape of ids, (m,) or (m,K)."""
        pairs = ids.reshape(len(h), -1)
        rows = self.rows(pairs.reshape(-1)).view(*pairs.shape, -1)
        scores = (rows @ h[:, :, None]).squeeze(2) + self.biases(pairs.reshape(-1)).view_as(pairs)
        return (scores - self.log_normaliser(h)[:, None]).view(ids.shape)


@dataclass(frozen=True)
class Making:
    """How a layer makes its first weights: what every layer of this package takes besides its sizes, as keywords."""

    bias: bool = True
    init_scale: float | None = None  # standard deviation; by default what suits the layer
    dtype: torch.dtype | None = None
    device: torch.device | str | None = None
    generator: torch.Generator | None = None

    def rows(self, count: int, hidden: int) -> ScaledRows:
        """Draw a matrix (count,hidden), with a bias of zeros where one is wanted."""
        like = torch.empty(0, dtype=self.dtype, device=self.device)
        return ScaledRows(uniform_rows(count, hidden, self.init_scale, like, self.generator), self.bias)


def uniform_rows(
    rows: int,
    hidden: int,
    scale: float | None,
    like: Tensor,
    generator: torch.Generator | None,
    kept: range | None = None,
) -> Tensor:
    """Return a (rows,hidden) matrix of independent uniforms with standard deviation `scale`, default 1/√hidden/10.

    Small on purpose: a softmax that starts near the uniform distribution spends no steps on unlearning noise.
    With `kept`, only these rows of the same matrix: all are drawn, in blocks, so that none depends on who keeps it.
    """
    limit = (0.1 / hidden**0.5 if scale is None else scale) * 3.0**0.5
    kept = range(rows) if kept is None else kept
    matrix = torch.empty(len(kept), hidden, dtype=like.dtype, device=like.device)
    for start in range(0, rows, _BLOCK):
        block = matrix.new_empty(min(_BLOCK, rows - start), hidden).uniform_(-limit, limit, generator=generator)
        skip = (kept.start - start) % kept.step
        mine = block[skip :: kept.step]
        place = (start + skip) // kept.step
        matrix[place : place + len(mine)] = mine
    return matrix
