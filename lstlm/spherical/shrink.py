"""T = I − HᵀBH: how far one update shrinks or stretches W, its inverse, and the learning rate that would break it.

U ← U T keeps U invertible while T has positive eigenvalues only, that is while λmax(HᵀBH) < 1, b = 2η dq. Beyond
that η is too large for the minibatch: the step would overshoot the minimum along some direction by more than its
distance. Rounding asks for a little more: a step that leaves of some direction less than LEAST_LEFT rounding errors is
refused too, because U⁻¹ would have too few correct digits there.

On the CPU the host looks at these numbers with every update: they are there. On other devices it does not wait for
them: the device takes the update only if it is allowed, and the host reads every few updates whether one was refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from lstlm.errors import NumericsError
from lstlm.kernels.choice import Impl
from lstlm.kernels.square_ops import symmetric_series
from lstlm.kernels.step_ops import Shrinking

LEAST_LEFT = 1e4  # of 1 − λmax, in units of the rounding error: 1.2e-3 in float32, 2.2e-12 in float64
SERIES_UP_TO = 0.3  # ρ: an m×m series of more terms would take longer than LAPACK
SQUARE_SERIES_UP_TO = 0.36  # ρ: more than 16 terms in float32
SQUARE_TERMS, SMALL_TERMS, SMALL = 8, 16, 200  # of a d×d series, of one with d ≤ SMALL: with more, LAPACK is faster
TRACE_UP_TO = 0.05  # as the bound on λmax: above it a closer one pays
LOOK_CLOSER = 0.9  # where the bound on λmax is below this, no closer look is needed
ALONE_UP_TO = 512  # rows of a matrix: LAPACK by two threads takes one to four times as long as by one


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
    """Bounds on T: its eigenvalues lie within [1 − shrink, 1 + growth]; on a device, whether T is allowed."""

    shrink: float | Tensor
    growth: float | Tensor
    allowed: Tensor | None = None


def invert_shrink(found: Shrinking, dq: Tensor, eta: float) -> tuple[Tensor | int, Shrink]:
    """Return (I − A)⁻¹ (m,m), or of how many terms a series gives it, and the bounds on T. O(m³).

    A = G diag(b), G = HHᵀ, b = 2η dq. Its eigenvalues are at most ρ = ‖√|B| G √|B|‖_F = (Σ |A_ij A_ji|)^½, and that is
    at most the trace of |B|G. Where ρ is small, (I − A)⁻¹ = I + A + A² + … is cut where the remainder is below the
    rounding error: a few products, by doubling the number of terms, several times faster than LAPACK.
    """
    squares, absolute, trace, products = found
    if isinstance(absolute, Tensor) or isinstance(trace, Tensor) or isinstance(products, Tensor):
        return _inverse_on_device(found, 2 * eta * dq)
    if not math.isfinite(absolute):
        raise NumericsError("the update is not finite: h or the loss has overflowed; lower the learning rate")
    rho = absolute if absolute <= TRACE_UP_TO else math.sqrt(products)
    # growth: of the negative b alone, the trace bounds the largest eigenvalue
    bounds = Shrink(rho, min((absolute - trace) / 2, rho))
    if rho < SERIES_UP_TO:
        return terms_needed(rho, squares.dtype), bounds
    with _one_thread(len(found.A)):
        return _inverse_by_lapack(found.A, 2 * eta * dq, eta, rho, bounds.growth)


@contextmanager
def _one_thread(rows: int) -> Iterator[None]:
    """Let PyTorch and its LAPACK work on one thread meanwhile, unless the matrix is large."""
    threads = torch.get_num_threads()
    if threads == 1 or rows > ALONE_UP_TO:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _inverse_by_lapack(A: Tensor, b: Tensor, eta: float, rho: float, growth: float | Tensor) -> tuple[Tensor, Shrink]:
    """Return (I − A)⁻¹ (m,m) and better bounds on T, or raise where η is too large."""
    if bool(b.min() > 0):
        root = b.sqrt()
        S = _symmetric(A, root)
        factor = torch.linalg.cholesky_ex(_identity_minus(S)).L
        if rho > LOOK_CLOSER and not bool(_positive(S)):
            raise LearningRateTooLarge(eta, _limit(eta, _largest(A), S))
        return torch.cholesky_inverse(factor).mul_(root).div_(root[:, None]), Shrink(min(rho, 1.0), 0.0)
    return _inverse_of_mixed_signs(A, b, eta), Shrink(min(rho, 1.0), growth)


def _inverse_on_device(found: Shrinking, b: Tensor) -> tuple[Tensor, Shrink]:
    """Do the same where no number may be looked at: T is allowed where its part of the positive b alone is positive."""
    S = _symmetric(found.A, b.clamp(min=0).sqrt())
    allowed = _positive(S) & torch.isfinite(found.A.sum())
    rho = torch.as_tensor(found.products).sqrt().clamp(max=1.0)
    growth = (torch.as_tensor(found.absolute) - found.trace) / 2
    inverse: Tensor = torch.linalg.inv_ex(_identity_minus(found.A)).inverse
    return inverse, Shrink(torch.where(allowed, rho, 0), torch.where(allowed, growth, 0), allowed)


def _symmetric(A: Tensor, root: Tensor) -> Tensor:
    """Return √B G √B (m,m) for A = G B; a row and column of zeros where the root of b is 0."""
    return root[:, None] * A * torch.where(root > 0, 1 / root, 0)


def terms_needed(rho: float, dtype: torch.dtype) -> int:
    """Return n, one of 1, 2, 4, 8, …, for which ρⁿ⁺¹ is below the rounding error of the dtype."""
    negligible, n = torch.finfo(dtype).eps / 4, 1
    while rho ** (n + 1) > negligible:
        n *= 2
    return n


def _most_terms(d: int) -> int:
    """Return up to how many terms a series for a d×d matrix takes less time than LAPACK."""
    return SMALL_TERMS if d <= SMALL else SQUARE_TERMS


def _inverse_of_mixed_signs(A: Tensor, b: Tensor, eta: float) -> Tensor:
    """Return (I − A)⁻¹ by LU, A = G diag(b), after making sure that T is positive, where some b ≤ 0."""
    root = b.clamp(min=0).sqrt()
    # The positive part alone bounds the shrinking; only if that fails is the exact eigenvalue worth its price.
    if not bool(_positive(_symmetric(A, root))) and _limit(eta, _largest(A), A) <= eta:
        raise LearningRateTooLarge(eta, _limit(eta, _largest(A), A))
    inverse: Tensor = torch.linalg.inv(_identity_minus(A))
    return inverse


def inverse_excess(K: Tensor, squares: float | Tensor, eta: float, impl: Impl = "auto") -> tuple[Tensor, Shrink]:
    """Return S = T⁻¹ − I (d,d) for T = I − K, K = HᵀBH symmetric, ‖K‖² = squares, and the bounds on T. O(d³)."""
    if not K.is_cpu:
        norm = torch.as_tensor(squares).sqrt()
        allowed = _positive(K) & torch.isfinite(norm)
        rho = torch.where(allowed, norm, 0)
        inverse = torch.linalg.inv_ex(_identity_minus(K)).inverse
        return _plus_identity(inverse, -1.0), Shrink(rho.clamp(max=1.0), rho, allowed)
    size = math.sqrt(squares)
    if not math.isfinite(size):
        raise NumericsError("the update is not finite: h or the loss has overflowed; lower the learning rate")
    bounds = Shrink(min(size, 1.0), size)
    # a series also keeps S to its last digits, where the difference of an inverse and I loses two
    if size < SQUARE_SERIES_UP_TO and (terms := terms_needed(size, K.dtype)) <= _most_terms(len(K)):
        return symmetric_series(K, terms, impl=impl), bounds
    with _one_thread(len(K)):
        lower = torch.linalg.cholesky_ex(_identity_minus(K)).L
        if size > LOOK_CLOSER and not bool(_positive(K)):
            raise LearningRateTooLarge(eta, _limit(eta, float(torch.linalg.eigvalsh(K.to(torch.float64))[-1]), K))
        # a product with the inverse is several times faster than two triangular solves
        return _plus_identity(torch.cholesky_inverse(lower), -1.0), bounds


def _identity_minus(A: Tensor) -> Tensor:
    return _plus_identity(A.neg())


def _plus_identity(A: Tensor, times: float = 1.0) -> Tensor:
    """A ← A + times·I, in place."""
    A.diagonal().add_(times)
    return A


def _positive(S: Tensor) -> Tensor:
    """Say whether I − S, S symmetric, is positive and leaves enough of every direction: a truth value on its device."""
    shifted = _plus_identity(S.neg(), 1 - LEAST_LEFT * torch.finfo(S.dtype).eps)
    positive: Tensor = torch.linalg.cholesky_ex(shifted).info == 0
    return positive


def _limit(eta: float, largest: float, like: Tensor) -> float:
    """Return the largest stable step, where the step η has λmax = `largest`."""
    return eta * (1 - LEAST_LEFT * torch.finfo(like.dtype).eps) / largest


def _largest(A: Tensor) -> float:
    """Return λmax(A), A = G B, the largest real eigenvalue of HᵀBH."""
    return float(torch.linalg.eigvals(A.to(torch.float64)).real.max())
