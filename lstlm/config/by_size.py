"""Settings that suit a text by its size, where nobody has chosen any."""

from lstlm.config.reader import load_config
from lstlm.config.schema import Config

SMALL_TEXT, LARGE_TEXT = 1_000_000, 5_000_000  # words
SHORT_VECTOR = 100


def vector_config(words: int, vocabulary: int) -> Config:
    """Return the co-occurrence recipe for a text of so many words, `vocabulary` of them different.

    More text tells more directions apart: vectors of length 100, 200 from a million words on, 300 from five million on;
    never more than half as many as there are words.
    """
    recipe = "embed-cooccurrence" if words >= LARGE_TEXT else "embed-cooccurrence-small"
    usual = load_config(recipe).model.embedding if words >= SMALL_TEXT else SHORT_VECTOR
    length = max(1, min(usual, vocabulary // 2))
    return load_config(recipe, [f"model.embedding={length}"])
