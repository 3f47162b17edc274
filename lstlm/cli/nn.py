"""``lstlm nn``: the nearest neighbours of a word."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lstlm.cli.common import print_json, say
from lstlm.cli.loading import json_option, open_vectors, queries, source_argument, table, vocab_option, which_option
from lstlm.errors import ConfigError

if TYPE_CHECKING:
    from lstlm.vectors import Vectors

EPILOGUE = """\b
Example:
  lstlm nn runs/demo water -k 5
  lstlm nn GoogleNews-vectors-negative300.bin.gz king
  printf 'king\\nqueen\\n' | lstlm nn runs/demo
"""


@click.command("nn", epilog=EPILOGUE)
@source_argument(metavar="VECTORS")
@click.argument("word", required=False)
@click.option("-k", "count", type=click.IntRange(min=1), default=10, show_default=True, help="Neighbours to list.")
@which_option
@vocab_option
@json_option
def command(
    source: Path, word: str | None, count: int, which: str | None, vocabulary: Path | None, as_json: bool
) -> None:
    """List the words whose vectors have the highest cosine with that of WORD.

    VECTORS is a run, a checkpoint or a vector file (word2vec text or binary, GloVe, fastText .vec, .npy with words
    beside it; gzipped too). Without WORD, or with '-', each line of stdin is a query. A word that is not found as it
    is written is looked up without regard to case.
    """
    vectors = open_vectors(source, which, vocabulary=vocabulary)
    several = word is None or word == "-"
    answers: list[dict[str, Any]] = []
    failed = False
    for query in queries(word):
        try:
            answer = _answer(vectors, query, count)
        except ConfigError as error:
            if not several:
                raise
            failed = True
            click.echo(f"lstlm: error: {error}", err=True)
            answer = {"query": query, "error": str(error), "neighbours": []}
        if as_json:
            answers.append(answer)
        else:
            _print(answer, several)
    if as_json:
        print_json({"queries": answers})
    if failed:
        click.get_current_context().exit(ConfigError.exit_code)


def _answer(vectors: "Vectors", query: str, count: int) -> dict[str, Any]:
    found = vectors.words[vectors.find(query)]
    if found != query:
        say(f"{query!r} has no vector; using {found!r}")
    neighbours = [{"word": word, "cosine": cosine} for word, cosine in vectors.most_similar(found, k=count)]
    return {"query": query, "word": found, "neighbours": neighbours}


def _print(answer: dict[str, Any], several: bool) -> None:
    first = [answer["query"]] if several else []
    rows = [[*first, entry["word"], f"{entry['cosine']:.4f}"] for entry in answer["neighbours"]]
    for line in table(rows, numbers={len(first) + 1}):
        click.echo(line)
