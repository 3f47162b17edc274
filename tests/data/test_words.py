import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lstlm.data.words import Words

texts = st.lists(st.text(st.characters(exclude_categories=("Cs",))), max_size=20)


@given(texts, st.slices(20))
def test_it_is_as_a_list_is(plain: list[str], part: slice) -> None:
    words = Words(plain)
    assert len(words) == len(plain)
    assert list(words) == plain
    assert words == plain
    assert [words[at] for at in range(-len(plain), len(plain))] == plain + plain
    assert words[part] == plain[part]
    assert ("x" in words) == ("x" in plain)
    assert words == Words(plain)


def test_beyond_the_end_there_is_nothing() -> None:
    words = Words(["a", "b"])
    for at in (2, -3):
        with pytest.raises(IndexError):
            words[at]


@pytest.mark.parametrize("other", [["ab", "c"], ["a", "bc", ""], ["a"], ("a", "bc"), None])
def test_another_division_of_the_same_letters_is_not_equal(other: object) -> None:
    assert Words(["a", "bc"]) != other
    if isinstance(other, list):
        assert Words(["a", "bc"]) != Words(other)


def test_it_takes_a_third_of_what_a_list_takes() -> None:
    plain = [f"word{number}" for number in range(10_000)]
    words = Words(plain)
    held = sys.getsizeof(words._text) + sys.getsizeof(words._bounds)
    assert 3 * held < sys.getsizeof(plain) + sum(map(sys.getsizeof, plain))
    assert repr(words) == "<10,000 words: 'word0', 'word1', 'word2', …>"
