"""Squared error over all outputs, solved: the two sides of a linear model refitted in turn, each to its exact minimum.

Every word is one example; its target is a sparse row of Y (D, outputs); with word vectors H (D,d) and output weights
W (outputs,d) the loss is ‖Y − H Wᵀ‖² over all D·outputs entries. Either side has a closed form in the factored shape of
the output layer, V = sums of targets by row and U = (Gram matrix)⁻¹:

    W = V U,  V = YᵀH,  U = (HᵀH + λI)⁻¹          H = (Y W) (WᵀW + λI)⁻¹

so a pass costs two sparse products, O(entries·d), and O((D + outputs)·d²); nothing of size D·outputs is made. With
λ = 0 the passes are subspace iteration: they converge to the best rank-d approximation of Y.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from lstlm.data.cooccurrence import SparseRows
from lstlm.errors import NumericsError


class TargetRows:
    """Y (D, outputs), sparse, by blocks of its rows as they are mapped from disk."""

    def __init__(self, rows: SparseRows, dtype: torch.dtype, device: torch.device, block: int = 1 << 22) -> None:
        """Multiply `block` entries at a time: 32 MiB of the mapped file."""
        self.shape = (len(rows), rows.columns)
        self._rows, self._dtype, self._device, self._entries = rows, dtype, device, block
        squares = (float(part.values.astype("f8") @ part.values) for _, _, part in rows.blocks(block))
        self.norm2 = sum(squares)

    def _block(self, block: SparseRows) -> Tensor:
        starts = torch.tensor(block.starts.astype("i4"), device=self._device)
        indices = torch.tensor(block.indices, device=self._device)
        values = torch.tensor(block.values, dtype=self._dtype, device=self._device)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
            return torch.sparse_csr_tensor(starts, indices, values, (len(block), block.columns), check_invariants=False)

    def times(self, W: Tensor) -> Tensor:
        """Return Y W (D,d) for W (outputs,d)."""
        return torch.cat([self._block(block) @ W for _, _, block in self._rows.blocks(self._entries)])

    def transposed_times(self, H: Tensor) -> Tensor:
        """Return Yᵀ H (outputs,d) for H (D,d)."""
        total = H.new_zeros(self.shape[1], H.shape[1])
        for first, last, block in self._rows.blocks(self._entries):
            total += self._block(block).t() @ H[first:last]
        return total


@dataclass(frozen=True)
class Fit:
    """Both sides after a pass, in principal axes: the outputs are H Wᵀ; `unexplained` is ‖Y − H Wᵀ‖² / ‖Y‖²."""

    H: Tensor
    W: Tensor
    singular: Tensor
    unexplained: float


def gram(X: Tensor) -> Tensor:
    """Return XᵀX (d,d) in float64: added up block by block, each block's product in X's own type."""
    total = torch.zeros(X.shape[1], X.shape[1], dtype=torch.float64, device=X.device)
    for block in torch.split(X, 1 << 14):
        total += (block.T @ block).to(torch.float64)
    return total


def solve_gram(V: Tensor, X: Tensor, ridge: float) -> Tensor:
    """Return V (XᵀX + λI)⁻¹, λ = ridge · mean of the diagonal of XᵀX.  V (n,d), X (k,d); O((n + k)·d²)."""
    G = gram(X)
    # a floor of rounding size: directions that X does not have must not be divided by zero
    G.diagonal().add_(max(ridge, 1e-7) * G.diagonal().mean())
    U: Tensor = torch.linalg.inv(G)
    return V @ U.to(V.dtype)


def refit(targets: TargetRows, H: Tensor, ridge: float, power: float) -> Fit:
    """Refit W to H, then H to W, and turn both to principal axes: H = P S^power, W = R S^(1−power)."""
    W = solve_gram(targets.transposed_times(H), H, ridge)
    V = targets.times(W)
    H = solve_gram(V, W, ridge)
    G_H, G_W = gram(H), gram(W)
    hits = float(torch.linalg.vecdot(H, V).to(torch.float64).sum())
    unexplained = 1.0 + (float((G_H * G_W).sum()) - 2.0 * hits) / targets.norm2
    if not bool(torch.isfinite(G_H).all() and torch.isfinite(G_W).all()):
        raise NumericsError("refit: the pass is not finite; raise output.ridge, or use train.dtype float64")
    turn_H, turn_W, singular = principal_axes(G_H, G_W, power)
    return Fit(H @ turn_H.to(H.dtype), W @ turn_W.to(W.dtype), singular, unexplained)


def principal_axes(G_H: Tensor, G_W: Tensor, power: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return (A, B, S) with H A = P S^power and W B = R S^(1−power), where H Wᵀ = P S Rᵀ is the singular decomposition.

    From the Gram matrices alone, O(d³): G_H = L Lᵀ and G_W = M Mᵀ, LᵀM = X S Yᵀ, P = H L⁻ᵀX, R = W M⁻ᵀY.
    """
    floor = 1e-12
    factors = []
    for G in (G_H, G_W):
        jitter = floor * G.diagonal().mean() * torch.eye(len(G), dtype=G.dtype, device=G.device)
        factor, failed_at = torch.linalg.cholesky_ex(G + jitter)
        if int(failed_at):
            raise NumericsError(
                f"refit: the scores have fewer independent directions than model.embedding, {len(G)}: about "
                f"{int(failed_at) - 1}; lower model.embedding, or use train.dtype float64"
            )
        factors.append(factor)
    L, M = factors
    X, S, Yt = torch.linalg.svd(L.T @ M)
    S = S.clamp_min(floor * float(S[0]) + 1e-300)
    A = torch.linalg.solve_triangular(L.T, X, upper=True) * S**power
    B = torch.linalg.solve_triangular(M.T, Yt.T, upper=True) * S ** (1 - power)
    return A, B, S
