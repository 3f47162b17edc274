"""Keeping U well-conditioned. Every method leaves W = V U + p ωᵀ exactly as it is.

U ← U T shrinks U along the directions that H is strong in, and a row stored as v = w U⁻¹ loses digits in proportion to
1/σ_min(U). A repair moves an offending singular value from U into V (the paper's fix-singular-value):
with the left singular vector x of σ and E = I + (σ−1)xxᵀ,  V U = (V E)(E⁻¹ U), and E⁻¹U has 1 in place of σ.

    none      nothing
    restore   V ← V U + p ωᵀ, U ← I when a value is out of range.        O(Dd²) each
    svd       every value that is out of range, in one pass over V.      O(d³ + Ddk)
    power     the paper's power iteration, one value and one pass over V at a time.   O(Dd) a repair
    lazy      repairs are recorded in the history and reach a row when it is read; no pass over V.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from lstlm.errors import ConfigError
from lstlm.spherical.history import REPAIRS
from lstlm.spherical.host import Numbers, from_host, to_host
from lstlm.spherical.native import kernel_for
from lstlm.spherical.shrink import Shrink
from lstlm.spherical.state import FactoredState

METHODS = ("lazy", "svd", "power", "restore", "none")
PAPER_RANGE = (1e-3, 1e2)
PAPER_PERIOD = 100
LAZY_RANGE = (0.1, 10.0)
SWEEP_ROWS = 1024  # rows brought forward at a time: fewer would read the products of all segments for little
OVERSHOOT = 0.5  # of `high`: where `lazy` puts a value that fell below `low`, for it will go on falling


@dataclass
class Report:
    """What one call did: singular values repaired, and whole or partial passes over V in rows."""

    repaired: int = 0
    rows_swept: int = 0


NOTHING_DONE = Report()


class Tally:
    """Numbers that change with every update: kept apart, because a module's own attributes are slow to set."""

    def __init__(self, countdown: int) -> None:
        self.countdown = countdown
        self.sigma_low = self.sigma_high = 1.0  # bounds on the singular values of U, which `lazy` keeps


