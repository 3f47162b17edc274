"""T = I − HᵀBHp: how far one update shrinks or stretches W, its inverse, and the learning rate that would break it.

U ← U T keeps U invertible while T has positive eigenvalues only, that is while λmax(HᵀBHp) < 1, b = 2η dq. Beyond
that η is too large for the minibatch: the step would overshoot the minimum along some direction by more than its
distance. Rounding asks for a little more: a step that leaves of some direction less than LEAST_LEFT rounding errors is
refused too, because U⁻¹ would have too few correct digits there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lstlm.errors import NumericsError
from lstlm.spherical.host import Numbers, aligned, from_host, product, to_host

LEAST_LEFT = 1e4  # of 1 − λmax, in units of the rounding error: 1.2e-3 in float32, 2.2e-12 in float64
SERIES_UP_TO = 0.3  # ρ: an m×m series of more terms would take longer than LAPACK
SQUARE_SERIES_UP_TO = 0.14  # ρ: a d×d series of more terms would take longer than Cholesky's factor
TRACE_UP_TO = 0.05  # as the bound on λmax: above it a closer one pays
LOOK_CLOSER = 0.9  # where the bound on λmax is below this, no closer look is needed


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


def shrink_inverse(A: Tensor, b: Numbers, eta: float) -> tuple[Tensor, Shrink]:
    """Return (I − A)⁻¹ (m,m) for A = G diag(b), G = HpHᵀ symmetric, and the bounds on T. O(m³).

    The eigenvalues of A are at most ρ = ‖√|B| G √|B|‖_F = (Σ |A_ij A_ji|)^½, and that is at most the trace of |B|G.
    Where ρ is small, (I − A)⁻¹ = I + A + A² + … is cut where the remainder is below the rounding error: a few products,
    by doubling the number of terms, several times faster than LAPACK.
    """
    numbers = to_host(A)
    weighted = numbers.diagonal()
    bounds = bounds_on_shrink(float(abs(weighted).sum()), float(weighted.sum()), lambda: abs(numbers * numbers.T).sum())
    if bounds.shrink < SERIES_UP_TO:
        return _plus_identity(_geometric_series(A, terms_needed(bounds.shrink, A.dtype))), bounds
    return inverse_by_lapack(A, b, eta, bounds)


def bounds_on_shrink(absolute: float, trace: float, squares: Callable[[], float]) -> Shrink:
    """Return the bounds on T, given the traces of |A| and A and, where it is asked for, Σ |A_ij A_ji|."""
    if not math.isfinite(absolute):
        raise NumericsError("the update is not finite: h or the loss has overflowed; lower the learning rate")
    growth = (absolute - trace) / 2  # of the negative b alone: the trace bounds the largest eigenvalue
    rho = absolute if absolute <= TRACE_UP_TO else math.sqrt(squares())
    return Shrink(rho, min(growth, rho))


def inverse_by_lapack(A: Tensor, b: Numbers, eta: float, bounds: Shrink) -> tuple[Tensor, Shrink]:
    """Return (I − A)⁻¹ (m,m) and better bounds on T, or raise where η is too large. A, b as in `shrink_inverse`."""
    rho, growth = bounds
    B = from_host(b, A)
    if b.min() > 0:
        root = B.sqrt()
        S = _symmetric(A, root)
        factor = torch.linalg.cholesky_ex(_identity_minus(S)).L
        if rho > LOOK_CLOSER and not _is_positive(S):
            raise LearningRateTooLarge(eta, _limit(eta, _largest(A), S))
        return torch.cholesky_inverse(factor).mul_(root).div_(root[:, None]), Shrink(min(rho, 1.0), 0.0)
    return _inverse_of_mixed_signs(A, B, eta), Shrink(min(rho, 1.0), growth)


def _symmetric(A: Tensor, root: Tensor) -> Tensor:
    """Return √B G √B (m,m) for A = G B; a row and column of zeros where the root of b is 0."""
    return root[:, None] * A * torch.where(root > 0, 1 / root, 0)


def terms_needed(rho: float, dtype: torch.dtype) -> int:
    """Return n, one of 1, 2, 4, 8, …, for which ρⁿ⁺¹ is below the rounding error of the dtype."""
    negligible, n = torch.finfo(dtype).eps / 4, 1
    while rho ** (n + 1) > negligible:
        n *= 2
    return n


def _geometric_series(A: Tensor, terms: int) -> Tensor:
    """Return A + … + Aⁿ for n = `terms`, a power of 2."""
    total, power, n = A, A, 1  # A + … + Aⁿ, and the power that comes next to double it
    while n < terms:
        if n == 1:
            power = product(A, A)
            total = total + power
        else:
            total = torch.addmm(total, total, power, out=aligned(total, *total.shape))
            power = product(power, power) if 2 * n < terms else power
        n *= 2
    return total


def _inverse_of_mixed_signs(A: Tensor, b: Tensor, eta: float) -> Tensor:
    """Return (I − A)⁻¹ by LU, A = G diag(b), after making sure that T is positive, where some b ≤ 0."""
    root = b.clamp(min=0).sqrt()
    # The positive part alone bounds the shrinking; only if that fails is the exact eigenvalue worth its price.
    if not _is_positive(_symmetric(A, root)) and _limit(eta, _largest(A), A) <= eta:
        raise LearningRateTooLarge(eta, _limit(eta, _largest(A), A))
    inverse: Tensor = torch.linalg.inv(_identity_minus(A))
    return inverse


def solver_of_shrink(K: Tensor, eta: float, *, symmetric: bool) -> tuple[Callable[[Tensor], Tensor], Shrink]:
    """Return the function M ↦ T⁻¹M − M for T = I − K (d,d), and the bounds on T. O(d³).

    K = HᵀBH is symmetric; with a preconditioner K = HᵀBHP is only similar to a symmetric matrix.
    """
    rho = float(torch.linalg.matrix_norm(K))
    if not math.isfinite(rho):
        raise NumericsError("the update is not finite: h or the loss has overflowed; lower the learning rate")
    if rho < SQUARE_SERIES_UP_TO:
        series = _geometric_series(K, terms_needed(rho, K.dtype))
        return lambda M: product(series, M), Shrink(rho, rho)
    if symmetric:
        factor = torch.linalg.cholesky_ex(_identity_minus(K)).L
        if rho > LOOK_CLOSER and not _is_positive(K):
            raise LearningRateTooLarge(eta, _limit(eta, float(torch.linalg.eigvalsh(K.to(torch.float64))[-1]), K))
        inverse = torch.cholesky_inverse(factor)  # a product with it is several times faster than two triangular solves
        _plus_identity(inverse, -1.0)
        return lambda M: product(inverse, M), Shrink(min(rho, 1.0), rho)
    if rho > LOOK_CLOSER:
        limit = _limit(eta, float(torch.linalg.eigvals(K.to(torch.float64)).real.max()), K)
        if limit <= eta:
            raise LearningRateTooLarge(eta, limit)
    T = _identity_minus(K)
    return lambda M: torch.linalg.solve(T, K @ M), Shrink(min(rho, 1.0), rho)


def _identity_minus(A: Tensor) -> Tensor:
    return _plus_identity(A.neg())


def _plus_identity(A: Tensor, times: float = 1.0) -> Tensor:
    """A ← A + times·I, in place."""
    if A.is_cpu:
        diagonal = np.einsum("ii->i", to_host(A))  # a view; adding to that of torch takes several times as long
        diagonal += times
    else:
        A.diagonal().add_(times)
    return A


def _is_positive(S: Tensor) -> bool:
    """Say whether I − S, S symmetric, is positive and leaves enough of every direction."""
    shifted = _plus_identity(S.neg(), 1 - LEAST_LEFT * torch.finfo(S.dtype).eps)
    return int(torch.linalg.cholesky_ex(shifted).info) == 0


def _limit(eta: float, largest: float, like: Tensor) -> float:
    """Return the largest stable step, where the step η has λmax = `largest`."""
    return eta * (1 - LEAST_LEFT * torch.finfo(like.dtype).eps) / largest


def _largest(A: Tensor) -> float:
    """Return λmax(A), A = G B, the largest real eigenvalue of HᵀBHp."""
    return float(torch.linalg.eigvals(A.to(torch.float64)).real.max())
