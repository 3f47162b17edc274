"""Contexts and targets against a plain loop over sentences."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lstlm.data.corpus import Split
from lstlm.data.vocabulary import BOS_ID, EOS_ID
from lstlm.data.windows import Subsampler, Windows, keep_probabilities
from lstlm.errors import ConfigError

sentences = st.lists(st.lists(st.sampled_from([0, 3, 4, 5, 6]), min_size=1, max_size=7), min_size=1, max_size=8)


def split_of(corpus: list[list[int]]) -> Split:
    stream = [number for sentence in corpus for number in [*sentence, EOS_ID]]
    return Split.from_ids("train", np.array(stream, dtype=np.uint32))


def everything(split: Split) -> np.ndarray:
    return np.arange(split.tokens)


@given(sentences, st.integers(1, 6))
def test_previous_is_the_words_before_padded_with_bos(corpus: list[list[int]], n: int) -> None:
    split = split_of(corpus)
    windows = Windows(split, n, "previous")
    batch = windows.build(windows.select(everything(split)))
    expected = []
    for sentence in corpus:
        padded = [BOS_ID] * n + sentence + [EOS_ID]
        expected += [(tuple(padded[at : at + n]), padded[at + n]) for at in range(len(sentence) + 1)]
    assert list(zip(map(tuple, batch.context.tolist()), batch.target_ids.tolist(), strict=True)) == expected
    assert windows.num_examples == len(expected)
    assert batch.target_values is None


@given(sentences, st.integers(1, 3))
def test_window_is_half_on_either_side(corpus: list[list[int]], half: int) -> None:
    split = split_of(corpus)
    windows = Windows(split, 2 * half, "window")
    batch = windows.build(windows.select(everything(split)))
    expected = []
    for sentence in corpus:
        padded = [BOS_ID] * half + sentence + [EOS_ID] * half
        for at, word in enumerate(sentence):
            expected.append(([*padded[at : at + half], *padded[at + half + 1 : at + 2 * half + 1]], word))
    assert list(zip(batch.context.tolist(), batch.target_ids.tolist(), strict=True)) == expected
    assert windows.num_examples == len(expected)


@given(sentences, st.integers(1, 3))
def test_bag_is_the_distribution_of_the_words_around(corpus: list[list[int]], half: int) -> None:
    split = split_of(corpus)
    windows = Windows(split, 2 * half, "bag")
    batch = windows.build(windows.select(everything(split)))
    expected = []
    for sentence in corpus:
        for at, word in enumerate(sentence):
            around = sentence[max(0, at - half) : at] + sentence[at + 1 : at + 1 + half]
            if around:
                expected.append((word, {k: v / len(around) for k, v in Counter(around).items()}))
    assert batch.target_values is not None
    assert batch.target_ids.shape == (len(expected), 2 * half) == batch.target_values.shape
    assert windows.num_examples == len(expected)
    for row, (word, bag) in enumerate(expected):
        assert batch.context[row].tolist() == [word]
        entries = [(k, v) for k, v in zip(batch.target_ids[row], batch.target_values[row], strict=True) if v]
        assert len({k for k, _ in entries}) == len(entries)  # one entry a word
        assert dict(entries) == pytest.approx(bag)
        assert set(batch.target_ids[row].tolist()) == set(bag)  # free places repeat a word of the row


def test_arrays_have_the_promised_types() -> None:
    split = split_of([[3, 4, 5], [6]])
    for kind in ("previous", "window", "bag"):
        windows = Windows(split, 2, kind)
        batch = windows.build(windows.select(everything(split)))
        assert batch.context.dtype == batch.target_ids.dtype == np.int64
        assert batch.context.flags.c_contiguous
    assert batch.target_values is not None
    assert batch.target_values.dtype == np.float32


def test_keep_probability_is_the_word2vec_formula() -> None:
    counts = np.array([900, 90, 10])
    kept = keep_probabilities(counts, 0.01)
    assert kept == pytest.approx([np.sqrt(0.01 / 0.9) + 0.01 / 0.9, np.sqrt(0.01 / 0.09) + 0.01 / 0.09, 1.0])
    assert keep_probabilities(counts, 0.0).tolist() == [1, 1, 1]


def test_subsampling_keeps_words_at_their_rate_and_depends_on_seed_and_epoch() -> None:
    counts = np.array([0, 0, 0, 9_000, 1_000])
    ids = np.repeat([3, 4], 20_000)
    positions = np.arange(len(ids))
    kept = Subsampler(counts, 0.05, seed=1, epoch=0).keeps(positions, ids)
    rates = [kept[ids == word].mean() for word in (3, 4)]
    assert rates == pytest.approx(keep_probabilities(counts, 0.05)[3:].tolist(), abs=0.02)
    assert (kept == Subsampler(counts, 0.05, seed=1, epoch=0).keeps(positions, ids)).all()
    for seed, epoch in ((2, 0), (1, 1)):
        assert (kept != Subsampler(counts, 0.05, seed=seed, epoch=epoch).keeps(positions, ids)).any()


def test_subsampled_bags_lose_members_but_never_all_of_them() -> None:
    rng = np.random.default_rng(0)
    corpus = [rng.choice([3, 3, 3, 4, 5, 6], size=6).tolist() for _ in range(200)]
    split = split_of(corpus)
    sampler = Subsampler(np.bincount(split.ids, minlength=7), 0.01, seed=0, epoch=0)
    windows = Windows(split, 4, "bag")
    positions = windows.select(everything(split), sampler)
    assert 0 < len(positions) < windows.num_examples
    batch = windows.build(positions, sampler)
    assert batch.target_values is not None
    assert batch.target_values.sum(axis=1) == pytest.approx(np.ones(len(positions)))


@pytest.mark.parametrize(
    ("context", "kind", "message"),
    [
        (3, "window", r"data\.context: 3 is odd"),
        (0, "previous", r"data\.context: 0 is below 1"),
        (4, "next", r"data\.context_kind: 'next' is not one of previous, window, bag"),
    ],
)
def test_wrong_settings_name_their_key(context: int, kind: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Windows(split_of([[3]]), context, kind)
