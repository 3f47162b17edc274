"""`CompiledLowRank`: the LowRank step in six calls of compiled code, `kernel/low_rank.h`, where that was built.

Between its products a step has some fifty small operations. After each product they find the caches cold, and the
interpreter with them, so that they cost more than their arithmetic does; in compiled code they cost next to nothing.
Everything else (K > 1, a preconditioner, other devices, large minibatches) is `touched_rows.py`, which is also what the
kernel is tested against.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from lstlm.errors import NumericsError
from lstlm.spherical.host import aligned_width
from lstlm.spherical.native import Kernel, Step
from lstlm.spherical.shrink import SERIES_UP_TO, Shrink, bounds_on_shrink, inverse_by_lapack, terms_needed
from lstlm.spherical.state import FactoredState
from lstlm.spherical.touched_rows import LOW_RANK_UP_TO, Gradient, LowRank, Square


class CompiledLowRank(LowRank):
    """The form for m below d and one target an example, on the CPU."""

    def __init__(
        self, state: FactoredState, H: Tensor, ids: Tensor, kernel: Kernel, buffers: tuple[Tensor, ...]
    ) -> None:
        """Take the buffers of the state beside it: C code has their addresses, so they must stay what they are."""
        super().__init__(state, H, ids.contiguous())
        self.kernel, self.buffers = kernel, buffers

    def outputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return q = ‖o‖² (m,), s = p·o (m,) and the outputs at the targets (m,1), in float64."""
        state, H, m, d = self.state, self.H, len(self.H), self.state.d
        table, base, deviation, V = self.buffers
        self.HT = HT = H.T.contiguous()
        self.p = None if self.p is None else self.p.contiguous()
        self.products = H.new_empty(5 * d + 4, m)
        found = H.new_empty(3, m, dtype=torch.float64)
        self.step = step = Step(
            gemm=self.kernel.gemm,
            d=d,
            m=m,
            width=aligned_width(d),
            table=table.data_ptr(),
            base=base.data_ptr(),
            deviation=deviation.data_ptr(),
            V=V.data_ptr(),
            ids=self.ids.data_ptr(),
            HT=HT.data_ptr(),
            p=None if self.p is None else self.p.data_ptr(),
            products=self.products.data_ptr(),
            outputs=found.data_ptr(),
        )
        self.kernel.read(ctypes.byref(step))
        self.rows = state.read(self.ids.reshape(-1))[:, None]
        step.rows = self.rows.data_ptr()
        self.kernel.outputs(ctypes.byref(step))
        q, s, o = found
        return q, s, o[:, None]

    def backward(self, gradient: Gradient) -> Tensor:
        """Return ∇H = 2 dq ∘ HQ + YW + ds ⊗ w̄  (m,d)."""
        self.gradient, step = gradient, self.step
        grad_HT = torch.empty_like(self.HT)
        step.dq, step.do, step.grad_H = gradient.dq.data_ptr(), gradient.do.data_ptr(), grad_HT.data_ptr()
        step.ds = None if gradient.ds is None else gradient.ds.data_ptr()
        self.kernel.backward(ctypes.byref(step))
        return grad_HT.T

    def update(self, eta: float, P: Tensor | None = None) -> Shrink:
        """Apply W ← W − η ∇W P to the state; raises NumericsError, changing nothing, when η is above its limit."""
        if P is not None:
            self._name_products()
            return super().update(eta, P)
        now, step = self.state.buffers_for_c(self.H.dtype), self.step
        seen = step.table, step.base, step.deviation, step.V
        if now is None or tuple(x.data_ptr() for x in now) != seen:
            raise NumericsError("the weights were replaced since forward(); call forward() and backward() again")
        state, H, kernel, (m, d) = self.state, self.H, self.kernel, self.H.shape
        squares, J, change = H.new_empty(3, m, m), H.new_empty(m, step.width), H.new_empty(m, d)
        size = m * m * H.element_size()
        step.A = squares.data_ptr()
        step.N, step.C = step.A + size, step.A + 2 * size
        step.J, step.change = J.data_ptr(), change.data_ptr()
        step.eta, step.p_norm2 = eta, state.p_norm2
        sums = (ctypes.c_double * 3)()
        kernel.shrinking(ctypes.byref(step), sums)
        shrink = bounds_on_shrink(sums[0], sums[1], lambda: sums[2])
        if shrink.shrink < SERIES_UP_TO:
            kernel.series(ctypes.byref(step), terms_needed(shrink.shrink, H.dtype))
        else:
            inverse, shrink = inverse_by_lapack(squares[0], 2 * eta * self.gradient.dq_host, eta, shrink)
            squares[2] = inverse
        kernel.update(ctypes.byref(step))
        state.add_to_rows(self.ids.reshape(-1), self.rows[:, 0], change)  # V − η YᵀJ
        state.count_update()
        return shrink

    def _name_products(self) -> None:
        super()._name_products()
        d = self.state.d
        self.grad_H = self.products[4 * d + 2 : 5 * d + 2].T  # the one that was kept

    def grad_norm(self) -> float:
        """Return ‖∇W‖_F. O(m²d)."""
        self._name_products()
        return super().grad_norm()


def begin(state: FactoredState, H: Tensor, ids: Tensor, kernel: Kernel | None) -> LowRank | Square:
    """Choose the cheapest form for H (m,d) and target ids (m,K); `kernel` is the compiled code, where there is any."""
    if len(H) > LOW_RANK_UP_TO * state.d:
        return Square(state, H, ids)
    if kernel is not None and ids.shape[1] == 1 and (buffers := state.buffers_for_c(H.dtype)) is not None:
        return CompiledLowRank(state, H, ids, kernel, buffers)
    return LowRank(state, H, ids)
