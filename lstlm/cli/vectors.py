"""``lstlm vectors``: one's own text to word vectors, in one command."""

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lstlm.cli import common
from lstlm.cli.bars import Bars
from lstlm.cli.common import FROM_0, FROM_1, PATH, json_option, option, threads_option
from lstlm.cli.prepare import PHASES
from lstlm.cores import usable_cores
from lstlm.errors import ConfigError, DataError
from lstlm.files import locked

if TYPE_CHECKING:
    from lstlm.api import Run
    from lstlm.data import Corpus
    from lstlm.data.inputs import TextSource

EPILOGUE = """\b
Example:
  lstlm vectors mine.txt --out mine.vec
  lstlm vectors books/ 'news/*.txt.gz' --out all.bin --dim 300 --min-count 10
  zcat dump.gz | lstlm vectors - --out dump.vec.gz --keep data/dump

\b
Then:
  lstlm nn mine.vec king - man + woman
  gensim.models.KeyedVectors.load_word2vec_format("mine.vec")  # .bin: binary=True
"""
FORMS = {".txt": "word2vec", ".vec": "word2vec", ".bin": "word2vec-bin"}
_REMEDY = "name a folder with --keep, or a place for such folders in XDG_CACHE_HOME"
_TEMPORARY = "tmp-"  # begins the name of a folder that is locked while its process lives
_ORIGIN = "made-from.json"  # ends the name of the note beside a kept corpus: which files, and how they were read


@click.command("vectors", epilog=EPILOGUE)
@click.argument("texts", nargs=-1, required=True, metavar="TEXT...")
@option(
    "--out",
    "target",
    type=PATH,
    required=True,
    help="The file to write: .txt or .vec (word2vec text), .bin (word2vec binary); with .gz after it, compressed.",
)
@option("--dim", type=click.IntRange(1, 65536), help="Length of a vector.  [by size of text: 100, 200 or 300]")
@option("--min-count", type=FROM_1, help="Leave out rarer words.  [by size of text: 2, 3, 5 or 10]")
@option("--window", type=click.IntRange(1, 512), help="Neighbours counted on each side.  [5]")
@option("--cased", is_flag=True, help="Keep capitals; the text is lower-cased otherwise.")
@option("--tokenise", type=click.Choice(["simple", "none"]), default="simple",
        help="none: one sentence a line, words between blanks.")  # fmt: skip
@option("--keep", type=PATH, metavar="DIR",
        help="Keep corpus and run in DIR/corpus and DIR/run.  [the corpus alone, in a cache folder]")  # fmt: skip
@option("--seed", type=FROM_0, default=1, help="Of the random start.")
@threads_option()
@option("--force", is_flag=True, help="Write over --out, and over another corpus in --keep.")
@json_option
def command(texts: tuple[str, ...], target: Path, keep: Path | None, as_json: bool, **given: Any) -> None:
    """Learn word vectors from TEXT: files, folders, globs (plain, .gz, .bz2, .xz), or - for stdin.

    Raw text is cut into sentences and words and lower-cased; every word then predicts how strongly all others are
    associated with it, solved in closed form: seconds to minutes, the same vectors every time. Length of the vectors
    and least count of a word follow the size of the text. SimLex-999 is scored where its file is found.
    """
    from lstlm.data.sources import open_source
    from lstlm.vectors.writers import WRITERS

    started = time.perf_counter()
    form = _form(target, given["force"])
    source = open_source(texts)
    with _workplace(source, keep, given) as place:
        corpus = _corpus(source, place, given)
        run = _train(corpus, place.run, given)
        vectors = run.vectors.without_empty()
        WRITERS[form](vectors, target, lambda rows: None)
        if keep is None and place.origin is not None:
            common.say(f"the corpus is kept in {place.corpus}: a second time is faster; delete it as you like")
    facts = {
        "out": str(target),
        "words": len(vectors),
        "length": vectors.dim,
        "text_words": corpus.train.words,
        "min_count": corpus.manifest["settings"]["min_count"],
        "coverage": 1 - corpus.manifest["splits"]["train"]["oov_rate"],
        "seconds": time.perf_counter() - started,
        "simlex": _simlex(run),
    }
    if as_json:
        common.print_json(facts)
    else:
        _print(facts)


def _form(target: Path, force: bool) -> str:
    """Return the format that the file's ending asks for; refuse now what could not be written at the end."""
    ending = Path(target.name.removesuffix(".gz")).suffix
    if ending not in FORMS:
        raise ConfigError(f"--out {target}: ends with none of {', '.join(FORMS)} (and .gz after it)")
    common.check_out(target, force)
    return FORMS[ending]


@dataclass(frozen=True)
class Workplace:
    """Where corpus and run go, and what the corpus is made from: None for what cannot be seen twice (a pipe).

    `ours`: whatever is found in the place of the corpus may be replaced.
    """

    corpus: Path
    run: Path
    origin: dict[str, Any] | None
    ours: bool


@contextmanager
def _workplace(source: "TextSource", keep: Path | None, given: dict[str, Any]) -> Iterator[Workplace]:
    """Yield --keep, else a cache folder named after the text; the run, and what came through a pipe, then vanish."""
    origin = _origin(source, given)
    if keep is not None:
        yield Workplace(keep / "corpus", keep / "run", origin, ours=given["force"])
        return
    with _temporary(caches := _caches()) as temporary:
        name = None if origin is None else hashlib.sha256(json.dumps(origin).encode()).hexdigest()[:16]
        corpus = Path(temporary, "corpus") if name is None else caches / name
        yield Workplace(corpus, Path(temporary, "run"), origin, ours=True)


