import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lstlm.data import Corpus, Split
from lstlm.data.corpus import check_counts, drop_pages
from lstlm.errors import DataError
from lstlm.sealed import SEAL, seal
from tests.helpers import write_tiny_corpus


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return write_tiny_corpus(tmp_path / "tiny")


def test_the_tiny_corpus_is_always_the_same(tmp_path: Path, corpus: Corpus) -> None:
    again = write_tiny_corpus(tmp_path / "again")
    assert again.manifest["files"] == corpus.manifest["files"]
    assert 150 < len(corpus.vocabulary) < 250
    assert 2000 < corpus.train.tokens < 10_000
    assert corpus.test is None


def test_ids_are_mapped_read_only_and_counted_right(corpus: Corpus) -> None:
    ids = corpus.train.ids
    assert ids.dtype == np.uint32
    assert not ids.flags.writeable
    assert isinstance(ids.base, np.memmap)
    counts = np.bincount(ids, minlength=len(corpus.vocabulary))
    assert counts.tolist() == corpus.vocabulary.counts.tolist()
    assert corpus.train.sentences == counts[2]
    assert corpus.train.words == corpus.train.tokens - counts[2]
    assert corpus.valid.tokens > 0


def test_words_are_in_order_of_count_then_spelling(corpus: Corpus) -> None:
    pairs = list(zip((-corpus.vocabulary.counts).tolist(), corpus.vocabulary.words, strict=True))[3:]
    assert pairs == sorted(pairs)


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def edit_manifest(change: Callable[[dict[str, object]], object]) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        manifest = json.loads(path.read_text())
        change(manifest)
        path.write_text(seal(manifest))

    return edit


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        ("train.ids", flip_a_byte, r"train\.ids: damaged: its SHA-256"),
        ("vocab.tsv", flip_a_byte, r"vocab\.tsv: damaged: its SHA-256"),
        ("train.ids", lambda path: path.write_bytes(path.read_bytes()[:-4]), r"bytes where the manifest says"),
        ("valid.ids", Path.unlink, r"valid\.ids: missing"),
        ("manifest.json", Path.unlink, r"no manifest\.json, so not a prepared corpus"),
        ("manifest.json", lambda path: path.write_text("{"), r"manifest\.json: cannot be read"),
        ("manifest.json", lambda path: path.write_text("[1]"), r"expected an object, found list"),
        ("manifest.json", edit_manifest(lambda m: m.update(version=99)), r"format version 99, this lstlm reads 2"),
        (
            "manifest.json",
            edit_manifest(lambda m: m.pop("splits")),
            r"manifest\.json: damaged \(KeyError\('splits'\)\)",
        ),
        ("manifest.json", edit_manifest(lambda m: m.update(files=3)), r"manifest\.json: damaged"),
    ],
)
def test_a_damaged_or_foreign_folder_is_refused(
    corpus: Corpus, file: str, damage: Callable[[Path], None], message: str
) -> None:
    damage(corpus.folder / file)
    with pytest.raises(DataError, match=message):
        Corpus.open(corpus.folder)


def test_without_verify_only_sizes_are_compared(corpus: Corpus) -> None:
    flip_a_byte(corpus.folder / "train.ids")
    Corpus.open(corpus.folder, verify=False)


def test_a_missing_folder_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such corpus folder; make one with `lstlm prepare"):
        Corpus.open(tmp_path / "none")


def test_a_stream_must_end_with_a_sentence() -> None:
    with pytest.raises(DataError, match="must end with </s>"):
        Split.from_ids("x", np.array([3, 4], dtype=np.uint32))
    split = Split.from_ids("x", np.array([3, 2, 4, 5, 2, 6, 2], dtype=np.uint32))
    assert (split.sentences, split.single_word_sentences, split.words) == (3, 2, 4)


def test_no_flipped_bit_of_a_manifest_goes_unseen(corpus: Corpus) -> None:
    path = corpus.folder / "manifest.json"
    good = path.read_bytes()
    rng = np.random.default_rng(1)
    for position, bit in zip(rng.integers(len(good), size=300), rng.integers(8, size=300), strict=True):
        bad = bytearray(good)
        bad[position] ^= 1 << bit
        path.write_bytes(bad)
        with pytest.raises(DataError, match="manifest"):
            Corpus.open(corpus.folder)
    path.write_bytes(good)
    Corpus.open(corpus.folder)


@pytest.mark.parametrize("name", ["sentences", "single_word_sentences", "tokens", "unknown", "words"])
@pytest.mark.parametrize("value", [-999999, 7, None, "7", 7.5])
@pytest.mark.parametrize("sealed", [True, False])
def test_counts_are_counted_whatever_the_manifest_says(corpus: Corpus, name: str, value: object, sealed: bool) -> None:
    """In a sealed manifest, and in one of a version that knew no seals."""
    path = corpus.folder / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["splits"]["train"][name] = value
    if not sealed:
        del manifest[SEAL]
        manifest["version"] = 1
    path.write_text(seal(manifest) if sealed else json.dumps(manifest))
    with pytest.raises(DataError, match=f"train: the manifest says {value!r} {name} where there are"):
        Corpus.open(corpus.folder)


@pytest.mark.parametrize("source", [None, [], {}, {"name": None}, {"name": 3}])
def test_a_source_without_a_name_is_damage(corpus: Corpus, source: object) -> None:
    """A run writes it down: not found here, it would end training with a KeyError."""
    path = corpus.folder / "manifest.json"
    path.write_text(seal({**json.loads(path.read_text()), "source": source}))
    with pytest.raises(DataError, match="damaged"):
        Corpus.open(corpus.folder)


def test_a_corpus_of_before_seals_opens(corpus: Corpus) -> None:
    path = corpus.folder / "manifest.json"
    manifest = {**json.loads(path.read_text()), "version": 1}
    del manifest[SEAL]
    path.write_text(json.dumps(manifest))
    assert Corpus.open(corpus.folder).train.sentences == corpus.train.sentences


def test_counting_does_not_depend_on_the_pieces(corpus: Corpus) -> None:
    told = corpus.manifest["splits"]["train"]
    for size in (2, 3, 7, 1000):
        check_counts(corpus.train, told, len(corpus.vocabulary), size)
        wrong = {**told, "single_word_sentences": told["single_word_sentences"] + 1}
        with pytest.raises(DataError, match="single_word_sentences where there are"):
            check_counts(corpus.train, wrong, len(corpus.vocabulary), size)


@pytest.mark.skipif(sys.platform != "linux", reason="what is resident is read from /proc")
def test_pages_that_were_read_are_let_go_of(tmp_path: Path) -> None:
    """After opening, which counts all ids, and whenever one says so."""

    def resident(path: Path) -> int:
        blocks = Path("/proc/self/smaps").read_text().split(f" {path}\n")[1:]
        return sum(int(line.split()[1]) for block in blocks for line in block.splitlines()[:5] if "Rss:" in line)

    corpus = write_tiny_corpus(tmp_path / "corpus", sentences=3000)
    path = tmp_path / "corpus" / "train.ids"
    assert resident(path) == 0
    ids = corpus.train.ids
    total = int(ids.sum())
    assert resident(path) >= ids.nbytes // 1024
    drop_pages(ids)
    assert resident(path) == 0 and int(ids.sum()) == total
    drop_pages(np.arange(3, dtype=np.uint32))  # not mapped: nothing to do
