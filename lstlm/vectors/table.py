"""Word vectors: one class for a trained run's table and for any vector file; look-up, cosine, nearest neighbours."""

from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lstlm.errors import ConfigError, DataError, UnknownWord
from lstlm.vectors.npy import is_npy, read_npy
from lstlm.vectors.readers import Keep, Matrix, read_rows
from lstlm.vectors.spelling import near_spellings

if TYPE_CHECKING:
    from lstlm.vectors.subwords import Subwords

_CACHED_BYTES = 1 << 20  # rows that stay in a core's cache between the product and the norms
MOST_WORDS = 50_000  # rows that n-grams are fitted to: more would cost memory, half a million n-grams for 100,000 words


class Vectors:
    """Words and their vectors: words[i] has row matrix[i], (n,d). It may be memory-mapped; it is never changed.

    vectors["water"]                                                # (d,)
    vectors.most_similar("water")                                   # [("pollution", 0.56), …]
    vectors.most_similar(["king", "woman"], negative=["man"])
    """

    def __init__(
        self,
        words: Sequence[str],
        matrix: Matrix,
        counts: Sequence[int] | None = None,
        index: dict[str, int] | None = None,
    ) -> None:
        if matrix.ndim != 2 or len(words) != len(matrix):
            raise DataError(f"{len(words)} words do not fit a matrix of shape {matrix.shape}")
        self.words = words
        self.matrix = matrix
        self.counts = counts
        if index is not None:
            self.index = index

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self.index

    def __getitem__(self, word: str) -> Matrix:
        """The vector of a word, (d,), in this very spelling; UnknownWord, a KeyError, where there is none."""
        return np.array(self.matrix[self.find(word, "exact")])

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

    def find(self, word: str, case: str = "prefer") -> int:
        """The row of a word; UnknownWord, with near spellings, where there is none."""
        row = self.row(word, case)
        if row is None:
            near = near_spellings(word, self.index)
            raise UnknownWord(f"{word!r} has no vector" + (f"; near spellings: {', '.join(near)}" if near else ""))
        return row

    @cached_property
    def subwords(self) -> "Subwords":
        """What the spelling of a word without a vector tells, by character n-grams of these words."""
        from lstlm.vectors.subwords import Subwords

        return Subwords(self._frequent.words, unit_rows(self._frequent.matrix))

    def guesses(self, words: Sequence[str]) -> dict[str, Matrix]:
        """A vector (d,) of length 1 by its spelling for each of the words; none for those whose spelling tells nothing.

        The frequent words teach it: see `lstlm.vectors.subwords`.
        """
        found, told = self.subwords.vectors([word if self._has_capitals else word.lower() for word in words])
        return {word: unit for word, unit, known in zip(words, unit_rows(found), told, strict=True) if known}

    def guess(self, word: str) -> Matrix:
        """A vector (d,) for a word that has none, of length 1, by its spelling; UnknownWord if that tells nothing."""
        if not (found := self.guesses([word])):
            raise UnknownWord(f"{word!r} has no vector, and no part of it is in any word that has one")
        return found[word]

    @cached_property
    def _frequent(self) -> "Vectors":
        """The first words that have a vector: what n-grams are fitted to."""
        first = np.asarray(self.matrix[:MOST_WORDS], dtype=np.float32)
        return Vectors(self.words[:MOST_WORDS], first).without_empty()

    @cached_property
    def _has_capitals(self) -> bool:
        return any(word != word.lower() for word in self.words)

    def with_words(self, words: Iterable[str], case: str = "prefer") -> "Vectors":
        """These vectors and, after them, a guess for each given word that has none, as long as the others on average.

        Words whose spelling tells nothing are left out.
        """
        new = [word for word in dict.fromkeys(words) if self.row(word, case) is None]
        if not new or not (guesses := self.guesses(new)):
            return self
        rows = np.stack(list(guesses.values())) * np.linalg.norm(self._frequent.matrix, axis=1).mean()
        counts = None if self.counts is None else [*self.counts, *[0] * len(guesses)]
        matrix = np.concatenate([self.matrix, rows.astype(self.matrix.dtype)])
        return Vectors([*self.words, *guesses], matrix, counts)

    def without_empty(self) -> "Vectors":
        """Only the words that have a vector: a row of zeros, as of <s> in a corpus, stands for none."""
        kept = np.flatnonzero(np.asarray(self.matrix).any(axis=1)).tolist()
        if len(kept) == len(self):
            return self
        counts = None if self.counts is None else [self.counts[row] for row in kept]
        return Vectors([self.words[row] for row in kept], self.matrix[kept], counts)

    def cosines(self, left: Sequence[int], right: Sequence[int]) -> Matrix:
        """Cosine of row left[i] with row right[i], in float64; 0 where a vector is all zeros. Reads only those rows."""
        a = np.asarray(self.matrix[np.asarray(left, dtype=np.int64)], dtype=np.float64)
        b = np.asarray(self.matrix[np.asarray(right, dtype=np.int64)], dtype=np.float64)
        lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        dots = np.einsum("ij,ij->i", a, b)
        cosines: Matrix = np.divide(dots, lengths, out=np.zeros_like(dots), where=lengths > 0)
        return cosines

    def most_similar(
        self, positive: str | Iterable[str], negative: str | Iterable[str] = (), k: int = 10, *, oov: bool = False
    ) -> list[tuple[str, float]]:
        """The k words of highest cosine to Σ positive − Σ negative, each word's vector scaled to length 1 first.

        The words asked about are left out. A word is taken as it is written, else without regard to case; with `oov`,
        one that has no vector is given one by its spelling.
        """
        added, taken = ([words] if isinstance(words, str) else list(words) for words in (positive, negative))
        asked = [*added, *taken]
        if not asked:
            raise ConfigError("most_similar: no word was given; name at least one")
        known = {word: self.find(word) for word in asked if not oov or self.row(word, "prefer") is not None}
        rows = set(known.values())
        units = [
            unit_rows(np.asarray(self.matrix[[known[word]]], dtype=np.float32))[0]
            if word in known
            else self.guess(word)
            for word in asked
        ]
        query = np.repeat([1.0, -1.0], [len(added), len(taken)]).astype(np.float32) @ np.stack(units)
        scores, ids = nearest(self.matrix, query, k + len(rows))
        found = zip(ids.tolist(), scores.tolist(), strict=True)
        return [(self.words[row], score) for row, score in found if row not in rows][:k]


