"""Minibatches as of a trained network: Zipfian targets, and h with a mean, a decaying spectrum and a drift."""

import math

import torch
from torch import Tensor

ZIPF_EXPONENT = 1.0
ZIPF_SHIFT = 2.7  # Mandelbrot's shift: the commonest word of English text has about 5 % of it, not 7
SPREAD = 0.6  # standard deviation of a unit's input around its mean
MEAN = 0.8  # standard deviation over the units of that mean: the direction that dominates H
SPECTRUM_DECAY = 0.6  # the k-th standard deviation falls as k^-0.6
DRIFT_STEPS = 5000.0  # steps in which the directions turn by one radian
REFRESH_EVERY = 50  # steps between two looks at the drift: between them it is far below the noise of a minibatch


def zipf_counts(vocab: int) -> Tensor:
    """Return word counts (vocab,), float64, falling as (rank + 2.7)^−1, the rarest word counted once."""
    weight = (torch.arange(vocab, dtype=torch.float64) + ZIPF_SHIFT) ** -ZIPF_EXPONENT
    return (weight / weight[-1]).round_()


class Workload:
    """An endless stream of (h (m,hidden), target_ids (m,), or (m,K) for K > 1 targets); equal for equal seeds.

    h = tanh(μ + x A_t) with x ~ N(0, I), the rows of A_t scaled by a decaying spectrum, A_t = cos θ A + sin θ A' and θ
    growing slowly with the step t, so that no direction stays strong or weak for ever.
    """

    def __init__(
        self,
        hidden: int,
        vocab: int,
        batch_size: int,
        *,
        targets: int = 1,
        dtype: torch.dtype = torch.float32,
        seed: int = 1,
    ) -> None:
        self._random = torch.Generator().manual_seed(seed)
        self._batch_size, self._dtype = batch_size, dtype
        self._shape = (batch_size,) if targets == 1 else (batch_size, targets)
        self.counts = zipf_counts(vocab)
        self._cumulative = self.counts.cumsum(0)
        spectrum = torch.arange(1, hidden + 1, dtype=torch.float64) ** -SPECTRUM_DECAY
        spectrum *= SPREAD / torch.linalg.vector_norm(spectrum)
        self._ends = [self._normal(hidden, hidden) * spectrum[:, None] for _ in range(2)]
        self._means = [MEAN * self._normal(hidden) for _ in range(2)]
        self._step = 0
        self._mixed = self._ends[0]
        self._mean = self._means[0]

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._random, dtype=torch.float64)

    def __next__(self) -> tuple[Tensor, Tensor]:
        if self._step % REFRESH_EVERY == 0:
            angle = self._step / DRIFT_STEPS
            (A, B), (mu, nu) = self._ends, self._means
            self._mixed = (math.cos(angle) * A + math.sin(angle) * B).to(self._dtype)
            self._mean = (math.cos(angle) * mu + math.sin(angle) * nu).to(self._dtype)
        self._step += 1
        x = torch.randn(self._batch_size, len(self._mixed), generator=self._random, dtype=self._dtype)
        u = torch.rand(self._shape, generator=self._random, dtype=torch.float64) * self._cumulative[-1]
        ids = torch.searchsorted(self._cumulative, u).clamp_(max=len(self._cumulative) - 1)
        return torch.addmm(self._mean, x, self._mixed).tanh_(), ids

    def __iter__(self) -> "Workload":
        return self
