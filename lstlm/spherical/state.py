"""What the factored layer remembers: W = V U + p ωᵀ, and Q = WᵀW, w̄ = Wᵀp, U⁻ᵀ beside it.

p is the vector of ones, or √π for a softmax that is tilted by a prior π over the outputs.

The five d-sized quantities stand in one matrix `value` of 3d+2 rows, so that one product with the minibatch reads all:

    rows      [0, d)   d      d+1    [d+2, 2d+2)   [2d+2, 3d+2)
    contents  Q        ω      w̄      U⁻ᵀ           U

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

import torch
from torch import Tensor, nn

from lstlm.spherical.history import History

FOLD_EVERY = 128
BLOCK_ROWS = 4096  # rows of V that one pass holds at a time: 5 MB at d = 300 in float32


class Counters:
    """Numbers that change with every update: kept apart, because a module's own attributes are slow to set."""

    def __init__(self) -> None:
        self.version = 0  # counts the changes of W, so that a stale minibatch is noticed
        self.since_fold = 0


class FactoredState(nn.Module):
    """V (D,d), the stacked d-sized state, and the history that brings rows of V to the current frame."""

    V: Tensor
    exact: Tensor
    recent: Tensor
    base: Tensor
    value: Tensor
    deviation: Tensor
    p: Tensor | None

    def __init__(self, W: Tensor, p: Tensor | None = None, *, lazy: bool = True) -> None:
        """Start from W (D,d), which becomes V: U = I, ω = 0. `lazy` makes room for repairs that are not swept."""
        super().__init__()
        self.d = d = W.shape[1]
        exact = torch.zeros(d + 2, d, dtype=torch.float64, device=W.device)
        self.register_buffer("V", W)
        self.register_buffer("p", None if p is None else p.to(W))
        self.register_buffer("exact", exact)
        self.register_buffer("recent", torch.zeros_like(exact, dtype=W.dtype))
        self.register_buffer("base", torch.zeros_like(exact, dtype=W.dtype), persistent=False)  # exact, rounded
        self.register_buffer("value", W.new_zeros(3 * d + 2, d))
        self.register_buffer("deviation", W.new_zeros(2, d))  # of the diagonals of U⁻ᵀ and U from 1
        self.counters = Counters()
        self.history = self._new_history(lazy)
        self.p_norm2 = float(self.D) if p is None else float(p.double().square().sum())
        self.set_frame()
        self.refresh_gram(at_rest=True)

    # ---- the parts by name ---------------------------------------------------------------------------------------
    @property
    def D(self) -> int:
        return self.V.shape[0]

    @property
    def version(self) -> int:
        return self.counters.version

    @property
    def Q(self) -> Tensor:
        return self.value[: self.d]

    @property
    def omega(self) -> Tensor:
        return self.value[self.d]

    @property
    def w_bar(self) -> Tensor:
        return self.value[self.d + 1]

    @property
    def U_inv_T(self) -> Tensor:
        return self.value[self.d + 2 : 2 * self.d + 2]

    @property
    def U(self) -> Tensor:
        return self.value[2 * self.d + 2 :]

    @property
    def stored_rows(self) -> int:
        """How many of the D rows are kept here: all, unless several processes share them."""
        return self.V.shape[0]

    @property
    def like(self) -> Tensor:
        """A tensor of the layer's dtype and device."""
        return self.V

    def squared_norm(self) -> float:
        """Return ‖W‖²_F = tr Q."""
        return max(0.0, float(self.exactly("Q").trace()))

    # ---- updating the stack --------------------------------------------------------------------------------------
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
        value = torch.add(self.base, recent, out=self.value[: d + 2])
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
        torch.add(self.deviation, 1, out=self._diagonals())

    def _refine_inverse(self) -> None:
        """Take one of Newton's steps: U⁻¹ ← U⁻¹ + U⁻¹(I − U U⁻¹), in float64. O(d³).

        Where U⁻¹ is off by δ, every row of V that is written is off by δ times its change, always in the same direction.
        """
        U, U_inv_T = self.exactly("U"), self.exactly("U_inv_T")
        residual = (U_inv_T @ U.T).neg_()
        residual.diagonal().add_(1)
        self._set_frame(U, U_inv_T.addmm_(residual, U_inv_T))

    def _diagonals(self) -> Tensor:
        """Return the diagonals of U⁻ᵀ and U, a view (2,d)."""
        d = self.d
        return self.value[d + 2 :].view(2, d, d).diagonal(dim1=1, dim2=2)

    @contextmanager
    def changing_frame(self) -> Iterator[None]:
        """While changes are added to U and U⁻ᵀ, the diagonals are without their 1."""
        diagonals = self._diagonals()
        diagonals.copy_(self.deviation)
        yield
        self.deviation.copy_(diagonals)
        diagonals.add_(1)

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
            U = U_inv_T = torch.eye(self.d, dtype=torch.float64, device=self.V.device)
        else:
            U_inv_T = torch.linalg.inv(U).T
        self._set_frame(U, U_inv_T)

    def _set_frame(self, U: Tensor, U_inv_T: Tensor) -> None:
        self.U.copy_(U)
        self.U_inv_T.copy_(U_inv_T)
        self.deviation.copy_(torch.stack([U_inv_T.diagonal(), U.diagonal()]) - 1)
        self.counters.version += 1

    def _new_history(self, lazy: bool) -> History:
        return History(self.stored_rows, self.d, like=self.V, segments=None if lazy else 0)

    def total(self, x: Tensor) -> Tensor:
        """Return the sum of x over the processes that share the rows; x itself where all are kept here."""
        return x

    # ---- rows ----------------------------------------------------------------------------------------------------
    def read(self, ids: Tensor | slice) -> Tensor:
        """Return rows of V (n,d) in the current frame, as if every past repair had swept them; a copy."""
        rows = self.V[ids].clone() if isinstance(ids, slice) else self.V.index_select(0, ids)
        return self.history.bring_forward(rows, ids)

    def write(self, ids: Tensor | slice, rows: Tensor) -> None:
        """V[ids] ← rows (n,d), given in the current frame."""
        if isinstance(ids, slice):
            self.V[ids] = rows
        else:
            self.V.index_copy_(0, ids, rows)
        self.history.written(ids)

    def add_to_rows(self, ids: Tensor, rows: Tensor, change: Tensor) -> None:
        """V[ids] ← rows + change, where `rows` is what read(ids) gave; changes of a repeated id add up."""
        if not self.history.empty:
            self.write(ids, rows)  # brings them to the current frame; a repeated id writes the same row twice
        # index_add_, not V[ids] += …: a word that is the target twice must count twice
        self.V.index_add_(0, ids, change)

    def weight_rows(self, ids: Tensor | slice) -> Tensor:
        """Return rows of W (n,d): v_i U + p_i ω."""
        W = self.read(ids) @ self.U
        return W.add_(self.omega) if self.p is None else W.addr_(self.p_of(self.p, ids), self.omega)

    def p_of(self, p: Tensor, ids: Tensor | slice) -> Tensor:
        """Return the entries of p (D,) that belong to rows: outputs by id, or a slice of the rows kept here."""
        return p[ids]

    def blocks(self) -> Iterator[slice]:
        """Cover the rows kept here in slices of at most BLOCK_ROWS."""
        for start in range(0, self.stored_rows, BLOCK_ROWS):
            yield slice(start, min(start + BLOCK_ROWS, self.stored_rows))

    def map_rows(self, change: Callable[[slice, Tensor], Tensor]) -> None:
        """V ← change(rows) block by block, rows given in the current frame; ends with an empty history."""
        for rows in self.blocks():
            self.V[rows] = change(rows, self.read(rows))
        self.history.clear()

    def materialise(self) -> Tensor:
        """Return W (D,d). O(Dd²): for the end of training, tests and export."""
        return torch.cat([self.weight_rows(rows) for rows in self.blocks()])

    def restore(self) -> None:
        """V ← V U + p ωᵀ, U ← I, ω ← 0, and Q, w̄ anew from V. O(Dd²); W does not change."""
        self.map_rows(lambda rows, _: self.weight_rows(rows))
        self.assign(omega=torch.zeros_like(self.exact[:1]))
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
        self.assign(Q=self.total(Q), w_bar=self.total(w_bar)[None])

    def reset(self, W: Tensor) -> None:
        """Start again from W (D,d): V = W, U = I, ω = 0."""
        self.V.copy_(W)
        self.history.clear()
        self.assign(omega=torch.zeros_like(self.exact[:1]))
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

    # ---- module plumbing -----------------------------------------------------------------------------------------
    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> FactoredState:
        # `exact` follows the device but never the dtype: module.float() must not round it.
        exact = self.exact
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.exact = exact.to(self.V.device)
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