class Stabiliser(nn.Module):
    """Looks at U every `every` updates and brings singular values outside [low, high] back to 1."""

    def __init__(self, low_high: tuple[float, float] = PAPER_RANGE, every: int = PAPER_PERIOD) -> None:
        super().__init__()
        low, high = low_high
        if not (0 < low < 1 < high < math.inf):
            raise ConfigError(f"stabilise_range [{low}, {high}]: needs 0 < low < 1 < high")
        if every < 1:
            raise ConfigError(f"stabilise_every {every}: must be at least 1")
        self.low, self.high, self.every = low, high, every
        self.total = 0  # singular values repaired so far
        self.tally = Tally(every)

    def get_extra_state(self) -> Tensor:
        """The counters and bounds: a resumed run must look at the same steps."""
        tally = self.tally
        return torch.tensor([self.total, tally.countdown, tally.sigma_low, tally.sigma_high], dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        self.total, self.tally.countdown = (int(counter) for counter in state[:2])
        self.tally.sigma_low, self.tally.sigma_high = state[2:].tolist()

    def after_update(self, state: FactoredState, shrink: Shrink) -> Report:
        """Called after each update with the bounds on what it did to U."""
        self.tally.countdown -= 1
        if self.tally.countdown > 0:
            return NOTHING_DONE
        self.tally.countdown = self.every
        report = self.repair(state)
        self.total += report.repaired
        return report

    def repair(self, state: FactoredState) -> Report:
        """Bring U back into range now."""
        return Report()


class Restore(Stabiliser):
    """V ← V U + p ωᵀ, U ← I, as soon as one singular value is out of range."""

    def repair(self, state: FactoredState) -> Report:
        sigma = torch.linalg.svdvals(state.exactly("U"))
        if float(sigma[-1]) >= self.low and float(sigma[0]) <= self.high:
            return Report()
        state.restore()
        return Report(int(((sigma < self.low) | (sigma > self.high)).sum()), state.D)


class Svd(Stabiliser):
    """All offending singular values from one decomposition, in one pass over V."""

    def repair(self, state: FactoredState) -> Report:
        left, sigma, right = torch.linalg.svd(state.exactly("U"))
        offending = (sigma < self.low) | (sigma > self.high)
        if not bool(offending.any()):
            return Report()
        X, values = left[:, offending], sigma[offending]
        _sweep(state, X, values - 1)
        state.set_frame(left @ (torch.where(offending, 1.0, sigma)[:, None] * right))
        return Report(len(values), state.D)


class Power(Stabiliser):
    """Power iteration for the smallest and the largest singular value; U⁻ᵀ is recomputed before it."""

    iterations = 100

    def repair(self, state: FactoredState) -> Report:
        report = Report()
        for inverse in (True, False):
            for _ in range(state.d):
                U = state.exactly("U")
                A = torch.linalg.inv(U).T if inverse else U
                x, value = _leading(A, self.iterations)
                sigma = 1 / value if inverse else value
                if self.low <= sigma <= self.high:
                    break
                _sweep(state, x[:, None], torch.tensor([sigma - 1], dtype=x.dtype, device=x.device))
                state.set_frame(U + (1 / sigma - 1) * torch.outer(x, x @ U))
                report = Report(report.repaired + 1, report.rows_swept + state.D)
        return report


class Lazy(Stabiliser):
    """Repairs that are recorded, not swept. Looks only when U may have left its range.

    σ_min(U T) ≥ σ_min(U)(1 − shrink), so the product of (1 − shrink) since the last look bounds σ_min from below for
    free. A look is two block power iterations, warm-started, O(d²). Looking later than the bound says is a false
    economy: one unseen direction that has fallen to a hundredth costs more digits than all the others together.
    """

    start: Tensor
    smallest: Tensor
    largest: Tensor
    BLOCK = 4

    def __init__(self, d: int, low_high: tuple[float, float] = LAZY_RANGE) -> None:
        super().__init__(low_high, every=1)
        generator = torch.Generator().manual_seed(0)
        start, smallest, largest = torch.randn(3, min(self.BLOCK, d), d, generator=generator, dtype=torch.float64)
        self.register_buffer("start", start / math.sqrt(d), persistent=False)
        self.register_buffer("smallest", torch.linalg.qr(smallest.T).Q.T.contiguous())
        self.register_buffer("largest", torch.linalg.qr(largest.T).Q.T.contiguous())

    def after_update(self, state: FactoredState, shrink: Shrink) -> Report:
        tally = self.tally
        tally.sigma_low *= 1 - shrink.shrink
        tally.sigma_high *= 1 + shrink.growth
        if tally.sigma_low >= self.low and tally.sigma_high <= self.high:
            return NOTHING_DONE
        report = Report()
        if tally.sigma_low < self.low:
            tally.sigma_low = self._look(state, "U_inv_T", self.smallest, report)
            if report.repaired:
                tally.sigma_high = max(tally.sigma_high, self._target("U_inv_T"))
        if tally.sigma_high > self.high:
            tally.sigma_high = 1 / self._look(state, "U", self.largest, report)
        self.total += report.repaired
        return report

    def _target(self, name: str) -> float:
        """Return what a singular value becomes: 1 if it was too large, more if it was too small."""
        return max(1.0, OVERSHOOT * self.high) if name == "U_inv_T" else 1.0

    def _look(self, state: FactoredState, name: str, block: Tensor, report: Report) -> float:
        """Find the extreme singular values of U, repair those near or beyond the limit, return the next one.

        Vectors are rows here: a product of 4 rows with a d×d matrix takes a fifth of the time of one with 4 columns.
        """
        limit = self.low if name == "U_inv_T" else 1 / self.high
        for _ in range(state.d + 1):
            A = getattr(state, name)
            # a little of everything: what was repaired is orthogonal to what is left, and would never find it
            X, other = power_iteration(A, to_host(block) + 0.1 * to_host(self.start), 2)
            block.copy_(from_host(X, block))
            # the right singular vectors, times 1/σ on the σ_min side and σ on the σ_max side
            inverse_extent = 1 / np.sqrt((other * other).sum(1))
            # what is about to leave the range goes with what has left it: else the next step would look again
            offending = inverse_extent < limit**0.9
            if offending.any():
                Y = (other * inverse_extent[:, None])[offending]
                self._record(state, from_host(X[offending], A), from_host(Y, block), self._target(name), report)
            if not offending.all():
                break
        return float(inverse_extent[~offending].min(initial=limit if offending.all() else math.inf))

    def _record(self, state: FactoredState, X: Tensor, Y: Tensor, target: float, report: Report) -> None:
        """Give each singular vector x of U the value `target` and write that into the history; move some rows on."""
        history = state.history
        if history.count + len(X) > REPAIRS:
            report.rows_swept += sweep_some(state, history.rows_to_sweep())
            history.close(state.U)
            state.set_frame()
            return  # U is I now: nothing is left to repair
        alphas = (torch.linalg.vector_norm(X @ state.U, dim=1) / target - 1).tolist()
        state.repair(X, alphas, Y)
        for x, alpha in zip(X, alphas, strict=True):
            history.record(x, alpha)
        history.extend(-(-history.segments * len(X) // REPAIRS))
        report.rows_swept += sweep_some(state, history.rows_due() // SWEEP_ROWS * SWEEP_ROWS)
        report.repaired += len(X)


def power_iteration(A: Tensor, X: Numbers, times: int) -> tuple[Numbers, Numbers]:
    """Return X ← orthonormal(X A Aᵀ), `times` times over, and X A, for the few rows of X (k,d); both in float64."""
    if (kernel := kernel_for(A)) is not None and A.stride(1) == 1:
        X = np.ascontiguousarray(X, dtype=np.float64)
        (k, d), other = X.shape, np.empty_like(X)
        found, scratch = (X.ctypes.data, other.ctypes.data), A.new_empty(2 * k, d)
        kernel.power_iteration(kernel.blas, d, A.stride(0), A.data_ptr(), k, times, *found, scratch.data_ptr())
        return X, other
    for _ in range(times):
        X = orthonormal(to_host(from_host(X, A) @ A @ A.T).astype(np.float64))
    return X, to_host(from_host(X, A) @ A).astype(np.float64)


def orthonormal(X: Numbers) -> Numbers:
    """Make the few rows of X (k,d) orthonormal, in place, by Gram and Schmidt: faster here than a call of LAPACK."""
    for i, x in enumerate(X):
        for _ in range(2 if i else 0):  # twice is enough
            x -= (X[:i] @ x) @ X[:i]
        x /= math.sqrt(x @ x) or 1.0
    return X


def sweep_some(state: FactoredState, rows: int) -> int:
    """Bring the next `rows` rows, in id order, to the start of the open segment, and count them."""
    history, left = state.history, rows
    while left > 0:
        start = history.swept % state.stored_rows
        block = torch.arange(start, min(start + min(left, SWEEP_ROWS), state.stored_rows), device=state.V.device)
        if history.open:
            history.bring_to_open_segment(state.V, block)
        history.advance(len(block))
        left -= len(block)
    return rows


def make_stabiliser(
    method: str, d: int, low_high: tuple[float, float] | None = None, every: int | None = None
) -> Stabiliser:
    """Return the stabiliser of that name, with the paper's range and period unless told otherwise."""
    if method == "lazy":
        return Lazy(d, low_high or LAZY_RANGE)
    makers = {"none": Stabiliser, "restore": Restore, "svd": Svd, "power": Power}
    if method not in makers:
        raise ConfigError(f"output.stabilise: {method!r} is unknown; choose one of {', '.join(METHODS)}")
    return makers[method](low_high or PAPER_RANGE, PAPER_PERIOD if every is None else every)


def _sweep(state: FactoredState, X: Tensor, alpha: Tensor) -> None:
    """V ← V (I + X diag(α) Xᵀ), orthonormal columns X (d,k), block by block."""
    X, scaled = X.to(state.V.dtype), (X * alpha).T.to(state.V.dtype)
    state.map_rows(lambda _, rows: torch.addmm(rows, rows @ X, scaled))


def _leading(A: Tensor, iterations: int) -> tuple[Tensor, float]:
    """Return the leading left singular vector and singular value of A (d,d), by at most `iterations` steps."""
    x = torch.full((len(A),), 1 / math.sqrt(len(A)), dtype=A.dtype, device=A.device)
    value = 0.0
    for _ in range(iterations):
        y = A.T @ x
        x = A @ y
        previous, value = value, math.sqrt(float(torch.linalg.vector_norm(x)))
        x = x / torch.linalg.vector_norm(x)
        if abs(value - previous) <= 1e-6 * value:
            break
    return x, value