def _caches() -> Path:
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lstlm" / "vectors"
    except RuntimeError:
        raise ConfigError(f"this user has no home folder to keep a corpus in: {_REMEDY}") from None


@contextmanager
def _temporary(caches: Path) -> Iterator[str]:
    """Yield a folder that vanishes in the end; those of processes that were killed vanish first."""
    try:
        caches.mkdir(parents=True, exist_ok=True)
        made = tempfile.TemporaryDirectory(dir=caches, prefix=_TEMPORARY)
    except OSError as error:
        raise ConfigError(f"{caches}: cannot be written ({error.strerror}); {_REMEDY}") from None
    with made as temporary, ExitStack() as held:
        with suppress(OSError):
            held.enter_context(locked(Path(temporary), wait=True))
        for left in caches.glob(f"{_TEMPORARY}*"):
            with suppress(OSError), locked(left):
                if any(left.iterdir()):  # else it may have been made a moment ago, and not yet locked
                    shutil.rmtree(left)
        yield temporary


def _origin(source: "TextSource", given: dict[str, Any]) -> dict[str, Any] | None:
    from lstlm.data.inputs import FileSource

    how = {key: given[key] for key in ("cased", "tokenise", "min_count")}
    if not isinstance(source, FileSource):
        return {"source": source.name, **how}
    if not all(Path(name).is_file() for name, _ in source.files):
        return None
    files = [Path(name).resolve() for name, _ in source.files]
    return {"files": [[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in files], **how}


def _corpus(source: "TextSource", place: Workplace, given: dict[str, Any]) -> "Corpus":
    """Return the corpus of the text: the one that is there if it was made from these very files, else a new one."""
    from lstlm.data import Corpus
    from lstlm.data.prepare import PrepareOptions, prepare
    from lstlm.data.tokenise import TextOptions

    note = place.corpus.with_name(f"{place.corpus.name}-{_ORIGIN}")
    if place.origin is not None and note.is_file() and note.read_bytes() == json.dumps(place.origin).encode():
        try:
            corpus = Corpus.open(place.corpus)
            common.say(f"the corpus is there already: {place.corpus}")
            return corpus
        except DataError as error:
            if not place.ours:
                raise
            common.say(f"{error}; prepared anew")
    if not place.ours and place.corpus.is_dir() and any(place.corpus.iterdir()):
        what = "holds another corpus; name another folder, or add --force to replace it"
        raise ConfigError(f"--keep {place.corpus.parent}: {what}")
    options = PrepareOptions(
        min_count=given["min_count"],
        workers=usable_cores(),
        valid_fraction=0.0,  # all of the text is for the vectors
        text=TextOptions(lowercase=not given["cased"], tokenise=given["tokenise"]),
    )
    with Bars(PHASES) as bars:
        prepare(source, place.corpus, options, force=place.ours, progress=bars)
    note.write_text(json.dumps(place.origin), encoding="utf-8")
    corpus = Corpus.open(place.corpus, verify=False)
    common.say(f"{corpus.train.words:,} words of text, {_types(corpus):,} of them different and frequent enough")
    return corpus


def _types(corpus: "Corpus") -> int:
    from lstlm.data.vocabulary import SPECIALS

    return len(corpus.vocabulary) - len(SPECIALS)


def _train(corpus: "Corpus", folder: Path, given: dict[str, Any]) -> "Run":
    from lstlm.api import train_vectors

    if (given["dim"] or 0) > _types(corpus):
        words = f"{_types(corpus):,} different words that are frequent enough"
        raise ConfigError(f"--dim {given['dim']}: the text has {words}; a vector can be no longer than that")
    settings = {"train.seed": given["seed"]}
    settings |= {} if given["dim"] is None else {"model.embedding": given["dim"]}
    settings |= {} if given["window"] is None else {"data.context": 2 * given["window"]}
    # --keep again: the run there was ours, or `train` refuses to start anew
    anew = (folder / "status.json").is_file()
    return train_vectors(
        corpus, run=folder, settings=settings, threads=given["threads"], force=anew, quiet=common.is_quiet()
    )


def _simlex(run: "Run") -> dict[str, Any] | None:
    from lstlm.evaluation.datasets import find_dataset, read_pairs
    from lstlm.evaluation.similarity import evaluate_pairs

    try:
        result = evaluate_pairs(run.vectors, read_pairs(find_dataset("simlex"))).to_dict()
    except DataError:
        return None  # no such file here: nothing is lost
    return {key: result[key] for key in ("spearman", "pairs_used", "pairs_total")}


def _print(facts: dict[str, Any]) -> None:
    rows = [
        ["vectors", facts["out"]],
        ["words", f"{facts['words']:,}, seen at least {facts['min_count']} times: {facts['coverage']:.1%} of the text"],
        ["length", f"{facts['length']}"],
        ["text", f"{facts['text_words']:,} words"],
        ["time", f"{facts['seconds']:.1f} s"],
    ]
    if (score := facts["simlex"]) is not None and score["spearman"] is not None:
        rows.insert(
            4, ["SimLex-999", f"{score['spearman']:.4f} ({score['pairs_used']} of {score['pairs_total']} pairs)"]
        )
    common.print_table(rows)
