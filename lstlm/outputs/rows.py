"""A (D, hidden) matrix with a bias whose rows are touched one by one; decay costs nothing; row-wise Adagrad."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from lstlm.errors import ConfigError
from lstlm.kernels.ops import adagrad_table
from lstlm.protocol.saved import bounds, insist
from lstlm.protocol.scan import Block, parts

_DRAWN = 2048  # rows at once; another number would draw other weights from the same seed
_SMALLEST_SCALE = 2.0**-10
OPTIMISERS = ("sgd", "adagrad")


class ScaledRows(nn.Module):
    """W = scale·matrix and b = scale·bias: multiplying all of W by a number is O(1), adding to n rows O(n·hidden).

    matrix (D,hidden), bias (D,) or None, scale a number in a 0-d buffer (so that a state_dict holds everything).
    With `adagrad` also squares (D,): for each row, the sum of the mean squares of its gradients so far, and of what
    it began with: from 0 the first step of a row goes `lr` far whatever its gradient, too far for a rare word.
    """

    matrix: Tensor
    bias: Tensor | None
    scale: Tensor
    squares: Tensor | None

    def __init__(self, matrix: Tensor, bias: bool, adagrad: bool = False, squares: float = 0.0) -> None:
        super().__init__()
        self.register_buffer("matrix", matrix)
        self.register_buffer("bias", matrix.new_zeros(len(matrix)) if bias else None)
        self.register_buffer("scale", torch.ones((), dtype=torch.float64))
        self.register_buffer("squares", matrix.new_full((len(matrix),), squares) if adagrad else None)

    def _load_from_state_dict(self, *args: object, **kwargs: object) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        insist(bounds(self.scale)[0] > 0, "a scale that is not above 0")
        insist(bounds(self.squares)[0] >= 0, "a sum of squares below 0")

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

    def keep_(self, ids: Tensor) -> None:
        """Keep these rows (n,), in this order, and forget the others."""
        for name in ("matrix", "bias", "squares"):
            if (numbers := getattr(self, name)) is not None:
                setattr(self, name, numbers[ids])

    def add_(self, ids: Tensor, rows: Tensor, biases: Tensor, alpha: float) -> None:
        """W[ids] += alpha·rows and b[ids] += alpha·biases; an id that occurs twice counts twice."""
        alpha /= float(self.scale)
        self.matrix.index_add_(0, ids, rows, alpha=alpha)
        if self.bias is not None:
            self.bias.index_add_(0, ids, biases, alpha=alpha)

    def adagrad_(self, gradient: RowGradient, lr: float) -> None:
        """Take a step of row-wise Adagrad: s += mean(g²), row −= lr·g/√s, g the gradient of a row and its bias."""
        assert self.squares is not None
        matrix, bias, squares, rows = self.matrix, self.bias, self.squares, gradient.rows
        if isinstance(rows, slice):
            matrix, squares, bias, ids = matrix[rows], squares[rows], None if bias is None else bias[rows], None
        else:
            ids = rows
        adagrad_table(matrix, bias, squares, gradient.weight, gradient.bias, lr / float(self.scale), ids)

    def scores(self, h: Tensor, rows: slice) -> Tensor:
        """Return h W[rows]ᵀ + b[rows].  h (m,hidden) → (m,n)."""
        scale = float(self.scale)
        if self.bias is None:
            return (h @ self.matrix[rows].T).mul_(scale)
        return torch.addmm(self.bias[rows], h, self.matrix[rows].T, beta=scale, alpha=scale)

    def score_blocks(self, h: Tensor) -> Iterator[Block]:
        """Scan the whole vocabulary block by block: O(D·m·hidden), memory free of D."""
        for rows in parts(len(self.matrix)):
            yield torch.arange(rows.start, rows.stop, device=h.device), partial(self.scores, h, rows)

    def log_normaliser(self, h: Tensor) -> Tensor:
        """Return log Σⱼ exp(h·Wⱼ + bⱼ) (m,), a block at a time."""
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


def take(x: Tensor, ids: Tensor) -> Tensor:
    """Return x[ids] (n,…) of x (m,…), as columns in memory where x has columns.

    By index_select: of more than 32,768 numbers an index with brackets wakes PyTorch's threads.
    """
    if x.ndim == 2 and x.stride(0) == 1:
        return x.T.index_select(1, ids).T
    return x.index_select(0, ids)


class RowGradient(NamedTuple):
    """The gradient of some rows of a table: weight (n,hidden) and bias (n,) for a slice or for distinct ids (n,)."""

    table: ScaledRows
    rows: slice | Tensor
    weight: Tensor
    bias: Tensor

    def whole(self) -> RowGradient:
        return self

    def adagrad_(self, lr: float) -> None:
        self.table.adagrad_(self, lr)


class Gradient(Protocol):
    """The gradient of some rows of a table, as numbers in memory or as something that makes them."""

    @property
    def table(self) -> ScaledRows:
        """The table whose rows they are."""

    def whole(self) -> RowGradient:
        """Return it with its numbers in memory."""

    def adagrad_(self, lr: float) -> None:
        """Let the table take its step."""


def merged(gradients: Iterable[Gradient]) -> list[RowGradient]:
    """Return one gradient a table, the sum of those given: for Adagrad, several minibatches are one larger one."""
    tables: dict[ScaledRows, list[RowGradient]] = {}
    for gradient in (gradient.whole() for gradient in gradients):
        tables.setdefault(gradient.table, []).append(gradient)
    return [_sum(table, parts) for table, parts in tables.items()]


def _sum(table: ScaledRows, parts: Sequence[RowGradient]) -> RowGradient:
    everything = torch.arange(len(table.matrix), device=table.matrix.device)
    ids, place = torch.cat([everything[part.rows] for part in parts]).unique(return_inverse=True)  # type: ignore[no-untyped-call]
    weight = table.matrix.new_zeros(len(ids), table.matrix.shape[1])
    weight.index_add_(0, place, torch.cat([part.weight for part in parts]))
    bias = table.matrix.new_zeros(len(ids)).index_add_(0, place, torch.cat([part.bias for part in parts]))
    return RowGradient(table, ids, weight, bias)


@dataclass(frozen=True)
class Making:
    """How a layer makes its first weights: what every layer of this package takes besides its sizes, as keywords."""

    bias: bool = True
    init_scale: float | None = None  # standard deviation; by default what suits the layer
    dtype: torch.dtype | None = None
    device: torch.device | str | None = None
    generator: torch.Generator | None = None
    optimiser: str = "sgd"  # of its rows: sgd, or adagrad, row by row
    squares: float = 0.0  # what adagrad's sums of squared gradients begin at

    def __post_init__(self) -> None:
        if self.optimiser not in OPTIMISERS:
            raise ConfigError(f"optimiser {self.optimiser!r}: choose {' or '.join(OPTIMISERS)}")

    @property
    def adagrad(self) -> bool:
        """Whether rows have rates of their own."""
        return self.optimiser == "adagrad"

    def rows(self, count: int, hidden: int) -> ScaledRows:
        """Draw a matrix (count,hidden), with a bias of zeros where one is wanted."""
        like = torch.empty(0, dtype=self.dtype, device=self.device)
        matrix = uniform_rows(count, hidden, self.init_scale, like, self.generator)
        return ScaledRows(matrix, self.bias, self.adagrad, self.squares)


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
    for start in range(0, rows, _DRAWN):
        block = matrix.new_empty(min(_DRAWN, rows - start), hidden).uniform_(-limit, limit, generator=generator)
        skip = (kept.start - start) % kept.step
        mine = block[skip :: kept.step]
        place = (start + skip) // kept.step
        matrix[place : place + len(mine)] = mine
    return matrix
