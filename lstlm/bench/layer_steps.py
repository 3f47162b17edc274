"""Timed steps of one output layer, as `lstlm bench output` takes them."""

import math
from collections.abc import Callable
from time import perf_counter

import torch
from torch import Tensor

from lstlm.bench.methods import Runner
from lstlm.bench.workload import Workload
from lstlm.data.ngrams import USUAL
from lstlm.errors import NumericsError

MOST_HALVINGS = 30
_FEWEST_BETWEEN_RESTARTS = 20


class LayerSteps:
    """Timed steps of a layer on a stream of minibatches. Drawing a minibatch is not timed.

    As in training, minibatches are drawn some at a time, and the layer hears their targets; what it makes of them is
    timed with the first.

    Where the layer refuses an update because the learning rate is too large, the rate is halved and the step is
    repeated, as one would do in training; the refused step is not counted. Without a stabiliser the factors do leave
    the range of their type in time: then the layer is made anew, off the clock, and `restarts` tells how often.
    Any other numerical failure is kept, and no step is taken after it, so that other methods are measured all the same.
    """

    def __init__(
        self, make: Callable[[], Runner], work: Workload, *, restart: bool, now: Callable[[], float] = perf_counter
    ) -> None:
        self.runner, self._make, self._work, self._may_restart = make(), make, work, restart
        self._now = now
        self.halvings = self.restarts = self.taken = 0
        self.failure: NumericsError | None = None
        self._since_start = 0
        self._drawn: list[tuple[Tensor, Tensor]] = []  # the next minibatches, last one first

    def __call__(self) -> tuple[float, float]:
        if self.failure is None:
            try:
                result = self.step()
                self.taken += 1
                return result
            except NumericsError as error:
                self.failure = error
        return 0.0, 0.0

    def step(self) -> tuple[float, float]:
        """Take one step; raise what cannot be mended."""
        expecting = 0.0
        if not self._drawn:
            self._drawn = [next(self._work) for _ in range(USUAL.ahead)][::-1]
            expecting = self._expect()
        h, ids = self._drawn.pop()
        while True:
            try:
                spent, stabilise = self._timed(h.clone(), ids)
                self._since_start += 1
                return spent + expecting, stabilise + expecting
            except NumericsError:
                if self._may_restart and self._since_start >= _FEWEST_BETWEEN_RESTARTS:
                    self._restart()
                    continue
                self.halvings += 1
                if self.halvings > MOST_HALVINGS:
                    raise
                self.runner.lr /= 2

    def _expect(self) -> float:
        """Tell the layer the targets that come; return the milliseconds."""
        targets = torch.cat([ids for _, ids in self._drawn])
        began = self._now()
        self.runner.layer.expect(targets)
        return 1e3 * (self._now() - began)

    def _restart(self) -> None:
        lr = self.runner.lr
        del self.runner.layer  # free it before the new one takes its memory
        self.runner = self._make()
        self.runner.lr = lr
        self.restarts += 1
        self._since_start = 0

    def _timed(self, h: Tensor, ids: Tensor) -> tuple[float, float]:
        began = self._now()
        self.runner.step(h, ids)
        spent = 1e3 * (self._now() - began)
        if not math.isfinite(self.runner.last_loss):
            raise NumericsError(f"the loss became {self.runner.last_loss}")
        # the layer has the wall's clock, whatever ours is
        return spent, min(spent, self.runner.layer.last_stabilise_ms)
