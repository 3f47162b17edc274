"""T = I − HᵀBHp: how far one update shrinks or stretches W, its inverse, and the learning rate that would break it.

U ← U T keeps U invertible while T has positive eigenvalues only, that is while λmax(HᵀBHp) < 1, b = 2η dq. Beyond
that η is too large for the minibatch: the step would overshoot the minimum along some direction by more than its
distance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from lstlm.errors import NumericsError
from lstlm.spherical.host import Numbers, from_host, to_host


class LearningRateTooLarge(NumericsError):
    """η is above the largest stable step for this minibatch, `limit`; nothing has been changed."""

    def __init__(self, eta: float, limit: float) -> None:
        self.limit = limit
        named = limit * (1 - 1e-4)  # rounded down, so that what the message names is stable itself
        super().__init__(
            f"the update would make U singular: lr {eta:g} is above the largest stable {named:.5g} for this "
            "minibatch; lower optim.output_lr, or divide the loss by the minibatch size"
        )


class Shrink(NamedTuple):
    """Bounds on T: its eigenvalues lie within [1 − shrink, 1 + growth]."""

    shrink: float
    growth: float


def shrink_inverse(G: Tensor, b: Numbers, eta: float) -> tuple[Tensor, Shrink]:
    """Return (I − G B)⁻¹ (m,m) for G = HpHᵀ symmetric, B = diag(b), and the bounds on T. O(m³).

    The eigenvalues of GB are at most ρ = ‖√|B| G √|B|‖_F, and that is at most the trace of |B|G. Where ρ is small,
    (I − A)⁻¹ = I + A + A² + … with A = GB is cut where the remainder is below the rounding error: a few products, by
    doubling the number of terms, several times faster than LAPACK.
    """
    weighted = b * to_host(G.diagonal())
    total = float(abs(weighted).sum())
    if not math.isfinite(total):
        raise NumericsError("the update is not finite: h or the loss has overflowed; lower the learning rate")
    growth = (total - float(weighted.sum())) / 2  # of the negative b alone: the trace bounds the largest eigenvalue
    rho = total
    if rho > 0.05:  # the trace is no longer good enough
        size = from_host(abs(b), G)
        rho = math.sqrt(float(size @ (G * G) @ size))
    B = from_host(b, G)
    if rho < 0.3:
        return _geometric_series(G * B, rho), Shrink(rho, min(growth, rho))
    if b.min() > 0:
        root = B.sqrt()
        factor, info = torch.linalg.cholesky_ex(_identity_minus(root[:, None] * G * root))
        if int(info) != 0:
            raise LearningRateTooLarge(eta, eta / _largest(G, B))
        return torch.cholesky_inverse(factor).mul_(root).div_(root[:, None]), Shrink(min(rho, 1.0), 0.0)
    return _inverse_of_mixed_signs(G, B, eta), Shrink(min(rho, 1.0), min(growth, rho))


def _geometric_series(A: Tensor, rho: float) -> Tensor:
    """Return Σ Aⁱ, i ≤ n, where ρⁿ⁺¹ is below the rounding error of the dtype; n is 1, 2, 4, 8, …"""
    negligible = torch.finfo(A.dtype).eps / 4
    total, power, n = A, A, 1  # A + … + Aⁿ, and the power that comes next to double it
    while rho ** (n + 1) > negligible:
        if n == 1:
            power = A @ A
            total = total + power
        else:
            total = torch.addmm(total, total, power)
            power = power @ power if rho ** (2 * n + 1) > negligible else power
        n *= 2
    total = total.clone() if n == 1 else total
    total.diagonal().add_(1)
    return total


def _inverse_of_mixed_signs(G: Tensor, b: Tensor, eta: float) -> Tensor:
    """Return (I − GB)⁻¹ by LU, after making sure that T is positive, where some b ≤ 0."""
    root = b.clamp(min=0).sqrt()
    # The positive part alone bounds the shrinking; only if that fails is the exact eigenvalue worth its price.
    if int(torch.linalg.cholesky_ex(_identity_minus(root[:, None] * G * root)).info) != 0 and _largest(G, b) >= 1:
        raise LearningRateTooLarge(eta, eta / _largest(G, b))
    inverse: Tensor = torch.linalg.inv(_identity_minus(G * b))
    return inverse


def solver_of_shrink(K: Tensor, eta: float, *, symmetric: bool) -> tuple[Callable[[Tensor], Tensor], Shrink]:
    """Return the function M ↦ T⁻¹M − M for T = I − K (d,d), and the bounds on T. O(d³).

    K = HᵀBH is symmetric; with a preconditioner K = HᵀBHP is only similar to a symmetric matrix.
    """
    rho = float(torch.linalg.matrix_norm(K))
    if not math.isfinite(rho):
        raise NumericsError("the update is not finite: h or the loss has overflowed; lower the learning rate")
    if symmetric:
        factor, info = torch.linalg.cholesky_ex(_identity_minus(K))
        if int(info) != 0:
            raise LearningRateTooLarge(eta, eta / float(torch.linalg.eigvalsh(K)[-1]))
        inverse = torch.cholesky_inverse(factor)  # a product with it is several times faster than two triangular solves
        inverse.diagonal().sub_(1)
        return lambda M: inverse @ M, Shrink(min(rho, 1.0), rho)
    if rho >= 1:
        largest = float(torch.linalg.eigvals(K).real.max())
        if largest >= 1:
            raise LearningRateTooLarge(eta, eta / largest)
    T = _identity_minus(K)
    return lambda M: torch.linalg.solve(T, K @ M), Shrink(min(rho, 1.0), rho)


def _identity_minus(A: Tensor) -> Tensor:
    result = A.neg()
    result.diagonal().add_(1)
    return result


def _largest(G: Tensor, b: Tensor) -> float:
    """Return λmax(GB), the largest real eigenvalue of HᵀBHp."""
    return float(torch.linalg.eigvals((G * b).to(torch.float64)).real.max())
