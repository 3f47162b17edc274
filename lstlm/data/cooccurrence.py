"""Which word stands near which, and how often: one streaming pass over a split, in bounded memory.

Row w of the counts (D, 2D) holds in columns 0 … D−1 the words to the left of w and in columns D … 2D−1 those to its
right, each pair counted with a weight that may fall with the distance. Pairs of a chunk of the corpus are sorted and
added up, then spilled to files by ranges of rows; each range is small enough to be merged in memory. Nothing is ever of
size D·D, and `<unk>`, `<s>` and `</s>` have neither rows nor columns; pairs do not reach over the end of a sentence.
Words outside the vocabulary, and those a subsampler drops, are taken out first, as word2vec does: what then stands
side by side are neighbours.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lstlm.data.corpus import map_numbers
from lstlm.data.vocabulary import EOS_ID, UNK_ID
from lstlm.data.windows import Subsampler
from lstlm.errors import ConfigError

DISTANCES = ("flat", "linear", "harmonic")
CHUNK = 1 << 20
"""Tokens counted at a time: 40 MiB of keys for five words on a side."""
BUCKET = 1 << 24
"""Pairs of a range of rows, before equal ones are added up: about 0.5 GiB while they are merged."""

I64 = NDArray[np.int64]
F32 = NDArray[np.float32]
Progress = Callable[[str, float], None]
"""Called with a phase and the share of it that is done."""


def distance_weights(window: int, kind: str) -> NDArray[np.float64]:
    """Return the weight (window,) of a pair at distance k = 1 … window: 1, (window+1−k)/window, or 1/k."""
    k = np.arange(1, window + 1)
    match kind:
        case "flat":
            return np.ones(window)
        case "linear":
            return (window + 1 - k) / window
        case "harmonic":
            return 1 / k
    raise ConfigError(f"data.distance: {kind!r} is not one of {', '.join(DISTANCES)}")


@dataclass(frozen=True)
class SparseRows:
    """A sparse matrix by rows: row i has columns indices[starts[i]:starts[i+1]], rising, with these values."""

    starts: I64
    indices: NDArray[np.int32]
    values: F32
    columns: int

    def __len__(self) -> int:
        return len(self.starts) - 1

    def block(self, first: int, last: int) -> "SparseRows":
        """Return rows first … last−1 as views."""
        low, high = self.starts[first], self.starts[last]
        return SparseRows(
            self.starts[first : last + 1] - low, self.indices[low:high], self.values[low:high], self.columns
        )

    def blocks(self, entries: int) -> Iterator[tuple[int, int, "SparseRows"]]:
        """Yield (first, last, rows first … last−1) with about `entries` entries each, at least one row."""
        first = 0
        while first < len(self):
            last = int(np.searchsorted(self.starts, self.starts[first] + entries, side="right")) - 1
            last = min(max(last, first + 1), len(self))
            yield first, last, self.block(first, last)
            first = last

    @classmethod
    def open(cls, folder: Path, name: str, columns: int) -> "SparseRows":
        """Map the three arrays that a `RowWriter` wrote."""
        starts = np.load(folder / f"{name}.starts.npy", allow_pickle=False)
        indices = map_numbers(folder / f"{name}.indices", np.dtype("<i4"))
        return cls(starts, indices, map_numbers(folder / f"{name}.values", np.dtype("<f4")), columns)


class RowWriter:
    """Writes a sparse matrix to `folder`/`name`.*, rows in order, some at a time."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._indices = (folder / f"{name}.indices").open("wb")
        self._values = (folder / f"{name}.values").open("wb")
        self._lengths: list[I64] = []

    def add(self, lengths: I64, indices: NDArray[Any], values: NDArray[Any]) -> None:
        """Append rows: their lengths, and all their entries."""
        self._lengths.append(lengths)
        np.ascontiguousarray(indices, dtype="<i4").tofile(self._indices)
        np.ascontiguousarray(values, dtype="<f4").tofile(self._values)

    def close(self) -> None:
        """Finish the files."""
        self._indices.close()
        self._values.close()
        lengths = np.concatenate(self._lengths) if self._lengths else np.zeros(0, dtype=np.int64)
        np.save(self._folder / f"{self._name}.starts.npy", np.concatenate(([0], np.cumsum(lengths))))


def pairs_of(ids: NDArray[np.uint32], start: int, stop: int, window: int) -> Iterator[tuple[int, I64, I64]]:
    """Yield for each distance k (from 0) the words (a, b): a at a position in [start, stop), b k+1 places after it."""
    centre = ids[start:stop]
    inside = centre != EOS_ID
    for k in range(window):
        after = ids[start + k + 1 : stop + k + 1]
        inside = inside[: len(after)] & (after != EOS_ID)
        yield k, centre[: len(after)][inside].astype(np.int64), after[inside].astype(np.int64)


