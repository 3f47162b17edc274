"""A prepared corpus on disk: `vocab.tsv`, one memory-mapped id stream a part, and `manifest.json`.

A part is a stream of uint32 ids in which `</s>` (id 2) ends each sentence: `the cat sat </s> it purred </s>`. That one
marker makes sentence boundaries visible to vectorised code without a second array.
"""

import mmap
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lstlm.data.tokenise import TextOptions
from lstlm.data.vocabulary import EOS_ID, UNK_ID, Vocabulary, is_reserved
from lstlm.errors import DataError
from lstlm.sealed import SEAL, fault_of, read_sealed

FORMAT = "lstlm-corpus"
FORMAT_VERSION = 2
UNSEALED_VERSION = 1  # still read; its numbers are counted all the same
MANIFEST = "manifest.json"
VOCABULARY = "vocab.tsv"
ROWS = "cooccurrence-"  # begins the name of a folder of association scores, made from the corpus by training
ID_DTYPE = np.dtype("<u4")


@dataclass(frozen=True)
class Split:
    """One part of a corpus: `ids` (t,) uint32, read-only and memory-mapped; every sentence ends with `</s>`."""

    name: str
    ids: NDArray[np.uint32]
    sentences: int
    single_word_sentences: int

    @property
    def tokens(self) -> int:
        """Words and sentence ends."""
        return len(self.ids)

    @property
    def words(self) -> int:
        """Words without the sentence ends."""
        return len(self.ids) - self.sentences

    @classmethod
    def from_ids(cls, name: str, ids: NDArray[np.uint32]) -> "Split":
        """Return a split over an id stream in memory (tests, other sources)."""
        if len(ids) and ids[-1] != EOS_ID:
            raise DataError(f"{name}: an id stream must end with </s> (id {EOS_ID}), found id {int(ids[-1])}")
        ends = np.flatnonzero(ids == EOS_ID)
        return cls(name, ids, len(ends), int(np.count_nonzero(np.diff(ends, prepend=-1) == 2)))

    @classmethod
    def from_sentences(cls, name: str, sentences: Iterable[list[str]], vocabulary: Vocabulary) -> "Split":
        """Return a split of sentences of words; what the vocabulary lacks, or is spelled as a special, is <unk>."""
        index, ids = vocabulary.index, array("I")
        for words in sentences:
            ids.extend(UNK_ID if is_reserved(word) else index.get(word, UNK_ID) for word in words)
            ids.append(EOS_ID)
        return cls.from_ids(name, np.array(ids, dtype=ID_DTYPE))

    @property
    def unknown_share(self) -> float:
        """The share of the words that are <unk>; 0 without words."""
        return int(np.count_nonzero(self.ids == UNK_ID)) / self.words if self.words else 0.0


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not folder.is_dir():
        raise DataError(
            f"{folder}: no such corpus folder; make one with `lstlm prepare TEXT --out {folder}` (TEXT: files, or demo)"
        )
    try:
        manifest, whole = read_sealed(path)
    except FileNotFoundError:
        raise DataError(f"{folder}: no {MANIFEST}, so not a prepared corpus; make one with `lstlm prepare`") from None
    except (ValueError, OSError) as error:
        raise DataError(f"{path}: cannot be read ({error}); prepare the corpus again") from None
    if manifest.get("format") != FORMAT:
        raise DataError(f"{path}: not the manifest of a corpus that lstlm prepared")
    if manifest.get("version") not in (FORMAT_VERSION, UNSEALED_VERSION):
        raise DataError(
            f"{path}: format version {manifest.get('version')!r}, this lstlm reads {FORMAT_VERSION}; prepare again"
        )
    if not whole and (manifest["version"] != UNSEALED_VERSION or SEAL in manifest):
        raise DataError(f"{path}: damaged: its own hash does not match; prepare the corpus again")
    return manifest


