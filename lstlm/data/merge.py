"""From the workers' type tables to one vocabulary, and from provisional ids to final ones."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lstlm.data.corpus import ID_DTYPE
from lstlm.data.encoder import EOS_TYPE, FIRST_TYPE, PARTS, TOO_LONG_TYPE, BlockReport, part_file, type_file
from lstlm.data.vocabulary import EOS_ID, SPECIALS, UNK_ID, Vocabulary, is_reserved
from lstlm.errors import DataError, LstlmError

U32 = NDArray[np.uint32]


@dataclass(frozen=True)
class Merged:
    """The vocabulary, the final id of each provisional id a worker, and what was found on the way."""

    vocabulary: Vocabulary
    maps: list[U32]
    types: int
    reserved: int


class _Types:
    """The saved type table of one worker."""

    def __init__(self, folder: Path, worker: int) -> None:
        self.keys: NDArray[np.uint64] = np.load(type_file(folder, worker, "keys"), allow_pickle=False)
        self.counts: NDArray[np.int64] = np.load(type_file(folder, worker, "counts"), allow_pickle=False)
        lengths = np.load(type_file(folder, worker, "lengths"), allow_pickle=False)
        self._edges = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
        self._spellings = type_file(folder, worker, "words").read_bytes()

    def word(self, number: int) -> bytes:
        return self._spellings[self._edges[number] : self._edges[number + 1]]


def merge_types(folder: Path, workers: int, min_count: int, max_vocab: int | None) -> Merged:
    """Return the vocabulary of all types with `min_count` or more, the `max_vocab` − 3 commonest of them.

    Counts are added by key over the workers (one sort of the keys); only types that stay become Python strings. The
    result does not depend on who saw what: order is by count, then spelling.
    """
    tables = [_Types(folder, worker) for worker in range(workers)]
    sizes = [len(table.keys) for table in tables]
    keys, inverse = np.unique(np.concatenate([table.keys for table in tables]), return_inverse=True)
    totals = np.zeros(len(keys), dtype=np.int64)
    np.add.at(totals, inverse, np.concatenate([table.counts[FIRST_TYPE:] for table in tables]))
    number_of = np.split(inverse, np.cumsum(sizes)[:-1])  # for each worker: provisional id − 2 → number in keys
    kept = totals >= min_count
    spelled = _spell(tables, number_of, kept)
    reserved = 0
    ranked: list[tuple[int, bytes, int]] = []
    for number, word in spelled.items():
        if is_reserved(word.decode()):
            reserved += int(totals[number])
        else:
            ranked.append((-int(totals[number]), word, number))
    if not ranked:
        raise DataError(
            f"none of {len(keys)} types appears {min_count} times, so the vocabulary is empty; lower --min-count"
        )
    ranked.sort()
    del ranked[max_vocab - len(SPECIALS) if max_vocab is not None else len(ranked) :]
    final = np.full(len(keys), UNK_ID, dtype=np.uint32)
    final[[number for _, _, number in ranked]] = np.arange(len(SPECIALS), len(SPECIALS) + len(ranked), dtype=np.uint32)
    maps = [np.concatenate(([EOS_ID, UNK_ID], final[numbers])).astype(np.uint32) for numbers in number_of]
    sentences, too_long = (sum(int(t.counts[k]) for t in tables) for k in (EOS_TYPE, TOO_LONG_TYPE))
    unknown = int(totals.sum()) + too_long + sum(count for count, _, _ in ranked)  # ranked counts are negative
    words = [*SPECIALS, *(word.decode() for _, word, _ in ranked)]
    vocabulary = Vocabulary(words, [unknown, 0, sentences, *(-count for count, _, _ in ranked)])
    return Merged(vocabulary, maps, int(np.count_nonzero(totals)), reserved)


def _spell(
    tables: Sequence[_Types], number_of: Sequence[NDArray[np.int64]], kept: NDArray[np.bool_]
) -> dict[int, bytes]:
    """Return the spelling of each kept type, by number; two spellings of one key are a collision of 64-bit hashes."""
    spelled: dict[int, bytes] = {}
    for table, numbers in zip(tables, number_of, strict=True):
        for local in np.flatnonzero(kept[numbers]).tolist():
            word = table.word(local)
            if spelled.setdefault(int(numbers[local]), word) != word:
                other = spelled[int(numbers[local])].decode(errors="replace")
                raise LstlmError(
                    f"the words {other!r} and {word.decode(errors='replace')!r} have one 64-bit hash, so they cannot "
                    "be told apart: remove one of them from the text"
                )
    return spelled


def write_part(
    folder: Path,
    part: str,
    maps: Sequence[U32],
    order: Sequence[tuple[int, BlockReport]],
    on_ids: Callable[[int], None],
) -> dict[str, Any]:
    """Write `<part>.ids`: the provisional ids in the order of the text, renamed. O(ids), one block in memory."""
    which = PARTS.index(part)
    digest = hashlib.sha256()
    tokens = sentences = unknown = singles = 0
    files = {worker: part_file(folder, worker, part) for worker in range(len(maps))}
    sources = {worker: path.open("rb") for worker, path in files.items() if path.exists()}
    try:
        with (folder / f"{part}.ids").open("wb") as target:
            for worker, report in order:
                count = report.written[which]
                if not count:
                    continue
                types = np.fromfile(sources[worker], dtype="<i4", count=count)
                ids = maps[worker][types].astype(ID_DTYPE, copy=False)
                target.write(ids.data)
                digest.update(ids.data)
                ends = np.flatnonzero(ids == EOS_ID)
                tokens, sentences = tokens + len(ids), sentences + len(ends)
                singles += int(np.count_nonzero(np.diff(ends, prepend=-1) == 2))
                unknown += int(np.count_nonzero(ids == UNK_ID))
                on_ids(len(ids))
    finally:
        for source in sources.values():
            source.close()
    for path in files.values():
        path.unlink(missing_ok=True)
    words = tokens - sentences
    return {
        "tokens": tokens,
        "words": words,
        "sentences": sentences,
        "single_word_sentences": singles,
        "unknown": unknown,
        "oov_rate": unknown / words if words else 0.0,
        "sha256": digest.hexdigest(),
    }
