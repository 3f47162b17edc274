"""``lstlm nn``: the nearest neighbours of words, of sums and of differences of words."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lstlm.cli.common import FROM_1, json_option, option, print_table, say
from lstlm.cli.loading import answer, oov_option, open_vectors, queries, source_argument, vocab_option, which_option
from lstlm.errors import ConfigError

if TYPE_CHECKING:
    from lstlm.vectors import Vectors

EPILOGUE = """\b
Example:
  lstlm nn runs/demo water -k 5
  lstlm nn runs/demo king - man + woman
  lstlm nn GoogleNews-vectors-negative300.bin.gz king queen
  printf 'king\\nking - man + woman\\n' | lstlm nn runs/demo
"""


@dataclass
class Query:
    """Σ positive − Σ negative."""

    positive: list[str]
    negative: list[str] = field(default_factory=list)
    text: str = ""


def read_queries(tokens: Sequence[str]) -> list[Query]:
    """Return what is asked: words joined by lone + and - are one query, words side by side are several."""
    found: list[Query] = []
    at = 0
    while at < len(tokens):
        # where a word is expected, any token is one, so that the neighbours of + can be asked for, too
        sign = tokens[at] if found and tokens[at] in ("+", "-") else ""
        if sign and at + 1 == len(tokens):
            raise ConfigError(f"{' '.join(tokens)!r} ends with {sign}; a word must follow")
        word = tokens[at + bool(sign)]
        if not sign:
            found.append(Query([word], text=word))
        else:
            (found[-1].positive if sign == "+" else found[-1].negative).append(word)
            found[-1].text += f" {sign} {word}"
        at += 1 + bool(sign)
    return found


@click.command("nn", epilog=EPILOGUE)
@source_argument(metavar="VECTORS")
@click.argument("words", nargs=-1, metavar="[WORD]...")
@option("-k", "count", type=FROM_1, default=10, help="Neighbours to list.")
@oov_option
@which_option
@vocab_option
@json_option
def command(
    source: Path,
    words: tuple[str, ...],
    count: int,
    oov: bool,
    which: str | None,
    vocabulary: Path | None,
    as_json: bool,
) -> None:
    """List the words whose vectors have the highest cosine with that of WORD.

    VECTORS is a run, a checkpoint or a vector file (word2vec text or binary, GloVe, fastText .vec, .npy with words
    beside it; gzipped too). Words joined by + and -, with blanks around the sign, are added and subtracted, each vector
    scaled to length 1; several words are asked about in turn. Without WORD, or with '-', each line of stdin is a query.
    A word that is not found as it is written is looked up without regard to case.
    """
    vectors = open_vectors(source, which, vocabulary=vocabulary)
    asked = None if words in ((), ("-",)) else read_queries(words)
    several = asked is None or len(asked) > 1
    failed: list[Query] = []

    def answers() -> Iterator[dict[str, Any]]:
        for query in asked or _from_stdin(vectors):
            try:
                yield _answer(vectors, query, count, oov)
            except ConfigError as error:
                if not several:
                    raise
                failed.append(query)
                click.echo(f"lstlm: error: {error}", err=True)
                yield {"query": query.text, "error": str(error), "neighbours": []}

    answer(answers(), lambda found: _print(found, several), as_json=as_json)
    if failed:
        click.get_current_context().exit(ConfigError.exit_code)


def _from_stdin(vectors: "Vectors") -> Iterator[Query]:
    for line in queries(None):
        # a file may have words with blanks inside
        yield from [Query([line], text=line)] if line in vectors else read_queries(line.split())


def _answer(vectors: "Vectors", query: Query, count: int, oov: bool) -> dict[str, Any]:
    found: dict[str, str] = {}
    for word in (*query.positive, *query.negative):
        guessed = oov and vectors.row(_plain(vectors, word), "prefer") is None
        found[word] = instead = word if guessed else vectors.words[vectors.find(_plain(vectors, word))]
        if guessed or word != instead:
            say(f"{word!r} has no vector; using {'its spelling' if guessed else repr(instead)}")
    positive, negative = ([found[word] for word in words] for words in (query.positive, query.negative))
    asked = {"positive": positive, "negative": negative} if len(found) > 1 else {"word": positive[0]}
    neighbours = vectors.most_similar(positive, negative, k=count, oov=oov)
    return {
        "query": query.text,
        **asked,
        "neighbours": [{"word": word, "cosine": cosine} for word, cosine in neighbours],
    }


def _plain(vectors: "Vectors", word: str) -> str:
    """Return a word that has no vector without the signs around it ("Water,"), if that is one word and has one."""
    from lstlm.data.tokenise import tokenise_line

    if vectors.row(word, "prefer") is not None:
        return word
    words = [part for part in tokenise_line(word) if part[0].isalnum()]
    return words[0] if len(words) == 1 and vectors.row(words[0], "prefer") is not None else word


def _print(found: dict[str, Any], several: bool) -> None:
    first = [found["query"]] if several else []
    rows = [[*first, entry["word"], f"{entry['cosine']:.4f}"] for entry in found["neighbours"]]
    print_table(rows, numbers={len(first) + 1})