def thinned_chunks(
    ids: NDArray[np.uint32], window: int, subsampler: Subsampler | None, size: int = CHUNK
) -> Iterator[tuple[NDArray[np.uint32], int, float]]:
    """Yield (words that stay, how many of them are new, share read): `window` words after the new ones come along."""
    waiting = ids[:0]
    for start in range(0, len(ids), size):
        chunk = ids[start : start + size]
        stays = chunk != UNK_ID
        if subsampler is not None:
            # a sentence ends where it ends, however frequent ends are
            stays &= subsampler.keeps(np.arange(start, start + len(chunk)), chunk) | (chunk == EOS_ID)
        waiting = np.concatenate((waiting, chunk[stays]))
        read = min(1.0, (start + size) / len(ids))
        new = len(waiting) - (window if read < 1 else 0)
        if new > 0:
            yield waiting, new, read
            waiting = waiting[new:]


def count_chunk(
    ids: NDArray[np.uint32], start: int, stop: int, words: int, weights: NDArray[np.float64]
) -> tuple[I64, I64, F32]:
    """Return the distinct pairs (a, b), b to the right of a, and their weights; a in [start, stop).

    The distance rides in the low bits of the sorted key, so that one sort of plain integers is enough.
    """
    bits = max(1, (len(weights) - 1).bit_length())
    keys = [((a * words + b) << bits) | k for k, a, b in pairs_of(ids, start, stop, len(weights))]
    packed = np.sort(np.concatenate(keys))
    pair, weight = add_equal(packed >> bits, weights[packed & ((1 << bits) - 1)])
    return pair // words, pair % words, weight


def add_equal(keys: I64, weights: NDArray[Any]) -> tuple[I64, F32]:
    """Return the distinct of the sorted keys and the sums of their weights."""
    if not len(keys):
        return keys, np.zeros(0, dtype=np.float32)
    first = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
    return keys[first], np.add.reduceat(weights, first, dtype=np.float64).astype(np.float32)


def sort_order(keys: I64) -> I64:
    """Return the order that sorts the keys; where they leave room for positions, one sort of both is twice as fast."""
    bits = max(1, (len(keys) - 1).bit_length())
    if len(keys) and int(keys.max()) >> (63 - bits):
        return np.argsort(keys)
    return np.sort((keys << bits) | np.arange(len(keys))) & ((1 << bits) - 1)


class Spill:
    """Pairs on disk, by ranges of rows with at most about `bucket` pairs each."""

    def __init__(self, folder: Path, counts: I64, window: int, bucket: int = BUCKET) -> None:
        self._folder, self._words = folder, len(counts)
        filled = np.cumsum(2 * window * counts) // bucket
        self.edges = np.concatenate(([0], np.flatnonzero(np.diff(filled)) + 1, [self._words]))
        self._bucket_of = np.repeat(np.arange(len(self.edges) - 1), np.diff(self.edges)).astype(np.uint16)

    def add(self, rows: I64, columns: I64, weights: F32) -> None:
        """Append entries of any rows."""
        bucket = self._bucket_of[rows]
        order = np.argsort(bucket, kind="stable")  # of 16-bit numbers: a radix sort
        keys = (rows * (2 * self._words) + columns)[order]
        ends = np.cumsum(np.bincount(bucket, minlength=len(self.edges) - 1))
        for number, (low, high) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            if high > low:
                self._append(number, keys[low:high], weights[order[low:high]])

    def _append(self, number: int, keys: I64, weights: F32) -> None:
        for suffix, array in (("keys", keys), ("weights", weights)):
            with (self._folder / f"spill-{number}.{suffix}").open("ab") as file:
                array.tofile(file)

    def merged(self, number: int) -> tuple[I64, F32]:
        """Return the distinct keys row·2D + column of a range, rising, with their weights; its files are removed."""
        paths = [self._folder / f"spill-{number}.{suffix}" for suffix in ("keys", "weights")]
        if not paths[0].exists():
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32)
        keys, weights = np.fromfile(paths[0], dtype=np.int64), np.fromfile(paths[1], dtype=np.float32)
        for path in paths:
            path.unlink()
        base = int(self.edges[number]) * 2 * self._words
        order = sort_order(keys - base)
        return add_equal(keys[order], weights[order])


def count(
    ids: NDArray[np.uint32],
    word_counts: I64,
    folder: Path,
    *,
    window: int,
    distance: str,
    min_pair: float,
    subsampler: Subsampler | None = None,
    progress: Progress = lambda phase, share: None,
    sizes: tuple[int, int] = (CHUNK, BUCKET),
) -> None:
    """Write the counts (D, 2D) of a split to `folder`/counts.*; pairs with less weight than `min_pair` are left out.

    `sizes` bound the memory: tokens counted at a time, and pairs of a range of rows that are merged at a time.
    """
    weights = distance_weights(window, distance)
    words = len(word_counts)
    spill = Spill(folder, word_counts, window, sizes[1])
    for chunk, new, read in thinned_chunks(ids, window, subsampler, sizes[0]):
        a, b, weight = count_chunk(chunk, 0, new, words, weights)
        spill.add(a, words + b, weight)
        spill.add(b, a, weight)
        progress("counting", read)
    writer = RowWriter(folder, "counts")
    ranges = len(spill.edges) - 1
    for number in range(ranges):
        keys, weight = spill.merged(number)
        kept = weight >= min_pair
        keys, weight = keys[kept], weight[kept]
        first, last = spill.edges[number], spill.edges[number + 1]
        lengths = np.bincount(keys // (2 * words) - first, minlength=last - first)
        writer.add(lengths, keys % (2 * words), weight)
        progress("merging", (number + 1) / ranges)
    writer.close()
