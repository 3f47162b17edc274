"""From text to a prepared corpus: read and count, merge, encode, and put it in place in one rename."""

import errno
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from lstlm.data.blocks import BLOCK_BYTES, read_blocks
from lstlm.data.corpus import FORMAT, FORMAT_VERSION, MANIFEST, ROWS, VOCABULARY
from lstlm.data.encoder import PARTS, Block, BlockEncoder, BlockReport
from lstlm.data.inputs import TextSource
from lstlm.data.merge import Merged, merge_types, write_part
from lstlm.data.tokenise import TextOptions
from lstlm.data.vocabulary import SPECIALS
from lstlm.data.workers import WorkerPool
from lstlm.errors import ConfigError, DataError, LstlmError
from lstlm.files import file_above
from lstlm.sealed import seal

SERIAL_BLOCKS = 4
"""Up to so many blocks (4 MiB) are encoded in this process: starting workers would take longer."""

_ROWS = re.compile(rf"{ROWS}[0-9a-f]{{12}}|\.{ROWS}[0-9a-f]{{12}}-\d+")  # whole, or left by a run that was killed

UNWRITABLE = (
    None,
    *(getattr(errno, f"E{name}") for name in ("NOSPC", "DQUOT", "FBIG", "IO", "ACCES", "ROFS", "NOENT")),
)

Progress = Callable[[str, int, int | None], None]
"""Called with (phase, units done since the last call, total or None); phases: `read` in bytes, `encode` in ids."""


@dataclass(frozen=True, kw_only=True)
class PrepareOptions:
    """Settings of `prepare`; `max_vocab` counts the three specials too, None is no limit.

    `min_count` None is chosen by the size of the text: `usual_min_count`.
    """

    min_count: int | None = 1
    max_vocab: int | None = None
    workers: int = 1
    valid_fraction: float = 0.01
    text: TextOptions = field(default_factory=TextOptions)

    def __post_init__(self) -> None:
        if self.min_count is not None and self.min_count < 1:
            raise ConfigError(f"--min-count: {self.min_count} is below 1")
        if self.max_vocab is not None and self.max_vocab <= len(SPECIALS):
            raise ConfigError(
                f"--max-vocab: {self.max_vocab} leaves no room for words beside {' '.join(SPECIALS)}; use at least 4"
            )
        if self.workers < 1:
            raise ConfigError(f"--workers: {self.workers} is below 1")
        if not 0 <= self.valid_fraction < 1:
            raise ConfigError(f"--valid-fraction: {self.valid_fraction} is outside [0, 1)")
        if self.text.tokenise not in ("none", "simple"):
            raise ConfigError(f"--tokenise: {self.text.tokenise!r} is not one of none, simple")


def usual_min_count(words: int) -> int:
    """Return how often a word must be seen to have a vector worth having: more often where there is more text."""
    return 2 if words < 200_000 else 3 if words < 1_000_000 else 5 if words < 500_000_000 else 10


def prepare(
    source: TextSource,
    out: Path,
    options: PrepareOptions,
    *,
    force: bool = False,
    progress: Progress = lambda phase, done, total: None,
) -> dict[str, Any]:
    """Prepare a corpus in the folder `out` and return its manifest plus `seconds` and `words_per_s`.

    Everything is written to a temporary folder beside `out` and renamed at the end: `out` is whole or untouched.
    """
    times = [time.perf_counter()]
    with replacing_folder(Path(out), force) as folder:
        order = _count(source, folder, options, progress)
        times.append(time.perf_counter())
        workers = 1 + max((worker for worker, _ in order), default=0)
        min_count = options.min_count or usual_min_count(sum(report.written[0] for _, report in order))
        options = replace(options, min_count=min_count)
        merged = merge_types(folder, workers, min_count, options.max_vocab)
        times.append(time.perf_counter())
        parts = _encode(folder, merged, order, progress)
        manifest = _manifest(source, options, merged, parts, order)
        merged.vocabulary.write(folder / VOCABULARY)
        files = {VOCABULARY: {"bytes": (folder / VOCABULARY).stat().st_size, "sha256": merged.vocabulary.hash}}
        for name, part in parts.items():
            files[f"{name}.ids"] = {"bytes": 4 * part["tokens"], "sha256": part.pop("sha256")}
        manifest["files"] = files
        for leftover in folder.glob("worker-*"):
            leftover.unlink()
        (folder / MANIFEST).write_text(seal(manifest), encoding="utf-8")
    times.append(time.perf_counter())
    read, merge, encode = (after - before for before, after in pairwise(times))
    seconds = {"read": read, "merge": merge, "encode": encode, "all": times[-1] - times[0]}
    words = sum(part["words"] for part in parts.values())
    return {**manifest, "seconds": seconds, "words_per_s": words / seconds["all"]}


