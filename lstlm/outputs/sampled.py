"""The sampled softmax: a training loss over the target and a few thousand shared candidates."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lstlm.errors import ConfigError
from lstlm.kernels.ops import cross_entropy, gemm
from lstlm.outputs.base import RecordedStep
from lstlm.outputs.rows import Making, RowGradient, merged
from lstlm.outputs.softmax import LinearSoftmax
from lstlm.protocol.saved import bounds, insist

if TYPE_CHECKING:
    from lstlm.config import OutputConfig


class SampledSoftmax(LinearSoftmax):
    """−log of exp(o_y − log E_y) / (exp(o_y − log E_y) + Σ_{c≠y} exp(o_c − log E_c)), c over the candidates.

    The candidates, shared by a batch, are distinct words, drawn from the log-uniform distribution over frequency
    ranks until there are enough; E_j is the expected count of word j in such a draw, so that the loss
    estimates the full softmax. A candidate that is the example's own target is left out. With as many candidates as
    words it *is* the full softmax. Only rows of candidates and targets are read or written. Evaluation is exact.
    counts (D,) give the ranks.
    """

    multiple_targets = False
    word_of_rank: Tensor
    log_miss: Tensor
    draws: Tensor

    def __init__(self, hidden: int, counts: Tensor, *, candidates: int = 8192, **making: Any) -> None:
        """Make a layer for as many words as have a count; the other keywords are those of `Making`."""
        vocab = len(counts)
        super().__init__(hidden, vocab, **making)
        if candidates < 1:
            raise ConfigError(f"output.candidates is {candidates}: at least 1 is needed")
        self.candidates = min(candidates, vocab)
        where = self.rows.matrix.device
        order = counts.argsort(descending=True, stable=True).cpu()
        rank = torch.arange(vocab, dtype=torch.float64)
        log_miss = torch.empty(vocab, dtype=torch.float64)
        log_miss[order] = torch.log1p(-torch.log1p(1.0 / (rank + 1.0)) / math.log(vocab + 1.0))
        self.register_buffer("word_of_rank", order.to(where))
        self.register_buffer("log_miss", log_miss.to(where))  # log of the chance that one draw is another word
        generator = Making(**making).generator
        seed = torch.randint(2**62, (1,), generator=generator, device=where if generator else None).cpu()
        # [seed, number of draws so far]: all that a resumed run needs to go on with the same candidates
        self.register_buffer("draws", torch.cat([seed, seed.new_zeros(1)]))

    def _load_from_state_dict(self, *args: object, **kwargs: object) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        low, high = bounds(self.word_of_rank)
        insist(low >= 0 and high < self.vocab, "an order of words that is none")
        insist(bounds(self.log_miss)[1] < 0, "a chance above 1")
        insist(bounds(self.draws)[0] >= 0, "a number of draws below 0")

    def draw(self) -> tuple[Tensor, float]:
        """Return (distinct word ids (S,) in increasing order, number of tries it took) and count the draw."""
        seed, number = self.draws.tolist()
        self.draws[1] += 1
        if self.candidates == self.vocab:
            return torch.arange(self.vocab, device=self.log_miss.device), math.inf
        source = torch.Generator().manual_seed((seed + number) % 2**63)
        ranks, tries = draw_distinct(self.candidates, self.vocab, source)
        words = self.word_of_rank[ranks.to(self.word_of_rank.device)].sort().values
        return words, tries

    def log_expected_count(self, ids: Tensor, tries: float) -> Tensor:
        """Return log E (n,), E = 1 − (1 − p)^tries: the chance that a word is in the result of so many draws."""
        return torch.log(-torch.expm1(tries * self.log_miss[ids])).to(self.dtype)

    def _losses(self, h: Tensor, ids: Tensor, t: Tensor) -> tuple[Tensor, RecordedStep]:
        step = _SampledStep(self, h, ids[:, 0].contiguous(), t[:, 0])
        return step.losses, step


class _SampledStep(RecordedStep):
    def __init__(self, layer: SampledSoftmax, h: Tensor, y: Tensor, t: Tensor) -> None:
        self.layer, self.h, self.y = layer, h, y
        self.words, tries = layer.draw()
        self.W_words, self.W_y = layer.rows.rows(self.words), layer.rows.rows(y)
        shift = layer.rows.biases(self.words) - layer.log_expected_count(self.words, tries)
        scores = gemm(h, self.W_words.T).add_(shift)
        o_y = (h * self.W_y).sum(1) + layer.rows.biases(y) - layer.log_expected_count(y, tries)
        at = torch.searchsorted(self.words, y).clamp_(max=len(self.words) - 1)
        hit = self.words[at] == y
        scores[hit.nonzero()[:, 0], at[hit]] = -torch.inf
        self.G = torch.cat([o_y[:, None], scores], 1)
        self.losses = cross_entropy(self.G, torch.zeros_like(y)[:, None], t[:, None])  # G = ∂/∂scores from now on

    def backward(self, upstream: Tensor) -> Tensor:
        self.G.mul_(upstream[:, None])
        return gemm(self.G[:, 1:], self.W_words, self.G[:, :1] * self.W_y, beta=1.0)

    def apply(self, lr: float, keep: float) -> None:
        rows = self.layer.rows
        if keep != 1.0:
            rows.decay_(keep)
        for _, ids, weight, bias in self._parts():
            assert isinstance(ids, Tensor)
            rows.add_(ids, weight, bias, -lr)

    def gradients(self) -> list[RowGradient]:
        return merged(self._parts())  # a target may be a candidate as well, and that of several examples

    def _parts(self) -> list[RowGradient]:
        """Return the gradients of the candidates and of the targets, one after the other."""
        table, g_y, G = self.layer.rows, self.G[:, 0], self.G[:, 1:]
        return [
            RowGradient(table, self.words, gemm(G.T, self.h), G.sum(0)),
            RowGradient(table, self.y, g_y[:, None] * self.h, g_y),
        ]


def draw_distinct(number: int, vocab: int, source: torch.Generator) -> tuple[Tensor, int]:
    """Draw ranks with p(r) = log((r+2)/(r+1))/log(vocab+1) until `number` distinct ones are there.

    Return (those ranks (number,), in order of first appearance, and how many draws it took).
    """
    ranks = torch.empty(0, dtype=torch.int64)
    size = 2 * number
    while True:
        u = torch.rand(size, dtype=torch.float64, generator=source)
        fresh = (torch.exp(u * math.log(vocab + 1.0)) - 1.0).long().clamp_(0, vocab - 1)
        ranks = torch.cat([ranks, fresh])
        in_order, at = ranks.sort(stable=True)
        new = torch.ones_like(in_order, dtype=torch.bool)
        new[1:] = in_order[1:] != in_order[:-1]
        first = at[new].sort().values  # position of the first appearance of each distinct rank
        if len(first) >= number:
            return ranks[first[:number]], int(first[number - 1]) + 1
        size = len(ranks)


def sampled(config: OutputConfig, hidden: int, counts: Tensor, **making: Any) -> SampledSoftmax:
    """Return the layer of `output.kind: sampled`."""
    return SampledSoftmax(hidden, counts, candidates=config.candidates, **making)
