"""`Square`: the form of the step for m above d, by way of the d×d matrix T."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lstlm.kernels import square_ops
from lstlm.spherical.shrink import Shrink, inverse_excess
from lstlm.spherical.steps.common import Step


class Square(Step):
    """1.6md² + 3.6nd² + 4d³ multiply-adds for n distinct targets."""

    def read(self) -> None:
        state, self.words = self.state, self.targets.words
        self.table, self.rows = state.tables.table, state.read(self.words)
        self.p_u = None if state.p is None else state.p[self.words]
        found = square_ops.square_outputs(self.table, self.h, self.rows, self.targets, self.p_u, impl=state.impl)
        self.H, self.products, self.W_u, self.outputs = found

    def backward(self, partials: Tensor) -> Tensor:
        self.partials = partials
        return self.grad_H()

    def grad_H(self) -> Tensor:
        """Return ∇H (m,d)."""
        given = self.table, self.W_u, self.targets, self.partials, self.products
        return square_ops.square_backward(*given, impl=self.state.impl)

    def update(self, eta: float) -> Shrink:
        state = self.state
        self.check_state(self.table)
        F, sums, squares = self.sums(eta)
        S, shrink = inverse_excess(sums[: state.d], squares, eta, state.impl)
        allowed = None if shrink.allowed is None else shrink.allowed & torch.isfinite(self.partials.sum())
        square_ops.square_update(state.tables, sums, S, state.p_norm2, eta, allowed, impl=state.impl)
        F = F if allowed is None else torch.where(allowed, F, 0)
        state.add_product(self.words, self.rows, F, state.U_inv_T.T, -eta)  # V_u − η F U'⁻¹
        state.count_update()
        return shrink._replace(allowed=allowed)

    def sums(self, eta: float) -> tuple[Tensor, Tensor, float | Tensor]:
        """Return F = YᵀH (n,d); a stack of K = HᵀBH, A = W_uᵀF, FᵀF (d,d), Fᵀp and c (d,); and ‖K‖²."""
        given = self.H, self.W_u, self.targets, self.p_u, self.partials, eta
        return square_ops.square_sums(*given, impl=self.state.impl)

    def grad_norm(self) -> float:
        """Return ‖∇W‖_F, ∇W = WK + F + p cᵀ at η = 1, from ‖WK‖² = tr KQK and its like. O(md² + d³)."""
        state, d = self.state, self.state.d
        _, sums, _ = self.sums(1.0)
        K, A, FTF, (Fp, c) = (part.double() for part in torch.split(sums, [d, d, d, 2]))
        apart = ((state.Q.double() @ K) * K).sum() + FTF.trace() + state.p_norm2 * (c @ c)
        together = (K * A).sum() + (K @ state.w_bar.double()) @ c + Fp @ c
        return math.sqrt(max(0.0, float(apart + 2 * together)))
