from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lstlm.data.vocabulary import SPECIALS, Vocabulary, is_reserved
from lstlm.errors import DataError

words = st.lists(
    st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\t\n"), min_size=1).filter(
        lambda word: word not in SPECIALS
    ),
    unique=True,
    max_size=20,
)


def vocabulary(*more: str) -> Vocabulary:
    return Vocabulary([*SPECIALS, *more], range(3 + len(more)))


@given(words)
def test_what_is_written_is_read_back(tmp_path_factory: pytest.TempPathFactory, more: list[str]) -> None:
    # words with characters that Python takes for line ends (U+0085, U+2028, \r) must survive too
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.tsv"
    written = vocabulary(*more)
    written.write(path)
    read = Vocabulary.read(path)
    assert read.words == written.words
    assert read.counts.tolist() == written.counts.tolist()
    assert read == written
    assert read.hash == written.hash


@given(words, st.lists(st.text(max_size=5), max_size=20))
def test_decode_of_encode_is_the_identity_but_for_oov(known: list[str], text: list[str]) -> None:
    table = vocabulary(*known)
    mixed = [*text, *known]
    ids = table.encode(mixed)
    assert ids.dtype == np.int64
    assert table.decode(ids.tolist()) == [word if word in table.index else "<unk>" for word in mixed]


@pytest.mark.parametrize("word", ["<unk>", "<UNK>", "<s>", "<S>", "</s>", "</S>"])
def test_reserved_words_are_known_in_either_case(word: str) -> None:
    assert is_reserved(word)
    assert not is_reserved(word + "x")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"vocab\.tsv: the first three words must be"),
        (b"a\t1\nb\t2\nc\t3\n", r"first three words must be <unk> <s> </s>"),
        (b"<unk>\t0\n<s>\t0\n</s>\t0\nword\n", r"vocab\.tsv:4: expected word<TAB>count, found 'word'"),
        (b"<unk>\t0\n<s>\t0\n</s>\t0\nword\t-3\n", r"vocab\.tsv:4: expected word<TAB>count"),
        (b"<unk>\t0\n<s>\t0\n</s>\t0\na\t2\na\t1\n", r"a word appears twice"),
        (b"<unk>\t0\n\xff\t0\n", r"vocab\.tsv:2: not UTF-8 at byte 0 of the line"),
    ],
)
def test_a_damaged_file_is_refused_with_its_place(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "vocab.tsv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        Vocabulary.read(path)


def test_a_missing_file_says_who_writes_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="lstlm prepare"):
        Vocabulary.read(tmp_path / "vocab.tsv")


def test_a_word_that_would_break_the_file_is_not_written(tmp_path: Path) -> None:
    for word in ("a\tb", "a\nb", ""):
        with pytest.raises(DataError, match="tab or a line end"):
            vocabulary(word).write(tmp_path / "vocab.tsv")
    assert not (tmp_path / "vocab.tsv").exists()


def test_specials_and_counts_are_required() -> None:
    with pytest.raises(DataError, match="starts with <unk> <s> </s>"):
        Vocabulary(["a"], [1])
    with pytest.raises(DataError, match="one count a word"):
        Vocabulary([*SPECIALS, "a"], [1])


def test_words_shown_as_unknown_count_as_unknown_ones() -> None:
    found = Vocabulary([*SPECIALS, *"abcdef"], [2, 0, 9, 8, 1, 1, 1, 1, 1])
    assert found.shown_counts(0.4).tolist() == [4, 0, 9, 8, 1, 1, 1, 1, 1]
    assert found.shown_counts(0.0).tolist() == found.counts.tolist() == [2, 0, 9, 8, 1, 1, 1, 1, 1]
