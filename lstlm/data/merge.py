"""From the workers' type tables to one vocabulary, and from provisional ids to final ones."""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lstlm.data.corpus import ID_DTYPE
from lstlm.data.encoder import EOS_TYPE, FIRST_TYPE, PARTS, TOO_LONG_TYPE, BlockReport, part_file, type_file
from lstlm.data.vocabulary import EOS_ID, SPECIALS, UNK_ID, Vocabulary, is_reserved
from lstlm.errors import DataError, LstlmError

U32 = NDArray[np.uint32]
I64 = NDArray[np.int64]


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
        self._edges = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)))
        self._spellings = type_file(folder, worker, "words").read_bytes()

    def words(self, numbers: I64) -> list[bytes]:
        """Return the spellings of types by their number in this table."""
        starts, ends = self._edges[numbers].tolist(), self._edges[numbers + 1].tolist()
        return list(map(self._spellings.__getitem__, map(slice, starts, ends)))


def merge_types(folder: Path, workers: int, min_count: int, max_vocab: int | None) -> Merged:
    """Return the vocabulary of all types with `min_count` or more, the `max_vocab` − 3 commonest of them.

    Counts are added by key over the workers (one sort of the keys); only types that stay become Python objects. The
    result does not depend on who saw what: order is by count, then spelling.
    """
    tables = [_Types(folder, worker) for worker in range(workers)]
    keys, first, inverse = np.unique(
        np.concatenate([table.keys for table in tables]), return_index=True, return_inverse=True
    )
    edges = np.cumsum([0, *(len(table.keys) for table in tables)])
    numbers = [inverse[a:b] for a, b in pairwise(edges)]  # a worker: number in its table → number in keys
    totals = np.zeros(len(keys), dtype=np.int64)
    np.add.at(totals, inverse, np.concatenate([table.counts[FIRST_TYPE:] for table in tables]))
    kept = np.flatnonzero(totals >= min_count)
    _refuse_collisions(tables, numbers, edges, first)
    spelled, chosen = [], []
    for worker, table in enumerate(tables):
        mine = kept[(first[kept] >= edges[worker]) & (first[kept] < edges[worker + 1])]
        spelled += table.words(first[mine] - edges[worker])
        chosen.append(mine)
    ranked, words, reserved = _rank(spelled, np.concatenate(chosen), totals, max_vocab)
    if not words:
        raise DataError(
            f"none of {len(keys)} types appears {min_count} times, so the vocabulary is empty; lower --min-count"
        )
    final = np.full(len(keys), UNK_ID, dtype=np.uint32)
    final[ranked] = np.arange(len(SPECIALS), len(SPECIALS) + len(ranked), dtype=np.uint32)
    maps = [np.concatenate(([EOS_ID, UNK_ID], final[mine])).astype(np.uint32) for mine in numbers]
    sentences, too_long = (sum(int(t.counts[k]) for t in tables) for k in (EOS_TYPE, TOO_LONG_TYPE))
    unknown = int(totals.sum()) + too_long - int(totals[ranked].sum())
    counts = np.concatenate(([unknown, 0, sentences], totals[ranked]))
    return Merged(Vocabulary([*SPECIALS, *words], counts), maps, int(np.count_nonzero(totals)), reserved)


def _rank(words: list[bytes], numbers: I64, totals: I64, max_vocab: int | None) -> tuple[I64, list[str], int]:
    """Return numbers and spellings of the words by falling count, then spelling, and how many were reserved."""
    by_spelling = np.array(sorted(range(len(words)), key=words.__getitem__), dtype=np.int64)
    order = by_spelling[np.argsort(-totals[numbers[by_spelling]], kind="stable")]
    # only words with "<" can be reserved; to decode and lower-case all of them would take seconds
    taken = [at for at, word in enumerate(words) if word[:1] == b"<" and is_reserved(word.decode())]
    order = order[~np.isin(order, taken)]
    order = order[: None if max_vocab is None else max_vocab - len(SPECIALS)]
    return numbers[order], [words[at].decode() for at in order.tolist()], int(totals[numbers[taken]].sum())


def _refuse_collisions(tables: Sequence[_Types], numbers: Sequence[I64], edges: I64, first: I64) -> None:
    """Raise an error if two workers spell one key differently: a collision of 64-bit hashes."""
    for worker, (table, mine) in enumerate(zip(tables[1:], numbers[1:], strict=True), start=1):
        shared = np.flatnonzero(first[mine] < edges[worker])  # types that an earlier worker has too
        owners = np.searchsorted(edges, first[mine[shared]], side="right") - 1
        for owner in range(worker):
            for part in np.array_split(shared[owners == owner], 1 + len(shared) // 100_000):
                ours, theirs = table.words(part), tables[owner].words(first[mine[part]] - edges[owner])
                if ours != theirs:
                    one, other = next((a, b) for a, b in zip(theirs, ours, strict=True) if a != b)
                    raise LstlmError(
                        f"the words {one.decode()!r} and {other.decode()!r} have one 64-bit hash, so they cannot be "
                        "told apart: remove one of them from the text"
                    )


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
    with ExitStack() as opened:
        target = opened.enter_context((folder / f"{part}.ids").open("wb"))
        sources = {w: opened.enter_context(path.open("rb")) for w, path in files.items() if path.exists()}
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
