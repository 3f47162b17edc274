"""Text that is made up, of any size, with the shape of English: what benchmarks read where no corpus is at hand."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SENTENCE = 25
"""Words in a sentence, as in the One Billion Word benchmark, whose mean is 25.4."""
COMMON = 8_000
TAIL = 1.75
_BLOCK = 40_000 * SENTENCE  # words made at a time
_SHIFT = 2.7  # Mandelbrot's: the commonest word of English text has about 5 % of it, not 7


def frequencies(types: int) -> NDArray[np.float64]:
    """Return the shares (types,) of the words, by rank r: as 1/r among the 8,000 commonest, as r^−1.75 beyond.

    So it is in large collections of English; the rarest of 793,471 words then comes three times in 0.8 billion.
    """
    rank = np.arange(types) + _SHIFT
    share = 1.0 / rank
    share[COMMON:] *= (rank[COMMON:] / (COMMON + _SHIFT)) ** (1.0 - TAIL)
    normed: NDArray[np.float64] = share / share.sum()
    return normed


def text_blocks(
    words: int, types: int, *, seed: int = 1, every_type: bool = False, block: int = _BLOCK
) -> Iterator[bytes]:
    """Yield `words` words, w0, w1, … by falling frequency, one sentence a line, `block` words at a time.

    With `every_type`, each of the `types` comes at least once, wherever there are so many words.
    """
    random = np.random.default_rng(seed)
    draw = Draw(types, random)
    # words in sentences, then words that end one, all of one width: a block is one lookup, without the zeros
    spelled = np.array([f"w{number}{gap}" for gap in " \n" for number in range(types)], dtype="S")
    unseen = random.permutation(types if every_type else 0)
    for start in range(0, words, block):
        size = min(block, words - start)
        ids = draw(size)
        now, unseen = np.split(unseen, [min(size, -(-len(unseen) * size // (words - start)))])
        if len(now):
            ids[:: size // len(now)][: len(now)] = now
        ids[SENTENCE - 1 :: SENTENCE] += types
        ids[-1] = ids[-1] % types + types
        text = spelled[ids].view(np.uint8)
        yield text[text != 0].tobytes()


class Draw:
    """Draws words by their frequency."""

    def __init__(self, types: int, random: np.random.Generator) -> None:
        self._random, self._last = random, types - 1
        self._cumulative = np.cumsum(frequencies(types))
        self._common = self._cumulative[:COMMON].copy()

    def __call__(self, size: int) -> NDArray[np.int64]:
        """Return `size` words (size,) by number."""
        place = self._random.random(size) * self._cumulative[-1]
        # the common words first: their table stays in the cache, which makes it three times as fast
        ids: NDArray[np.int64] = np.searchsorted(self._common, place, side="right")
        rare = np.flatnonzero(ids == len(self._common))
        ids[rare] = np.searchsorted(self._cumulative, place[rare], side="right")
        ids[ids > self._last] = self._last  # where the sum of all shares is a rounding short of itself
        return ids


def write_text(path: Path, words: int, types: int) -> Path:
    """Write made-up text to one file."""
    with path.open("wb") as file:
        file.writelines(text_blocks(words, types))
    return path
