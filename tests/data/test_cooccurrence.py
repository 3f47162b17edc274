"""Counts of neighbours and association scores against plain loops; the cache; bounded pieces change nothing."""

import json
import math
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lstlm.data import Corpus, association, cooccurrence
from lstlm.data.association import association_rows
from lstlm.data.cooccurrence import SparseRows, add_equal, count, distance_weights, sort_order
from lstlm.data.windows import Subsampler
from lstlm.errors import ConfigError, DataError
from tests.helpers import write_tiny_corpus

SETTINGS: dict[str, Any] = {
    "window": 3,
    "distance": "linear",
    "min_pair": 0.0,
    "weighting": "ppmi",
    "shift": 1.0,
    "smoothing": 0.75,
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    # min_count 5: some words are <unk>, which must have no row
    return write_tiny_corpus(tmp_path_factory.mktemp("corpus") / "tiny", min_count=5)


def dense(rows: SparseRows) -> np.ndarray[Any, np.dtype[np.float64]]:
    out = np.zeros((len(rows), rows.columns))
    for i in range(len(rows)):
        low, high = rows.starts[i], rows.starts[i + 1]
        assert (np.diff(rows.indices[low:high]) > 0).all(), "columns rise, so none comes twice"
        out[i, rows.indices[low:high]] = rows.values[low:high]
    return out


def counted_by_hand(corpus: Corpus, window: int, weights: list[float]) -> np.ndarray[Any, np.dtype[np.float64]]:
    words, vocabulary = len(corpus.vocabulary), corpus.vocabulary
    pairs: dict[tuple[int, int], float] = defaultdict(float)
    sentence: list[int] = []
    for word in corpus.train.ids.tolist():
        if word == vocabulary.unk_id:
            continue  # its neighbours become each other's
        if word != vocabulary.eos_id:
            sentence.append(word)
            continue
        for i, a in enumerate(sentence):
            for k in range(1, window + 1):
                if i + k < len(sentence):
                    b = sentence[i + k]
                    pairs[a, words + b] += weights[k - 1]
                    pairs[b, a] += weights[k - 1]
        sentence = []
    out = np.zeros((words, 2 * words))
    for place, weight in pairs.items():
        out[place] = weight
    return out


def counts_of(corpus: Corpus, folder: Path, **settings: Any) -> SparseRows:
    how = {"window": 3, "distance": "linear", "min_pair": 0.0, **settings}
    count(corpus.train.ids, corpus.vocabulary.counts, folder, **how)
    return SparseRows.open(folder, "counts", 2 * len(corpus.vocabulary))


@pytest.mark.parametrize(
    ("distance", "weights"), [("flat", [1, 1, 1]), ("linear", [1, 2 / 3, 1 / 3]), ("harmonic", [1, 1 / 2, 1 / 3])]
)
def test_counts_are_those_of_plain_loops(corpus: Corpus, tmp_path: Path, distance: str, weights: list[float]) -> None:
    found = dense(counts_of(corpus, tmp_path, distance=distance))
    np.testing.assert_allclose(found, counted_by_hand(corpus, 3, weights), rtol=1e-6)
    assert found[corpus.vocabulary.unk_id].sum() == 0 == found[:, corpus.vocabulary.eos_id].sum()


@pytest.mark.parametrize("chunk", [2, 101])  # 2 is less than the window
def test_small_pieces_change_nothing(corpus: Corpus, tmp_path: Path, chunk: int) -> None:
    (tmp_path / "whole").mkdir()
    whole = counts_of(corpus, tmp_path / "whole", distance="flat")
    pieces = counts_of(corpus, tmp_path, distance="flat", sizes=(chunk, 1000))
    assert len(cooccurrence.Spill(tmp_path, corpus.vocabulary.counts, 3, 1000).edges) > 10
    for name in ("starts", "indices", "values"):
        np.testing.assert_array_equal(getattr(pieces, name), getattr(whole, name))
    assert not list(tmp_path.glob("spill-*")), "spilled pairs are removed"


def test_rare_pairs_can_be_left_out(corpus: Corpus, tmp_path: Path) -> None:
    full = counted_by_hand(corpus, 3, [1, 1, 1])
    found = dense(counts_of(corpus, tmp_path, distance="flat", min_pair=3.0))
    np.testing.assert_array_equal(found, np.where(full >= 3, full, 0))


def test_left_and_right_are_each_others_transpose(corpus: Corpus, tmp_path: Path) -> None:
    found = dense(counts_of(corpus, tmp_path))
    words = len(corpus.vocabulary)
    np.testing.assert_array_equal(found[:, :words], found[:, words:].T)


@pytest.mark.parametrize(("shift", "smoothing"), [(1.0, 0.75), (2.0, 1.0)])
def test_ppmi_is_its_definition(corpus: Corpus, shift: float, smoothing: float) -> None:
    rows, facts = association_rows(corpus, {**SETTINGS, "shift": shift, "smoothing": smoothing})
    counts = counted_by_hand(corpus, 3, [1, 2 / 3, 1 / 3])
    words = len(corpus.vocabulary)
    expected = np.zeros_like(counts)
    for side in (0, words):
        half = counts[:, side : side + words]
        context = half.sum(0) ** smoothing
        for a, b in zip(*np.nonzero(half), strict=True):
            share = half[a, b] / half[a].sum()
            score = math.log(share / (context[b] / context.sum())) - math.log(shift)
            expected[a, side + b] = max(0.0, score)
    np.testing.assert_allclose(dense(rows), expected, rtol=1e-5, atol=1e-6)
    assert facts["entries"] == len(rows.values) <= facts["counted"] == np.count_nonzero(counts)


def test_a_discount_lowers_what_was_seen_rarely(corpus: Corpus) -> None:
    counts = counted_by_hand(corpus, 3, [1, 2 / 3, 1 / 3])
    plain, _ = association_rows(corpus, SETTINGS)
    rows, _ = association_rows(corpus, {**SETTINGS, "discount": 0.5})
    np.testing.assert_allclose(dense(rows), dense(plain) * counts / (counts + 0.5), rtol=1e-5)


def test_dropped_words_make_their_neighbours_meet(corpus: Corpus, tmp_path: Path) -> None:
    ids, counts = corpus.train.ids, corpus.vocabulary.counts
    subsampler = Subsampler(counts, 0.002, seed=7, epoch=0)
    stays = subsampler.keeps(np.arange(len(ids)), ids) | (ids == corpus.vocabulary.eos_id)
    assert 0.1 < stays.mean() < 0.9
    found = []
    for name, text, dropped in (("given", ids[stays], None), ("dropped", ids, subsampler)):
        (tmp_path / name).mkdir()
        count(text, counts, tmp_path / name, window=3, distance="linear", min_pair=0.0, subsampler=dropped)
        found.append(dense(SparseRows.open(tmp_path / name, "counts", 2 * len(counts))))
    np.testing.assert_array_equal(found[0], found[1])


def test_each_seed_drops_other_words(corpus: Corpus) -> None:
    first, second = (association_rows(corpus, {**SETTINGS, "subsample": 0.01, "seed": seed})[1] for seed in (1, 2))
    assert first["made"] and second["made"]


def test_roots_and_logarithms(corpus: Corpus) -> None:
    counts = counted_by_hand(corpus, 3, [1, 2 / 3, 1 / 3])
    rows, _ = association_rows(corpus, {**SETTINGS, "weighting": "log"})
    np.testing.assert_allclose(dense(rows), np.log1p(counts), rtol=1e-5, atol=1e-7)
    rows, _ = association_rows(corpus, {**SETTINGS, "weighting": "sqrt", "smoothing": 1.0})
    words = len(corpus.vocabulary)
    a, b = next(zip(*np.nonzero(counts[:, words:]), strict=True))
    right = counts[:, words:]
    expected = math.sqrt(right[a, b]) / (right[a].sum() * right[:, b].sum()) ** 0.25
    assert dense(rows)[a, words + b] == pytest.approx(expected, rel=1e-5)


def test_rows_are_made_once_and_again_for_other_settings(corpus: Corpus) -> None:
    settings = {**SETTINGS, "window": 2}
    first, made = association_rows(corpus, settings)
    again, found = association_rows(corpus, settings)
    assert (made["made"], found["made"]) == (True, False) and found["seconds"] == made["seconds"]
    np.testing.assert_array_equal(first.values, again.values)
    assert association_rows(corpus, {**settings, "shift": 1.5})[1]["made"]
    assert not list(corpus.folder.glob(".cooccurrence-*")) and not list(corpus.folder.glob("*/counts.*"))


def test_a_failure_leaves_nothing_behind(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(association, "_weigh", full_disk)
    before = sorted(corpus.folder.iterdir())
    with pytest.raises(DataError, match=r"written \(No space left on device\); make data.dir writable, or make room"):
        association_rows(corpus, {**SETTINGS, "window": 1})
    assert sorted(corpus.folder.iterdir()) == before


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("rows.indices", lambda data: data[:64] + b"\xff\xff\xff\x7f" * 2 + data[72:]),  # far out of bounds
        ("rows.values", lambda data: data[:50]),
        ("rows.starts.npy", lambda data: data[:-8]),
        ("facts.json", lambda data: data[:50]),
        ("facts.json", lambda data: data.replace(b"files", b"tiles")),
        ("facts.json", lambda data: b"[]"),
    ],
)
def test_damaged_rows_are_made_anew(corpus: Corpus, name: str, damage: Callable[[bytes], bytes]) -> None:
    settings = {**SETTINGS, "window": 4}
    expected = dense(association_rows(corpus, settings)[0])
    (folder,) = (
        p.parent for p in corpus.folder.glob("*/facts.json") if json.loads(p.read_text())["settings"] == settings
    )
    (folder / name).write_bytes(damage((folder / name).read_bytes()))
    said: list[str] = []
    rows, facts = association_rows(corpus, settings, say=said.append)
    assert facts["made"] and len(said) == 1 and name in said[0] and "making the association scores anew" in said[0]
    np.testing.assert_array_equal(dense(rows), expected)
    assert not association_rows(corpus, settings, say=said.append)[1]["made"] and len(said) == 1


