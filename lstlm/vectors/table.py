"""Word vectors: one class for a trained run's table and for any vector file; look-up, cosine, nearest neighbours."""

import os
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path

import numpy as np

from lstlm.errors import ConfigError, DataError
from lstlm.vectors.npy import is_npy, read_npy
from lstlm.vectors.readers import Keep, Matrix, read_rows
from lstlm.vectors.spelling import near_spellings

CASE_RULES = ("fold", "prefer", "exact")
_BLOCK_BYTES = 2 << 20  # a block of rows that stays in a core's cache between the product and the norms


class Vectors:
    """Words and their vectors: words[i] has row matrix[i], (n,d). It may be memory-mapped; it is never changed."""

    def __init__(self, words: Sequence[str], matrix: Matrix, counts: Sequence[int] | None = None) -> None:
        if matrix.ndim != 2 or len(words) != len(matrix):
            raise DataError(f"{len(words)} words do not fit a matrix of shape {matrix.shape}")
        self.words = words
        self.matrix = matrix
        self.counts = counts

    def __len__(self) -> int:
        return len(self.words)

    @property
    def dim(self) -> int:
        return int(self.matrix.shape[1])

    @cached_property
    def index(self) -> dict[str, int]:
        """Word → row."""
        return {word: row for row, word in enumerate(self.words)}

    @cached_property
    def folded(self) -> dict[str, int]:
        """Upper-cased word → the first row that has it; rows come by falling frequency, so the commonest form wins."""
        rows: dict[str, int] = {}
        for row, word in enumerate(self.words):
            rows.setdefault(word.upper(), row)
        return rows

    def row(self, word: str, case: str = "fold") -> int | None:
        """The row of a word, or None. `fold`: the first row equal but for case; `exact`; `prefer`: exact, else fold."""
        if case == "fold":
            return self.folded.get(word.upper())
        found = self.index.get(word)
        return self.folded.get(word.upper()) if found is None and case == "prefer" else found

    def suggestions(self, word: str, limit: int = 3) -> list[str]:
        """Near spellings of an unknown word."""
        return near_spellings(word, self.index, limit)

    def cosines(self, left: Sequence[int], right: Sequence[int]) -> Matrix:
        """Cosine of row left[i] with row right[i], in float64; 0 where a vector is all zeros. Reads only those rows."""
        a = np.asarray(self.matrix[np.asarray(left, dtype=np.int64)], dtype=np.float64)
        b = np.asarray(self.matrix[np.asarray(right, dtype=np.int64)], dtype=np.float64)
        lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        dots = np.einsum("ij,ij->i", a, b)
        cosines: Matrix = np.divide(dots, lengths, out=np.zeros_like(dots), where=lengths > 0)
        return cosines

    def neighbours(self, rows: Sequence[int], k: int) -> list[list[tuple[str, float]]]:
        """The k words of highest cosine to each given row, itself left out."""
        queries = np.asarray(self.matrix[np.asarray(rows, dtype=np.int64)], dtype=np.float32)
        scores, ids = nearest(self.matrix, queries, k + 1)
        return [
            [(self.words[int(i)], float(s)) for s, i in zip(scores[q], ids[q], strict=True) if i != row][:k]
            for q, row in enumerate(rows)
        ]


def nearest(matrix: Matrix, queries: Matrix, k: int, threads: int | None = None) -> tuple[Matrix, Matrix]:
    """Cosines and ids, both (q,k), of the k rows of matrix (n,d) nearest to each query (q,d), best first.

    One pass in blocks that fit the cache, products and row norms together: O(ndq) work, O(block·q) memory.
    """
    units = unit_rows(np.asarray(queries, dtype=np.float32))
    k = max(1, min(k, len(matrix)))
    step = max(1, _BLOCK_BYTES // (4 * matrix.shape[1]))
    starts = range(0, len(matrix), step)
    with ThreadPoolExecutor(threads or os.cpu_count() or 1) as pool:
        parts = list(pool.map(lambda start: _block_best(matrix[start : start + step], units, k, start), starts))
    scores = np.concatenate([part[0] for part in parts], axis=1)
    ids = np.concatenate([part[1] for part in parts], axis=1)
    order = np.lexsort((ids, -scores), axis=1)[:, :k]
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(ids, order, axis=1)


def unit_rows(rows: Matrix) -> Matrix:
    """Rows scaled to length 1; a row of zeros stays."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    units: Matrix = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)
    return units


def _block_best(block: Matrix, units: Matrix, k: int, start: int) -> tuple[Matrix, Matrix]:
    rows = np.ascontiguousarray(block, dtype=np.float32)
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    if not np.isfinite(lengths).all():
        bad = start + int(np.argmin(np.isfinite(lengths))) + 1
        raise DataError(f"row {bad} of the vectors holds a value that is not finite, or too large to square in float32")
    scores = units @ rows.T
    np.divide(scores, lengths, out=scores, where=lengths > 0)
    if scores.shape[1] > k:
        ids = np.argpartition(scores, -k, axis=1)[:, -k:]
        scores = np.take_along_axis(scores, ids, axis=1)
    else:
        ids = np.broadcast_to(np.arange(scores.shape[1]), scores.shape)
    return scores, ids + start


def load_vectors(
    path: str | Path, words: Collection[str] | None = None, *, case: str = "exact", vocabulary: Path | None = None
) -> Vectors:
    """Load a vector file of any known form, told by its bytes; with `words`, only their rows (under the case rule).

    A .npy file is memory-mapped. A text file is scanned once, and only the kept rows are parsed.
    """
    path = Path(path)
    if path.is_dir():
        raise DataError(f"{path}: a folder without config.yaml is neither a run nor a vector file")
    keep = None if words is None else _keeper(words, case)
    if is_npy(path):
        return Vectors(*read_npy(path, vocabulary, keep))
    if vocabulary is not None:
        raise ConfigError(f"--vocab {vocabulary}: only a .npy file needs it; {path} holds its own words")
    return Vectors(*read_rows(path, keep))


def _keeper(words: Collection[str], case: str) -> Keep:
    if case == "exact":
        return frozenset(words).__contains__
    upper = frozenset(word.upper() for word in words)
    return lambda word: word.upper() in upper