def nearest(matrix: Matrix, query: Matrix, k: int, cached_bytes: int = _CACHED_BYTES) -> tuple[Matrix, Matrix]:
    """Cosines and ids, both (k,), of the k rows of matrix (n,d) nearest to a query (d,), best first.

    One pass over the matrix, product and norm taken while a block of rows is in the cache: O(nd) at the speed of
    memory, so threads would not pay for themselves.
    """
    unit = unit_rows(np.asarray(query, dtype=np.float32)[None])[0]
    matrix = np.asarray(matrix)  # a memory map's own slices cost microseconds each
    scores, squares = np.empty((2, len(matrix)), dtype=np.float32)
    step = max(1, cached_bytes // (4 * matrix.shape[1]))
    for at in range(0, len(matrix), step):
        rows = np.ascontiguousarray(matrix[at : at + step], dtype=np.float32)
        np.vecdot(rows, rows, out=squares[at : at + step])
        np.vecdot(rows, unit, out=scores[at : at + step])
    finite = np.isfinite(squares)
    if not finite.all():
        bad = int(np.argmin(finite)) + 1
        raise DataError(f"row {bad} of the vectors holds a value that is not finite, or too large to square in float32")
    squares[squares == 0] = 1.0  # a vector of zeros has cosine 0 with everything
    scores /= np.sqrt(squares)
    k = max(1, min(k, len(matrix)))
    ids = np.argpartition(scores, -k)[-k:]
    ids = ids[np.lexsort((ids, -scores[ids]))]
    return scores[ids], ids


def unit_rows(rows: Matrix) -> Matrix:
    """Rows scaled to length 1; a row of zeros stays."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    units: Matrix = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)
    return units


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
        listed, matrix, index = read_npy(path, vocabulary, keep)
        return Vectors(listed, matrix, index=index)
    if vocabulary is not None:
        raise ConfigError(f"--vocab {vocabulary}: only a .npy file needs it; {path} holds its own words")
    return Vectors(*read_rows(path, keep))


def _keeper(words: Collection[str], case: str) -> Keep:
    if case == "exact":
        return frozenset(words).__contains__
    upper = frozenset(word.upper() for word in words)
    return lambda word: word.upper() in upper
