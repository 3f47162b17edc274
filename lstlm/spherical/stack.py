"""The d-sized part of what the factored layer remembers: Q, ω, w̄, U⁻ᵀ and U.

They stand in one matrix `table`, so that one product with the minibatch reads all that a step reads, `value`, and one
or two products add to all that it changes:

    rows      [0, d)   d      d+1    [d+2, 2d+2)   [2d+2, 3d+2)   [3d+2, 4d+4)
    contents  Q        ω      w̄      U⁻ᵀ           U              recent: of Q, ω, w̄
    read      x        x      x      x             x
    changed                          x             x              x

In float32 a sum of 50,000 small updates would drift, unless each is added to something small:

  - Q, ω and w̄ are kept as `exact` (float64) plus `recent` (compute dtype, the sum of the last few updates). An update
    is added to `recent`, where its rounding error is relative to the recent change and not to the whole, and `recent`
    is folded into `exact` every FOLD_EVERY updates. `value` holds the rounded sum.
  - U and U⁻ᵀ are near the identity, and so small but for their diagonals; `deviation` (2,d) keeps these minus 1, and
    stands in their place while an update is added. W is *defined* by U, so what rounding is left moves W, not apart
    from Q, by far less than the rounding of V does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from lstlm.spherical.host import aligned_width, handy
from lstlm.spherical.native import kernel_for

FOLD_EVERY = 128


class Counters:
    """Numbers that change with every update: kept apart, because a module's own attributes are slow to set."""

    def __init__(self) -> None:
        self.version = 0  # counts the changes of W, so that a stale minibatch is noticed
        self.since_fold = 0


class Parts:
    """The parts of the table by name, as views that are made once: making them anew costs a step more than using them.

    `…_numbers` are for element-wise work, see `host.handy`. They have the width of the table: it is a little more than
    d, so that rows start at cache lines, and going through the rest is faster than skipping it.
    """

    def __init__(self, stored: Tensor, base: Tensor, deviation: Tensor) -> None:
        d, width = deviation.shape[1], stored.shape[1]
        self.addresses = stored.data_ptr(), base.data_ptr(), deviation.data_ptr()
        table, numbers = stored[:, :d], handy(stored)
        self.value, self.Q, self.omega, self.w_bar = table[: 3 * d + 2], table[:d], table[d], table[d + 1]
        self.U_inv_T, self.U = table[d + 2 : 2 * d + 2], table[2 * d + 2 : 3 * d + 2]
        self.recent, self.U_and_recent = table[3 * d + 2 :], table[2 * d + 2 :]
        self.gram_numbers, self.recent_numbers = numbers[: d + 2], numbers[3 * d + 2 :]
        self.base_numbers = handy(base)
        # of U⁻ᵀ and U, (2,d), and what they are apart from 1
        self.diagonals = numbers[d + 2 : 3 * d + 2].reshape(2, d * width)[:, :: width + 1]
        self.deviation_numbers = handy(deviation)


