"""Stabilisers that pass over all of V: `restore`, `svd` and the paper's `power`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lstlm.spherical.stabilise.base import Stabiliser

if TYPE_CHECKING:
    from lstlm.spherical.state import FactoredState


class Restore(Stabiliser):
    """V ← V U + p ωᵀ, U ← I, as soon as one singular value is out of range."""

    def repair(self, state: FactoredState) -> int:
        sigma = torch.linalg.svdvals(state.exactly("U"))
        if float(sigma[-1]) >= self.low and float(sigma[0]) <= self.high:
            return 0
        state.restore()
        return int(((sigma < self.low) | (sigma > self.high)).sum())


class Svd(Stabiliser):
    """All offending singular values from one decomposition, in one pass over V."""

    def repair(self, state: FactoredState) -> int:
        left, sigma, right = torch.linalg.svd(state.exactly("U"))
        offending = (sigma < self.low) | (sigma > self.high)
        if not bool(offending.any()):
            return 0
        X, values = left[:, offending], sigma[offending]
        _multiply_rows(state, X, values - 1)
        state.set_frame(left @ (torch.where(offending, 1.0, sigma)[:, None] * right))
        return len(values)


class Power(Stabiliser):
    """Power iteration for the smallest and the largest singular value; U⁻ᵀ is recomputed before it."""

    iterations = 100

    def repair(self, state: FactoredState) -> int:
        repaired = 0
        for inverse in (True, False):
            for _ in range(state.d):
                U = state.exactly("U")
                A = torch.linalg.inv(U).T if inverse else U
                x, value = _leading(A, self.iterations)
                sigma = 1 / value if inverse else value
                if self.low <= sigma <= self.high:
                    break
                _multiply_rows(state, x[:, None], torch.tensor([sigma - 1], dtype=x.dtype, device=x.device))
                state.set_frame(U + (1 / sigma - 1) * torch.outer(x, x @ U))
                repaired += 1
        return repaired


def _multiply_rows(state: FactoredState, X: Tensor, alpha: Tensor) -> None:
    """V ← V (I + X diag(α) Xᵀ), orthonormal columns X (d,k), block by block."""
    X, scaled = X.to(state.V.dtype), (X * alpha).T.to(state.V.dtype)
    state.map_rows(lambda _, rows: torch.addmm(rows, rows @ X, scaled))


def _leading(A: Tensor, iterations: int) -> tuple[Tensor, float]:
    """Return the leading left singular vector and singular value of A (d,d), by at most `iterations` steps."""
    x = torch.full((len(A),), 1 / math.sqrt(len(A)), dtype=A.dtype, device=A.device)
    value = 0.0
    for _ in range(iterations):
        y = A.T @ x
        x = A @ y
        previous, value = value, math.sqrt(float(torch.linalg.vector_norm(x)))
        x = x / torch.linalg.vector_norm(x)
        if abs(value - previous) <= 1e-6 * value:
            break
    return x, value
