"""What an example is: context and target at a position of the id stream, built for many positions at once."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lstlm.data.corpus import Split
from lstlm.data.vocabulary import BOS_ID, EOS_ID, UNK_ID
from lstlm.errors import ConfigError

KINDS = ("previous", "window", "bag")

I64 = NDArray[np.int64]
Bool = NDArray[np.bool_]


@dataclass(frozen=True)
class Batch:
    """`context` (m,n) int64; `target_ids` (m,) int64 and no values, or (m,K) with `target_values` (m,K) float32."""

    context: I64
    target_ids: I64
    target_values: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.context)

    def shown_as(self, shown: I64) -> "Batch":
        """Return the examples with every word i replaced by shown[i]."""
        return Batch(shown[self.context], shown[self.target_ids], self.target_values)

    def rows(self, start: int, stop: int) -> "Batch":
        """Return the examples start … stop−1 as views."""
        values = None if self.target_values is None else self.target_values[start:stop]
        return Batch(self.context[start:stop], self.target_ids[start:stop], values)


def _neighbours(ids: NDArray[np.uint32], positions: I64, offsets: range, padding: int) -> I64:
    """Return the ids at positions + offset (m, len(offsets)), `padding` from the sentence's edge on.

    `offsets` walk away from the position (−1, −2, … or 1, 2, …). An `</s>` on the way is the edge.
    """
    out = np.empty((len(positions), len(offsets)), dtype=np.int64)
    inside = np.ones(len(positions), dtype=np.bool_)
    if offsets and offsets[0] > 0:
        inside &= ids[positions] != EOS_ID
    for column, offset in enumerate(offsets):
        at = positions + offset
        found = ids.take(at, mode="clip")
        inside &= (found != EOS_ID) & (at >= 0) & (at < len(ids))
        out[:, column] = found
        out[~inside, column] = padding  # not np.where: of uint32 and −1 it would make 4294967295
    return out


def keep_probabilities(counts: I64, subsample: float) -> NDArray[np.float64]:
    """Return P(keep) (D,) for each word: min(1, √(t/f) + t/f), f = count / total, t = subsample (0 keeps all)."""
    if subsample <= 0:
        return np.ones(len(counts))
    ratio = subsample * counts.sum() / np.maximum(counts, 1)
    kept: NDArray[np.float64] = np.minimum(1.0, np.sqrt(ratio) + ratio)
    return kept


def shown_words(counts: I64, unknown: float, seed: int, epoch: int) -> I64:
    """Return what each word (D,) is shown as in an epoch: itself, or `<unk>` for a share of those that occur once.

    By Good and Turing a text meets new words as often as it holds words seen once: they teach what an unknown word is.
    """
    shown = np.arange(len(counts))
    rare = np.flatnonzero(counts == 1)
    shown[rare[np.random.default_rng((seed, epoch, 3)).random(len(rare)) < unknown]] = UNK_ID
    return shown


class Subsampler:
    """Drops frequent words: a coin for each position that depends on (position, seed, epoch) alone, not on the rank."""

    def __init__(self, counts: I64, subsample: float, seed: int, epoch: int) -> None:
        self._keep = keep_probabilities(counts, subsample)
        self._salt = np.random.SeedSequence((seed, epoch, 0)).generate_state(1, np.uint64)[0]

    def keeps(self, positions: I64, ids: NDArray[np.integer]) -> Bool:
        """Return for each position, with the word `ids` there, whether it stays (same shape)."""
        z = (positions.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + self._salt  # splitmix64
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        uniform = ((z ^ (z >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53
        kept: Bool = uniform < self._keep[ids]
        return kept


class Windows:
    """The examples of one split, for one kind of context.

    previous: the n words before, `<s>` before the sentence's start; every word and every `</s>` is a target.
    window:   n/2 words on either side, `<s>` and `</s>` outside the sentence; every word is a target.
    bag:      context (m,1) is the word itself; the target is the bag of the up to n words around it, (m,n) ids with
              values count/total (adding up to 1); free places repeat an id of the row with value 0. A word alone has no
              bag, so no example.
    A subsampler drops targets (previous, window), or both words and members of bags (bag).
    """

    def __init__(self, split: Split, context: int, kind: str) -> None:
        if kind not in KINDS:
            raise ConfigError(f"data.context_kind: {kind!r} is not one of {', '.join(KINDS)}")
        if context < 1:
            raise ConfigError(f"data.context: {context} is below 1")
        if kind != "previous" and context % 2:
            raise ConfigError(
                f"data.context: {context} is odd, but {kind} takes half of it on either side; use an even one"
            )
        self.ids, self.kind, self.context = split.ids, kind, context
        self.num_examples = {
            "previous": split.tokens,
            "window": split.words,
            "bag": split.words - split.single_word_sentences,
        }[kind]

    def select(self, positions: I64, sampler: Subsampler | None = None) -> I64:
        """Return those of the positions that have an example."""
        if self.kind != "previous":
            positions = positions[self.ids[positions] != EOS_ID]
        if sampler is not None:
            positions = positions[sampler.keeps(positions, self.ids[positions])]
        if self.kind == "bag":
            positions = positions[(self._around(positions, sampler) >= 0).any(axis=1)]
        return positions

    def build(self, positions: I64, sampler: Subsampler | None = None) -> "Batch":
        """Return the examples at the positions. O(m·n)."""
        half = self.context // 2
        targets = self.ids[positions].astype(np.int64)
        if self.kind == "previous":
            before = _neighbours(self.ids, positions, range(-1, -self.context - 1, -1), BOS_ID)
            return Batch(np.ascontiguousarray(before[:, ::-1]), targets)
        if self.kind == "bag":
            return Batch(targets[:, None], *_bags(self._around(positions, sampler)))
        before = _neighbours(self.ids, positions, range(-1, -half - 1, -1), BOS_ID)
        after = _neighbours(self.ids, positions, range(1, half + 1), EOS_ID)
        return Batch(np.concatenate((before[:, ::-1], after), axis=1), targets)

    def _around(self, positions: I64, sampler: Subsampler | None) -> I64:
        """Return the words around each position (m,n) in any order, −1 where there is none or it was dropped."""
        half = self.context // 2
        before, after = range(-1, -half - 1, -1), range(1, half + 1)
        words = np.concatenate([_neighbours(self.ids, positions, side, -1) for side in (before, after)], axis=1)
        if sampler is not None:
            where = positions[:, None] + np.array([*before, *after])
            words[~sampler.keeps(where, np.maximum(words, 0))] = -1
        return words


def _bags(words: I64) -> tuple[I64, NDArray[np.float32]]:
    """Return each row (m,K), −1 for a free place, as distinct ids and their shares (m,K), share 0 in free places.

    A word that is there twice appears once, with twice the share: the K entries of a row are one sparse vector.
    """
    ordered = np.sort(words, axis=1)
    real = ordered >= 0
    first = real.copy()
    first[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
    place = np.cumsum(real, axis=1)  # of a word among the row's words, from 1
    size = place[:, -1:]
    next_first = np.repeat(size + 1, words.shape[1], axis=1)  # the place where the next distinct word starts
    for column in range(words.shape[1] - 2, -1, -1):
        right = column + 1
        next_first[:, column] = np.where(first[:, right], place[:, right], next_first[:, right])
    share = np.where(first, next_first - place, 0) / np.maximum(size, 1)
    return np.where(first, ordered, np.maximum(ordered[:, -1:], 0)), share.astype(np.float32)
