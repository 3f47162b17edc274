"""How fast text becomes ids, and ids minibatches, beside other ways to count words; `lstlm bench data` calls this."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from lstlm.data.blocks import BLOCK_BYTES, read_blocks
from lstlm.data.corpus import Corpus
from lstlm.data.inputs import FileSource
from lstlm.data.ngrams import Examples
from lstlm.data.prepare import PrepareOptions, prepare
from lstlm.environment import peak_memory


def _record(method: str, words: int, types: int, seconds: float, **more: Any) -> dict[str, Any]:
    return {
        "method": method,
        "words": words,
        "types": types,
        "seconds": seconds,
        "words_per_s": words / seconds,
        **more,
    }


def rate_of_prepare(files: Sequence[Path], workers: int, min_count: int = 3) -> dict[str, Any]:
    """Time the whole of `prepare` (read, count, merge, encode, hash) on plain, tokenised files.

    `peak_mib` is the largest resident size so far of this process and of its largest worker: measure in a fresh one.
    """
    with tempfile.TemporaryDirectory() as folder:
        source = FileSource("rates", [(str(file), "train") for file in files])
        summary = prepare(source, Path(folder) / "out", PrepareOptions(min_count=min_count, workers=workers))
    words = sum(part["words"] for part in summary["splits"].values())
    peaks = [peak_memory(children=children) / 2**20 for children in (False, True)]
    return _record(
        "prepare",
        words,
        summary["vocabulary"]["types"],
        summary["seconds"]["all"],
        workers=workers,
        phases=summary["seconds"],
        peak_mib={"parent": peaks[0], "largest_worker": peaks[1]},
    )


def rate_of_counter(files: Sequence[Path]) -> dict[str, Any]:
    """Time `collections.Counter` on the words as bytes: counting alone, one process, its fastest form."""
    started = time.perf_counter()
    counts: Counter[bytes] = Counter()
    for file in files:
        with file.open("rb") as stream:
            for block in read_blocks(stream, str(file), BLOCK_BYTES):
                counts.update(block.split())
    return _record("collections.Counter", counts.total(), len(counts), time.perf_counter() - started)


def rate_of_gensim(files: Sequence[Path]) -> dict[str, Any]:
    """Time gensim's vocabulary scan (`Word2Vec.build_vocab`, scan only): counting alone, one process."""
    from gensim.models import Word2Vec  # the `test` extra has it

    def sentences() -> Iterator[list[str]]:
        for file in files:
            with file.open(encoding="utf-8") as stream:
                yield from map(str.split, stream)

    started = time.perf_counter()
    model = Word2Vec(min_count=1)
    words, _ = model.scan_vocab(corpus_iterable=sentences())
    return _record("gensim scan_vocab", int(words), len(model.raw_vocab), time.perf_counter() - started)


def rate_of_examples(
    corpus: Corpus, *, context: int = 4, kind: str = "previous", batch_size: int = 128, examples: int = 2_000_000
) -> dict[str, Any]:
    """Time the making of minibatches: `examples_per_s`, after one warm-up buffer."""
    stream = Examples(corpus.train, corpus.vocabulary, context=context, kind=kind, batch_size=batch_size, seed=1)
    batches = max(1, examples // batch_size)
    for _ in islice(stream, min(batches, 512)):
        pass
    started = time.perf_counter()
    made = sum(len(batch) for batch in islice(stream, batches))
    seconds = time.perf_counter() - started
    settings = {"context": context, "kind": kind, "batch_size": batch_size}
    return {**settings, "examples": made, "seconds": seconds, "examples_per_s": made / seconds}
