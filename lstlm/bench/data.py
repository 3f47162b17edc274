"""`lstlm bench data`: how fast text becomes ids and ids become minibatches, with other counters on the same file."""

import importlib
import importlib.util
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter

from lstlm.bench.made_up import write_text
from lstlm.bench.records import Column, Record, table
from lstlm.cores import usable_cores
from lstlm.data import Corpus, Examples
from lstlm.data.inputs import FileSource
from lstlm.data.prepare import PrepareOptions, prepare
from lstlm.errors import ConfigError

KINDS = ("previous", "window", "bag")
TYPES = 200_000
_PACKED = (".gz", ".bz2", ".xz", ".lzma", ".zst")


@dataclass(frozen=True)
class Plan:
    """What to measure: a text file (None: made up, `words` long), minibatches of m, `seconds` for each rate of
    minibatches, `rounds` over the whole file."""

    source: Path | None = None
    words: int = 5_000_000
    m: int = 128
    context: int = 4
    seconds: float = 3.0
    workers: int | None = None
    rounds: int = 3


def run(plan: Plan, say: Callable[[str], None]) -> list[Record]:
    """Prepare the text, count it in other ways, then draw minibatches."""
    if plan.source is not None and plan.source.suffix in _PACKED:
        raise ConfigError(f"--source {plan.source}: packed; unpack it, or the others would be timed for unpacking")
    with tempfile.TemporaryDirectory(prefix="lstlm-bench-") as folder:
        path = plan.source or write_text(Path(folder) / "text.txt", plan.words, TYPES)
        words = sum(len(line.split()) for line in path.open("rb"))  # also brings the file into the system's cache
        say(f"{path if plan.source else 'made-up text'}: {words:,} words, {path.stat().st_size / 2**20:.1f} MiB")
        records = _counters(plan, path, words, Path(folder), say)
        records += _minibatches(plan, Corpus.open(Path(folder) / "corpus"), say)
    return records


def _counters(plan: Plan, path: Path, words: int, folder: Path, say: Callable[[str], None]) -> list[Record]:
    """Return the rates of all that reads the whole file, each timed once a round; the median counts."""
    times: dict[tuple[str, str, int], list[float]] = {}
    for number in range(plan.rounds):
        for key, job in _jobs(plan, path, folder):
            began = perf_counter()
            job()
            times.setdefault(key, []).append(perf_counter() - began)
        say(f"round {number + 1} of {plan.rounds}: " + ", ".join(f"{k[1]} {t[-1]:.1f} s" for k, t in times.items()))
    records = []
    for (what, method, workers), found in times.items():
        seconds = statistics.median(found)
        sizes = {"words": words, "bytes": path.stat().st_size, "seconds": seconds, "rounds": len(found)}
        rates = {"words_per_s": words / seconds, "mib_per_s": path.stat().st_size / 2**20 / seconds}
        records.append({"what": what, "method": method, "workers": workers, **sizes, **rates})
    return records


def _jobs(plan: Plan, path: Path, folder: Path) -> Iterator[tuple[tuple[str, str, int], Callable[[], object]]]:
    """Yield (what, by whom, processes) and the job, with what it imports imported."""
    cores = usable_cores()
    for workers in sorted({1, plan.workers or cores}):
        yield ("prepare", "lstlm", workers), partial(_prepare, path, folder / "corpus", workers)
    yield ("count", "collections.Counter", 1), partial(_count, path)
    if importlib.util.find_spec("gensim") is not None:
        importlib.import_module("gensim.models.word2vec")
        yield ("count", "gensim", 1), partial(_scan, path)


def _prepare(path: Path, out: Path, workers: int) -> None:
    source = FileSource(name=str(path), files=[(str(path), "train")])
    prepare(source, out, PrepareOptions(workers=workers, valid_fraction=0.0), force=True)


def _count(path: Path) -> Counter[str]:
    counter: Counter[str] = Counter()
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            counter.update(line.split())
    return counter


def _scan(path: Path) -> None:
    from gensim.models import Word2Vec
    from gensim.models.word2vec import LineSentence

    Word2Vec(vector_size=1, min_count=1).scan_vocab(LineSentence(str(path)))


def _minibatches(plan: Plan, corpus: Corpus, say: Callable[[str], None]) -> Iterator[Record]:
    """Yield the rates of examples for each kind of context."""
    for kind in KINDS:
        batches = Examples(corpus.train, corpus.vocabulary, context=plan.context, kind=kind, batch_size=plan.m, seed=1)
        for _ in range(10):
            next(batches)
        began, examples = perf_counter(), 0
        while perf_counter() - began < plan.seconds:
            examples += len(next(batches))
        seconds = perf_counter() - began
        say(f"minibatches of {plan.m}, {kind}: {examples / seconds:,.0f} examples/s")
        yield {
            "what": "minibatches",
            "method": "lstlm",
            "workers": 1,
            "kind": kind,
            "m": plan.m,
            "context": plan.context,
            "seconds": seconds,
            "examples_per_s": examples / seconds,
            "batch_us": 1e6 * seconds * plan.m / examples,
        }


def markdown(records: Sequence[Record]) -> str:
    """Return two tables: whole files, and minibatches."""
    whole = [record for record in records if record["what"] != "minibatches"]
    batches = [record for record in records if record["what"] == "minibatches"]
    files: list[Column] = [
        ("what", "what"),
        ("by", "method"),
        ("processes", "workers"),
        ("seconds", "seconds"),
        ("words/s", "words_per_s"),
        ("MiB/s", "mib_per_s"),
    ]
    draws: list[Column] = [
        ("minibatches", "kind"),
        ("context", "context"),
        ("m", "m"),
        ("examples/s", "examples_per_s"),
        ("µs a minibatch", "batch_us"),
    ]
    return "\n\n".join(table(part, columns) for part, columns in ((whole, files), (batches, draws)) if part)
