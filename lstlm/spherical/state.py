"""What the factored layer remembers: W = V U + p ωᵀ, and Q = WᵀW, w̄ = Wᵀp, U⁻ᵀ beside it.

p is the vector of ones, or √π for a softmax that is tilted by a prior π over the outputs. `table.py` keeps what is of
size d; here are the D rows of V.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from lstlm.kernels.choice import Impl
from lstlm.kernels.ops import add_bags, gemm, read_rows, write_rows
from lstlm.kernels.targets import Targets
from lstlm.protocol.scan import parts
from lstlm.spherical.stabilise.history import History
from lstlm.spherical.table import Table

BLOCK_ROWS = 4096  # rows of V that one pass holds at a time: 5 MB at d = 300 in float32


class Sizes(NamedTuple):
    """How much of its past the layer keeps."""

    repairs: int = 128  # in a segment: reading m rows costs up to 2·m·d·repairs
    most_segments: int = 40  # closed ones alive: more mean less to bring forward, more products, 1.4 MB each at d = 300
    # rows brought forward at once, or a quarter of the targets to come where that is more: after the close of a segment
    # it would be all of them, and the slowest step
    most_rows: int = 1200
    fold_every: int = 128  # updates of Q, ω, w̄ in the compute dtype before they are added to those in float64


DEFAULT_SIZES = Sizes()


class FactoredState(Table):
    """V (D,d), the d-sized state, and the history that brings rows of V to the current frame."""

    V: Tensor
    p: Tensor | None

    def __init__(
        self,
        W: Tensor,
        p: Tensor | None = None,
        *,
        lazy: bool = True,
        sizes: Sizes = DEFAULT_SIZES,
        impl: Impl = "auto",
    ) -> None:
        """Start from W (D,d), which becomes V: U = I, ω = 0. `lazy` makes room for repairs that rows get later."""
        super().__init__(W.shape[1], W, sizes.fold_every, impl)
        self.sizes = sizes
        self.register_buffer("V", W)
        self.register_buffer("p", None if p is None else p.to(W))
        self.history = self._new_history(lazy)
        self.p_norm2 = float(self.D) if p is None else float(p.double().square().sum())
        self.refresh_gram(at_rest=True)

    @property
    def D(self) -> int:
        return self.V.shape[0]

    @property
    def stored_rows(self) -> int:
        """How many of the D rows are kept here: all, unless several processes share them."""
        return self.V.shape[0]

    @property
    def like(self) -> Tensor:
        """A tensor of the layer's dtype and device."""
        return self.V

    def _rows_of_history(self) -> int:
        """Return for how many rows the history has stamps."""
        return self.stored_rows

    def _new_history(self, lazy: bool) -> History:
        rows = self._rows_of_history()
        segments = min(self.sizes.most_segments, max(2, math.isqrt(rows // self.d))) if lazy else 0
        return History(rows, self.d, self.V, segments, self.sizes.repairs, self.impl)

    def total(self, x: Tensor) -> Tensor:
        """Return the sum of x over the processes that share the rows; x itself where all are kept here."""
        return x

    # ---- rows ----------------------------------------------------------------------------------------------------
    def read(self, ids: Tensor | slice) -> Tensor:
        """Return rows of V (n,d) in the current frame, every past repair applied to them; a copy."""
        rows = self.V[ids].clone() if isinstance(ids, slice) else read_rows(self.V, ids, gaps=True, impl=self.impl)
        return self.history.bring_forward(rows, ids)

    def write(self, ids: Tensor | slice, rows: Tensor) -> None:
        """V[ids] ← rows (n,d), given in the current frame."""
        if isinstance(ids, slice):
            self.V[ids] = rows
        else:
            write_rows(self.V, ids, rows, impl=self.impl)
        self.history.written(ids)

    def bring_forward(self, ids: Tensor) -> None:
        """Take rows of ids (n,) through the repairs of all closed segments, many at once, the oldest first."""
        if self.history.open:
            self.history.bring_to_open_segment(self.V, ids, max(self.sizes.most_rows, ids.shape[0] // 4))

    def add_to_rows(self, ids: Tensor, rows: Tensor, change: Tensor, times: float) -> None:
        """V[ids] ← rows + times · change (n,d), for rows as `read` returned them, which are overwritten."""
        if self.V.is_cpu:  # every id is there once
            self.write(ids, rows.add_(change, alpha=times))
            return
        if not self.history.empty:
            self.write(ids, rows)  # brings them to the current frame; a repeated id writes the same row twice
        self.V.index_add_(0, ids, change, alpha=times)  # where ids are filled up with repeated ones, the change is 0

    def add_product(self, ids: Tensor, rows: Tensor, F: Tensor, M: Tensor, times: float) -> None:
        """V[ids] ← rows + times · F M, F (n,d), M (d,d), for rows as `read` returned them, which are overwritten."""
        if self.V.is_cpu:
            self.write(ids, gemm(F, M, rows, alpha=times, beta=1.0, impl=self.impl))
        else:
            self.add_to_rows(ids, rows, F @ M, times)

    def add_bags(self, targets: Targets, rows: Tensor, X: Tensor, weights: Tensor, times: float) -> None:
        """V ← V + times · YᵀX, Y (m,D) with weights (n,) at the targets, X (m,d), rows as read of their words."""
        if self.V.is_cpu:
            add_bags(rows, targets, X, weights, times, impl=self.impl)
            self.write(targets.words, rows)
        else:
            change = torch.zeros_like(rows)
            add_bags(change, targets, X, weights, impl=self.impl)
            self.add_to_rows(targets.words, rows, change, times)

    def weight_rows(self, ids: Tensor | slice) -> Tensor:
        """Return rows of W (n,d): v_i U + p_i ω."""
        W = self.read(ids) @ self.U
        return W.add_(self.omega) if self.p is None else W.addr_(self.p_of(self.p, ids), self.omega)

    def outputs_of(self, H: Tensor) -> Callable[[slice], Tensor]:
        """Return how to compute the outputs (m,n) of H (m,d) at rows: (HUᵀ)·v + p Hω, so that U meets m examples."""
        HU, H_omega = H @ self.U.T, H @ self.omega

        def outputs(rows: slice) -> Tensor:
            o = gemm(HU, self.read(rows).T, impl=self.impl)
            return o.add_(H_omega[:, None]) if self.p is None else o.addr_(H_omega, self.p_of(self.p, rows))

        return outputs

    def p_of(self, p: Tensor, ids: Tensor | slice) -> Tensor:
        """Return the entries of p (D,) that belong to rows: outputs by id, or a slice of the rows kept here."""
        return p[ids]

    def blocks(self) -> list[slice]:
        """Cover the rows kept here in slices of at most BLOCK_ROWS."""
        return parts(self.stored_rows, BLOCK_ROWS)

    def map_rows(self, change: Callable[[slice, Tensor], Tensor]) -> None:
        """V ← change(rows) block by block, rows given in the current frame; ends with an empty history."""
        for rows in self.blocks():
            self.V[rows] = change(rows, self.read(rows))
        self.history.clear()

    def materialise(self) -> Tensor:
        """Return W (D,d). O(Dd²): for the end of training, tests and export."""
        return torch.cat([self.weight_rows(rows) for rows in self.blocks()])

    def absorb(self) -> None:
        """V ← V U, U ← I, a pass over V; W does not change."""
        self.map_rows(lambda _, rows: rows @ self.U)
        self.set_frame()

    def restore(self) -> None:
        """V ← V U + p ωᵀ, U ← I, ω ← 0, and Q, w̄ anew from V. O(Dd²); W does not change."""
        self.map_rows(lambda rows, _: self.weight_rows(rows))
        self.assign(omega=torch.zeros_like(self.exact[0]))
        self.set_frame()
        self.refresh_gram(at_rest=True)

    def refresh_gram(self, *, at_rest: bool = False) -> None:
        """Compute Q = WᵀW and w̄ = Wᵀp anew, in float64. `at_rest` says that U = I and ω = 0, so that V is W."""
        Q = torch.zeros_like(self.exact[: self.d])
        w_bar = torch.zeros_like(self.exact[0])
        for rows in self.blocks():
            W = (self.V[rows] if at_rest else self.weight_rows(rows)).to(torch.float64)
            Q.addmm_(W.T, W)
            w_bar += W.sum(0) if self.p is None else self.p_of(self.p, rows).to(torch.float64) @ W
        self.assign(Q=self.total(Q), w_bar=self.total(w_bar))

    def reset(self, W: Tensor) -> None:
        """Start again from W (D,d): V = W, U = I, ω = 0."""
        self.V.copy_(W)
        self.history.clear()
        self.assign(omega=torch.zeros_like(self.exact[0]))
        self.set_frame()
        self.refresh_gram(at_rest=True)

    def resize(self, keep: Tensor | None, W_new: Tensor) -> None:
        """Keep rows `keep` (all where None), append rows W_new (n,d): Q ± wwᵀ, w̄ ± w. p must be all ones.

        A new row w is stored as (w − ω)U⁻¹. Copies V; the kept rows are brought to the current frame on the way.
        """
        kept = torch.arange(self.D, device=self.V.device) if keep is None else keep
        dropped = torch.ones(self.D, dtype=torch.bool, device=self.V.device)
        dropped[kept] = False
        W_dropped = self.weight_rows(dropped.nonzero().squeeze(1)).to(torch.float64)
        W_added = W_new.to(torch.float64)
        V_added = (W_added - self.exactly("omega")) @ self.exactly("U_inv_T").T
        Q = self.exactly("Q") - W_dropped.T @ W_dropped + W_added.T @ W_added
        w_bar = self.exactly("w_bar") - W_dropped.sum(0) + W_added.sum(0)
        self.map_rows(lambda _, rows: rows)
        self.V = torch.cat([self.V[kept], V_added.to(self.V.dtype)])
        self.history = self._new_history(lazy=self.history.segments > 0)
        self.p_norm2 = float(self.D)
        self.assign(Q=Q, w_bar=w_bar)
