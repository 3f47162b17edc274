"""The vectorised table must agree with a dictionary on every word."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lstlm.data.hashing import MAX_WORD_BYTES, TypeTable, Words, _mix

# letters that make short and long words, with shared beginnings and multi-byte characters
words = st.text(alphabet="ab\u00e9\u4e2d\U0001f600", min_size=1, max_size=40)
lines = st.lists(st.lists(words, max_size=8), max_size=8)


def spell(table: TypeTable) -> list[str]:
    edges = np.concatenate(([0], np.cumsum(table.lengths, dtype=np.int64)))
    return [bytes(table.spellings[a:b]).decode() for a, b in pairwise(edges)]


@given(st.lists(lines, min_size=1, max_size=4), st.sampled_from([" ", "  ", "\t", " \x00", "\r"]))
def test_ids_spell_the_words_of_every_block(blocks: list[list[list[str]]], gap: str) -> None:
    table = TypeTable(first_id=2, bits=2)  # two bits: the table has to grow
    for block in blocks:
        text = "\n".join(gap.join(line) for line in block) + "\n"
        found = Words(text.encode())
        ids = table.encode(found, too_long=1)
        expected = [word for line in block for word in line]
        assert [spell(table)[number - 2] for number in ids.tolist()] == expected
        ends = np.cumsum([len(line) for line in block if line]).tolist()
        assert found.sentence_ends.tolist() == ends
    assert len(set(spell(table))) == table.size


def test_counts_agree_with_a_counter_on_zipfian_text() -> None:
    rng = np.random.default_rng(0)
    text = " ".join(f"w{n}" for n in rng.zipf(1.2, size=50_000).tolist())
    table = TypeTable()
    ids = table.encode(Words(text.encode() + b"\n"), too_long=-1)
    counted = dict(zip(spell(table), np.bincount(ids).tolist(), strict=True))
    assert counted == Counter(text.split())


def test_table_finds_what_it_holds_and_nothing_else() -> None:
    keys = _mix(np.arange(1, 5001, dtype=np.uint64))
    table = TypeTable(bits=4)
    table._add(keys[:4000], [b"x"] * 4000)
    assert table.find(keys[:4000]).tolist() == list(range(4000))
    assert (table.find(keys[4000:]) == -1).all()


def test_mix_is_one_to_one_on_words_of_one_to_eight_bytes() -> None:
    keys = np.concatenate([np.arange(1 << 16, dtype=np.uint64) << np.uint64(shift) for shift in (0, 24, 48)])
    assert len(np.unique(_mix(np.unique(keys)))) == len(np.unique(keys))


@pytest.mark.parametrize("length", [1, 7, 8, 9, 16, 17, MAX_WORD_BYTES])
def test_words_that_differ_in_the_last_byte_are_two(length: int) -> None:
    stem = "x" * (length - 1)
    keys = Words(f"{stem}a {stem}b {stem}a\n".encode()).keys()
    assert keys[0] == keys[2] != keys[1]


def test_a_word_over_the_limit_gets_the_given_id() -> None:
    table = TypeTable(first_id=2)
    block = ("y" * MAX_WORD_BYTES + " " + "y" * (MAX_WORD_BYTES + 1) + " y\n").encode()
    assert table.encode(Words(block), too_long=1).tolist() == [2, 1, 3]
