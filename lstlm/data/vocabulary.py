"""The words of a corpus, their counts and their ids."""

import hashlib
from array import array
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lstlm.data.words import Words
from lstlm.errors import DataError

UNK, BOS, EOS = "<unk>", "<s>", "</s>"
SPECIALS = (UNK, BOS, EOS)
UNK_ID, BOS_ID, EOS_ID = 0, 1, 2
_PIECE = 1 << 16
_DIGITS = 19  # of 2⁶³, which no count reaches


def is_reserved(word: str) -> bool:
    """Say whether a word of the text would be taken for a special: `<unk>`, `<s>`, `</s>` in either case."""
    return word.lower() in SPECIALS


class Vocabulary:
    """Words in id order: the specials `<unk> <s> </s>` as 0, 1, 2, then by falling count, ties by spelling.

    `counts` (D,) int64 are those of the training part: `<unk>` counts the words outside the vocabulary, `</s>` the
    sentences, and `<s>`, which is only ever context, is 0.
    """

    unk_id, bos_id, eos_id = UNK_ID, BOS_ID, EOS_ID

    def __init__(self, words: Iterable[str], counts: Iterable[int] | NDArray[np.int64]) -> None:
        self.words = words if isinstance(words, Words) else Words(words)
        self.counts: NDArray[np.int64] = np.asarray(
            counts if isinstance(counts, np.ndarray) else list(counts), dtype=np.int64
        )
        if tuple(self.words[:3]) != SPECIALS or len(self.words) != len(self.counts):
            raise DataError(f"a vocabulary starts with {' '.join(SPECIALS)} and has one count a word")

    def __len__(self) -> int:
        return len(self.words)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.hash == other.hash

    def __hash__(self) -> int:
        return hash(self.hash)

    def shown_counts(self, unknown: float) -> NDArray[np.int64]:
        """Return the counts (D,) where a share `unknown` of the words that occur once is shown as `<unk>` too."""
        counts = self.counts.copy()
        counts[UNK_ID] += round(unknown * np.count_nonzero(counts == 1))
        return counts

    @cached_property
    def index(self) -> dict[str, int]:
        """The id of each word."""
        return {word: number for number, word in enumerate(self.words)}

    @cached_property
    def is_lowercase(self) -> bool:
        """Whether no word has a capital, so that text must be lowered before it is looked up."""
        return all(word == word.lower() for word in self.words)

    @cached_property
    def hash(self) -> str:
        """The SHA-256 of the vocabulary file: two runs with one hash agree on every id and every count."""
        digest = hashlib.sha256()
        for lines in self._lines():
            digest.update(lines)
        return digest.hexdigest()

    def _lines(self) -> Iterator[bytes]:
        """Yield the vocabulary file in pieces: as one string, millions of words would be in memory three times over."""
        for start in range(0, len(self.words), _PIECE):
            words, counts = self.words[start : start + _PIECE], self.counts[start : start + _PIECE].tolist()
            yield "".join(f"{word}\t{count}\n" for word, count in zip(words, counts, strict=True)).encode()

    def encode(self, words: Iterable[str]) -> NDArray[np.int64]:
        """Return the ids of the words (w,) int64, `<unk>` for those outside the vocabulary."""
        index = self.index
        return np.fromiter((index.get(word, UNK_ID) for word in words), dtype=np.int64)

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Return the words of the ids."""
        return [self.words[number] for number in ids]

    def write(self, path: Path | str) -> None:
        """Write `word<TAB>count` lines in id order; a word with a tab or a line end cannot be written."""
        if any(not word or "\t" in word or "\n" in word for word in self.words):
            raise DataError(f"{path}: a word is empty or holds a tab or a line end, which the file uses itself")
        with Path(path).open("wb") as file:
            file.writelines(self._lines())

    @classmethod
    def read(cls, path: Path | str) -> "Vocabulary":
        """Read what `write` wrote; a damaged line is refused with its number."""
        path = Path(path)
        if path.exists() and not path.is_file():
            raise DataError(f"{path}: not a file")
        words = Words()
        counts = array("q")
        try:
            # Only \n ends a line of bytes; a word may hold characters that Python takes for line ends.
            with path.open("rb") as file:
                for number, line in enumerate(file, start=1):
                    text = line.decode().removesuffix("\n")
                    word, tab, count = text.partition("\t")
                    if not (word and tab and count.isascii() and count.isdecimal() and len(count) < _DIGITS):
                        raise DataError(f"{path}:{number}: expected word<TAB>count, found {text[:60]!r}")
                    words.append(word)
                    counts.append(int(count))
        except FileNotFoundError:
            raise DataError(f"{path}: no such file; `lstlm prepare` writes it") from None
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path}:{number}: not UTF-8 at byte {error.start} of the line; prepare the corpus again"
            ) from None
        except OSError as error:
            raise DataError(f"{path}: {error.strerror or error}") from None
        if tuple(words[:3]) != SPECIALS:
            raise DataError(f"{path}: the first three words must be {' '.join(SPECIALS)}; not a vocabulary of lstlm")
        if _has_duplicates(words):
            raise DataError(f"{path}: a word appears twice; prepare the corpus again")
        return cls(words, np.frombuffer(counts, dtype=np.int64))


def _has_duplicates(words: Words) -> bool:
    """Say whether a word appears twice; by their hashes first, for a set of millions of words would fill the memory."""
    hashes = np.fromiter(map(hash, words), dtype=np.int64, count=len(words))
    return len(np.unique(hashes)) < len(words) and len(set(words)) < len(words)