class Stack(nn.Module):
    """Q, ω, w̄, U⁻ᵀ and U, which one update changes together."""

    exact: Tensor
    base: Tensor
    table: Tensor
    deviation: Tensor

    def __init__(self, d: int, like: Tensor) -> None:
        """Start with U = I and zeros, in the dtype and on the device of `like`."""
        super().__init__()
        self.d = d
        exact = torch.zeros(d + 2, d, dtype=torch.float64, device=like.device)
        self.register_buffer("exact", exact)
        width = aligned_width(d)
        self.register_buffer("base", like.new_zeros(d + 2, width), persistent=False)  # exact, rounded
        self.register_buffer("table", like.new_zeros(4 * d + 4, width))
        self.register_buffer("deviation", like.new_zeros(2, d))  # of the diagonals of U⁻ᵀ and U from 1
        self.counters = Counters()
        self._bind()
        self.set_frame()

    def _bind(self) -> None:
        """Name the parts of the buffers, which are new ones."""
        self.parts = Parts(self.table, self.base, self.deviation)

    def bind_again(self) -> None:
        """Name the parts again if the buffers were moved behind our back, as pickling for another process does."""
        kept = self._buffers
        if self.parts.addresses != tuple(kept[name].data_ptr() for name in ("table", "base", "deviation")):  # type: ignore[union-attr]
            self._bind()

    # ---- the parts by name ---------------------------------------------------------------------------------------
    @property
    def version(self) -> int:
        return self.counters.version

    @property
    def value(self) -> Tensor:
        return self.parts.value

    @property
    def Q(self) -> Tensor:
        return self.parts.Q

    @property
    def omega(self) -> Tensor:
        return self.parts.omega

    @property
    def w_bar(self) -> Tensor:
        return self.parts.w_bar

    @property
    def U_inv_T(self) -> Tensor:
        return self.parts.U_inv_T

    @property
    def U(self) -> Tensor:
        return self.parts.U

    @property
    def recent(self) -> Tensor:
        return self.parts.recent

    def squared_norm(self) -> float:
        """Return ‖W‖²_F = tr Q."""
        return max(0.0, float(self.exactly("Q").trace()))

    # ---- updating ------------------------------------------------------------------------------------------------
    def change(self, left: Tensor, H: Tensor, J: Tensor, BH: Tensor) -> None:
        """[U | recent] ← itself − left·H and U⁻ᵀ ← U⁻ᵀ + Jᵀ·BH, for left (2d+2,m) and H, J, BH (m,d)."""
        with self.changing_frame():
            self.parts.U_inv_T.addmm_(J.T, BH)
            self.parts.U_and_recent.addmm_(left, H, alpha=-1)
        self.commit()

    def commit(self) -> None:
        """Make Q, ω, w̄ = exact + recent after `recent` has changed. Q is the symmetric part: both halves are added."""
        self._add_up()
        self.count_update()

    def count_update(self) -> None:
        """Note that an update has been added up; now and then, fold it with those before it."""
        counters = self.counters
        counters.version += 1
        counters.since_fold += 1
        if counters.since_fold >= FOLD_EVERY:
            self.fold()
            self._refine_inverse()

    def _add_up(self) -> None:
        d, gram, recent = self.d, self.parts.gram_numbers, self.parts.recent_numbers
        (torch if isinstance(gram, Tensor) else np).add(self.parts.base_numbers, recent, out=gram)
        gram[:d, :d] += recent[:d, :d].T

    def fold(self) -> None:
        """exact ← exact + recent, recent ← 0."""
        self.bind_again()
        d = self.d
        self.exact[:d] += self.recent[:d] + self.recent[:d].T.to(torch.float64)
        self.exact[d:] += self.recent[d:]
        self.recent.zero_()
        self.counters.since_fold = 0
        self._rebase()

    def _rebase(self) -> None:
        """Compute what is derived: base from `exact`, Q, ω, w̄ from both, and the diagonals from `deviation`."""
        self.base[:, : self.d] = self.exact
        self._add_up()
        self._restore_diagonals()

    def _refine_inverse(self) -> None:
        """Take one of Newton's steps: U⁻¹ ← U⁻¹ + U⁻¹(I − U U⁻¹), in float64. O(d³).

        Where U⁻¹ is off by δ, every row of V that is written is off by δ times its change, and always the same way.
        """
        U, U_inv_T = self.exactly("U"), self.exactly("U_inv_T")
        residual = (U_inv_T @ U.T).neg_()
        residual.diagonal().add_(1)
        self._set_frame(U, U_inv_T.addmm_(residual, U_inv_T))

    @contextmanager
    def changing_frame(self) -> Iterator[None]:
        """While changes are added to U and U⁻ᵀ, the diagonals are without their 1."""
        self.bind_again()
        diagonals, deviation = self.parts.diagonals, self.parts.deviation_numbers
        diagonals[:] = deviation
        yield
        deviation[:] = diagonals
        diagonals += 1

    def _restore_diagonals(self) -> None:
        """Compute the diagonals from `deviation`."""
        self.parts.diagonals[:] = self.parts.deviation_numbers + 1

    def assign(self, **gram: Tensor) -> None:
        """Set Q, omega or w_bar to new float64 values."""
        self.fold()
        for name, new in gram.items():
            self._part(self.exact, name).copy_(new)
        self._rebase()
        self.counters.version += 1

    def _part(self, stack: Tensor, name: str) -> Tensor:
        d = self.d
        start, stop = {"Q": (0, d), "omega": (d, d + 1), "w_bar": (d + 1, d + 2)}[name]
        return stack[start:stop]

    def exactly(self, name: str) -> Tensor:
        """Return Q, omega, w_bar, U or U_inv_T in float64, as a new tensor."""
        if name in ("U_inv_T", "U"):
            frame: Tensor = getattr(self, name).to(torch.float64, copy=True)
            frame.diagonal().copy_(self.deviation[int(name == "U")]).add_(1)
            return frame
        recent = self._part(self.recent, name).to(torch.float64)
        return self._part(self.exact, name) + (recent + recent.T if name == "Q" else recent)

    def repair(self, X: Tensor, alphas: list[float], Y: Tensor) -> None:
        """U ← E⁻¹U and U⁻ᵀ ← E U⁻ᵀ for E = E_1 … E_k, E_j = I + α_j x_j x_jᵀ, rows x of X (k,d). V·E is the caller's.

        In float64: what V will be multiplied by and what U was divided by must cancel to full precision. Then U⁻¹ is
        corrected along the right singular vectors Y (k,d) of the same values: U⁻¹ ← U⁻¹ + Yᵀ(Y − (YU⁻¹)U)U⁻¹, Newton's
        step on these directions. The update of U⁻¹ by T⁻¹ amplifies its error exactly where U shrinks.
        """
        X, Y = X.to(torch.float64).contiguous(), Y.to(torch.float64).contiguous()
        kernel = kernel_for(self.table)
        self.bind_again()
        if kernel is not None and self.table.dtype == self.deviation.dtype:
            given, scratch, width = X.new_tensor(alphas), X.new_empty(2 * len(X) + 1, self.d), self.table.shape[1]
            place = self.d, width, self.U_inv_T.data_ptr(), self.deviation.data_ptr()
            repairs = len(X), X.data_ptr(), given.data_ptr(), Y.data_ptr()
            kernel.repair(*place, *repairs, scratch.data_ptr())
            self.counters.version += 1
            return
        U, U_inv_T = self.exactly("U"), self.exactly("U_inv_T")
        overlaps = X @ X.T
        inverse = [-a / (1 + a * n2) for a, n2 in zip(alphas, overlaps.diagonal().tolist(), strict=True)]
        for frame, factors in ((U, inverse), (U_inv_T, alphas)):
            rows = X @ frame
            scaled = torch.tensor(factors, dtype=torch.float64, device=X.device)[:, None] * X
            for j in range(1, len(X)):  # x_jᵀ meets what the repairs before it have made of U
                rows[j] += (X[j] @ scaled[:j].T) @ rows[:j]
            frame.addmm_(scaled.T, rows)
        residual = Y - (Y @ U_inv_T.T) @ U
        U_inv_T.addmm_((residual @ U_inv_T.T).T, Y)
        self._set_frame(U, U_inv_T)

    def scale_(self, rho: float) -> None:
        """W ← ρW: U, ω, w̄ by ρ, U⁻ᵀ by 1/ρ, Q by ρ²."""
        self.bind_again()
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
        self.bind_again()
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
        self._bind()
        self._rebase()
        self.counters.version += 1  # a minibatch on its way knows the buffers as they were
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "parts"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._bind()

    def get_extra_state(self) -> Tensor:
        """The updates since the last fold: a resumed run must fold at the same steps."""
        return torch.tensor(self.counters.since_fold)

    def set_extra_state(self, state: Tensor) -> None:
        self.counters.since_fold = int(state)

    def _load_from_state_dict(self, *args: object, **kwargs: object) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        # they may have been replaced by others
        self.table, self.deviation = self.table.contiguous(), self.deviation.contiguous()
        self.base = self.base.to(self.table)
        self._bind()
        self._rebase()
        self.counters.version += 1
