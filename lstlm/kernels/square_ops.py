"""The operations of the step for m above d, `spherical/steps/square.py`: as `ops`, one function each."""

from __future__ import annotations

import torch
from torch import Tensor, get_num_threads

from lstlm.kernels import square_reference as reference
from lstlm.kernels.choice import Impl, native_for
from lstlm.kernels.ops import aligned
from lstlm.kernels.reference import geometric_series
from lstlm.kernels.step_ops import Tables
from lstlm.kernels.targets import Targets


def square_outputs(
    table: Tensor, h: Tensor, rows: Tensor, targets: Targets, p: Tensor | None, *, impl: Impl = "auto"
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return H (m,d), HQ | Hω | Hw̄ (m,d+2), W = VU + p ωᵀ (u,d), and the outputs q, s, o (2m+n,) in float64.

    h (m,hidden), rows of V (u,d) for the targets' words, p (u,).
    """
    if (code := native_for(impl, table)) is None:
        return reference.square_outputs(table, h, rows, targets, p)
    (m, _), (u, d) = h.shape, rows.shape
    H, products, W = aligned(h, m, d), aligned(h, m, d + 2), aligned(h, u, d)
    outputs = h.new_empty(2 * m + len(targets.ids), dtype=torch.float64)
    bags = targets.place, targets.offsets
    code.square_outputs(table, h, rows, *bags, p, H, products, W, outputs, get_num_threads())
    return H, products, W, outputs


def square_backward(
    table: Tensor, W: Tensor, targets: Targets, partials: Tensor, products: Tensor, *, impl: Impl = "auto"
) -> Tensor:
    """Return ∇H = 2 dq ∘ HQ + YW + ds ⊗ w̄  (m,d), the caller's to change; W (u,d), products (m,d+2)."""
    if (code := native_for(impl, table)) is None:
        return reference.square_backward(table, W, targets, partials, products)
    gradient = aligned(W, targets.m, W.shape[1])
    code.square_backward(table, W, targets.place, targets.offsets, partials, products, gradient, get_num_threads())
    return gradient


def square_sums(
    H: Tensor, W: Tensor, targets: Targets, p: Tensor | None, partials: Tensor, eta: float, *, impl: Impl = "auto"
) -> tuple[Tensor, Tensor, float | Tensor]:
    """Return F = YᵀH (u,d), K = HᵀBH, A = WᵀF, FᵀF, Fᵀp, c = η Hᵀds as (3d+2,d), and ‖K‖².

    b = 2η dq, W (u,d), p (u,).
    """
    if (code := native_for(impl, H)) is None:
        return reference.square_sums(H, W, targets, p, partials, eta)
    d, u = H.shape[1], len(W)
    F, sums = aligned(H, u, d), aligned(H, 3 * d + 2, d)
    bags = targets.place, targets.offsets
    squares: float = code.square_sums(H, W, *bags, p, partials, eta, F, sums, get_num_threads())
    return F, sums, squares


def symmetric_series(K: Tensor, terms: int, *, impl: Impl = "auto") -> Tensor:
    """Return K + … + Kⁿ for n = `terms`, a power of 2, and a symmetric K (d,d)."""
    if (code := native_for(impl, K)) is None:
        return geometric_series(K, terms)
    total, power, spare = (torch.empty_like(K, memory_format=torch.contiguous_format) for _ in range(3))
    code.symmetric_series(K, terms, total, power, spare, get_num_threads())
    return total


def square_update(
    tables: Tables,
    sums: Tensor,
    S: Tensor,
    p_norm2: float,
    eta: float,
    allowed: Tensor | None = None,
    *,
    impl: Impl = "auto",
) -> None:
    """Update the d-sized state, given the sums (3d+2,d) and S = T⁻¹ − I (d,d), T = I − K.

    Where `allowed`, on a device, is False, nothing changes.
    """
    if (code := native_for(impl, sums)) is None:
        reference.square_update(tables, sums, S, p_norm2, eta, allowed)
    else:
        d = sums.shape[1]
        code.square_update(*tables, sums, S, p_norm2, eta, aligned(sums, d + 2, d), get_num_threads())