def check_target(out: Path, force: bool) -> None:
    """Refuse an output folder with content; with `force`, one that holds anything but a corpus."""
    if file_above(out):
        raise ConfigError(f"--out {out}: lies inside a file; name another folder")
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out}: is a file; name a folder")
    if not out.is_dir() or not any(out.iterdir()):
        return
    if not force:
        raise ConfigError(f"--out {out}: the folder is not empty; choose another or add --force to replace it")
    names = {path.name for path in out.iterdir()}
    own = {MANIFEST, VOCABULARY, *(f"{part}.ids" for part in PARTS)}
    foreign = {name for name in names - own if not _ROWS.fullmatch(name)}
    if foreign or MANIFEST not in names:
        what = f"it holds {min(foreign)!r}" if foreign else f"it has no {MANIFEST}"
        raise ConfigError(f"--out {out}: --force replaces prepared corpora only, and {what}; choose another folder")


def _tidy(out: Path) -> None:
    """Remove what killed processes left beside `out`; put back a corpus that was moved away and not replaced."""
    for stale in [*out.parent.glob(f".{out.name}.tmp-*"), *out.parent.glob(f".{out.name}.old-*")]:
        pid = stale.name.rpartition("-")[2]
        if pid.isdecimal() and not Path(f"/proc/{pid}").exists() and Path("/proc/self").exists():
            if ".old-" in stale.name and not out.exists():
                stale.rename(out)
            else:
                shutil.rmtree(stale, ignore_errors=True)


@contextmanager
def replacing_folder(out: Path, force: bool) -> Iterator[Path]:
    """Yield a temporary folder beside `out` that becomes `out` if the body succeeds and vanishes if it does not."""
    out = out.resolve() if out.is_symlink() else out  # a link to another disk stays one
    _tidy(out)
    check_target(out, force)
    folder = out.parent / f".{out.name}.tmp-{os.getpid()}"
    made = [above for above in out.parents if not above.exists()]  # the innermost first
    try:
        folder.mkdir(parents=True)
        yield folder
        check_target(out, force)  # again: somebody else may have made it meanwhile
        old = out.parent / f".{out.name}.old-{os.getpid()}"
        if out.exists():
            out.rename(old)
        try:
            folder.rename(out)
        except OSError:
            if old.exists():
                old.rename(out)
            raise
        shutil.rmtree(old, ignore_errors=True)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # folders that were made for nothing
            for above in made:
                above.rmdir()
        # numpy gives no number where it could not write all; the others name no file
        if isinstance(error, OSError) and error.errno in UNWRITABLE:
            raise LstlmError(f"{out}: cannot be written: {error.strerror or error}") from error
        raise


class _Blocks:
    """The blocks of a source, in order; remembers which input each came from."""

    def __init__(self, source: TextSource, valid_fraction: float, on_bytes: Callable[[int], None]) -> None:
        self._source, self._fraction, self._on_bytes = source, valid_fraction, on_bytes
        self.origins: list[tuple[str, int]] = []  # name and byte offset of each block

    def __iter__(self) -> Iterator[Block]:
        for text in self._source.inputs(self._on_bytes):
            offset = 0
            for data in read_blocks(text.stream, text.name):
                self.origins.append((text.name, offset))
                yield Block(len(self.origins) - 1, text.part, self._fraction, data)
                offset += len(data)


