"""``lstlm eval perplexity``: how well a run predicts held-out text."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lstlm.cli.common import print_json, say
from lstlm.cli.loading import json_option, open_run, source_argument, table
from lstlm.errors import ConfigError, DataError

if TYPE_CHECKING:
    from lstlm.data.corpus import Split
    from lstlm.training.run.saved import LoadedRun

EPILOGUE = """\b
Example:
  lstlm eval perplexity runs/demo
  lstlm eval perplexity runs/demo --text news.txt --json
"""

_RANK_PRODUCTS = 10**11  # a few seconds of a core
_FEWEST_RANKS = 1000


@click.command("perplexity", short_help="Perplexity, hits and ranks on held-out text.", epilog=EPILOGUE)
@source_argument("run_path", metavar="RUN")
@click.option("--split", type=click.Choice(["valid", "train", "test"]), default="valid", show_default=True,
              help="The part of the prepared corpus.")  # fmt: skip
@click.option("--text", type=click.Path(path_type=Path), help="A tokenised text instead, one sentence a line.")
@click.option("--data", type=click.Path(path_type=Path), help="The prepared corpus, if data.dir of the run has moved.")
@click.option("--limit", type=click.IntRange(min=1), help="Only the first so many examples.")
@click.option("--rank-examples", type=click.IntRange(min=0),
              help="Rank so many random examples (0: none) for top-1, top-10 and MRR.  "
                   "[what 10^11 multiply-adds rank, but at least 1000]")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Of that sample.")
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda, cuda:1, …")
@json_option
def perplexity(run_path: Path, as_json: bool, **options: Any) -> None:
    """Measure loss, exact perplexity, hits and mean reciprocal rank on held-out words.

    Perplexity is exp of the mean negative log-probability, <unk> and </s> counted as words. It exists for losses that
    define probabilities; for squared error and Z-loss it is refused with the reason, and the ranks tell how well the
    model predicts. A rank is 1 + the number of words with a higher score, exactly; of words with equal scores, the one
    that comes first in the vocabulary is higher. It takes a product with the whole vocabulary, so a large model is
    ranked on a random sample, whose size is told. MRR is the mean reciprocal rank.
    """
    from lstlm.data import evaluation_batches
    from lstlm.evaluation.perplexity import affordable_ranks, evaluate

    run = open_run(run_path, options["device"])
    if run.config.data.context_kind == "cooccurrence":
        raise ConfigError(
            "a run of context_kind cooccurrence scores pairs, not words of a text, so it has no perplexity; "
            "ask `lstlm eval simlex`"
        )
    split, unknown = _split(run, options)
    batches = evaluation_batches(
        split,
        run.vocabulary,
        context=run.config.data.context,
        kind=run.config.data.context_kind,
        batch_size=max(run.config.train.batch_size, 256),
        limit=options["limit"],
    )
    wanted = options["rank_examples"]
    ranked = affordable_ranks(run.network, _RANK_PRODUCTS, _FEWEST_RANKS) if wanted is None else wanted
    result = evaluate(run.network, batches, rank_examples=ranked, seed=options["seed"])
    if not result.tokens:
        raise DataError(f"{split.name}: holds no examples for context_kind {run.config.data.context_kind}")
    reason = None
    if result.perplexity is None:
        output = run.config.output
        what = output.loss if output.kind in ("factored", "naive") else output.kind
        reason = f"output.loss {what} defines no probabilities, so there is no perplexity; see top1, top10 and mrr"
        say(reason)
    fields = {key: _finite(value) for key, value in asdict(result).items()}
    document = {"perplexity": None, "tokens": 0, **fields, "unknown_share": unknown, "split": split.name}
    if reason is not None:
        document["reason"] = reason
    if as_json:
        print_json(document)
    else:
        _print(document)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _split(run: "LoadedRun", options: dict[str, Any]) -> tuple["Split", float]:
    """The ids to score, and the share of them that are <unk>."""
    import numpy as np

    from lstlm.data import Corpus

    if options["text"] is not None:
        if options["data"] is not None:
            raise ConfigError("--text and --data: give one of them")
        split = read_text_split(options["text"], run.vocabulary)
    else:
        folder = options["data"] or Path(run.config.data.dir)
        if not folder.is_dir():
            raise DataError(
                f"{folder}: the prepared corpus of this run is not there; name it with --data, or use --text"
            )
        corpus = Corpus.open(folder, verify=False)
        if corpus.vocabulary != run.vocabulary:
            raise DataError(f"{folder}: another vocabulary than the run was trained with; its ids mean other words")
        found = {"train": corpus.train, "valid": corpus.valid, "test": corpus.test}[options["split"]]
        if found is None or not found.tokens:
            raise DataError(f"{folder}: the corpus has no {options['split']} part")
        split = found
    return split, float(np.mean(split.ids == run.vocabulary.unk_id))


def read_text_split(path: Path, vocabulary: Any) -> "Split":
    """Encode a text, one sentence a line, words between blanks; lowered if the vocabulary has no capitals."""
    import numpy as np

    from lstlm.data.corpus import ID_DTYPE, Split
    from lstlm.evaluation.prediction import is_lowercase
    from lstlm.vectors.readers import open_bytes

    lower = is_lowercase(vocabulary)
    parts = []
    with open_bytes(path) as stream:
        for number, line in enumerate(stream, 1):
            try:
                words = line.decode("utf-8").split()
            except UnicodeDecodeError as error:
                raise DataError(f"{path}: line {number} is not UTF-8; re-encode the file") from error
            if words:
                ids = vocabulary.encode(word.lower() if lower else word for word in words)
                parts.append(np.append(ids, vocabulary.eos_id).astype(ID_DTYPE))
    if not parts:
        raise DataError(f"{path}: holds no words")
    return Split.from_ids(str(path), np.concatenate(parts))


def _print(document: dict[str, Any]) -> None:
    def show(key: str, form: str) -> str:
        return "–" if document[key] is None else format(document[key], form)

    rows = [
        ["perplexity", show("perplexity", ".2f")],
        ["loss", show("loss", ".4f")],
        ["words scored", show("tokens", ",d")],
        ["of them <unk>", show("unknown_share", ".2%")],
        ["top-1", show("top1", ".2%")],
        ["top-10", show("top10", ".2%")],
        ["mean reciprocal rank", show("mrr", ".4f")],
        ["examples ranked", show("rank_examples", ",d")],
    ]
    for line in table(rows):
        click.echo(line)
