"""`Lazy`: repairs that are recorded in the history and reach a row when it is read."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lstlm.kernels.step_ops import power_iteration
from lstlm.spherical.stabilise.base import READ_EVERY, Stabiliser

if TYPE_CHECKING:
    from lstlm.spherical.shrink import Shrink
    from lstlm.spherical.state import FactoredState

LOT_ROWS = 512  # rows brought forward at a time: fewer would read the products of all segments for little
OVERSHOOT = 0.5  # of `high`: where a value goes that fell below `low`, for it will go on falling


class Lazy(Stabiliser):
    """Repairs that reach a row when it is read. Looks only when U may have left its range.

    σ_min(U T) ≥ σ_min(U)(1 − shrink), so the product of (1 − shrink) since the last look bounds σ_min from below for
    free. A look is two block power iterations, warm-started, O(d²). Looking later than the bound says is a false
    economy: one unseen direction that has fallen to a hundredth costs more digits than all the others together. On
    devices other than the CPU the bound stays there, and the host reads it every READ_EVERY updates.
    """

    start: Tensor
    smallest: Tensor
    largest: Tensor
    usual_range = (0.1, 10.0)
    BLOCK = 4

    def __init__(self, d: int, low_high: tuple[float, float] | None = None, every: int | None = None) -> None:
        """Watch U (d,d). There is no period: `every` is not used."""
        super().__init__(d, low_high)
        self.tally.countdown = READ_EVERY
        generator = torch.Generator().manual_seed(0)
        start, smallest, largest = torch.randn(3, min(self.BLOCK, d), d, generator=generator, dtype=torch.float64)
        self.register_buffer("start", start / math.sqrt(d), persistent=False)
        self.register_buffer("smallest", torch.linalg.qr(smallest.T).Q.T.contiguous())
        self.register_buffer("largest", torch.linalg.qr(largest.T).Q.T.contiguous())

    def after_update(self, state: FactoredState, shrink: Shrink) -> None:
        tally = self.tally
        tally.sigma_low *= 1 - shrink.shrink
        tally.sigma_high *= 1 + shrink.growth
        if shrink.allowed is not None:
            tally.countdown -= 1
            if tally.countdown > 0:
                return
            tally.countdown = READ_EVERY
            tally.sigma_low, tally.sigma_high = float(tally.sigma_low), float(tally.sigma_high)
        if tally.sigma_low >= self.low and tally.sigma_high <= self.high:
            return
        before = self.total
        if tally.sigma_low < self.low:
            tally.sigma_low = self._look(state, "U_inv_T", self.smallest)
            if self.total > before:
                tally.sigma_high = max(tally.sigma_high, self._target("U_inv_T"))
        if tally.sigma_high > self.high:
            tally.sigma_high = 1 / self._look(state, "U", self.largest)

    def _target(self, name: str) -> float:
        """Return what a singular value becomes: 1 if it was too large, more if it was too small."""
        return max(1.0, OVERSHOOT * self.high) if name == "U_inv_T" else 1.0

    def _look(self, state: FactoredState, name: str, block: Tensor) -> float:
        """Find the extreme singular values of U, repair those near or beyond the limit, return the next one."""
        limit = self.low if name == "U_inv_T" else 1 / self.high
        for _ in range(state.d + 1):
            # a little of everything: what was repaired is orthogonal to what is left, and would never find it
            X, other = power_iteration(getattr(state, name), block + 0.1 * self.start, 2, impl=state.impl)
            block.copy_(X)
            # the right singular vectors, times 1/σ on the σ_min side and σ on the σ_max side
            inverse_extent = 1 / torch.linalg.vector_norm(other, dim=1)
            # what is about to leave the range goes with what has left it: else the next step would look again
            extents = inverse_extent.tolist()
            offending = [i for i, extent in enumerate(extents) if extent < limit**0.9]
            if offending:
                Y = (other * inverse_extent[:, None])[offending]
                self._record(state, X[offending].to(state.V.dtype), Y, self._target(name))
            if len(offending) < len(extents):
                break
        return min((e for i, e in enumerate(extents) if i not in offending), default=limit)

    def _record(self, state: FactoredState, X: Tensor, Y: Tensor, target: float) -> None:
        """Give each singular vector x of U the value `target` and write that into the history; move some rows on."""
        history = state.history
        if history.count + len(X) > history.repairs:
            if state.V.is_cpu:
                bring_next_rows(state, history.rows_to_move())
                history.close(state.U)
                state.set_frame()
            else:
                state.absorb()
            return  # U is I now: nothing is left to repair
        alphas = (torch.linalg.vector_norm(X @ state.U, dim=1) / target - 1).double()
        state.repair(X, alphas, Y)
        for x, alpha in zip(X, alphas.tolist(), strict=True):
            history.record(x, alpha)
        history.extend(-(-history.segments * len(X) // history.repairs))
        if state.V.is_cpu:
            bring_next_rows(state, history.rows_due() // LOT_ROWS * LOT_ROWS)
        self.total += len(X)


def bring_next_rows(state: FactoredState, rows: int) -> None:
    """Bring the next `rows` rows, in id order, to the start of the open segment, and count them."""
    history = state.history
    while rows > 0:
        start = history.moved % state.stored_rows
        block = torch.arange(start, min(start + min(rows, LOT_ROWS), state.stored_rows), device=state.V.device)
        if history.open:
            history.bring_to_open_segment(state.V, block)
        history.advance(len(block))
        rows -= len(block)
