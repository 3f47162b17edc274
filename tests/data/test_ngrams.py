"""The sequence of minibatches: complete, deterministic, shared out over ranks, resumable at any place."""

from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lstlm.data import Batch, Examples, Split, Vocabulary, evaluation_batches, ngrams
from lstlm.data.ngrams import Sizes
from lstlm.errors import CheckpointError, ConfigError, DataError
from tests.helpers import write_tiny_corpus


def make(words: int, seed: int = 0) -> tuple[Split, Vocabulary]:
    """Return a split whose first words are unique (so that examples are told apart) and its vocabulary."""
    rng = np.random.default_rng(seed)
    stream: list[int] = []
    for number in range(words):
        stream.append(3 + number)
        if rng.random() < 0.2 or number == words - 1:
            stream.append(2)
    split = Split.from_ids("train", np.array(stream, dtype=np.uint32))
    counts = [0, 0, split.sentences] + [1] * words
    return split, Vocabulary(["<unk>", "<s>", "</s>", *(f"w{n}" for n in range(words))], counts)


def rows(batch: Batch) -> list[tuple[object, ...]]:
    values = [None] * len(batch) if batch.target_values is None else batch.target_values.tolist()
    ids = batch.target_ids.tolist()
    return [(tuple(c), str(t), str(v)) for c, t, v in zip(batch.context.tolist(), ids, values, strict=True)]


def epoch_rows(examples: Examples) -> list[tuple[object, ...]]:
    epoch, found = examples.epoch, []
    while examples.epoch == epoch:
        found += rows(next(examples))
    return found


cases = st.tuples(
    st.integers(1, 400),  # words
    st.integers(1, 50),  # batch size
    st.integers(1, 5),  # ranks
    st.sampled_from(["previous", "window", "bag"]),
    st.sampled_from([(4, 2), (16, 3), (1024, 64)]),  # positions a block, blocks a buffer
)


@settings(max_examples=60)
@given(cases, st.integers(0, 3))
def test_the_union_of_the_ranks_is_the_epoch_once_each(
    case: tuple[int, int, int, str, tuple[int, int]], seed: int
) -> None:
    words, batch_size, world, kind, (block, blocks) = case
    split, vocabulary = make(words, seed)
    arguments = {"context": 4, "kind": kind, "batch_size": batch_size, "sizes": Sizes(block, blocks)}
    expected = Counter(row for b in evaluation_batches(split, vocabulary, **arguments) for row in rows(b))
    if expected.total() < world:
        with pytest.raises(DataError, match=f"for {world} ranks"):
            Examples(split, vocabulary, **arguments, seed=seed, rank=0, world=world)
        return
    ranks = [Examples(split, vocabulary, **arguments, seed=seed, rank=r, world=world) for r in range(world)]
    for epoch in range(2):
        found: Counter[tuple[object, ...]] = Counter()
        for examples in ranks:
            batches = list(islice(examples, examples.batches_per_epoch))
            assert all(1 <= len(batch) <= batch_size + 1 for batch in batches)
            assert all(len(batch) == batch_size for batch in batches[:-1])
            found.update(row for batch in batches for row in rows(batch))
            assert examples.epoch == epoch + 1  # all ranks make equally many steps
        assert found == expected
        assert found.total() == ranks[0].num_examples


@settings(max_examples=40)
@given(cases, st.integers(0, 40), st.sampled_from([0.0, 0.05]), st.sampled_from([0.0, 0.5]))
def test_resume_at_any_position_continues_the_same_sequence(
    case: tuple[int, int, int, str, tuple[int, int]], steps: int, subsample: float, unknown: float
) -> None:
    words, batch_size, world, kind, (block, blocks) = case
    split, vocabulary = make(max(words, 40))
    settings_ = {"context": 4, "kind": kind, "batch_size": batch_size, "seed": 3, "subsample": subsample}
    settings_ |= {"unknown": unknown, "sizes": Sizes(block, blocks)}
    first = Examples(split, vocabulary, **settings_, rank=world - 1, world=world)
    for _ in range(steps):
        next(first)
    state = first.state()
    second = Examples(split, vocabulary, **settings_, rank=world - 1, world=world)
    second.restore(state)
    assert second.state() == state
    for _ in range(12):
        assert rows(next(first)) == rows(next(second))
        assert first.state() == second.state()


def told(examples: Examples, batches: int) -> list[list[int] | None]:
    """Return what `coming` tells before each of the next batches."""
    found = []
    for _ in range(batches):
        coming = examples.coming()
        found.append(None if coming is None else coming.tolist())
        next(examples)
    return found


@settings(max_examples=40)
@given(cases, st.integers(0, 40))
def test_coming_tells_the_next_targets_wherever_one_resumes(
    case: tuple[int, int, int, str, tuple[int, int]], taken: int
) -> None:
    """A resumed run must hear the same at the same batch: what it does with it decides the last bits."""
    words, batch_size, world, kind, (block, blocks) = case
    split, vocabulary = make(max(words, 40))
    arguments = {"context": 4, "kind": kind, "batch_size": batch_size, "seed": 1, "world": world}
    arguments |= {"sizes": Sizes(block, blocks, ahead=4)}
    whole, after = (Examples(split, vocabulary, **arguments) for _ in range(2))
    before = told(whole, taken)
    after.restore(whole.state())
    rest = told(whole, 12)
    assert told(after, 12) == rest
    again = Examples(split, vocabulary, **arguments)
    targets = [batch.target_ids.reshape(-1).tolist() for batch in islice(again, taken + 12 + 4)]
    for at, coming in enumerate(before + rest):
        if coming is not None:
            follow = [target for batch in targets[at : at + 4] for target in batch]
            assert coming and coming == follow[: len(coming)]


