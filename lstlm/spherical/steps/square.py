"""`Square`: the form of the step for m above d, by way of the d×d matrix T."""

from __future__ import annotations

import torch
from torch import Tensor

from lstlm.kernels.ops import add_bags, dot_bags, gemm, sum_bags, symmetric_gemm
from lstlm.spherical.shrink import Shrink, solver_of_shrink
from lstlm.spherical.steps.common import Step, with_bias


class Square(Step):
    """2md² + 4nd² + 5d³ multiply-adds for n distinct targets."""

    def read(self) -> None:
        state = self.state
        self.H = with_bias(self.h, state.d)
        self.table, impl = state.table, state.impl
        products = gemm(self.H, self.table[state.at.gram, : state.d].T, impl=impl)  # HQ | Hω | Hw̄
        self.HQ, self.Hw_bar = products[:, : state.d], products[:, state.at.w_bar]
        self.words = self.targets.words
        self.V_u = state.read(self.words)
        self.p_u = self.V_u.new_ones(len(self.words)) if state.p is None else state.p[self.words]
        self.W_u = gemm(self.V_u, state.U, impl=impl).addr_(self.p_u, state.omega)
        o = dot_bags(self.W_u, self.targets, self.H, impl=impl)
        self.outputs = torch.cat([torch.linalg.vecdot(self.H, self.HQ), self.Hw_bar, o])

    def backward(self, partials: Tensor) -> Tensor:
        self.partials = partials
        YW = sum_bags(self.W_u, self.targets, self.do, impl=self.state.impl)
        self.grad_H = YW.addcmul_(self.HQ, self.dq[:, None], value=2)
        if self.ds is not None:
            self.grad_H.addr_(self.ds, self.state.w_bar)
        return self.grad_H.clone()  # which the caller may change: grad_norm() reads the other

    def update(self, eta: float) -> Shrink:
        state, impl = self.state, self.state.impl
        self.check_state(self.table)
        K, FTW, FTF, pF, c = self.sums(eta)
        solve_minus, shrink = solver_of_shrink(K, eta, impl)
        z_step = state.w_bar @ K + eta * pF  # z = w̄ − z_step

        half = gemm(state.Q, K, impl=impl).mul_(0.5).add_(FTW.T, alpha=eta)  # ½QK + ηA
        half = gemm(K.T, 0.5 * state.Q - half, half, beta=1.0, impl=impl).sub_(FTF, alpha=0.5 * eta * eta)
        half.addr_(state.w_bar - z_step, c).addr_(c, c, alpha=-0.5 * state.p_norm2)
        UK, U_inv_step = gemm(state.U, K, impl=impl), solve_minus(state.U_inv_T.T)  # T⁻¹U⁻¹ − U⁻¹
        gram_step = [half, state.omega @ K + c, z_step + state.p_norm2 * c]
        rows_step = gemm(self.F, state.U_inv_T.T + U_inv_step, impl=impl)  # F U'⁻¹

        allowed = None if shrink.allowed is None else shrink.allowed & torch.isfinite(self.partials.sum())
        if allowed is not None:
            gram_step = [torch.where(allowed, x, 0) for x in gram_step]
            UK, U_inv_step, rows_step = (torch.where(allowed, x, 0) for x in (UK, U_inv_step, rows_step))
        recent = state.recent
        for place, change in zip((state.at.Q, state.at.omega, state.at.w_bar), gram_step, strict=True):
            recent[place] -= change
        state.add_to_frame(U_inv_step.T, -UK)
        state.add_to_rows(self.words, self.V_u, rows_step, -eta)
        state.commit()
        return shrink._replace(allowed=allowed)

    def sums(self, eta: float) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return K = HᵀBH, FᵀW_u, FᵀF (d,d), Fᵀp, c (d,), each a sum over examples or touched rows; F is kept."""
        H, impl, do = self.H, self.state.impl, self.do
        F = self.F = torch.zeros_like(self.V_u)
        add_bags(F, self.targets, H, do, impl=impl)
        pF = self.p_u @ F
        c = torch.zeros_like(pF) if self.ds is None else eta * (self.ds @ H)
        BH = H * (2 * eta * self.dq)[:, None]
        FTW = gemm(F.T, self.W_u, impl=impl)
        return symmetric_gemm(BH, H, impl=impl), FTW, symmetric_gemm(F, F, impl=impl), pF, c

    def grad_norm(self) -> float:
        X = torch.addcmul(self.grad_H, self.HQ, self.dq[:, None], value=-1)
        return self.norm_of_gradient(X.T, self.H.T)
