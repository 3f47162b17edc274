"""The torch form of the operations of `square_ops`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.linalg import vecdot

from lstlm.kernels import reference
from lstlm.kernels.layout import Layout

if TYPE_CHECKING:
    from lstlm.kernels.targets import Targets


def square_outputs(
    table: Tensor, h: Tensor, rows: Tensor, targets: Targets, p: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    at = Layout.of(table)
    H = torch.nn.functional.pad(h, (0, at.d - h.shape[1]), value=1.0)
    products = H @ table[at.gram, : at.d].T
    ones = rows.new_ones(len(rows)) if p is None else p
    W = (rows @ table[at.U, : at.d]).addr_(ones, table[at.omega, : at.d])
    q = vecdot(H.double(), products[:, at.Q].double())
    return H, products, W, torch.cat([q, products[:, at.w_bar], reference.dot_bags(W, targets, H)])


def square_backward(table: Tensor, W: Tensor, targets: Targets, partials: Tensor, products: Tensor) -> Tensor:
    at, m = Layout.of(table), targets.m
    dq, ds, do = partials[m : 2 * m], partials[2 * m : 3 * m], partials[3 * m :]
    YW = reference.sum_bags(W, targets, do)
    return YW.addcmul_(products[:, at.Q], dq[:, None], value=2).addr_(ds, table[at.w_bar, : at.d])


def square_sums(
    H: Tensor, W: Tensor, targets: Targets, p: Tensor | None, partials: Tensor, eta: float
) -> tuple[Tensor, Tensor, Tensor]:
    m, d = H.shape
    dq, ds, do = partials[m : 2 * m], partials[2 * m : 3 * m], partials[3 * m :]
    F = torch.zeros_like(W)
    reference.add_bags(F, targets, H, do, 1.0)
    sums = H.new_empty(3 * d + 2, d)
    K, A, FTF, Fp, c = torch.split(sums, [d, d, d, 1, 1])
    K.copy_((H * (2 * eta * dq)[:, None]).T @ H)
    A.copy_(W.T @ F)
    FTF.copy_(F.T @ F)
    Fp.copy_(F.sum(0) if p is None else p @ F)
    c.copy_(eta * (ds @ H))
    return F, sums, torch.linalg.vector_norm(K).square()


def square_update(
    tables: tuple[Tensor, Tensor, Tensor],
    sums: Tensor,
    S: Tensor,
    p_norm2: float,
    eta: float,
    allowed: Tensor | None,
) -> None:
    table, base, deviation = tables
    at = Layout.of(table)
    d = at.d
    K, A, FTF, Fp, c = sums[:d], sums[d : 2 * d], sums[2 * d : 3 * d], sums[3 * d], sums[3 * d + 1]
    Q, w_bar = table[at.Q, :d], table[at.w_bar, :d]
    change = table[at.gram, :d] @ K
    half = change[at.Q].mul_(0.5).add_(A, alpha=eta)  # ½QK + ηA
    w_bar_step = change[at.w_bar].add_(Fp, alpha=eta)  # w̄ − z
    half.add_(K @ (0.5 * Q - half)).sub_(FTF, alpha=0.5 * eta * eta)
    half.addr_(w_bar - w_bar_step, c).addr_(c, c, alpha=-0.5 * p_norm2)
    w_bar_step.add_(c, alpha=p_norm2)
    change[at.omega] += c
    U_inv_T_step, UK = table[at.U_inv_T, :d] @ S.T, table[at.U, :d] @ K
    if allowed is not None:
        change, U_inv_T_step, UK = (torch.where(allowed, x, 0) for x in (change, U_inv_T_step, UK))
    table[at.recent, :d] -= change
    reference.add_to_frame(table, deviation, U_inv_T_step, -UK)
    reference.add_up(table, base)
