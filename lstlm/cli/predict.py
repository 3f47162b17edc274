"""``lstlm predict``: the likeliest next words."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lstlm.cli.common import print_json, say
from lstlm.cli.loading import json_option, open_run, queries, source_argument, table

if TYPE_CHECKING:
    from lstlm.training.run.saved import LoadedRun

EPILOGUE = """\b
Example:
  lstlm predict runs/lm "the president of the united" -k 5
  lstlm predict runs/lm --json < contexts.txt
"""


@click.command("predict", epilog=EPILOGUE)
@source_argument("run_path", metavar="RUN")
@click.argument("text", required=False)
@click.option("-k", "count", type=click.IntRange(min=1), default=10, show_default=True, help="Words to list.")
@json_option
def command(run_path: Path, text: str | None, count: int, as_json: bool) -> None:
    """List the likeliest words after TEXT, with probabilities, or with scores where the loss has none.

    TEXT becomes words as the run's corpus did: split at blanks or tokenised, lowered or not. The model sees as many of
    the last words as it was trained with (data.context). A model of context_kind window fills the place of a lone
    underscore: "the _ of america". Without TEXT, or with '-', each line of stdin is a query.
    """
    from lstlm.evaluation.prediction import Predictor

    run = open_run(run_path)
    data = run.config.data
    predictor = Predictor(run.network, run.vocabulary, context=data.context, kind=data.context_kind, text=run.text)
    several = text is None or text == "-"
    answers: list[dict[str, Any]] = []
    for query in queries(text):
        context, unknown = predictor.read(query)
        _tell_unknown(run, unknown)
        answer = {"query": query, **predictor.predict(context, count)}
        if as_json:
            answers.append(answer)
        else:
            _print(answer, several)
    if as_json:
        print_json({"queries": answers})
    if not run.network.output.normalised:
        say(f"output.loss {run.config.output.loss} defines no probabilities: these are scores, good for order only")


def _tell_unknown(run: "LoadedRun", unknown: list[str]) -> None:
    from lstlm.vectors.spelling import near_spellings

    for word in unknown:
        near = near_spellings(word, run.vocabulary.index)
        say(
            f"{word!r} is not in the vocabulary, read as <unk>"
            + (f"; near spellings: {', '.join(near)}" if near else "")
        )


def _print(answer: dict[str, Any], several: bool) -> None:
    key = "probability" if answer["predictions"][0]["probability"] is not None else "score"
    first = [answer["query"]] if several else []
    rows = [[*first, entry["word"], f"{entry[key]:.4g}"] for entry in answer["predictions"]]
    for line in table(rows):
        click.echo(line)
