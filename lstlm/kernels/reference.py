"""The torch form of each operation: for tensors on any device, to be read beside the mathematics.

Nothing here reads a number on the host, unless it is on the CPU, where that is free.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lstlm.kernels.layout import Layout

if TYPE_CHECKING:
    from lstlm.kernels.targets import Targets

Rows = slice | Tensor
CACHED = 1 << 18  # scores worked on at once: a chunk of rows that stays in the cache over max, exp and sum


def distinct(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return words (u,) and place, like ids: ids = words[place], each word once.

    On a device, how many there are is not known to the host: the first of them fills up the rest, u = ids.numel().
    """
    if ids.is_cpu:
        words, place = torch.unique(ids, return_inverse=True)
        return words, place
    ordered, order = ids.reshape(-1).sort()
    first = torch.ones_like(ordered)
    first[1:] = (ordered[1:] != ordered[:-1]).long()
    number = first.cumsum(0) - 1
    place = torch.empty_like(number).index_copy_(0, order, number).view(ids.shape)
    return ordered[:1].repeat(len(ordered)).index_copy_(0, number, ordered), place


def merge(targets: Targets) -> Tensor:
    """Return the values (n,): the first of an example's pairs with one output has the sum of theirs, the others 0."""
    pair = targets.example * len(targets.words) + targets.place
    ordered, order = pair.sort(stable=True)
    first = torch.ones_like(ordered, dtype=torch.bool)
    first[1:] = ordered[1:] != ordered[:-1]
    number = first.cumsum(0) - 1
    sums = torch.zeros_like(targets.values).index_add_(0, number, targets.values[order])
    return torch.empty_like(sums).index_copy_(0, order, torch.where(first, sums[number], 0.0))


def spread(values: Tensor, each: int) -> Tensor:
    """Return values (n,size), one for each id, given one for every `each` of them."""
    return values if each == 1 else values.repeat_interleave(each, 0)


def read_rows(table: Tensor, ids: Tensor, each: int, scale: float) -> Tensor:
    rows = table.index_select(0, ids)
    return rows if each == 1 and scale == 1 else rows.view(-1, each, table.shape[1]).sum(1).mul_(scale)


def add_rows(table: Tensor, ids: Tensor, values: Tensor, each: int, scale: float) -> None:
    # index_add_, not table[ids] += …: a word that is the target twice must count twice
    table.index_add_(0, ids, spread(values, each), alpha=scale)


def adagrad_rows(
    table: Tensor, squares: Tensor, ids: Tensor, values: Tensor, each: int, scale: float, lr: float, epsilon: float
) -> None:
    words, place = distinct(ids.to(torch.int64))
    summed = values.new_zeros(len(words), table.shape[1]).index_add_(0, place, spread(values, each), alpha=scale)
    more = summed.square().mean(1).to(squares.dtype)
    grown = squares.index_select(0, words).add_(more)
    # index_add_, not index_copy_: what fills up the words on a device adds 0 to the first of them
    squares.index_add_(0, words, more)
    table.index_add_(0, words, summed.div_(grown.sqrt_().add_(epsilon)[:, None]).to(table.dtype), alpha=-lr)


def adagrad_table(
    table: tuple[Tensor, Tensor | None, Tensor], gradient: tuple[Tensor, Tensor], ids: Rows, lr: float, epsilon: float
) -> None:
    (matrix, bias, squares), (G, g) = table, gradient
    square = torch.linalg.vecdot(G, G) + (0 if bias is None else g.square())
    squares[ids] += square / (G.shape[1] + (bias is not None))
    step = -lr / (squares[ids].sqrt() + epsilon)
    matrix[ids] += G * step[:, None]
    if bias is not None:
        bias[ids] += g * step


# ---- bags of rows ----------------------------------------------------------------------------------------------------
def dot_bags(rows: Tensor, targets: Targets, X: Tensor) -> Tensor:
    found: Tensor = torch.linalg.vecdot(rows.index_select(0, targets.place), targets.spread(X))
    return found.double()


def sum_bags(rows: Tensor, targets: Targets, weights: Tensor) -> Tensor:
    weighted = rows.index_select(0, targets.place).mul_(weights[:, None])
    if targets.each == 1:
        return weighted
    return rows.new_zeros(targets.m, rows.shape[1]).index_add_(0, targets.example, weighted)


def add_bags(rows: Tensor, targets: Targets, X: Tensor, weights: Tensor, times: float) -> None:
    # index_add_, not rows[place] += …: a word that is the target twice must count twice
    rows.index_add_(0, targets.place, targets.spread(X) * weights[:, None], alpha=times)


