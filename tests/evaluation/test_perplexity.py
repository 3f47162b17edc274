"""Perplexity, hits and ranks of every kind of output layer against a dense evaluation, word by word."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from lstlm.config import Config, parse_config
from lstlm.data import Batch
from lstlm.evaluation.perplexity import Reservoir, affordable_ranks, evaluate
from lstlm.nn.network import Network

VOCAB = 60
COUNTS = np.maximum(1, 1000 // np.arange(1, VOCAB + 1))
KINDS = {
    "factored spherical": ("factored", "spherical"),
    "factored taylor": ("factored", "taylor"),
    "factored z": ("factored", "z"),
    "factored squared": ("factored", "squared"),
    "naive spherical": ("naive", "spherical"),
    "softmax": ("softmax", "z"),
    "hierarchical": ("hierarchical", "z"),
    "adaptive": ("adaptive", "z"),
    "sampled": ("sampled", "z"),
}


def make_network(kind: str, loss: str, context_kind: str = "previous") -> Network:
    settings = f"""
        data: {{context: 4, context_kind: {context_kind}}}
        model: {{embedding: 5, hidden: [6]}}
        output: {{kind: {kind}, loss: {loss}, init_scale: 0.5, candidates: 20}}
        train: {{dtype: float64}}
    """
    config: Config = parse_config(settings, "test", ())
    return Network(config, COUNTS, device="cpu", generator=torch.Generator().manual_seed(3))


def batches(examples: int = 300, size: int = 64, seed: int = 0) -> Iterator[Batch]:
    generator = np.random.default_rng(seed)
    contexts, targets = generator.integers(0, VOCAB, (examples, 4)), generator.integers(0, VOCAB, examples)
    for start in range(0, examples, size):
        yield Batch(contexts[start : start + size], targets[start : start + size])


@pytest.mark.parametrize(("kind", "loss"), KINDS.values(), ids=KINDS)
def test_against_a_dense_evaluation(kind: str, loss: str) -> None:
    network = make_network(kind, loss)
    result = evaluate(network, batches(), rank_examples=10_000)
    assert network.training, "the mode is put back"
    network.eval()
    losses, logs, places = [], [], []
    with torch.no_grad():
        for batch in batches():
            h, ids = network.encode(torch.as_tensor(batch.context)), torch.as_tensor(batch.target_ids)
            losses += network.output(h, ids).tolist()
            scores, order = network.output.topk(h, VOCAB)
            places += [row.index(target) + 1 for row, target in zip(order.tolist(), ids.tolist(), strict=True)]
            if network.output.normalised:
                # the whole distribution, so that the perplexity is known to come from one that adds up to 1
                assert torch.allclose(scores.exp().sum(1), torch.ones(len(h), dtype=h.dtype), atol=1e-9)
                logs += scores.gather(1, (order == ids[:, None]).int().argmax(1, keepdim=True))[:, 0].tolist()
    assert result.loss == pytest.approx(np.mean(losses), rel=1e-9)
    assert (result.tokens, result.rank_examples) == (300, 300)
    assert result.top1 == np.mean(np.array(places) == 1)
    assert result.top10 == np.mean(np.array(places) <= 10)
    assert result.mrr == pytest.approx(np.mean(1 / np.array(places)), rel=1e-12)
    if loss in ("z", "squared") and kind == "factored":
        assert result.perplexity is None
    else:
        assert result.perplexity == pytest.approx(math.exp(-np.mean(logs)), rel=1e-9)


@pytest.mark.parametrize(("kind", "loss"), [("factored", "spherical"), ("softmax", "z"), ("factored", "z")])
def test_bags_weigh_their_words_and_free_places_count_nothing(kind: str, loss: str) -> None:
    network = make_network(kind, loss, context_kind="bag")
    generator = np.random.default_rng(0)
    ids = generator.integers(0, VOCAB, (20, 3))
    values = np.tile(np.array([0.0, 0.25, 0.75], dtype=np.float32), (20, 1))
    context = generator.integers(0, VOCAB, (20, 1))
    result = evaluate(network, [Batch(context, ids, values)], rank_examples=100)
    network.eval()
    with torch.no_grad():
        h = network.encode(torch.as_tensor(context))
        losses = network.output(h, torch.as_tensor(ids), torch.as_tensor(values))
        assert result.loss == pytest.approx(float(losses.mean()), rel=1e-7)
        assert result.tokens == 40
        # hits are those of the word of greatest weight
        assert result.top10 == float((network.output.rank_of(h, torch.as_tensor(ids[:, 2])) <= 10).double().mean())
        if network.output.normalised:
            logs = network.output.log_prob(h, torch.as_tensor(ids)).numpy()
            assert result.perplexity == pytest.approx(math.exp(-(values * logs).sum() / 20), rel=1e-7)


def test_a_rank_costs_a_product_with_the_vocabulary() -> None:
    network = make_network("softmax", "z")
    assert affordable_ranks(network, 1000 * VOCAB * 6, fewest=10) == 1000
    assert affordable_ranks(network, 1, fewest=10) == 10


def test_no_ranks_asked_and_no_batches_given() -> None:
    network = make_network("softmax", "z")
    result = evaluate(network, batches(), rank_examples=0)
    assert result.perplexity is not None and math.isnan(result.top1) and math.isnan(result.mrr)
    assert result.rank_examples == 0
    empty = evaluate(network, [])
    assert empty.tokens == 0 and math.isnan(empty.loss)


def test_the_sample_is_seeded_uniform_and_of_its_size() -> None:
    counts = np.zeros(50)
    for seed in range(600):
        sample = Reservoir(10, seed)
        for start in range(0, 50, 8):
            part = np.arange(start, min(start + 8, 50))
            sample.add(part[:, None], part)
        kept = np.concatenate([targets for _, targets in sample.batches(4)])
        assert len(kept) == len(sample) == 10 == len(set(kept.tolist()))
        counts[kept] += 1
    # each of 50 is kept with probability 1/5: 120 times of 600, give or take five standard deviations of 9.8
    assert np.abs(counts - 120).max() < 49


def test_log_probabilities_need_no_product_with_the_vocabulary() -> None:
    """What makes the cost a word independent of the vocabulary: nothing of its size is allocated."""
    from torch.utils._python_dispatch import TorchDispatchMode

    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            stored = torch.is_tensor(result) and result._base is None
            if stored and not any(torch.is_tensor(a) and a.data_ptr() == result.data_ptr() for a in args):
                largest = max(largest, result.numel())
            return result

    settings = "model: {embedding: 5, hidden: [6]}\noutput: {kind: factored, loss: spherical}"
    vocab = 100_000
    config = parse_config(settings, "test", ())
    network = Network(config, np.ones(vocab), device="cpu", generator=torch.Generator().manual_seed(0))
    with Watch():
        evaluate(network, batches(), rank_examples=0)
    assert 0 < largest < vocab // 10