@dataclass(frozen=True, eq=False, repr=False)
class Corpus:
    """A prepared corpus: what its manifest says, its words, and its parts."""

    folder: Path
    manifest: dict[str, Any]
    vocabulary: Vocabulary
    train: Split
    valid: Split  # may be empty
    test: Split | None = None  # unless the source has such a part
    text: TextOptions = field(default_factory=TextOptions)  # how its text became words

    def __repr__(self) -> str:
        return f"<lstlm corpus {self.folder}: {self.train.words:,} words, vocabulary {len(self.vocabulary):,}>"

    @classmethod
    def open(cls, folder: Path | str, verify: bool = True) -> "Corpus":
        """Open a prepared folder; with `verify` every file is hashed, without it only sizes are compared."""
        folder = Path(folder)
        manifest = _read_manifest(folder)
        try:
            for name in (VOCABULARY, *(f"{part}.ids" for part in manifest["splits"])):
                if fault := fault_of(folder / name, manifest["files"][name], hashed=verify):
                    raise DataError(f"{folder / name}: {fault}; prepare the corpus again")
            vocabulary = Vocabulary.read(folder / VOCABULARY)
            if vocabulary.hash != manifest["vocabulary"]["hash"]:
                raise DataError(f"{folder / VOCABULARY}: not the vocabulary of this corpus; prepare the corpus again")
            splits = {}
            for name, part in manifest["splits"].items():
                ids = map_numbers(folder / f"{name}.ids", ID_DTYPE)
                splits[name] = split = Split(name, ids, part["sentences"], part["single_word_sentences"])
                if verify:
                    check_counts(split, part, len(vocabulary))
            if not isinstance(manifest["source"]["name"], str):
                raise TypeError("the name of its source is no text")
            settings = manifest["settings"]
            text = TextOptions(lowercase=bool(settings["lowercase"]), tokenise=str(settings["tokenise"]))
            return cls(folder, manifest, vocabulary, text=text, **splits)
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{folder / MANIFEST}: damaged ({error!r}); prepare the corpus again") from None
        except OSError as error:
            raise DataError(f"{folder}: {error}") from None


def drop_pages(ids: NDArray[np.uint32]) -> None:
    """Let go of what was read of a memory-mapped array: it stays in the system's cache, but is no longer ours.

    Else a process would seem to grow with what it has read, up to the size of the file.
    """
    base: Any = ids
    while base is not None and not isinstance(base, mmap.mmap):
        base = getattr(base, "base", None)
    if base is not None and hasattr(mmap, "MADV_DONTNEED"):
        base.madvise(mmap.MADV_DONTNEED)


def check_counts(split: Split, part: dict[str, Any], vocab_size: int, piece: int = 1 << 22) -> None:
    """Raise unless the numbers that the manifest tells of a part are those that one counts in it, piece by piece."""
    sentences = single = unknown = largest = 0
    for start in range(0, split.tokens, piece):
        # with the two ids before: a sentence of one word is an end two places after another
        ids = split.ids[max(start - 2, 0) : start + piece]
        ends, new = ids == EOS_ID, start - max(start - 2, 0)
        sentences += int(np.count_nonzero(ends[new:]))
        unknown += int(np.count_nonzero(ids[new:] == UNK_ID))
        single += int(np.count_nonzero(ends[2:] & ends[:-2]))
        if start == 0:
            single += int(len(ids) > 1 and bool(ends[1]))
        largest = max(largest, int(ids.max()))
        drop_pages(split.ids)
    counted = {"tokens": split.tokens, "words": split.tokens - sentences, "sentences": sentences}
    counted |= {"single_word_sentences": single, "unknown": unknown}
    wrong = [f"{part[key]!r} {key} where there are {value}" for key, value in counted.items() if part[key] != value]
    if largest >= vocab_size:
        wrong.append(f"an id {largest} where there are {vocab_size} words")
    if wrong:
        raise DataError(f"{split.name}: the manifest says {wrong[0]}; prepare the corpus again")


def map_numbers(path: Path, kind: np.dtype[Any]) -> NDArray[Any]:
    """Map a file of numbers. A plain array over the map: np.memmap's own subclass costs a microsecond an operation."""
    size = path.stat().st_size
    if size % kind.itemsize:
        raise DataError(f"{path}: not a whole number of {kind.itemsize}-byte numbers; prepare the corpus again")
    return np.asarray(np.memmap(path, dtype=kind, mode="r")) if size else np.zeros(0, dtype=kind)
