"""``lstlm eval``: scores of a run or of any file of word vectors."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from lstlm.cli.bars import Bars
from lstlm.cli.common import FROM_0, PATH, is_quiet, json_option, option, print_json, print_table, say, together
from lstlm.cli.eval_perplexity import perplexity
from lstlm.cli.loading import (
    case_option,
    is_run,
    oov_option,
    open_vectors,
    source_argument,
    vocab_option,
    which_option,
)
from lstlm.errors import ConfigError

similarity_options = together(  # what all tests of similarity take
    source_argument(),
    option("--pairs", type=PATH, help="The file of human judgements."),
    oov_option,
    which_option,
    case_option,
    option("--resamples", type=FROM_0, default=1000, help="Bootstrap draws for the 95 % interval; 0 for none."),
    option("--seed", type=FROM_0, default=1, help="Of the bootstrap."),
    vocab_option,
    option("--by-pos", is_flag=True, help="Also for each part of speech that the file names."),
)

EPILOGUE = """\b
Example:
  lstlm eval perplexity runs/demo
  lstlm eval simlex runs/demo
  lstlm eval simlex glove.6B.300d.txt.gz --json
"""


@click.group("eval", epilog=EPILOGUE)
def command() -> None:
    """Score a run or a file of word vectors.

    RUN_OR_VECTORS is a run folder, a checkpoint, or a vector file: word2vec text or binary, GloVe, fastText .vec, .npy
    with its words beside it; gzipped too.
    """


command.add_command(perplexity)

SIMLEX_EPILOGUE = """\b
Example:
  lstlm eval simlex runs/demo
  lstlm eval simlex glove.6B.300d.txt.gz --by-pos --json
  lstlm eval simlex runs/demo --pairs SimLex-999.txt --which output
"""


@command.command("simlex", short_help="Correlation with SimLex-999.", epilog=SIMLEX_EPILOGUE)
@similarity_options
@option("--download", is_flag=True, help="Fetch SimLex-999 into data/ if it is not found.")
@json_option
def simlex(source: Path, pairs: Path | None, download: bool, as_json: bool, **options: Any) -> None:
    """Correlate cosines with the 999 human similarities of SimLex-999.

    The SimLex file: --pairs, else in data/, else gensim's copy if gensim is installed, else --download.
    """
    from lstlm.errors import DataError
    from lstlm.evaluation import datasets

    is_run(source)  # that it is there, before anything is fetched
    try:
        path = datasets.find_dataset("simlex", pairs)
    except DataError:
        if not download or pairs is not None:
            raise
        say(f"fetching {datasets.SIMLEX_URL}")
        path = datasets.download_simlex()
    _similarity("simlex", source, path, as_json, options)


WORDSIM_EPILOGUE = """\b
Example:
  lstlm eval wordsim runs/demo
  lstlm eval wordsim runs/demo --pairs EN-MEN-TR-3k.txt
