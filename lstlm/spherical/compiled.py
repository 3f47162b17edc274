"""`CompiledLowRank`: the LowRank step in a few calls of compiled code, `kernel/low_rank.h`, where that was built.

Between its products a step has some fifty small operations. After each product they find the caches cold, and the
interpreter with them, so that they cost more than their arithmetic does; in compiled code they cost next to nothing.
Everything else (K > 1, a preconditioner, other devices, large minibatches) is `touched_rows.py`, which is also what the
kernel is tested against.
"""

from __future__ import annotations

import ctypes
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from lstlm.errors import NumericsError
from lstlm.registry import LOSSES, load
from lstlm.spherical.host import Numbers, aligned_width, to_host
from lstlm.spherical.losses import SphericalLoss
from lstlm.spherical.native import Kernel, Step
from lstlm.spherical.rows import check_rows
from lstlm.spherical.shrink import SERIES_UP_TO, Shrink, bounds_on_shrink, inverse_by_lapack, terms_needed
from lstlm.spherical.state import FactoredState
from lstlm.spherical.touched_rows import LOW_RANK_UP_TO, Gradient, LowRank, Square

# the losses of kernel/losses.h: their numbers there, and their parameters
NATIVE = {load(kind.make): (kind.native_id, kind.settings) for kind in LOSSES if kind.native_id is not None}
_Sums = ctypes.c_double * 3


