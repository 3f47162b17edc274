"""Made-up text has the size that was asked for, every type, and the shape of English."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from lstlm.bench.made_up import COMMON, SENTENCE, Draw, frequencies, text_blocks, write_text


@pytest.mark.parametrize(("words", "types"), [(5000, 700), (1001, 1000), (40, 100), (25, 3)])
def test_words_sentences_and_types_are_those_asked_for(words: int, types: int) -> None:
    text = b"".join(text_blocks(words, types, every_type=True, block=8 * SENTENCE))
    lines = text.decode().splitlines()
    assert [len(line.split()) for line in lines[:-1]] == [SENTENCE] * (len(lines) - 1)
    counts = Counter(text.split())
    assert counts.total() == words and text.endswith(b"\n") and b"  " not in text
    assert len(counts) == types or words < types
    assert set(counts) <= {f"w{number}".encode() for number in range(types)}


def test_one_seed_one_text(tmp_path: Path) -> None:
    first, again, other = (b"".join(text_blocks(3000, 50, seed=seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert write_text(tmp_path / "text", 3000, 50).read_bytes() == first


def test_words_are_drawn_as_often_as_they_should_be() -> None:
    types, size = COMMON + 2000, 2_000_000
    share = frequencies(types)
    assert share.sum() == pytest.approx(1) and np.all(np.diff(share) < 0)
    assert share[COMMON - 1] / share[COMMON] < 1.001  # one line, bent
    counts = np.bincount(Draw(types, np.random.default_rng(3))(size), minlength=types)
    expected = size * share
    # a sum of squares of about-normal numbers: `types` on average, with a standard deviation of √(2·types)
    assert abs(((counts - expected) ** 2 / expected).sum() - types) < 6 * np.sqrt(2 * types)