def _count(
    source: TextSource, folder: Path, options: PrepareOptions, progress: Progress
) -> list[tuple[int, BlockReport]]:
    """Read all text once; return (worker, report) for each block in the order of the text."""
    fraction = 0.0 if source.has_validation else options.valid_fraction
    blocks = _Blocks(source, fraction, lambda count: progress("read", count, source.total_bytes))
    stream = iter(blocks)
    workers = min(options.workers, _blocks_at_most(source.total_bytes))
    first = list(islice(stream, SERIAL_BLOCKS + 1))
    reports: list[tuple[int, BlockReport]] = []

    def keep(worker: int, report: BlockReport) -> None:
        if report.invalid and options.text.strict:
            name, offset = blocks.origins[report.number]
            raise DataError(f"{name}: invalid UTF-8 at byte {offset + report.first_invalid}; fix it or drop --strict")
        reports.append((worker, report))

    if workers == 1 or len(first) <= SERIAL_BLOCKS:
        encoder = BlockEncoder(folder, 0, options.text)
        for block in chain(first, stream):
            keep(0, encoder.encode(block))
        encoder.finish()
    else:
        with closing(WorkerPool(folder, workers, options.text)) as pool:
            for worker, report in pool.run(chain(first, stream)):
                keep(worker, report)
    if not any(report.written[0] for _, report in reports):
        raise DataError(f"{source.name}: no words for training; is the text empty?")
    source.notes.extend(_doubts(blocks.origins, [report for _, report in reports]))
    return sorted(reports, key=lambda pair: pair[1].number)


def _blocks_at_most(total_bytes: int | None) -> int:
    """Return how many workers so much text can keep busy; packed text grows tenfold at most, or nearly."""
    return sys.maxsize if total_bytes is None else 1 + 10 * total_bytes // BLOCK_BYTES


def _doubts(origins: list[tuple[str, int]], reports: list[BlockReport]) -> Iterator[str]:
    """Yield a line about inputs that hold what text does not."""
    found = {
        "NUL bytes: is that text?": [report for report in reports if report.nul_bytes],
        "invalid UTF-8, replaced by U+FFFD: is that text, and UTF-8?": [report for report in reports if report.invalid],
    }
    for what, odd in found.items():
        if names := list(dict.fromkeys(origins[report.number][0] for report in odd)):
            yield f"{names[0]} {f'and {len(names) - 1} more inputs hold' if names[1:] else 'holds'} {what}"


def _encode(
    folder: Path, merged: Merged, order: list[tuple[int, BlockReport]], progress: Progress
) -> dict[str, dict[str, Any]]:
    totals = [sum(report.written[k] for _, report in order) for k in range(len(PARTS))]
    parts = {}
    for part, total in zip(PARTS, totals, strict=True):
        if total or part != "test":
            parts[part] = write_part(folder, part, merged.maps, order, lambda n: progress("encode", n, sum(totals)))
    return parts


def _manifest(
    source: TextSource,
    options: PrepareOptions,
    merged: Merged,
    parts: dict[str, dict[str, Any]],
    order: list[tuple[int, BlockReport]],
) -> dict[str, Any]:
    vocabulary = merged.vocabulary
    seen_once = int(np.count_nonzero(vocabulary.counts[len(SPECIALS) :] == 1))
    settings = asdict(options)
    text = {**settings.pop("text"), **source.prepared}
    settings.pop("workers")  # the result does not depend on it
    found = {
        "invalid_utf8": sum(report.invalid for _, report in order),
        "nul_bytes": sum(report.nul_bytes for _, report in order),
        "too_long_words": sum(report.too_long for _, report in order),
        "reserved_words": merged.reserved,
    }
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "source": {"name": source.name, "notes": source.notes, "files": source.records},
        "settings": {**settings, **text},
        "vocabulary": {"size": len(vocabulary), "types": merged.types, "seen_once": seen_once, "hash": vocabulary.hash},
        "splits": parts,
        "found": found,
    }
