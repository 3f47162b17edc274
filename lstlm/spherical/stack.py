"""The d-sized part of what the factored layer remembers: Q, ω, w̄, U⁻ᵀ and U.

They stand in one matrix `table`, so that one product with the minibatch reads all that a step reads, `value`, and one
product adds to all that it changes:

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

import torch
from torch import Tensor, nn

from lstlm.spherical.host import to_host

FOLD_EVERY = 128


class Counters:
    """Numbers that change with every update: kept apart, because a module's own attributes are slow to set."""

    def __init__(self) -> None:
        self.version = 0  # counts the changes of W, so that a stale minibatch is noticed
        self.since_fold = 0


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
        self.register_buffer("base", torch.zeros_like(exact, dtype=like.dtype), persistent=False)  # exact, rounded
        self.register_buffer("table", like.new_zeros(4 * d + 4, d))
        self.register_buffer("deviation", like.new_zeros(2, d))  # of the diagonals of U⁻ᵀ and U from 1
        self.counters = Counters()
        self.set_frame()

    # ---- the parts by name ---------------------------------------------------------------------------------------
    @property
    def version(self) -> int:
        return self.counters.version

    @property
    def value(self) -> Tensor:
        return self.table[: 3 * self.d + 2]

    @property
    def Q(self) -> Tensor:
        return self.table[: self.d]

    @property
    def omega(self) -> Tensor:
        return self.table[self.d]

    @property
    def w_bar(self) -> Tensor:
        return self.table[self.d + 1]

    @property
    def U_inv_T(self) -> Tensor:
        return self.table[self.d + 2 : 2 * self.d + 2]

    @property
    def U(self) -> Tensor:
        return self.table[2 * self.d + 2 : 3 * self.d + 2]

    @property
    def recent(self) -> Tensor:
        return self.table[3 * self.d + 2 :]

    def squared_norm(self) -> float:
        """Return ‖W‖²_F = tr Q."""
        return max(0.0, float(self.exactly("Q").trace()))

    # ---- updating ------------------------------------------------------------------------------------------------
    def subtract(self, left: Tensor, H: Tensor, H_inv: Tensor | None = None) -> None:
        """[U⁻ᵀ | U | recent] ← itself − left·H, left (3d+2,m) and H (m,d); H_inv takes the place of H for U⁻ᵀ."""
        with self.changing_frame():
            if H_inv is None:
                self.table[self.d + 2 :].addmm_(left, H, alpha=-1)
            else:
                self.U_inv_T.addmm_(left[: self.d], H_inv, alpha=-1)
                self.table[2 * self.d + 2 :].addmm_(left[self.d :], H, alpha=-1)
        self.commit()

    def commit(self) -> None:
        """Make Q, ω, w̄ = exact + recent after `recent` has changed. Q is the symmetric part: both halves are added."""
        self._add_up()
        self.counters.version += 1
        self.counters.since_fold += 1
        if self.counters.since_fold >= FOLD_EVERY:
            self.fold()
            self._refine_inverse()

    def _add_up(self) -> None:
        d, recent = self.d, self.recent
        value = torch.add(self.base, recent, out=self.table[: d + 2])
        value[:d] += recent[:d].T

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
        self.base.copy_(self.exact)
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

    def _diagonals(self) -> tuple[Any, Any]:
        """Return the diagonals of U⁻ᵀ and U, a view (2,d), and `deviation`; as numpy arrays on the CPU, see `host`."""
        d = self.d
        table, deviation = (to_host(x) if x.is_cpu else x for x in (self.table, self.deviation))
        return table[d + 2 : 3 * d + 2].reshape(2, d * d)[:, :: d + 1], deviation

    @contextmanager
    def changing_frame(self) -> Iterator[None]:
        """While changes are added to U and U⁻ᵀ, the diagonals are without their 1."""
        diagonals, deviation = self._diagonals()
        diagonals[:] = deviation
        yield
        deviation[:] = diagonals
        diagonals += 1

    def _restore_diagonals(self) -> None:
        """Compute the diagonals from `deviation`."""
        diagonals, deviation = self._diagonals()
        diagonals[:] = deviation + 1

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
        X, Y = X.to(torch.float64), Y.to(torch.float64)
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
        return self

    def get_extra_state(self) -> Tensor:
        """The updates since the last fold: a resumed run must fold at the same steps."""
        return torch.tensor(self.counters.since_fold)

    def set_extra_state(self, state: Tensor) -> None:
        self.counters.since_fold = int(state)

    def _load_from_state_dict(self, *args: object, **kwargs: object) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._rebase()
        self.counters.version += 1
