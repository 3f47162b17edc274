"""Turns blocks of text into type ids and counts: the work of one worker."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from lstlm.data.hashing import MAX_WORD_BYTES, TypeTable, Words, grown
from lstlm.data.tokenise import TextOptions

EOS_TYPE, TOO_LONG_TYPE, FIRST_TYPE = 0, 1, 2
"""Type ids of one worker: the sentence end, words that are too long, then types in order of first sight."""

PARTS = ("train", "valid", "test")


@dataclass(frozen=True)
class Block:
    """One piece of text: its number in the corpus, its part, and the share of its sentences that goes to validation."""

    number: int
    part: str
    valid_fraction: float
    data: bytes


@dataclass(frozen=True)
class BlockReport:
    """What became of a block: ids written a part (in the order of PARTS) and what was odd about it."""

    number: int
    written: tuple[int, int, int]
    invalid: int = 0
    first_invalid: int = 0
    nul_bytes: int = 0
    too_long: int = 0


class BlockEncoder:
    """Encodes blocks with a type table of its own; ids go to a file a part in `folder`.

    The ids are provisional: only when all text has been read are counts known, and a vectorised pass renames them. So
    text is read, hashed and looked up once, which halves the time of count-then-encode and lets a pipe be a source.
    """

    def __init__(self, folder: Path, worker: int, options: TextOptions) -> None:
        self._folder, self._worker, self._options = folder, worker, options
        self._table = TypeTable(first_id=FIRST_TYPE)
        self._counts = np.zeros(1 << 16, dtype=np.int64)
        self._files: dict[str, BinaryIO] = {}

    def encode(self, block: Block) -> BlockReport:
        """Encode one block and append its ids to the part files."""
        data, invalid, first_invalid = self._normalise(block.data)
        if invalid and self._options.strict:
            return BlockReport(block.number, (0, 0, 0), invalid, first_invalid)
        words = Words(data)
        ids = self._table.encode(words, TOO_LONG_TYPE)
        to_valid = _choose_sentences(len(words.sentence_ends), block)
        written = dict.fromkeys(PARTS, 0)
        if to_valid is None:
            written[block.part] = self._write(block.part, ids, words.sentence_ends)
        else:
            sizes = np.diff(words.sentence_ends, prepend=0)
            chosen = np.repeat(to_valid, sizes)
            written["train"] = self._write("train", ids[~chosen], np.cumsum(sizes[~to_valid]))
            written["valid"] = self._write("valid", ids[chosen], np.cumsum(sizes[to_valid]))
        too_long = int(np.count_nonzero(words.lengths > MAX_WORD_BYTES))
        nul = block.data.count(0)
        return BlockReport(
            block.number, (written["train"], written["valid"], written["test"]), invalid, first_invalid, nul, too_long
        )

    def _normalise(self, data: bytes) -> tuple[bytes, int, int]:
        """Return valid UTF-8 that ends with a newline, the number of invalid sequences, and where the first one is."""
        options = self._options
        if data.isascii() and not options.lowercase and options.tokenise == "none":
            return data, 0, 0
        invalid = first_invalid = 0
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            first_invalid = error.start
            text = data.decode(errors="replace")
            invalid = text.count("�") - data.count("�".encode())  # those that were there before are no fault
        if not invalid and not options.lowercase and options.tokenise == "none":
            return data, 0, 0
        return (options.apply(text) or "\n").encode(), invalid, first_invalid

    def _write(self, part: str, ids: NDArray[np.int32], sentence_ends: NDArray[np.int64]) -> int:
        """Append ids with sentence ends put in; count them if they are for training."""
        stream = np.insert(ids, sentence_ends, EOS_TYPE)
        if part == "train":
            self._counts = grown(self._counts, FIRST_TYPE + self._table.size)
            np.add.at(self._counts, stream, 1)
        if part not in self._files:
            self._files[part] = part_file(self._folder, self._worker, part).open("wb")
        self._files[part].write(stream.astype("<i4", copy=False).tobytes())
        return len(stream)

    def finish(self) -> None:
        """Close the part files and save the types: keys, counts (the two reserved ones first), lengths, spellings."""
        for file in self._files.values():
            file.close()
        types_file = partial(type_file, self._folder, self._worker)
        np.save(types_file("keys"), self._table.keys)
        np.save(types_file("counts"), self._counts[: FIRST_TYPE + self._table.size])
        np.save(types_file("lengths"), self._table.lengths)
        types_file("words").write_bytes(self._table.spellings)


def part_file(folder: Path, worker: int, part: str) -> Path:
    """Where a worker writes the provisional ids of a part."""
    return folder / f"worker-{worker}.{part}.types"


def type_file(folder: Path, worker: int, what: str) -> Path:
    """Where a worker saves its type table: keys, counts, lengths (.npy) and words."""
    return folder / f"worker-{worker}.{what}{'' if what == 'words' else '.npy'}"


def _choose_sentences(sentences: int, block: Block) -> NDArray[np.bool_] | None:
    """Return which sentences of a block are for validation (s,), a function of the block's number; None: all stay."""
    if block.part != "train" or block.valid_fraction <= 0 or sentences == 0:
        return None
    rng = np.random.default_rng((0x5EED, block.number))
    chosen = np.zeros(sentences, dtype=np.bool_)
    if sentences == 1:
        chosen[0] = block.number > 0 and rng.random() < block.valid_fraction
    else:
        count = min(sentences - 1, max(1, round(sentences * block.valid_fraction)))
        chosen[rng.choice(sentences, size=count, replace=False)] = True
    return chosen
