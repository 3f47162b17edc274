"""The operations of the factored output layer's step, its stabiliser and its history: as `ops`, one function each."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, get_num_threads

from lstlm.kernels import choice, reference
from lstlm.kernels.choice import Impl, native_for
from lstlm.kernels.layout import Layout
from lstlm.kernels.ops import AT_ONCE, aligned
from lstlm.kernels.targets import Targets


class Tables(NamedTuple):
    """The d-sized state: see `spherical/state.py`. table (4d+4,width), base (d+2,width), deviation (2,d)."""

    table: Tensor
    base: Tensor
    deviation: Tensor


class Shrinking(NamedTuple):
    """A = HHᵀ B (m,m), b = 2η dq, and room for what comes of it; trace |A|, trace A, Σ |A_ij A_ji| bound T = I − HᵀBH.

    The bounds are numbers on the CPU, and tensors on other devices, where the host does not look.
    """

    squares: Tensor  # (3,m,m), A first
    absolute: float | Tensor
    trace: float | Tensor
    products: float | Tensor

    @property
    def A(self) -> Tensor:
        return self.squares[0]


def low_rank_outputs(
    table: Tensor, h: Tensor, rows: Tensor, targets: Targets, p: Tensor | None, *, impl: Impl = "auto"
) -> tuple[Tensor, Tensor, Tensor]:
    """Return Hᵀ (d,m), with the constant feature, what the table makes of it, and the outputs q, s, o (2m+n,).

    h (m,hidden), rows of V (u,d) for the targets' words, p (n,). The outputs are in float64.
    """
    if (code := native_for(impl, table)) is None:
        return reference.low_rank_outputs(table, h, rows, targets, p)
    m, d = targets.m, rows.shape[1]
    HT, products = h.new_empty(d, m), h.new_empty(5 * d + 4, m)
    outputs = h.new_empty(2 * m + targets.n, dtype=torch.float64)
    code.low_rank_outputs(table, h, rows, *targets.bags, p, HT, products, outputs, get_num_threads())
    return HT, products, outputs


def losses(
    loss: tuple[int, float, float],
    like: Tensor,
    outputs: Tensor,
    targets: Targets,
    p: Tensor | None,
    D: float,
    upstream: Tensor | None,
    *,
    impl: Impl = "auto",
) -> tuple[Tensor, bool] | None:
    """Return ℓ, and dq, ds, do times upstream (m,), 1/m where None, as (3m+n,); and whether all of it is finite.

    None where compiled code is not at work: the torch form is the loss's own formula. `loss` is its number in
    native/common.h and its parameters; `like` is a tensor of the compute dtype.
    """
    if (code := native_for(impl, like)) is None:
        return None
    partials = like.new_empty(3 * targets.m + targets.n)
    finite = code.losses(partials, *loss, D, outputs, p, targets.given, targets.offsets, upstream, get_num_threads())
    return partials, bool(finite)


def low_rank_backward(
    table: Tensor,
    rows: Tensor,
    targets: Targets,
    p: Tensor | None,
    partials: Tensor,
    products: Tensor,
    *,
    impl: Impl = "auto",
) -> Tensor:
    """Return ∇Hᵀ (d,m), the caller's to change; X of the products becomes YW + dq ∘ HQ + ds ⊗ w̄."""
    if (code := native_for(impl, table)) is None:
        return reference.low_rank_backward(table, rows, targets, p, partials, products)
    gradient = products.new_empty(rows.shape[1], targets.m)
    code.low_rank_backward(table, rows, *targets.bags, p, partials, products, gradient, get_num_threads())
    return gradient


