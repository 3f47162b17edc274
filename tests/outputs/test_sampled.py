"""The candidates of the sampled softmax: distinct, drawn as stated, counted as stated."""

from __future__ import annotations

import math

import pytest
import torch

from lstlm.errors import ConfigError
from lstlm.outputs import SampledSoftmax
from lstlm.outputs.sampled import draw_distinct

VOCAB = 60


@pytest.mark.parametrize("number", [1, 2, 30, 59, 60])
def test_ranks_are_distinct_and_the_last_one_was_the_last_try(number: int) -> None:
    ranks, tries = draw_distinct(number, VOCAB, torch.Generator().manual_seed(number))
    assert len(set(ranks.tolist())) == len(ranks) == number
    assert 0 <= int(ranks.min()) <= int(ranks.max()) < VOCAB
    assert tries >= number


def test_the_first_rank_follows_the_log_uniform_distribution() -> None:
    source = torch.Generator().manual_seed(0)
    draws = 6000
    seen = torch.cat([draw_distinct(1, VOCAB, source)[0] for _ in range(draws)]).bincount(minlength=VOCAB)
    rank = torch.arange(VOCAB, dtype=torch.float64)
    p = torch.log((rank + 2) / (rank + 1)) / math.log(VOCAB + 1)
    spread = (p * (1 - p) / draws).sqrt()
    assert float(((seen / draws - p) / spread).abs().max()) < 4.5


def test_the_expected_count_is_how_often_a_word_is_among_the_candidates() -> None:
    layer = SampledSoftmax(2, torch.arange(VOCAB), candidates=15, generator=torch.Generator().manual_seed(1))
    draws, every = 4000, torch.arange(VOCAB)
    seen, expected = torch.zeros(VOCAB), torch.zeros(VOCAB)
    for _ in range(draws):
        words, tries = layer.draw()
        seen[words] += 1 / draws
        expected += layer.log_expected_count(every, tries).exp() / draws
    # stopping at the fifteenth distinct word ties the number of tries to what was found: close, not equal
    assert float((seen - expected).abs().max()) < 0.04
    assert float(seen.sum()) == pytest.approx(15, abs=1e-3)
    assert int(seen.argmax()) == VOCAB - 1, "the most frequent word is the likeliest candidate, whatever its id"


def test_only_rows_of_candidates_and_targets_move() -> None:
    layer = SampledSoftmax(4, torch.arange(VOCAB, 0, -1), candidates=10, generator=torch.Generator().manual_seed(3))
    before = layer.weight()
    target = torch.tensor([VOCAB - 1, VOCAB - 1])
    words, _ = SampledSoftmax(
        4, torch.arange(VOCAB, 0, -1), candidates=10, generator=torch.Generator().manual_seed(3)
    ).draw()
    layer(torch.ones(2, 4), target).sum().backward()
    layer.update(0.1)
    moved = (layer.weight() != before).any(1).nonzero()[:, 0].tolist()
    assert moved == sorted({*words.tolist(), VOCAB - 1})


def test_more_candidates_than_words_are_all_words() -> None:
    layer = SampledSoftmax(4, torch.arange(VOCAB), candidates=8192)
    assert layer.draw()[0].tolist() == list(range(VOCAB))


def test_no_candidates_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"output\.candidates"):
        SampledSoftmax(4, torch.arange(VOCAB), candidates=0)
