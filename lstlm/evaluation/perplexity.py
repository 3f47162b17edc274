"""How well a network predicts held-out words: loss, exact perplexity where there are probabilities, hits and ranks."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lstlm.data import Batch, Vocabulary
from lstlm.nn.network import Network

Progress = Callable[[str, int, int | None], None]
"""Called with (phase, examples done since the last call, total or None); phases: `score` and `rank`."""

_RANK_BATCH = 1024  # reading the vocabulary costs a factored layer the same for one example as for many


@dataclass(frozen=True)
class PerplexityResult:
    """Mean loss an example; exp(−mean log p) over `tokens`, or None without probabilities; the rest of `rank_examples`.

    `known_perplexity` is that of the `known_tokens` other than <unk>, which counts as a word and an easy one.
    `top1` and `top10` are the shares of ranks within 1 and 10, `mrr` the mean of 1/rank. Ranks are exact (`rank_of`).
    """

    perplexity: float | None
    loss: float
    tokens: int
    top1: float
    top10: float
    mrr: float
    rank_examples: int
    known_perplexity: float | None
    known_tokens: int


def affordable_ranks(network: Network, products: int, fewest: int) -> int:
    """Return how many examples so many multiply-adds rank, a rank being a product with the whole vocabulary."""
    return max(products // (network.output.vocab * network.output.hidden), fewest)


class Reservoir:
    """A uniform random sample of at most `size` examples from a stream of unknown length (Vitter's algorithm R)."""

    def __init__(self, size: int, seed: int = 1) -> None:
        self.size = size
        self.seen = 0
        self._random = np.random.default_rng(seed)
        self._kept: list[tuple[Any, int]] = []

    def add(self, contexts: Any, targets: Any) -> None:
        """Offer examples: contexts (m,n), targets (m,)."""
        # example number i enters with probability size/i, in a random place
        places = self._random.integers(0, self.seen + 1 + np.arange(len(targets)))
        places[: max(0, self.size - self.seen)] = -1
        self.seen += len(targets)
        for row in np.flatnonzero(places < self.size):
            example = (contexts[row].copy(), int(targets[row]))
            if places[row] < 0:
                self._kept.append(example)
            else:
                self._kept[places[row]] = example

    def batches(self, batch_size: int) -> Iterator[tuple[Any, Any]]:
        """Yield contexts (m,n) and targets (m,) of what was kept."""
        for start in range(0, len(self._kept), batch_size):
            part = self._kept[start : start + batch_size]
            yield np.stack([context for context, _ in part]), np.array([target for _, target in part])

    def __len__(self) -> int:
        return len(self._kept)


def evaluate(
    network: Network,
    batches: Iterable[Batch],
    *,
    rank_examples: int = 256,
    seed: int = 1,
    progress: Progress = lambda phase, done, total: None,
) -> PerplexityResult:
    """Stream over `batches` once.

    Log-probabilities cost what the layer's `log_prob` costs, O(hidden²) a word for the spherical family, whatever the
    vocabulary. Top-1, top-10 and the mean reciprocal rank need a product with the whole vocabulary, O(D·hidden) an
    example, so they are taken on a seeded random sample of `rank_examples` (0: none, all three are nan; as many as
    there are, or more: all of them).
    """
    was_training = network.training
    network.eval()
    sums = _Sums()
    sample = Reservoir(rank_examples, seed)
    device = next(chain(network.parameters(), network.buffers())).device
    try:
        with torch.no_grad():
            for batch in batches:
                _add_batch(network, batch, device, sums)
                if rank_examples:
                    sample.add(batch.context, _main_targets(batch))
                progress("score", len(batch), None)
            found = []
            for contexts, targets in sample.batches(_RANK_BATCH):
                found.append(_sample_ranks(network, contexts, targets, device))
                progress("rank", len(targets), len(sample))
    finally:
        network.train(was_training)
    places = torch.cat(found).double() if found else torch.zeros(0, dtype=torch.float64)
    return PerplexityResult(
        perplexity=_perplexity(sums.log_prob, sums.weight) if network.output.normalised else None,
        loss=sums.loss / sums.examples if sums.examples else math.nan,
        tokens=sums.tokens,
        top1=_mean(places == 1),
        top10=_mean(places <= 10),
        mrr=_mean(1.0 / places),
        rank_examples=len(sample),
        known_perplexity=_perplexity(sums.known_log_prob, sums.known_weight) if network.output.normalised else None,
        known_tokens=sums.known_tokens,
    )


class _Sums:
    """Running totals in float64, on the host."""

    def __init__(self) -> None:
        self.loss = self.log_prob = self.weight = self.known_log_prob = self.known_weight = 0.0
        self.examples = self.tokens = self.known_tokens = 0


def _perplexity(log_prob: float, weight: float) -> float:
    """exp(−Σ w log p / Σ w); inf rather than an overflow."""
    mean = -log_prob / weight if weight > 0 else math.nan
    return math.exp(mean) if not mean > 700 else math.inf


def _add_batch(network: Network, batch: Batch, device: torch.device, sums: _Sums) -> None:
    context = torch.as_tensor(batch.context, device=device)
    ids = torch.as_tensor(batch.target_ids, device=device)
    values = None if batch.target_values is None else torch.as_tensor(batch.target_values, device=device)
    weights = torch.ones(ids.shape, dtype=torch.float64, device=device) if values is None else values.double()
    h = network.encode(context)
    sums.examples += len(ids)
    known = ids != Vocabulary.unk_id
    sums.tokens += int((weights > 0).sum())
    sums.known_tokens += int(((weights > 0) & known).sum())
    if not network.output.normalised:
        sums.loss += float(network.output(h, ids, values).double().sum())
        return
    # free places of a bag have weight 0, and 0·(−inf) would be nan
    terms = torch.where(weights > 0, weights * network.output.log_prob(h, ids).double(), 0.0)
    sums.log_prob += float(terms.sum())
    sums.weight += float(weights.sum())
    sums.known_log_prob += float(terms[known].sum())
    sums.known_weight += float(weights[known].sum())
    sums.loss = -sums.log_prob  # the loss of every normalised layer is Σ weight·(−log p)


def _main_targets(batch: Batch) -> Any:
    """One target an example (m,): the only one, or the one of greatest value."""
    if batch.target_values is None:
        return batch.target_ids.reshape(len(batch.target_ids), -1)[:, 0]
    return np.take_along_axis(batch.target_ids, batch.target_values.argmax(1)[:, None], axis=1)[:, 0]


def _sample_ranks(network: Network, contexts: Any, targets: Any, device: torch.device) -> Tensor:
    h = network.encode(torch.as_tensor(contexts, device=device))
    return network.output.rank_of(h, torch.as_tensor(targets, device=device)).cpu()


def _mean(values: Tensor) -> float:
    return float(values.double().mean()) if len(values) else math.nan


@torch.no_grad()
def word_scores(network: Network, batches: Iterable[Batch]) -> Iterator[tuple[int, float]]:
    """Yield (target, score) for each example in turn: log p, or −loss where the layer has no probabilities."""
    device = next(chain(network.parameters(), network.buffers())).device
    for batch in batches:
        ids = torch.as_tensor(batch.target_ids, device=device)
        h = network.encode(torch.as_tensor(batch.context, device=device))
        scores = network.output.log_prob(h, ids) if network.output.normalised else -network.output(h, ids)
        yield from zip(ids.tolist(), scores.double().tolist(), strict=True)