def low_rank_shrink(HT: Tensor, dq: Tensor, eta: float, *, impl: Impl = "auto") -> Shrinking:
    """Return A = HHᵀ B and what bounds its eigenvalues, for Hᵀ (d,m), dq (m,). O(m²d)."""
    m = HT.shape[1]
    squares = HT.new_empty(3, m, m)
    if (code := native_for(impl, HT)) is not None:
        return Shrinking(squares, *code.low_rank_shrink(HT, dq, eta, squares, get_num_threads()))
    squares[0], bounds = reference.low_rank_shrink(HT, dq, eta)
    return Shrinking(squares, *(float(bound) for bound in bounds)) if HT.is_cpu else Shrinking(squares, *bounds)


def low_rank_update(
    tables: Tables,
    targets: Targets,
    HT: Tensor,
    partials: Tensor,
    products: Tensor,
    p_norm2: float,
    shrinking: Shrinking,
    eta: float,
    inverse: Tensor | int,
    allowed: Tensor | None = None,
    *,
    impl: Impl = "auto",
) -> Tensor:
    """Update the d-sized state, and return J = (I − A)⁻¹ HU⁻¹ = HU'⁻¹ (m,d); V is to be changed by −η YᵀJ.

    `inverse` is (I − A)⁻¹ (m,m), or of how many terms a series gives it. Where `allowed`, on a device, is False,
    nothing changes.
    """
    terms = inverse if isinstance(inverse, int) else 0
    if (code := native_for(impl, HT)) is None:
        if isinstance(inverse, int):
            inverse = reference.geometric_series(shrinking.A, inverse)
            inverse.diagonal().add_(1)
        return reference.low_rank_update(tables, targets, HT, partials, products, p_norm2, eta, inverse, allowed)
    if isinstance(inverse, Tensor):
        shrinking.squares[2] = inverse
    d, m = HT.shape
    J, BHT = aligned(HT, m, d), torch.empty_like(HT)
    links = targets.ids.new_empty(targets.n + targets.words.shape[0] + 1)
    room = products, shrinking.squares, BHT, J, get_num_threads()
    code.low_rank_update(*tables, HT, partials, *targets.bags, links, p_norm2, eta, terms, *room)
    return J


def add_up(table: Tensor, base: Tensor, *, impl: Impl = "auto") -> None:
    """Q, ω, w̄ ← base + recent, and Q has the transpose of its recent changes too."""
    if (code := native_for(impl, table)) is None:
        reference.add_up(table, base)
    else:
        code.add_up(table, base, get_num_threads())


# ---- the frame U -----------------------------------------------------------------------------------------------------
def power_iteration(A: Tensor, X: Tensor, times: int, *, impl: Impl = "auto") -> tuple[Tensor, Tensor]:
    """Return X ← orthonormal(X A Aᵀ), `times` times over, and X A, for the few rows of X (k,d), in float64."""
    code = native_for(impl, A) if A.stride(1) == 1 else None
    if code is None:
        return reference.power_iteration(A, X.double(), times)
    X = X.to(torch.float64, copy=True, memory_format=torch.contiguous_format)
    image = torch.empty_like(X)
    code.power_iteration(A, times, X, image)
    return X, image


def repair_frame(tables: Tables, X: Tensor, alphas: Tensor, Y: Tensor, *, impl: Impl = "auto") -> None:
    """U ← E⁻¹U and U⁻ᵀ ← E U⁻ᵀ for E = E_1 … E_k, E_j = I + α_j x_j x_jᵀ, rows x of X (k,d), α (k,) in float64.

    Then U⁻¹ is corrected along the right singular vectors Y (k,d) of the same values by Newton's step on these
    directions, U⁻¹ ← U⁻¹ + Yᵀ(Y − (YU⁻¹)U)U⁻¹: the update of U⁻¹ by T⁻¹ amplifies its error exactly where U shrinks.
    """
    table, _, deviation = tables
    at = Layout.of(table)
    U_inv_T, U = table[at.U_inv_T, : at.d], table[at.U, : at.d]
    X, Y = X.double().contiguous(), Y.double().contiguous()
    if (code := native_for(impl, table)) is not None:
        code.repair_frame(U_inv_T, U, deviation, X, alphas, Y, X.new_empty(2 * len(X) + 1, at.d))
        return
    wide = [frame.double() for frame in (U_inv_T, U)]
    for frame, apart in zip(wide, deviation, strict=True):
        frame.diagonal().copy_(apart).add_(1)
    reference.repair_frame(wide[1], wide[0], X, alphas, Y)
    for stored, frame, apart in zip((U_inv_T, U), wide, deviation, strict=True):
        stored.copy_(frame)
        apart.copy_(frame.diagonal() - 1)
        stored.diagonal().copy_(apart).add_(1)


