"""``lstlm predict``: the likeliest next words, or words drawn one after the other."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lstlm.cli.common import FROM_0, FROM_1, json_option, option, print_table, say, visible
from lstlm.cli.loading import answer, open_run, queries, source_argument
from lstlm.errors import ConfigError

if TYPE_CHECKING:
    from lstlm.api import Run
    from lstlm.evaluation.prediction import Predictor

EPILOGUE = """\b
Example:
  lstlm predict runs/lm "the president of the united" -k 5
  lstlm predict runs/lm --json < contexts.txt
  lstlm predict runs/lm "the president of" --generate 20 --temperature 0.7 --seed 1
"""


@click.command("predict", epilog=EPILOGUE)
@source_argument("run_path", metavar="RUN")
@click.argument("text", required=False)
@option("-k", "count", type=FROM_1, default=10, help="Words to list.")
@option("--generate", type=FROM_1, metavar="N", help="Go on from TEXT by up to N words instead.")
@option("--temperature", type=click.FloatRange(min=0), metavar="T",
        help="Of --generate: draw from p^(1/T); 0 takes the likeliest word each time.  [1]")  # fmt: skip
@option("--seed", type=FROM_0, help="Of --generate: the same seed draws the same words.")
@json_option
def command(run_path: Path, text: str | None, count: int, as_json: bool, **drawing: Any) -> None:
    """List the likeliest words after TEXT, with probabilities, or with scores where the loss has none.

    TEXT becomes words as the run's corpus did: split at blanks or tokenised, lowered or not. The model sees as many of
    the last words as it was trained with (data.context). A model of context_kind window fills the place of a lone
    underscore: "the _ of america". Without TEXT, or with '-', each line of stdin is a query.

    With --generate, words are drawn one after the other until a sentence ends; never <unk>. An empty TEXT begins a
    sentence.
    """
    if drawing["generate"] is None and (drawing["temperature"], drawing["seed"]) != (None, None):
        raise ConfigError("--temperature and --seed go with --generate N")
    run = open_run(run_path)
    predictor = run.predictor
    several = text is None or text == "-"

    def answers() -> Iterator[dict[str, Any]]:
        for query in queries(text):
            if drawing["generate"] is None or query.strip():
                context, unknown = predictor.read(query)
                _tell_unknown(run, unknown)
            if drawing["generate"] is not None:
                yield _generate(predictor, query, drawing)
            else:
                yield {"query": query, **predictor.predict(context, count)}

    answer(answers(), lambda found: _print(found, several), as_json=as_json)
    if drawing["generate"] is None and not run.network.output.normalised:
        say(f"output.loss {run.config.output.loss} defines no probabilities: these are scores, good for order only")


def _generate(predictor: "Predictor", query: str, drawing: dict[str, Any]) -> dict[str, Any]:
    temperature = 1.0 if drawing["temperature"] is None else drawing["temperature"]
    words = predictor.generate(query, drawing["generate"], temperature=temperature, seed=drawing["seed"])
    return {"query": query, "generated": words}


def _tell_unknown(run: "Run", unknown: list[str]) -> None:
    from lstlm.vectors.spelling import near_spellings

    for word in unknown:
        near = near_spellings(word, run.vocabulary.index)
        say(
            f"{word!r} is not in the vocabulary, read as <unk>"
            + (f"; near spellings: {', '.join(near)}" if near else "")
        )


def _print(found: dict[str, Any], several: bool) -> None:
    if "generated" in found:
        click.echo(visible(" ".join([*found["query"].split(), *found["generated"]])))
        return
    key = "probability" if found["predictions"][0]["probability"] is not None else "score"
    first = [found["query"]] if several else []
    print_table([[*first, entry["word"], f"{entry[key]:.4g}"] for entry in found["predictions"]])