def cross_entropy(
    scores: Tensor, ids: Tensor, t: Tensor, bias: Tensor | None, scale: float, upstream: Tensor | None
) -> Tensor:
    if bias is not None:
        scores.add_(bias, alpha=scale)
    target, weight = (t * scores.gather(1, ids)).sum(1), t.sum(1)
    top, totals = scores.new_empty(2, len(scores))
    for start in range(0, len(scores), rows := max(1, CACHED // scores.shape[1])):
        chunk = scores[start : start + rows]
        top[start : start + rows] = high = chunk.amax(1)
        totals[start : start + rows] = chunk.sub_(high[:, None]).exp_().sum(1)
    scores.mul_((weight / totals)[:, None])
    # scatter_add_, not scores[ids] -= t: a word that is a target twice must count twice
    scores.scatter_add_(1, ids, -t)
    if upstream is not None:
        scores.mul_(upstream[:, None])
    losses: Tensor = weight * (totals.log() + top) - target
    return losses


# ---- the low-rank step -----------------------------------------------------------------------------------------------
def low_rank_outputs(
    table: Tensor, h: Tensor, rows: Tensor, targets: Targets, p: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return Hᵀ (d,m), products, and q, s, o (2m+n,) in float64; h (m,hidden), rows of V (u,d), p (n,)."""
    at, m = Layout.of(table), targets.m
    HT = h.new_ones(at.d, m)
    HT[: h.shape[1]] = h.T
    products = h.new_empty(at.product_rows, m)
    torch.mm(table[at.read, : at.d], HT, out=products[at.of_read])
    outputs = h.new_empty(2 * m + len(targets.ids), dtype=torch.float64)
    outputs[:m] = (HT.double() * products[at.HQ]).sum(0)
    outputs[m : 2 * m] = products[at.Hw_bar]
    shift = targets.spread(products[at.H_omega])
    outputs[2 * m :] = dot_bags(rows, targets, products[at.HU].T) + (shift if p is None else shift * p)
    return HT, products, outputs


def low_rank_backward(
    table: Tensor, rows: Tensor, targets: Targets, p: Tensor | None, partials: Tensor, products: Tensor
) -> Tensor:
    """Return ∇Hᵀ (d,m), ∇H = X + dq ∘ HQ; X ← YW + dq ∘ HQ + ds ⊗ w̄, with YW = (YV)U + Yp ⊗ ω."""
    at, m = Layout.of(table), targets.m
    dq, ds, do = partials[m : 2 * m], partials[2 * m : 3 * m], partials[3 * m :]
    X, HQ, Yp = products[at.X], products[at.HQ], products[at.w_bar_step]
    Yp.copy_(targets.total(do if p is None else do * p))
    U, omega = table[at.U, : at.d], table[at.omega, : at.d]
    torch.addmm(torch.outer(omega, Yp), U.T, sum_bags(rows, targets, do).T, out=X)
    X.addr_(table[at.w_bar, : at.d], ds).addcmul_(HQ, dq)
    products[at.Q_step] = gradient = torch.addcmul(X, HQ, dq)  # which the caller may change: update() reads the other
    return gradient


def half_gram(XT: Tensor, HT: Tensor, partials: Tensor, targets: Targets, Yp: Tensor, p_norm2: float) -> Tensor:
    """Return N = 2 (XHᵀ) diag(dq) + ½ YYᵀ + ds ⊗ (Yp + ½ ‖p‖² ds) (m,m), N + Nᵀ = EᵀE/η². O(m²d)."""
    m = targets.m
    dq, ds, do = partials[m : 2 * m], partials[2 * m : 3 * m], partials[3 * m :]
    N = (XT.T @ HT).mul_(2 * dq)
    u = len(targets.words)
    # index_add_: a word that is the target twice, even within one example, must count twice
    YT = do.new_zeros(u * m).index_add_(0, targets.place * m + targets.example, do).view(u, m)
    N += sum_bags(YT, targets, 0.5 * do)
    return N.addr_(ds, Yp + (0.5 * p_norm2) * ds)


def low_rank_shrink(HT: Tensor, dq: Tensor, eta: float) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """Return A = HHᵀ B (m,m), b = 2η dq, and trace |A|, trace A, Σ |A_ij A_ji|."""
    A = (HT.T @ HT).mul_(2 * eta * dq)
    diagonal = A.diagonal()
    return A, (diagonal.abs().sum(), diagonal.sum(), (A * A.T).abs().sum())


def geometric_series(A: Tensor, terms: int) -> Tensor:
    """Return A + … + Aⁿ for n = `terms`, a power of 2."""
    total, power, n = A, A, 1  # A + … + Aⁿ, and the power that comes next to double it
    while n < terms:
        power = A @ A if n == 1 else power
        total = total + power if n == 1 else torch.addmm(total, total, power)
        power = power @ power if n > 1 and 2 * n < terms else power
        n *= 2
    return total


def low_rank_update(
    tables: tuple[Tensor, Tensor, Tensor],
    targets: Targets,
    HT: Tensor,
    partials: Tensor,
    products: Tensor,
    p_norm2: float,
    eta: float,
    inverse: Tensor,
    allowed: Tensor | None,
) -> Tensor:
    """Update the d-sized state, and return J = (I − A)⁻¹ HU⁻¹ (m,d); nothing changes where `allowed` is False."""
    table, base, deviation = tables
    at, m = Layout.of(table), targets.m
    dq, ds, Yp = partials[m : 2 * m], partials[2 * m : 3 * m], products[at.w_bar_step]
    d, b = at.d, 2 * eta * dq
    N = half_gram(products[at.X], HT, partials, targets, Yp, p_norm2)
    products[at.Q_step].mul_(eta).addmm_(HT, N.T, alpha=-eta * eta)  # Rᵀ
    products[at.omega_step] = b * products[at.H_omega] + eta * ds
    products[at.w_bar_step] = b * products[at.Hw_bar] + eta * (Yp + p_norm2 * ds)
    J = inverse @ products[at.HU_inv].T
    products[at.HU].mul_(b)  # (UHᵀ)B
    U_inv_T_step, step = J.T @ (HT * b).T, products[at.HU_and_steps] @ HT.T
    if allowed is not None:
        U_inv_T_step, step, J = (torch.where(allowed, x, 0) for x in (U_inv_T_step, step, J))
    add_to_frame(table, deviation, U_inv_T_step, -step[:d])
    table[at.recent, :d] -= step[d:]
    add_up(table, base)
    return J


def add_to_frame(table: Tensor, deviation: Tensor, U_inv_T_step: Tensor, U_step: Tensor) -> None:
    """Add to U⁻ᵀ and U, whose diagonals are 1 + deviation (2,d), more exactly than the table says."""
    at = Layout.of(table)
    for which, (block, step) in enumerate(((at.U_inv_T, U_inv_T_step), (at.U, U_step))):
        frame = table[block, : at.d].add_(step)
        deviation[which] += step.diagonal()
        frame.diagonal().copy_(deviation[which]).add_(1)


def add_up(table: Tensor, base: Tensor) -> None:
    """Q, ω, w̄ ← base + recent, and Q has the transpose of its recent changes too."""
    at = Layout.of(table)
    recent = table[at.recent]
    torch.add(base, recent, out=table[at.gram])
    table[at.Q, : at.d] += recent[at.Q, : at.d].T


# ---- the frame U -----------------------------------------------------------------------------------------------------
def power_iteration(A: Tensor, X: Tensor, times: int) -> tuple[Tensor, Tensor]:
    wide = A.double()
    for _ in range(times):
        Q, R = torch.linalg.qr((X @ wide @ wide.T).T)
        X = (Q * R.diagonal().sign()).T  # as Gram and Schmidt would have it
    return X, X @ wide


def repair_frame(U: Tensor, U_inv_T: Tensor, X: Tensor, alphas: Tensor, Y: Tensor) -> None:
    """U ← E⁻¹U, U⁻ᵀ ← E U⁻ᵀ, E = Π (I + α_j x_j x_jᵀ), and Newton's step on U⁻¹ along Y; all float64, X, Y (k,d)."""
    overlaps = X @ X.T
    for frame, factors in ((U, -alphas / (1 + alphas * overlaps.diagonal())), (U_inv_T, alphas)):
        rows, scaled = X @ frame, factors[:, None] * X
        for j in range(1, len(X)):  # x_jᵀ meets what the repairs before it have made of U
            rows[j] += (X[j] @ scaled[:j].T) @ rows[:j]
        frame.addmm_(scaled.T, rows)
    residual = Y - (Y @ U_inv_T.T) @ U
    U_inv_T.addmm_((residual @ U_inv_T.T).T, Y)


# ---- rows that missed repairs ----------------------------------------------------------------------------------------
def repair_rows(rows: Tensor, seen: Tensor, X: Tensor, Y: Tensor) -> None:
    """v ← v + ((v Xᵀ) ∘ [j ≥ seen]) Y for each v of rows (n,d); X, Y (count,d), seen (n,)."""
    unseen = torch.arange(len(X), device=rows.device) >= seen[:, None]
    rows.addmm_((rows @ X.T).mul_(unseen), Y)