# ---- rows that missed repairs ----------------------------------------------------------------------------------------
def repair_rows(
    rows: Tensor, seen: Tensor, X: Tensor, Y: Tensor, first: int, count: int, *, impl: Impl = "auto"
) -> None:
    """v ← v + ((v Xᵀ) ∘ [j ≥ seen]) Y for each v of rows (n,d); seen (n,), int64.

    Its repairs are `count` of those of X, Y (…,d), which lie one after the other, from the one with number `first` on.
    """
    if (code := native_for(impl, rows)) is None:
        X, Y = (repairs.view(-1, rows.shape[1])[first : first + count] for repairs in (X, Y))
        reference.repair_rows(rows, seen, X, Y)
    else:
        order, spare = _room(rows, count)
        code.repair_rows(rows, seen, X, Y, first, count, order, spare, get_num_threads())


def _room(rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return what compiled code needs to take rows (n,d) through `count` repairs."""
    n, d = rows.shape
    return rows.new_empty(n + count + 2, dtype=torch.int64), rows.new_empty(AT_ONCE, count + d)


class Segments(NamedTuple):
    """Of a history: X, Y (slots,repairs,d), U (slots,d,d), onward (slots,2,d,d), reached (slots,), which is int64."""

    X: Tensor
    Y: Tensor
    U: Tensor
    onward: Tensor
    reached: Tensor


def leave_segments(
    rows: Tensor, segment: Tensor, seen: Tensor, open: int, segments: Segments, *, impl: Impl = "auto"
) -> Tensor:
    """Return rows (n,d) of closed segments as they are at the start of the open one.

    They are sorted by segment (n,), then by how many of its repairs they have `seen` (n,); both int64.
    """
    out, slots = torch.empty_like(rows), len(segments.reached)
    if (code := native_for(impl, rows)) is not None:
        room = out, *_room(rows, segments.X.shape[1]), torch.empty_like(rows)
        code.leave_segments(rows, segment, seen, open, *segments, *room, get_num_threads())
        return out
    numbers, counts = torch.unique_consecutive(segment, return_counts=True)
    stop = 0
    for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
        start, stop, slot = stop, stop + count, number % slots
        fresh = start + int((seen[start:stop] == 0).sum())
        reference.repair_rows(rows[fresh:stop], seen[fresh:stop], segments.X[slot], segments.Y[slot])
        torch.mm(rows[start:fresh], segments.onward[slot, 0], out=out[start:fresh])
        torch.mm(rows[fresh:stop], segments.onward[slot, 1], out=out[fresh:stop])
        for later in range(int(segments.reached[slot]), open):
            out[start:stop] = out[start:stop] @ segments.U[later % slots]
    return out


def read_stamps(stamp: Tensor, ids: Tensor, start: int, count: int, *, impl: Impl = "auto") -> Tensor | None:
    """Return how many of the `count` repairs since `start` rows ids (n,) have seen; None where one is older than that.

    stamp (D,), int32. On devices other than the CPU this is not checked: there no row may be older.
    """
    if choice.native is not None and impl != "torch" and stamp.is_cpu and ids.dtype == torch.int64:
        seen = torch.empty_like(ids, memory_format=torch.contiguous_format)
        return seen if choice.native.read_stamps(stamp, ids.contiguous(), start, count, seen) else None
    seen = stamp.index_select(0, ids).long() - start
    return None if stamp.is_cpu and bool(((seen < 0) | (seen > count)).any()) else seen