def test_rows_of_which_a_file_is_missing_are_made_anew(corpus: Corpus) -> None:
    settings = {**SETTINGS, "window": 6}
    association_rows(corpus, settings)
    for path in corpus.folder.glob("*/rows.values"):
        path.unlink()
    assert association_rows(corpus, settings)[1]["made"]


def test_settings_that_leave_no_pair_are_an_error(corpus: Corpus) -> None:
    with pytest.raises(DataError, match="no two words stand together .* lower data.min_pair"):
        association_rows(corpus, {**SETTINGS, "min_pair": 1e9})


def test_unknown_kinds_are_named(corpus: Corpus) -> None:
    with pytest.raises(ConfigError, match="data.distance: 'cubic' is not one of flat, linear, harmonic"):
        distance_weights(3, "cubic")
    with pytest.raises(ConfigError, match="data.weighting: 'idf' is not one of ppmi, sqrt, log"):
        association_rows(corpus, {**SETTINGS, "weighting": "idf"})


def test_sorting_with_and_without_room_for_positions() -> None:
    rng = np.random.default_rng(0)
    for top in (2**40, 2**62):
        keys = rng.integers(0, top, 1000)
        np.testing.assert_array_equal(keys[sort_order(keys)], np.sort(keys))
    keys, sums = add_equal(np.array([1, 1, 4]), np.array([0.5, 0.25, 2.0]))
    assert keys.tolist() == [1, 4] and sums.tolist() == [0.75, 2.0]


def test_blocks_cover_all_rows_even_one_longer_than_a_block(corpus: Corpus) -> None:
    rows, _ = association_rows(corpus, SETTINGS)
    spans = [(first, last) for first, last, _ in rows.blocks(5)]
    assert [first for first, _ in spans] == [0, *(last for _, last in spans[:-1])] and spans[-1][1] == len(rows)
    assert np.concatenate([block.values for *_, block in rows.blocks(5)]).tolist() == rows.values.tolist()
