"""The d-sized part of what the factored layer remembers: Q, ω, w̄, U⁻ᵀ and U, in one matrix (`kernels/layout.py`).

In float32 a sum of 50,000 small updates would drift, unless each is added to something small:

  - Q, ω and w̄ are kept as `exact` (float64) plus `recent` (compute dtype, the sum of the last few updates). An update
    is added to `recent`, where its rounding error is relative to the recent change and not to the whole, and `recent`
    is folded into `exact` every `fold_every` updates. Q, ω and w̄ in the table are the rounded sum of both.
  - U and U⁻ᵀ are near the identity, and so small but for their diagonals; `deviation` (2,d) keeps these minus 1, and
    stands in their place while an update is added. W is *defined* by U, so what rounding is left moves W, not apart
    from Q, by far less than the rounding of V does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from lstlm.kernels import step_ops
from lstlm.kernels.choice import Impl
from lstlm.kernels.layout import Layout
from lstlm.kernels.ops import aligned_width
from lstlm.kernels.step_ops import Tables
from lstlm.protocol.saved import insist


class Counters:
    """Numbers that change with every update: kept apart, because a module's own attributes are slow to set."""

    def __init__(self) -> None:
        self.version = 0  # counts the changes of W, so that a stale minibatch is noticed
        self.since_fold = 0


