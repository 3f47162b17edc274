"""What a head makes of its arguments before it computes with them."""

from __future__ import annotations

import torch
from torch import Tensor

from lstlm.errors import ConfigError


def merge_repeated(ids: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Where an example names one id several times, give their sum to the first and 0 to the others; (m,K) each."""
    ordered, order = ids.sort(dim=1, stable=True)
    first = torch.ones_like(ordered, dtype=torch.bool)
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    if bool(first.all()):
        return ids, values
    sums = torch.zeros_like(values).scatter_add_(1, first.cumsum(1) - 1, values.gather(1, order))
    return ordered, torch.where(first, sums.gather(1, first.cumsum(1) - 1), 0.0)


def positive_definite(P: Tensor, H: Tensor) -> Tensor:
    """Return the preconditioner P (d,d) in the dtype of H (m,d); raise unless it is symmetric and positive."""
    d = H.shape[1]
    if P.shape != (d, d) or not bool(torch.isfinite(P).all()) or not torch.allclose(P, P.T, rtol=1e-4):
        raise ConfigError(f"preconditioner {tuple(P.shape)}: expected a finite symmetric matrix ({d}, {d})")
    if int(torch.linalg.cholesky_ex(P).info) != 0:
        raise ConfigError("preconditioner: must be positive definite, or the step would climb")
    return P.to(H)
