"""The algorithms of the paper as printed: the readable reference, one line a formula.

Vincent, de Brébisson and Bouthillier, "Exact gradient updates in time independent of output size for the spherical loss
family": Algorithm 1 (initialise), 2 (online, squared error), 3 (minibatch, squared error), 4 (minibatch, any spherical
loss). Examples are rows here and columns there, so each product stands transposed: the paper's Ĥ = QH is H Q.

    V (D,d), U, U_inv_T, Q (d,d), omega, w_bar (d,):   W = V U + 1 ωᵀ,  Q = WᵀW,  w̄ = Wᵀ1
    H (m,d), ids and values (m,K): row j of the sparse target Y (m,D) holds values[j] at ids[j]

Where the print and the mathematics part, the mathematics is followed:
  - Woodbury as printed divides by ∇q and inverts an indefinite matrix; `_woodbury` does neither;
  - a word that is the target of several examples counts for each of them, in V and in ẎẎᵀ;
  - the last line of the derivation of w̄ has two wrong signs and a stray η; the table of Algorithm 4 is right.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lstlm.spherical.losses import SphericalLoss


@dataclass
class PaperState:
    """The parameters V, U, ω and what is kept up to date beside them; changed in place by the algorithms below."""

    V: Tensor
    U: Tensor
    U_inv_T: Tensor
    Q: Tensor
    w_bar: Tensor
    omega: Tensor

    @classmethod
    def initialise(cls, W: Tensor) -> PaperState:
        """Algorithm 1: V = W (D,d), U = U⁻ᵀ = I, ω = 0, Q = VᵀV, w̄ = Vᵀ1. O(Dd²), once."""
        identity = torch.eye(W.shape[1], dtype=W.dtype, device=W.device)
        return cls(W.clone(), identity.clone(), identity.clone(), W.T @ W, W.sum(0), torch.zeros_like(W[0]))

    def weight(self) -> Tensor:
        """Return W = V U + 1 ωᵀ (D,d). O(Dd²)."""
        return self.V @ self.U + self.omega


def online_squared_error(
    state: PaperState, h: Tensor, ids: Tensor, values: Tensor, eta: float
) -> tuple[Tensor, Tensor]:
    """Algorithm 2: one step on ‖W h − y‖² for h (d,), ids and values (K,); return L () and ∇h (d,). O(d² + Kd)."""
    ids, y = (x[0] for x in _distinct(ids[None], values[None]))
    h_hat = state.Q @ h  # 1
    y_hat = state.U.T @ (state.V[ids].T @ y)  # 2
    grad_h = 2 * (h_hat - y_hat)  # 3
    loss = h @ h_hat - 2 * h @ y_hat + y @ y  # 4
    state.U -= 2 * eta * torch.outer(state.U @ h, h)  # 5
    state.U_inv_T += 2 * eta / (1 - 2 * eta * h @ h) * torch.outer(state.U_inv_T @ h, h)  # 6, Sherman–Morrison
    state.V.index_add_(0, ids, 2 * eta * torch.outer(y, state.U_inv_T @ h))  # 7, with the new U⁻ᵀ
    state.Q += -eta * (torch.outer(h, grad_h) + torch.outer(grad_h, h)) + 4 * eta**2 * loss * torch.outer(h, h)  # 8
    state.w_bar += -2 * eta * (h @ state.w_bar - y.sum()) * h  # not needed by this loss; kept for the sake of w̄ = Wᵀ1
    return loss, grad_h


def minibatch_squared_error(
    state: PaperState, H: Tensor, ids: Tensor, values: Tensor, eta: float
) -> tuple[Tensor, Tensor]:
    """Algorithm 3: one step on Σ_j ‖W h_j − y_j‖²; return the losses (m,) and ∇H (m,d). O(md² + m²d + m³)."""
    ids, values = _distinct(ids, values)
    H_hat = H @ state.Q  # 1
    Y_hat = _sparse_times(ids, values, state.V) @ state.U  # 2
    grad_H = 2 * (H_hat - Y_hat)  # 3
    M = H @ H_hat.T - (Y_hat @ H.T + H @ Y_hat.T) + _sparse_gram(ids, values)  # 4a
    losses = M.diagonal().clone()  # 4b: L is their sum, Tr(M)
    w_bar_step = 2 * (H @ state.w_bar - values.sum(1)) @ H
    state.U -= 2 * eta * (H @ state.U.T).T @ H  # 5
    _woodbury(state, H, torch.full_like(losses, 2 * eta))  # 6
    _add_sparse_T_times(state.V, ids, 2 * eta * values, H @ state.U_inv_T.T)  # 7, with the new U⁻ᵀ
    state.Q += -eta * (H.T @ grad_H + grad_H.T @ H) + 4 * eta**2 * (H.T @ M) @ H  # 8
    state.w_bar -= eta * w_bar_step
    return losses, grad_H


def minibatch_spherical(
    state: PaperState, H: Tensor, ids: Tensor, values: Tensor, eta: float, loss: SphericalLoss
) -> tuple[Tensor, Tensor]:
    """Algorithm 4: one step on Σ_j ℓ(q_j, s_j, a_j, t_j); return the losses (m,) and ∇H (m,d). O(md² + m²d + m³)."""
    ids, values = _distinct(ids, values)
    D = len(state.V)
    H_hat = H @ state.Q
    M_hat = H @ H_hat.T
    q = M_hat.diagonal()
    s = H @ state.w_bar
    H_tilde = H @ state.U.T
    h_tilde = H @ state.omega
    A = (state.V[ids] * H_tilde[:, None]).sum(2) + h_tilde[:, None]
    losses, dq, ds, dA = loss.partials(q, s, A, values, D)
    ds = torch.zeros_like(dq) if ds is None else ds
    y_bar = dA.sum(1)
    Z_hat = torch.outer(ds, state.w_bar) + _sparse_times(ids, dA, state.V) @ state.U + torch.outer(y_bar, state.omega)
    grad_H = 2 * dq[:, None] * H_hat + Z_hat
    half_cross = dq[:, None] * (H @ Z_hat.T)
    M = 4 * dq[:, None] * M_hat * dq + 2 * half_cross + 2 * half_cross.T
    M += D * torch.outer(ds, ds) + _sparse_gram(ids, dA) + torch.outer(ds, y_bar) + torch.outer(y_bar, ds)

    state.U -= 2 * eta * (H_tilde * dq[:, None]).T @ H
    _woodbury(state, H, 2 * eta * dq)
    state.omega -= eta * (2 * dq * h_tilde + ds) @ H
    _add_sparse_T_times(state.V, ids, -eta * dA, H @ state.U_inv_T.T)
    state.w_bar -= eta * (2 * dq * s + D * ds + y_bar) @ H
    state.Q += -eta * (grad_H.T @ H + H.T @ grad_H) + eta**2 * (H.T @ M) @ H
    return losses, grad_H


def _woodbury(state: PaperState, H: Tensor, b: Tensor) -> None:
    """U⁻ᵀ ← U⁻ᵀ + (U⁻ᵀHᵀ) B (I − HHᵀB)⁻¹ H, the inverse after U ← U (I − HᵀBH), B = diag(b); safe where b is 0."""
    identity = torch.eye(len(H), dtype=H.dtype, device=H.device)
    state.U_inv_T += (state.U_inv_T @ H.T * b) @ torch.linalg.solve(identity - (H @ H.T) * b, H)


def _distinct(ids: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Give the first mention of a word within an example the sum of all its mentions, and 0 to the rest; (m,K)."""
    same = ids[:, :, None] == ids[:, None, :]
    repeated = same.tril(-1).any(2)
    return ids, (same * values[:, None, :]).sum(2).masked_fill(repeated, 0)


def _sparse_times(ids: Tensor, values: Tensor, V: Tensor) -> Tensor:
    """Return Y V (m,d) for the sparse Y (m,D) of ids and values (m,K). O(mKd)."""
    return (values[..., None] * V[ids]).sum(1)


def _sparse_gram(ids: Tensor, values: Tensor) -> Tensor:
    """Return Y Yᵀ (m,m): every pair of mentions of one word counts. O(m²K²)."""
    same = ids[:, :, None, None] == ids[None, None]  # (m,K,m,K)
    return torch.einsum("ik,ikjl,jl->ij", values, same.to(values.dtype), values)


def _add_sparse_T_times(V: Tensor, ids: Tensor, values: Tensor, J: Tensor) -> None:
    """V ← V + Yᵀ J for J (m,d). index_add_, not V[ids] += …: a word that is the target twice must count twice."""
    V.index_add_(0, ids.reshape(-1), (values[..., None] * J[:, None]).flatten(0, 1))
