"""Rows of association scores from counts of neighbours: the sparse real-valued targets of the co-occurrence recipe.

The rows lie beside the corpus, in `cooccurrence-<hash>/`, named after what they were made from: a second run with the
same settings maps them, and one that was stopped on the way starts that step again. They are a cache: where a file is
not the one that was written, they are made anew.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lstlm.data.cooccurrence import Progress, RowWriter, SparseRows, count
from lstlm.data.corpus import ROWS, Corpus
from lstlm.data.windows import Subsampler
from lstlm.errors import ConfigError, DataError
from lstlm.sealed import sha256_of

WEIGHTINGS = ("ppmi", "sqrt", "log")
VERSION = 2
_BLOCK = 1 << 22  # entries weighted at a time
_FACTS = "facts.json"
_FILES = ("rows.starts.npy", "rows.indices", "rows.values")

F64 = NDArray[np.float64]


class Weighting:
    """Scores t of counts n: row w, column c, with totals n_w (of the row's side) and n_c, N their sum.

    ppmi: max(0, log(n·N' / (n_w·n_c^smoothing)) − log shift), N' = Σ_c n_c^smoothing, for each side of a word apart;
    sqrt: n^½ / (n_w·n_c^smoothing)^¼, the square root of the counts with both frequencies evened out;
    log:  log(1 + n).
    Each is multiplied by n / (n + discount): what was seen once or twice says little.
    """

    def __init__(self, counts: SparseRows, settings: Mapping[str, Any]) -> None:
        kind, smoothing = settings["weighting"], settings["smoothing"]
        if kind not in WEIGHTINGS:
            raise ConfigError(f"data.weighting: {kind!r} is not one of {', '.join(WEIGHTINGS)}")
        self._kind, self._log_shift = kind, float(np.log(settings["shift"]))
        self._discount = float(settings.get("discount", 0.0))
        words = self._words = len(counts)
        row_totals, column_totals = np.zeros((words, 2)), np.zeros(2 * words)
        for first, last, block in counts.blocks(_BLOCK):
            side = block.indices >= words
            row = np.repeat(np.arange(last - first), np.diff(block.starts))
            row_totals[first:last] = np.bincount(2 * row + side, block.values, 2 * (last - first)).reshape(-1, 2)
            column_totals += np.bincount(block.indices, block.values, 2 * words)
        smooth = np.maximum(column_totals, 1e-30) ** smoothing
        smooth[column_totals == 0] = 0
        self._log_sums = np.log(np.maximum(smooth.reshape(2, words).sum(1), 1e-30))
        with np.errstate(divide="ignore"):
            self._log_row, self._log_column = np.log(row_totals), np.log(smooth)

    def __call__(self, first: int, block: SparseRows) -> F64:
        """Return the scores of a block's entries; `first` is its first row."""
        n = block.values.astype(np.float64)
        scores: F64 = self._scores(first, block, np.log(n)) * (n / (n + self._discount))
        return scores

    def _scores(self, first: int, block: SparseRows, n: F64) -> F64:
        """Return the scores before the discount; n is the logarithm of the counts."""
        if self._kind == "log":
            return np.log1p(np.exp(n))
        row = np.repeat(np.arange(len(block)), np.diff(block.starts)) + first
        side = (block.indices >= self._words).astype(np.int64)
        log_row, log_column = self._log_row[row, side], self._log_column[block.indices]
        scores: F64 = n - log_row - log_column + self._log_sums[side] - self._log_shift
        if self._kind == "sqrt":
            scores = np.exp(0.5 * n - 0.25 * (log_row + log_column))
        return np.maximum(scores, 0.0)


def _weigh(counts: SparseRows, folder: Path, settings: Mapping[str, Any]) -> None:
    """Write the scores that are above 0 to `folder`/rows.*."""
    weighting = Weighting(counts, settings)
    writer = RowWriter(folder, "rows")
    for first, _, block in counts.blocks(_BLOCK):
        scores = weighting(first, block)
        kept = scores > 0
        ends = np.concatenate(([0], np.cumsum(kept)))[block.starts]
        writer.add(np.diff(ends), block.indices[kept], scores[kept])
    writer.close()


def association_rows(
    corpus: Corpus,
    settings: Mapping[str, Any],
    progress: Progress = lambda phase, share: None,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[SparseRows, dict[str, Any]]:
    """Return the rows (D, 2D) of a corpus and facts about them, from the cache if they were made before.

    `settings`: window, distance, min_pair, weighting, shift, smoothing; discount, and subsample with seed, may be left
    out. Facts: `seconds` that making them took, `made` (now, and not earlier), `entries`, `counted` (entries before
    weighting). `say` hears why rows that were there could not be used.
    """
    words = len(corpus.vocabulary)
    source = {"version": VERSION, "vocabulary": corpus.vocabulary.hash, "tokens": corpus.train.tokens}
    source["ids"] = corpus.manifest["files"]["train.ids"]["sha256"]
    name = hashlib.sha256(json.dumps({**source, **settings}, sort_keys=True).encode()).hexdigest()[:12]
    folder = corpus.folder / f"{ROWS}{name}"
    found = _whole(folder, say)
    facts = _make(corpus, folder, settings, progress) if found is None else found
    return SparseRows.open(folder, "rows", 2 * words), {**facts, "made": found is None}


def _whole(folder: Path, say: Callable[[str], None]) -> dict[str, Any] | None:
    """Return the facts of rows that are as they were written; None where there are none, or damaged ones.

    Every byte is compared by its hash: a column out of bounds would make the sparse product read foreign memory.
    """
    if not folder.exists():
        return None
    try:
        facts: dict[str, Any] = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
        bad = [name for name in _FILES if _record(folder / name) != facts["files"][name]]
        if not isinstance(facts["entries"], int) or not isinstance(facts["seconds"], int | float):
            bad.append(_FACTS)
    except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
        bad = [f"{_FACTS} or a file that it names ({type(error).__name__})"]
    except OSError as error:
        raise DataError(f"{folder}: cannot be read ({error.strerror or error}); make it readable") from error
    if not bad:
        return facts
    say(f"{folder}: damaged or of an older version: {', '.join(bad)}; making the association scores anew")
    return None


def _record(path: Path) -> dict[str, Any]:
    """Return the size and the hash of a file."""
    return {"bytes": path.stat().st_size, "sha256": sha256_of(path)}


def _make(corpus: Corpus, folder: Path, settings: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Count and weigh in a temporary folder, and give it its name when it is whole; return the facts."""
    began = process_time()  # one thread does it: its own seconds, whoever else uses the machine
    temporary = folder.with_name(f".{folder.name}-{os.getpid()}")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        how = {key: settings[key] for key in ("window", "distance", "min_pair")}
        word_counts, threshold = corpus.vocabulary.counts, settings.get("subsample", 0.0)
        subsampler = Subsampler(word_counts, threshold, settings["seed"], 0) if threshold else None
        count(corpus.train.ids, word_counts, temporary, **how, subsampler=subsampler, progress=progress)
        counts = SparseRows.open(temporary, "counts", 2 * len(corpus.vocabulary))
        _weigh(counts, temporary, settings)
        for path in temporary.glob("counts.*"):
            path.unlink()
        entries = (temporary / "rows.values").stat().st_size // 4
        if not entries:
            raise DataError(
                f"{corpus.folder}: no two words stand together more often than by chance, so there is nothing "
                "to learn; give more text (or lower data.min_pair or data.shift)"
            )
        facts: dict[str, Any] = {"settings": dict(settings), "entries": entries, "counted": len(counts.values)}
        facts["files"] = {name: _record(temporary / name) for name in _FILES}
        facts["seconds"] = round(process_time() - began, 3)
        (temporary / _FACTS).write_text(json.dumps(facts) + "\n", encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
        return facts
    except OSError as error:
        raise DataError(
            f"{folder}: cannot be written ({error.strerror or error}); make data.dir writable, or make room"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