"""


@command.command(
    "wordsim", short_help="Correlation with WordSim-353 or any `word word score` file.", epilog=WORDSIM_EPILOGUE
)
@similarity_options
@json_option
def wordsim(source: Path, pairs: Path | None, as_json: bool, **options: Any) -> None:
    """Correlate cosines with WordSim-353, or with any `word word score` file (MEN, RG-65, SimVerb, …).

    The file: --pairs, else WordSim-353 in data/, else gensim's copy if gensim is installed.
    """
    from lstlm.evaluation.datasets import find_dataset

    is_run(source)
    _similarity("wordsim", source, find_dataset("wordsim", pairs), as_json, options)


def _similarity(dataset: str, source: Path, path: Path, as_json: bool, options: dict[str, Any]) -> None:
    from lstlm.evaluation.datasets import SIMLEX_PAIRS, read_pairs
    from lstlm.evaluation.similarity import evaluate_by_pos, evaluate_pairs

    pairs = read_pairs(path)
    if dataset == "simlex" and len(pairs) != SIMLEX_PAIRS:
        say(f"{path}: {len(pairs)} pairs, SimLex-999 has {SIMLEX_PAIRS}")
    if options["by_pos"] and not any(pair.pos for pair in pairs):
        raise ConfigError(f"--by-pos: {path} does not name parts of speech; use the official 10-column SimLex-999.txt")
    wanted = {word for pair in pairs for word in (pair.first, pair.second)}
    case = options["case"]
    needed = None if options["oov"] else wanted  # n-grams are fitted to all words
    vectors = open_vectors(source, options["which"], words=needed, case=case, vocabulary=options["vocabulary"])
    guessed = 0
    if options["oov"]:
        known = vectors.without_empty()
        vectors = known.with_words(sorted(wanted), case)
        guessed = len(vectors) - len(known)
        say(f"{guessed} of the {len(wanted)} words have no vector and get one by their spelling")
    how = {"case": case, "resamples": options["resamples"], "seed": options["seed"]}
    result = evaluate_pairs(vectors, pairs, **how)
    parts = evaluate_by_pos(vectors, pairs, **how) if options["by_pos"] else {}
    if result.to_dict()["spearman"] is None:
        used = f"{result.pairs_used} of {result.pairs_total}"
        say(f"{source}: {used} pairs have both words: too few, or too alike, for a correlation")
    if as_json:
        which = (options["which"] or "input") if is_run(source) else None
        document = {"dataset": dataset, **result.to_dict(), "which": which, "case": case, "file": str(path)}
        document |= {"guessed": guessed} if options["oov"] else {}
        if parts:
            document["by_pos"] = {name: part.to_dict() for name, part in parts.items()}
        print_json(document)
        return
    _print_similarity({"all": result, **parts} if parts else {"": result})
    if result.oov and not is_quiet():
        shown, more = ", ".join(result.oov[:12]), len(result.oov) - 12
        say(f"{len(result.oov)} words without a vector: {shown}{f' and {more} more (see --json)' if more > 0 else ''}")


def _print_similarity(results: dict[str, Any]) -> None:
    rows = [["", "spearman", "95 % interval", "pearson", "pairs used"]]
    for name, result in results.items():
        d = result.to_dict()
        low, high = d["interval"] or (None, None)
        interval = "–" if low is None else f"{low:.4f} … {high:.4f}"
        numbers = ["–" if d[key] is None else f"{d[key]:.4f}" for key in ("spearman", "pearson")]
        rows.append([name, numbers[0], interval, numbers[1], f"{d['pairs_used']} of {d['pairs_total']}"])
    if len(results) == 1:
        rows = [row[1:] for row in rows]
    print_table(rows)


ANALOGY_EPILOGUE = """\b
Example:
  lstlm eval analogy runs/demo
  lstlm eval analogy glove.6B.300d.txt --method mul --restrict 30000
"""


@command.command("analogy", short_help="Accuracy on word analogies, by section.", epilog=ANALOGY_EPILOGUE)
@source_argument()
@option("--pairs", "--questions", type=PATH, help="A file in questions-words format.")
@option("--method", type=click.Choice(["add", "mul", "both"]), default="both", help="3CosAdd, 3CosMul, or both.")
@option("--restrict", type=FROM_0, default=300_000, help="Answer with the first so many words only; 0 for all.")
@which_option
@case_option
@vocab_option
@json_option
def analogy(source: Path, pairs: Path | None, as_json: bool, **options: Any) -> None:
    """Answer 'a is to b as c is to ?' by vector arithmetic, section by section.

    The file: --pairs, else questions-words.txt in data/, else gensim's copy if gensim is installed.
    """
    from lstlm.evaluation.analogy import METHODS, AnalogySolver, evaluate_analogies, read_questions, summary
    from lstlm.evaluation.datasets import find_dataset

    is_run(source)
    path = find_dataset("analogy", pairs)
    sections = read_questions(path)
    vectors = open_vectors(source, options["which"], vocabulary=options["vocabulary"])
    solver = AnalogySolver(vectors, case=options["case"], restrict=options["restrict"])
    methods = METHODS if options["method"] == "both" else (options["method"],)
    total = len(methods) * sum(len(section.questions) for section in sections)
    with Bars({"answer": (" questions", "answering")}) as bars:

        def watched() -> Iterator[Any]:
            for section in sections:
                yield section
                bars("answer", len(section.questions), total)

        scores = {method: evaluate_analogies(solver, watched(), method) for method in methods}
    if as_json:
        document: dict[str, Any] = {"dataset": "analogy", "file": str(path), "restrict": options["restrict"]}
        for method, found in scores.items():
            totals = {name: score.to_dict() for name, score in summary(found).items()}
            document[method] = {**totals, "sections": [score.to_dict() for score in found]}
        print_json(document)
        return
    if not any(score.used for found in scores.values() for score in found):
        say(f"{source}: no question has a vector for each of its four words")
    columns = [[*found, *summary(found).values()] for found in scores.values()]
    rows = [["section", "used", "of", *(f"3Cos{method.capitalize()}" for method in scores)]]
    for line in zip(*columns, strict=True):
        shares = ["–" if score.accuracy is None else f"{100 * score.accuracy:.1f} %" for score in line]
        rows.append([line[0].name, str(line[0].used), str(line[0].total), *shares])
    print_table(rows, numbers=range(1, len(rows[0])))
