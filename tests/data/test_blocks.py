import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lstlm.data.blocks import read_blocks
from lstlm.errors import DataError

text = st.text(alphabet="ab \n\té中😀", max_size=300)


@given(text, st.integers(4, 50))
def test_blocks_end_with_a_line_and_lose_no_word(content: str, size: int) -> None:
    blocks = list(read_blocks(io.BytesIO(content.encode()), "x", size))
    assert all(block.endswith(b"\n") for block in blocks)
    joined = b"".join(blocks).decode()  # cut between characters, so every block decodes
    # a word longer than a block is cut; all others stay whole
    if all(len(word.encode()) < size for word in content.split()):
        assert joined.split() == content.split()
    assert "".join(joined.split()) == "".join(content.split())


@given(st.lists(st.text(alphabet="ab ", max_size=10), max_size=30), st.integers(12, 40))
def test_lines_shorter_than_a_block_stay_lines(lines: list[str], size: int) -> None:
    content = "".join(f"{line}\n" for line in lines)
    assert b"".join(read_blocks(io.BytesIO(content.encode()), "x", size)).decode() == content


def test_a_missing_last_newline_is_added_and_a_byte_order_mark_dropped() -> None:
    assert list(read_blocks(io.BytesIO(b"\xef\xbb\xbfa b"), "x")) == [b"a b\n"]


def test_an_empty_file_has_no_blocks() -> None:
    assert list(read_blocks(io.BytesIO(b""), "x")) == []


def test_utf_16_is_refused_by_name() -> None:
    with pytest.raises(DataError, match=r"news\.txt: looks like UTF-16"):
        list(read_blocks(io.BytesIO("hello".encode("utf-16")), "news.txt"))