def test_order_depends_on_seed_and_epoch_and_is_not_that_of_the_corpus() -> None:
    split, vocabulary = make(300)
    arguments = {"context": 2, "kind": "previous", "batch_size": 16}
    first = Examples(split, vocabulary, **arguments, seed=1)
    epochs = [epoch_rows(first), epoch_rows(first)]
    other = epoch_rows(Examples(split, vocabulary, **arguments, seed=2))
    again = epoch_rows(Examples(split, vocabulary, **arguments, seed=1))
    corpus = [row for batch in evaluation_batches(split, vocabulary, **arguments) for row in rows(batch)]
    assert again == epochs[0]
    orders = [epochs[0], epochs[1], other, corpus]
    assert all(sorted(order) == sorted(corpus) for order in orders)
    assert all(a != b for i, a in enumerate(orders) for b in orders[:i])


def test_subsampling_is_alike_on_every_rank_and_drops_frequent_targets() -> None:
    ids = np.tile(np.array([3, 3, 3, 3, 4, 2], dtype=np.uint32), 500)
    split = Split.from_ids("train", ids)
    vocabulary = Vocabulary(["<unk>", "<s>", "</s>", "a", "b"], [0, 0, 500, 2000, 500])
    arguments = {"context": 2, "kind": "window", "batch_size": 10, "seed": 1, "subsample": 0.01}
    whole = Counter(epoch_rows(Examples(split, vocabulary, **arguments)))
    ranks = [Examples(split, vocabulary, **arguments, rank=rank, world=3) for rank in range(3)]
    assert sum((Counter(epoch_rows(rank)) for rank in ranks), Counter()) == whole
    kept = Counter(row[1] for row in whole.elements())
    assert kept["3"] / 2000 < kept["4"] / 500 < 1
    assert whole.total() == pytest.approx(ranks[0].num_examples, rel=0.15)


def test_a_share_of_the_words_seen_once_is_shown_as_unknown_wherever_they_stand() -> None:
    ids = np.stack([np.full(1000, 3), np.arange(4, 1004), np.full(1000, 2)], 1).astype(np.uint32)
    split = Split.from_ids("train", ids.ravel())
    counts = [0, 0, 1000, 1000] + [1] * 1000
    vocabulary = Vocabulary(["<unk>", "<s>", "</s>", *(f"w{n}" for n in range(1001))], counts)
    examples = Examples(split, vocabulary, context=1, batch_size=100, seed=1, unknown=0.4)
    hidden = []
    for epoch in range(2):
        batches = [next(examples) for _ in range(30)]
        context, targets = (np.concatenate([getattr(b, name) for b in batches]) for name in ("context", "target_ids"))
        assert np.count_nonzero(targets == 0) == pytest.approx(400, abs=60)
        assert set(targets[context[:, 0] == 3]) == set(context[targets == 2, 0])  # as a target and before </s> alike
        assert Counter(targets)[3] == Counter(targets)[2] == 1000
        hidden.append(set(range(4, 1004)) - set(targets.tolist()))
        assert examples.epoch == epoch + 1
    assert hidden[0] != hidden[1]


def test_evaluation_follows_the_corpus_and_stops_at_the_limit() -> None:
    split, vocabulary = make(100)
    batches = list(evaluation_batches(split, vocabulary, context=2, kind="previous", batch_size=7, limit=25))
    assert [len(batch) for batch in batches] == [7, 7, 7, 4]
    assert np.concatenate([batch.target_ids for batch in batches]).tolist() == split.ids[:25].tolist()
    empty = Split.from_ids("valid", np.zeros(0, dtype=np.uint32))
    assert list(evaluation_batches(empty, vocabulary, context=2, batch_size=7)) == []


def test_no_array_of_the_size_of_the_epoch_is_made() -> None:
    split, vocabulary = make(5000)
    examples = Examples(split, vocabulary, context=4, batch_size=8, seed=0, sizes=Sizes(16, 4))
    for _ in range(300):
        next(examples)
        assert len(examples._pending) <= 2 * 64 + 8
        assert len(examples._order._order) == -(-split.tokens // 16)


def test_wrong_arguments_and_states_are_refused() -> None:
    split, vocabulary = make(50)
    for wrong in ({"batch_size": 0}, {"rank": 2, "world": 2}, {"subsample": 1.5}, {"seed": -1}):
        with pytest.raises(ConfigError):
            Examples(split, vocabulary, **{"context": 2, "batch_size": 4, "seed": 0, **wrong})
    examples = Examples(split, vocabulary, context=2, batch_size=4, seed=0)
    for state in (
        {},
        {"epoch": 0, "batch": 0, "buffer": 99, "offset": 0},
        {**examples.state(), "offset": -1},
        {**examples.state(), "offset": 999},
    ):
        with pytest.raises(CheckpointError):
            examples.restore(state)
    small = Vocabulary(vocabulary.words[:10], vocabulary.counts[:10])
    with pytest.raises(DataError, match="beyond the 10 words"):
        list(evaluation_batches(split, small, context=2, batch_size=4))


def test_what_was_read_is_let_go_of_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = write_tiny_corpus(tmp_path / "corpus")
    dropped: list[int] = []
    monkeypatch.setattr(ngrams, "drop_pages", lambda ids: dropped.append(len(ids)))
    stream = Examples(corpus.train, corpus.vocabulary, context=4, batch_size=32, seed=1, sizes=Sizes(16, 4, held=3))
    for _ in range(stream.batches_per_epoch):
        next(stream)
    buffers = -(-corpus.train.tokens // 64)
    assert dropped[: -(-buffers // 3)] == [corpus.train.tokens] * -(-buffers // 3)