class Table(nn.Module):
    """Q, ω, w̄, U⁻ᵀ and U, which one update changes together."""

    exact: Tensor
    base: Tensor
    table: Tensor
    deviation: Tensor

    def __init__(self, d: int, like: Tensor, fold_every: int, impl: Impl) -> None:
        """Start with U = I and zeros, in the dtype and on the device of `like`."""
        super().__init__()
        self.d, self.at, self.fold_every, self.impl = d, Layout(d), fold_every, impl
        width = aligned_width(d)
        self.register_buffer("exact", torch.zeros(d + 2, d, dtype=torch.float64, device=like.device))
        self.register_buffer("base", like.new_zeros(d + 2, width), persistent=False)  # exact, rounded
        self.register_buffer("table", like.new_zeros(self.at.table_rows, width))
        self.register_buffer("deviation", like.new_zeros(2, d))  # of the diagonals of U⁻ᵀ and U from 1
        self.counters = Counters()
        self.set_frame()

    # ---- the parts by name ---------------------------------------------------------------------------------------
    @property
    def version(self) -> int:
        return self.counters.version

    @property
    def tables(self) -> Tables:
        """What the operations of a step read and change."""
        kept = self._buffers  # not by name: a module looks for those in three places
        return Tables(kept["table"], kept["base"], kept["deviation"])  # type: ignore[arg-type]

    @property
    def Q(self) -> Tensor:
        return self.table[self.at.Q, : self.d]

    @property
    def omega(self) -> Tensor:
        return self.table[self.at.omega, : self.d]

    @property
    def w_bar(self) -> Tensor:
        return self.table[self.at.w_bar, : self.d]

    @property
    def U_inv_T(self) -> Tensor:
        return self.table[self.at.U_inv_T, : self.d]

    @property
    def U(self) -> Tensor:
        return self.table[self.at.U, : self.d]

    @property
    def recent(self) -> Tensor:
        return self.table[self.at.recent, : self.d]

    def squared_norm(self) -> float:
        """Return ‖W‖²_F = tr Q."""
        return max(0.0, float(self.exactly("Q").trace()))

    # ---- updating ------------------------------------------------------------------------------------------------
    def count_update(self) -> None:
        """Note that an update has been added up; now and then, fold it with those before it."""
        counters = self.counters
        counters.version += 1
        counters.since_fold += 1
        if counters.since_fold >= self.fold_every:
            self.fold()
            self._refine_inverse()

    def fold(self) -> None:
        """exact ← exact + recent, recent ← 0."""
        d = self.d
        self.exact[:d] += self.recent[:d] + self.recent[:d].T.to(torch.float64)
        self.exact[d:] += self.recent[d:]
        self.recent.zero_()
        self.counters.since_fold = 0
        self._rebase()

    def _rebase(self) -> None:
        """Compute what is derived: base from `exact`, Q, ω, w̄ from both, and the diagonals from `deviation`."""
        self.base[:, : self.d] = self.exact
        step_ops.add_up(self.table, self.base, impl=self.impl)
        self._restore_diagonals()

    def _refine_inverse(self) -> None:
        """Take one of Newton's steps: U⁻¹ ← U⁻¹ + U⁻¹(I − U U⁻¹), in float64. O(d³).

        Where U⁻¹ is off by δ, every row of V that is written is off by δ times its change, and always the same way.
        """
        U, U_inv_T = self.exactly("U"), self.exactly("U_inv_T")
        residual = (U_inv_T @ U.T).neg_()
        residual.diagonal().add_(1)
        self._set_frame(U, U_inv_T.addmm_(residual, U_inv_T))

    def _restore_diagonals(self) -> None:
        """Compute the diagonals from `deviation`."""
        for frame, apart in zip((self.U_inv_T, self.U), self.deviation, strict=True):
            frame.diagonal().copy_(apart).add_(1)

    def assign(self, **gram: Tensor) -> None:
        """Set Q, omega or w_bar to new float64 values."""
        self.fold()
        for name, new in gram.items():
            self.exact[getattr(self.at, name)] = new
        self._rebase()
        self.counters.version += 1

    def exactly(self, name: str) -> Tensor:
        """Return Q, omega, w_bar, U or U_inv_T in float64, as a new tensor."""
        if name in ("U_inv_T", "U"):
            frame: Tensor = getattr(self, name).to(torch.float64, copy=True)
            frame.diagonal().copy_(self.deviation[int(name == "U")]).add_(1)
            return frame
        place = getattr(self.at, name)
        recent = self.recent[place].to(torch.float64)
        return self.exact[place] + (recent + recent.T if name == "Q" else recent)

    def repair(self, X: Tensor, alphas: Tensor, Y: Tensor) -> None:
        """U ← E⁻¹U and U⁻ᵀ ← E U⁻ᵀ: `step_ops.repair_frame`. V·E is the caller's.

        In float64: what V will be multiplied by and what U was divided by must cancel to full precision.
        """
        step_ops.repair_frame(self.tables, X, alphas, Y, impl=self.impl)
        self.counters.version += 1

    def scale_(self, rho: float) -> None:
        """W ← ρW: U, ω, w̄ by ρ, U⁻ᵀ by 1/ρ, Q by ρ²."""
        d = self.d
        for stack in (self.exact, self.recent):
            stack[:d] *= rho * rho
            stack[d:] *= rho
        for which, (frame, factor) in enumerate(((self.U_inv_T, 1 / rho), (self.U, rho))):
            frame *= factor
            self.deviation[which].mul_(factor).add_(factor - 1)
        self._rebase()

    def set_frame(self, U: Tensor | None = None) -> None:
        """Set U, the identity where None, and U⁻ᵀ from scratch in float64. The caller answers for V."""
        if U is None:
            U = U_inv_T = torch.eye(self.d, dtype=torch.float64, device=self.table.device)
        else:
            U_inv_T = torch.linalg.inv(U).T
        self._set_frame(U, U_inv_T)

    def _set_frame(self, U: Tensor, U_inv_T: Tensor) -> None:
        self.U.copy_(U)
        self.U_inv_T.copy_(U_inv_T)
        self.deviation.copy_(torch.stack([U_inv_T.diagonal(), U.diagonal()]) - 1)
        self._restore_diagonals()  # the same to the last bit as after loading
        self.counters.version += 1

    # ---- module plumbing -----------------------------------------------------------------------------------------
    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # `exact` follows the device but never the dtype: module.float() must not round it.
        exact = self.exact
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.exact = exact.to(self.table.device)
        self._rebase()
        self.counters.version += 1  # a minibatch on its way knows the buffers as they were
        return self

    def get_extra_state(self) -> Tensor:
        """The updates since the last fold: a resumed run must fold at the same steps."""
        return torch.tensor(self.counters.since_fold)

    def set_extra_state(self, state: Tensor) -> None:
        self.counters.since_fold = int(state)
        insist(0 <= self.counters.since_fold < self.fold_every, f"{self.counters.since_fold} updates since a fold")

    def _load_from_state_dict(self, *args: object, **kwargs: object) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        # they may have been replaced by others
        self.table, self.deviation = self.table.contiguous(), self.deviation.contiguous()
        self.base = self.base.to(self.table)
        self._rebase()
        self.counters.version += 1
