"""``lstlm eval perplexity``: how well a run predicts held-out text."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from lstlm.cli.bars import Bars
from lstlm.cli.common import FROM_0, FROM_1, PATH, json_option, json_text, option, print_json, print_table, say, warn
from lstlm.cli.loading import open_run, source_argument
from lstlm.errors import ConfigError, DataError

if TYPE_CHECKING:
    from lstlm.api import Run
    from lstlm.data import Split
    from lstlm.data.tokenise import TextOptions

EPILOGUE = """\b
Example:
  lstlm eval perplexity runs/demo
  lstlm eval perplexity runs/demo --text news.txt --json
  zcat news.gz | lstlm eval perplexity runs/demo --text - --words > words.jsonl
"""

_RANK_PRODUCTS = 10**11  # a few seconds of a core
_FEWEST_RANKS = 1000


@click.command("perplexity", short_help="Perplexity, hits and ranks on held-out text.", epilog=EPILOGUE)
@source_argument("run_path", metavar="RUN")
@option("--split", type=click.Choice(["valid", "train", "test"]), default="valid",
        help="The part of the prepared corpus.")  # fmt: skip
@option("--text", metavar="FILE|-", help="A text instead, made into words as the corpus was.")
@option("--tokenised", is_flag=True, help="The text has words between blanks, one sentence a line, already.")
@option("--data", type=PATH, help="The prepared corpus, if data.dir of the run has moved.")
@option("--limit", type=FROM_1, help="Only the first so many examples.")
@option("--rank-examples", type=FROM_0,
        help="Rank so many random examples (0: none) for top-1, top-10 and MRR.  "
             "[what 10^11 multiply-adds rank, but at least 1000]")  # fmt: skip
@option("--seed", type=FROM_0, default=1, help="Of that sample.")
@option("--words", is_flag=True, help="Print the score of each word instead, one JSON line a sentence.")
@option("--device", default="cpu", help="cpu, cuda, cuda:1, …")
@json_option
def perplexity(run_path: Path, as_json: bool, **options: Any) -> None:
    """Measure loss, exact perplexity, hits and mean reciprocal rank on held-out words.

    Perplexity is exp of the mean negative log-probability, <unk> and </s> counted as words; once more without <unk>,
    which is easy to predict where it is frequent. It exists for losses that define probabilities; for squared error and
    Z-loss it is refused with the reason, and the ranks tell how well the model predicts. A rank is 1 + the number of
    words with a higher score, exactly; of words with equal scores, the one that comes first in the vocabulary is
    higher. It takes a product with the whole vocabulary, so a large model is ranked on a random sample, whose size is
    told. MRR is the mean reciprocal rank.
    """
    if options["words"] and as_json:
        raise ConfigError("--words and --json: give one of them; --words prints JSON lines")
    run = open_run(run_path, options["device"])
    if run.config.data.context_kind == "cooccurrence":
        raise ConfigError(
            "a run of context_kind cooccurrence scores pairs, not words of a text, so it has no perplexity; "
            "ask `lstlm eval simlex`"
        )
    spelled: list[list[str]] = []
    split = _split(run, options, spelled)
    _warn_of_unknown(run, split, options)
    if options["words"]:
        _print_words(run, split, spelled, options["limit"])
        return
    document = _measure(run, split, options)
    if as_json:
        print_json(document)
    else:
        _print(document)


def _measure(run: "Run", split: "Split", options: dict[str, Any]) -> dict[str, Any]:
    """Return the document of `--json`."""
    from lstlm.evaluation.perplexity import affordable_ranks, evaluate
    from lstlm.sealed import finite_or_none

    wanted = options["rank_examples"]
    ranked = affordable_ranks(run.network, _RANK_PRODUCTS, _FEWEST_RANKS) if wanted is None else wanted
    total = min(split.tokens, options["limit"] or split.tokens)
    with Bars({"score": (" words", "scoring"), "rank": (" words", "ranking")}, {"score": total}) as bars:
        batches = run.batches(split, options["limit"])
        result = evaluate(run.network, batches, rank_examples=ranked, seed=options["seed"], progress=bars)
    if not result.tokens:
        raise DataError(f"{split.name}: holds no examples for context_kind {run.config.data.context_kind}")
    fields = finite_or_none(asdict(result))
    unknown = 1 - result.known_tokens / result.tokens
    document = {"perplexity": None, "tokens": 0, **fields, "unknown_share": unknown, "split": split.name}
    if result.perplexity is None:
        output = run.config.output
        what = output.loss if output.kind in ("factored", "naive") else output.kind
        reason = f"output.loss {what} defines no probabilities, so there is no perplexity; see top1, top10 and mrr"
        say(reason)
        document["reason"] = reason
    return document


def _split(run: "Run", options: dict[str, Any], spelled: list[list[str]]) -> "Split":
    """Return the ids to score: of a text, or of a part of the corpus.

    With --words the sentences of a text are put in `spelled`: of a word that is unknown, the ids do not tell which.
    """
    from lstlm.data import Corpus, Split
    from lstlm.training.run.origin import find_corpus

    if options["text"] is not None:
        if options["data"] is not None:
            raise ConfigError("--text and --data: give one of them")
        text = replace(run.text, tokenise="none") if options["tokenised"] else run.text
        sentences = _sentences(options["text"], text)
        if options["words"]:
            spelled += sentences
            sentences = iter(spelled)
        split = Split.from_sentences(options["text"], sentences, run.vocabulary)
        if not split.tokens:
            raise DataError(f"{options['text']}: holds no words")
        return split
    if options["tokenised"]:
        raise ConfigError("--tokenised: goes with --text; the parts of a corpus are tokenised already")
    folder = options["data"] or find_corpus(run.config.data.dir, run.folder)
    if not folder.is_dir():
        raise DataError(f"{folder}: the prepared corpus of this run is not there; name it with --data, or use --text")
    corpus = Corpus.open(folder)
    if corpus.vocabulary != run.vocabulary:
        raise DataError(f"{folder}: another vocabulary than the run was trained with; its ids mean other words")
    found = {"train": corpus.train, "valid": corpus.valid, "test": corpus.test}[options["split"]]
    if found is None or not found.tokens:
        raise DataError(f"{folder}: the corpus has no {options['split']} part")
    return found


def _sentences(name: str, text: "TextOptions") -> Iterator[list[str]]:
    """Yield the sentences of a file, or of the standard input (`-`), as words."""
    from lstlm.data.blocks import read_blocks
    from lstlm.data.inputs import standard_input
    from lstlm.vectors.readers import open_bytes

    lines = 0
    stream: AbstractContextManager[IO[bytes]]
    stream = nullcontext(standard_input()) if name == "-" else open_bytes(Path(name))
    with stream as file:
        for block in read_blocks(file, name):
            try:
                yield from text.sentences(block.decode())
            except UnicodeDecodeError as error:
                number = lines + block.count(b"\n", 0, error.start) + 1
                raise DataError(f"{name}: line {number} is not UTF-8; re-encode the file") from error
            lines += block.count(b"\n")


def _warn_of_unknown(run: "Run", split: "Split", options: dict[str, Any]) -> None:
    """Warn where a text has far more unknown words than the corpus: its perplexity is mostly that of <unk>."""
    if split.unknown_share > max(3 * run.unknown_share, 0.05):
        at_blanks = options["tokenised"] or run.text.tokenise == "none"
        how = "split at blanks" if at_blanks else "tokenised as its corpus was"
        warn(
            f"{split.name}: {split.unknown_share:.1%} of the words are <unk>, {run.unknown_share:.1%} of those of the "
            f"run's corpus: look at the perplexity without <unk>. The text was {how}"
            + (", in lower case" if run.text.lowercase else "")
        )


def _print_words(run: "Run", split: "Split", spelled: list[list[str]], limit: int | None) -> None:
    """Print one JSON line a sentence: its words, each with its score, and whether the model knows it."""
    import numpy as np

    from lstlm.evaluation.perplexity import word_scores

    kind, known = run.config.data.context_kind, run.vocabulary
    if kind == "bag":
        raise ConfigError("--words: a run of context_kind bag scores bags of words, not one word after the other")
    key = "log_prob" if run.network.output.normalised else "minus_loss"
    scored = word_scores(run.network, run.batches(split, limit))
    ends = np.flatnonzero(split.ids == known.eos_id)
    lengths = np.diff(ends, prepend=-1) - (kind == "window")  # where </s> is no target
    for number, length in enumerate(lengths.tolist()):
        found = list(islice(scored, length))
        if not found:
            return
        words = (
            spelled[number] + [known.words[known.eos_id]] if spelled else known.decode(target for target, _ in found)
        )
        entries = [
            {"word": word, key: score, "known": target != known.unk_id}
            for word, (target, score) in zip(words, found, strict=False)
        ]
        click.echo(json_text({key: sum(score for _, score in found), "words": entries}))


def _print(document: dict[str, Any]) -> None:
    figures = {
        "perplexity": ("perplexity", ".2f"),
        "without <unk>": ("known_perplexity", ".2f"),
        "loss": ("loss", ".4f"),
        "words scored": ("tokens", ",d"),
        "of them <unk>": ("unknown_share", ".2%"),
        "top-1": ("top1", ".2%"),
        "top-10": ("top10", ".2%"),
        "mean reciprocal rank": ("mrr", ".4f"),
        "examples ranked": ("rank_examples", ",d"),
    }
    values = {name: (document[key], form) for name, (key, form) in figures.items()}
    print_table([[name, "–" if value is None else format(value, form)] for name, (value, form) in values.items()])