class CompiledLowRank(LowRank):
    """The form for m below d and one target an example, on the CPU."""

    def __init__(
        self, state: FactoredState, H: Tensor, ids: Tensor, kernel: Kernel, buffers: tuple[Tensor, ...]
    ) -> None:
        """Take the buffers of the state beside it: C code has their addresses, so they must stay what they are."""
        super().__init__(state, H, ids.contiguous())
        self.kernel, self.buffers = kernel, buffers

    def prepare(self) -> None:
        """Make room for what `read` and what follows it leave."""
        H, (table, base, deviation, V, _) = self.H, self.buffers
        (m, d), D = H.shape, V.shape[0]  # not len(): a tensor's is a function in Python
        self.HT = HT = H.T.contiguous()
        self.p = None if self.p is None else self.p.contiguous()
        self.products, self.rows = H.new_empty(5 * d + 4, m), H.new_empty(m, 1, d)
        self.found = H.new_empty(3, m, dtype=torch.float64)
        self.step = Step(
            by=self.kernel.products,
            d=d,
            m=m,
            width=aligned_width(d),
            D=D,
            table=table.data_ptr(),
            base=base.data_ptr(),
            deviation=deviation.data_ptr(),
            V=V.data_ptr(),
            ids=self.ids.data_ptr(),
            HT=HT.data_ptr(),
            p=None if self.p is None else self.p.data_ptr(),
            rows=self.rows.data_ptr(),
            products=self.products.data_ptr(),
            outputs=self.found.data_ptr(),
            p_norm2=self.state.p_norm2,
        )

    def again(self) -> None:
        """Begin anew with what H and the ids, which stay where they are, hold now."""
        self.version = self.state.version
        self.__dict__.pop("gradient", None)
        if self.p is not None:
            self.p.copy_(self.state.p[self.ids])  # type: ignore[index]

    def read(self) -> None:
        """Read the table and the rows of V, these in the current frame."""
        step, history = self.step, self.state.history
        check_rows(self.kernel.read(ctypes.byref(step)), self.ids, step.D)
        step.stamp = None
        if not history.empty:
            step.stamp, step.now = self.buffers[4].data_ptr(), history.now
            history.bring_forward(self.rows[:, 0], self.ids[:, 0])

    def outputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return q = ‖o‖² (m,), s = p·o (m,) and the outputs at the targets (m,1), in float64."""
        self.prepare()
        self.read()
        self.kernel.outputs(ctypes.byref(self.step))
        q, s, o = self.found
        return q, s, o[:, None]

    def backward(self, gradient: Gradient) -> Tensor:
        """Return ∇H = 2 dq ∘ HQ + YW + ds ⊗ w̄  (m,d)."""
        self.gradient, step = gradient, self.step
        grad_HT = torch.empty_like(self.HT)
        step.dq, step.do, step.grad_H = gradient.dq.data_ptr(), gradient.do.data_ptr(), grad_HT.data_ptr()
        step.ds = None if gradient.ds is None else gradient.ds.data_ptr()
        self.kernel.backward(ctypes.byref(step))
        return grad_HT.T

    def differentiate(self, loss: SphericalLoss, values: Numbers, upstream: Numbers) -> tuple[Tensor, Tensor] | None:
        """Return the losses (m,) for target values (m,1), and ∇H of Σ upstream·loss: `outputs` and `backward` at once.

        None where the loss is none of NATIVE, or was changed, or something is not finite.
        """
        if not is_compiled(loss):
            return None
        self.prepare()
        self.read()
        grad_HT = self.aim(loss, values, upstream)
        return (self.partials[0], grad_HT.T) if self.kernel.differentiate(ctypes.byref(self.step)) else None

    def aim(self, loss: SphericalLoss, values: Numbers, upstream: Numbers) -> Tensor:
        """Make room for the partial derivatives, and for ∇Hᵀ (d,m), which is returned."""
        step, kind = self.step, type(loss)
        t, weight = self.weights = [np.ascontiguousarray(x, dtype=np.float64) for x in (values, upstream)]
        self.partials, grad_HT = self.H.new_empty(4, self.H.shape[0]), torch.empty_like(self.HT)
        step.loss, settings = NATIVE[kind]
        for place, name in zip("ab", settings, strict=False):
            setattr(step, place, getattr(loss, name))
        step.t, step.upstream = t.ctypes.data, weight.ctypes.data
        step.partials, step.grad_H = self.partials.data_ptr(), grad_HT.data_ptr()
        return grad_HT

    @cached_property
    def gradient(self) -> Gradient:  # type: ignore[override]
        """What `backward` was given, or `differentiate` found."""
        _, dq, ds, do = to_host(self.partials)
        return Gradient(dq, None if self.step.ds is None else ds, do[:, None], self.H)

    def update(self, eta: float, P: Tensor | None = None) -> Shrink:
        """Apply W ← W − η ∇W P to the state; raises NumericsError, changing nothing, when η is above its limit."""
        if P is not None:
            self._name_products()
            return super().update(eta, P)
        now, step = self.state.buffers_for_c(self.H.dtype), self.step
        seen = step.table, step.base, step.deviation, step.V, step.stamp
        if now is None or any(x.data_ptr() != address for x, address in zip(now, seen, strict=True) if address):
            raise NumericsError("the weights were replaced since forward(); call forward() and backward() again")
        state, H, kernel, m = self.state, self.H, self.kernel, self.H.shape[0]
        squares, J = H.new_empty(3, m, m), H.new_empty(m, step.width)
        size = m * m * H.element_size()
        step.A = squares.data_ptr()
        step.N, step.C = step.A + size, step.A + 2 * size
        step.J, step.eta = J.data_ptr(), eta
        sums = _Sums()
        kernel.shrinking(ctypes.byref(step), sums)
        shrink, terms = bounds_on_shrink(sums[0], sums[1], lambda: sums[2]), 0
        if shrink.shrink < SERIES_UP_TO:
            terms = terms_needed(shrink.shrink, H.dtype)
        else:
            squares[2], shrink = inverse_by_lapack(squares[0], 2 * eta * self.gradient.dq_host, eta, shrink)
        check_rows(kernel.update(ctypes.byref(step), terms), self.ids, step.D)
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


def is_compiled(loss: SphericalLoss) -> bool:
    """Say whether kernel/losses.h has this loss: one of NATIVE, whose formulas nobody has changed."""
    return type(loss) in NATIVE and "partials" not in vars(loss)


def begin(state: FactoredState, H: Tensor, ids: Tensor, kernel: Kernel | None) -> LowRank | Square:
    """Choose the cheapest form for H (m,d) and target ids (m,K); `kernel` is the compiled code, where there is any."""
    if H.shape[0] > LOW_RANK_UP_TO * state.d:
        return Square(state, H, ids)
    if kernel is not None and ids.shape[1] == 1 and (buffers := state.buffers_for_c(H.dtype)) is not None:
        return CompiledLowRank(state, H, ids, kernel, buffers)
    return LowRank(state, H, ids)
