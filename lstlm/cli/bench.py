"""``lstlm bench``: speed, learning and data rates; each command measures, prints a table and can draw its figure."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from lstlm.cli import bench_common as common
from lstlm.cli.common import ABOVE_0, FROM_0, FROM_1, PATH, option, say, set_option
from lstlm.registry import LOSSES, OUTPUTS, STABILISERS

FOLDER = click.Path(path_type=Path, file_okay=False)
OUTPUT_EFFORT = (3.0, 1000)  # seconds and steps for each method and size
MODEL_EFFORT = (8.0, 1000)


EPILOGUE = """\b
Example:
  lstlm bench output --quick
  lstlm bench model --threads 1 --json model.json --plot model.png
  lstlm bench plot model.json --plot model.pdf
"""


@click.group("bench", epilog=EPILOGUE)
def command() -> None:
    """Measure speed and learning, and draw the figures.

    Tables go to stdout, progress to stderr. Every method is verified before it is timed.
    """


@command.command(
    short_help="Time a step of the output layer against the vocabulary.",
    epilog="""\b
Example:
  lstlm bench output --quick
  lstlm bench output --threads 1 --json output.json --plot output.png   # 20 minutes
  lstlm bench output --methods factored,naive --vocab-sizes 10000,793471 --losses z
  lstlm bench output --methods factored --losses all --stabilise all --vocab-sizes 10000,793471 --steps 5000 --budget 30
""",
)
@common.sizes_option("1000 … 793471, seven sizes")
@option("--hidden", "d", type=click.IntRange(2), default=300,
        help="Inputs of the layer, d, the constant feature included.")  # fmt: skip
@option("--batch-size", "batch_sizes", type=common.Counts(), default="128",
        help="Examples a step, m; several with commas.")  # fmt: skip
@option("--candidates", type=common.Counts(), help="Candidates of sampled, with commas.  [8192]")
@option("--shortlist", type=common.Counts(), help="Words of the softmax of shortlist, with commas.  [250]")
@option("--targets", type=FROM_1, default=1,
        help="Targets an example, K, of value 1/K each; above 1 for factored and naive alone.")  # fmt: skip
@common.names_option("--methods", "Output layers", "naive-blocked, log_prob, " + ", ".join(OUTPUTS.names()))
@common.names_option("--losses", "Losses", f"{', '.join(LOSSES.names())}; naive and sweeping ones the first two")
@common.names_option("--stabilise", "Stabilisers", "lazy, none; restore, svd, power at the end sizes alone")
@option("--stabilise-every", type=FROM_1, default=100, help="Updates between two sweeps of restore, svd and power.")
@option("--dtype", type=click.Choice(["float32", "float64"]), default="float32",
        help="Floating-point type of the layers.")  # fmt: skip
@common.effort_options(*OUTPUT_EFFORT)
@common.cpu_time_option
@common.shared_options()
def output(**given: Any) -> None:
    """Time forward, backward and weight update of the output layer against the vocabulary size."""
    common.use_threads(given["threads"])
    import torch

    from lstlm.bench import output as bench
    from lstlm.bench.methods import expand, method_names, without_repetition

    quick = given["quick"]
    known = method_names()
    if given["targets"] > 1:
        known = ("factored", "naive")
    names = common.names(given, "methods", known, known[:-1] if quick and given["targets"] == 1 else known)
    losses = common.names(given, "losses", LOSSES.names(), ("z", "squared") if quick else LOSSES.names())
    stabilisers = common.names(given, "stabilise", STABILISERS.names(), ("lazy",) if quick else STABILISERS.names())
    rows = {name: given[name] for name in ("candidates", "shortlist") if given[name]}
    methods = expand(names, losses, stabilisers, given["stabilise_every"], rows)
    plan = common.plan_of(
        bench.Plan,
        given,
        methods=methods if given["losses"] else without_repetition(methods),
        vocab_sizes=given["vocab_sizes"] or (bench.QUICK_SIZES if quick else bench.SIZES),
        dtype=getattr(torch, given["dtype"]),
        effort=common.effort(given, OUTPUT_EFFORT, (0.25, 60)),
        everywhere=given["stabilise"] is not None,
    )
    common.measure_each("output", given, *(partial(bench.run, replace(plan, m=m), say) for m in given["batch_sizes"]))


@command.command(
    short_help="Time a whole training step: the paper's table.",
    epilog="""\b
Example:
  lstlm bench model --quick
  lstlm bench model --threads 1 --json model.json
  lstlm bench model --vocab-sizes 100000 --methods factored,naive,hierarchical
""",
)
@common.sizes_option("793471")
@option("--hidden", type=FROM_1, default=300, help="Size of embeddings and layers.")
@option("--layers", type=FROM_0, default=2, help="Hidden layers.")
@option("--context", type=FROM_1, default=4, help="Words of context.")
@option("--combine", type=click.Choice(["concat", "sum", "mean"]), default="sum",
        help="How their vectors become one; the paper has 300 units everywhere.")  # fmt: skip
@option("--batch-size", "m", type=FROM_1, default=128, help="Examples a step.")
@common.names_option("--methods", "Output layers", "naive-blocked, " + ", ".join(OUTPUTS.names()))
@common.names_option("--losses", "Losses", "z")
@common.effort_options(*MODEL_EFFORT)
@common.shared_options()
def model(**given: Any) -> None:
    """Time a whole training step: the paper's table of speed-ups, its own figures beside ours."""
    common.use_threads(given["threads"])
    from lstlm.bench import model as bench
    from lstlm.bench.methods import expand, method_names

    quick = given["quick"]
    known = method_names()[:-1]  # reading is no training
    names = common.names(given, "methods", known, known)
    losses = common.names(given, "losses", LOSSES.names(), ("z",))
    sizes = given["vocab_sizes"] or ((10_000,) if quick else (793_471,))
    effort = common.effort(given, MODEL_EFFORT, (1.0, 100))
    plan = common.plan_of(bench.Plan, given, methods=expand(names, losses, ("lazy",)), effort=effort)
    common.measure_each("model", given, *(partial(bench.run, replace(plan, vocab=vocab), say) for vocab in sizes))


@command.command(
    short_help="Compare how configurations learn on one corpus.",
    epilog="""\b
Example:
  lstlm bench learning --data data/demo --config demo --budget 60 --seeds 3 --plot learning.png
  lstlm bench learning --data data/demo --config demo --methods gensim-sg,gensim-cbow --json learning.json
  lstlm bench learning --data data/all --config paper-z --budget 3600 --points 30 --runs runs/paper --json paper-z.json
""",
)
@option("--data", type=PATH, required=True, help="Prepared corpus that all train on.")
@option("--config", "configs", type=PATH, multiple=True, metavar="FILE|RECIPE",
        help="Configuration to train; repeatable.")  # fmt: skip
@set_option
@common.names_option("--methods", "Models of gensim's to train beside them", "none; gensim-sg, gensim-cbow")
@option("--budget", "seconds", type=ABOVE_0, default=60.0,
        help="Seconds of training for each configuration and seed.")  # fmt: skip
@option("--steps", type=FROM_1, help="Train for this many steps each, however long they take, instead.")
@option("--seeds", type=FROM_1, default=1, help="Runs of each, one seed after another.")
@option("--first-seed", type=FROM_0, default=1,
        help="Seed of the first run; another than settings were chosen with keeps the report apart.")  # fmt: skip
@common.cpu_time_option
@option("--points", type=FROM_1, default=8, help="Evaluations in a run.")
@option("--epochs", type=FROM_1, default=5, help="Epochs of the gensim models.")
@option("--dimension", type=FROM_1, default=300, help="Size of gensim's vectors.")
@option("--runs", type=FOLDER, help="Folder where runs stay; the same command goes on with what was stopped.")
@option("--simlex", type=PATH, help="SimLex-999 file.  [as for `lstlm eval simlex`]")
@option("--wordsim", type=PATH, help="WordSim-353 file.  [as for `lstlm eval wordsim`]")
@common.shared_options()
def learning(**given: Any) -> None:
    """Train configurations on one corpus for the same time, or the same steps, and score them as they learn."""
    common.use_threads(given["threads"])
    from lstlm.bench import learning as bench

    peers = common.names(given, "methods", bench.PEERS, ())
    plan = common.plan_of(bench.Plan, given, quick={"seconds": 5.0}, peers=peers)
    common.measure("learning", given, partial(bench.run, plan, say))


@command.command(
    short_help="Measure how fast text is prepared and read.",
    epilog="""\b
Example:
  lstlm bench data --quick
  lstlm bench data --source news.txt --threads 2 --json data.json
""",
)
@option("--source", type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Text file, one sentence a line.  [made up: 5 million Zipfian words]")  # fmt: skip
@option("--words", type=click.IntRange(1000), default=5_000_000, help="Words of the text that is made up.")
@option("--batch-size", "m", type=FROM_1, default=128, help="Examples a minibatch.")
@option("--context", type=click.IntRange(2), default=4, help="Words of context; even.")
@option("--budget", "seconds", type=ABOVE_0, default=3.0, help="Seconds for each rate of minibatches.")
@common.shared_options("all cores")
def data(**given: Any) -> None:
    """Measure how fast text is prepared and minibatches are drawn, with other counters on the same file."""
    common.use_threads(given["threads"])
    from lstlm.bench import data as bench

    rounds = 1 if given["quick"] else 3
    most = {"words": 300_000, "seconds": 0.3}
    plan = common.plan_of(bench.Plan, given, quick=most, workers=given["threads"], rounds=rounds)
    common.measure("data", given, partial(bench.run, plan, say))


@command.command(
    short_help="Time steps by several processes, and what they send.",
    epilog="""\b
Example:
  lstlm bench distributed --quick
  lstlm bench distributed --worlds 1,2 --vocab-sizes 10000,1000000 --batch-sizes 128,1024 --json distributed.json
""",
)
@option("--worlds", type=common.Counts(), default="1,2", help="Numbers of ranks, with commas.")
@common.sizes_option("10000,1000000")
@option("--batch-sizes", "--batch-size", "batch_sizes", type=common.Counts(),
        help="Examples a rank and step, with commas.  [128,512,1024]")  # fmt: skip
@option("--hidden", type=FROM_1, default=300, help="Size of embeddings and layers.")
@option("--budget", "seconds", type=ABOVE_0, default=4.0, help="Seconds for each number of ranks and size, about.")
@common.shared_options("1 a rank")
def distributed(**given: Any) -> None:
    """Time whole training steps by several processes of this machine, one thread each, and count what they send."""
    from lstlm.bench import distributed as bench

    quick = given["quick"]
    plan = common.plan_of(
        bench.Plan,
        given,
        quick={"hidden": 64, "seconds": 0.5},
        vocab_sizes=given["vocab_sizes"] or ((10_000,) if quick else (10_000, 1_000_000)),
        batch_sizes=given["batch_sizes"] or ((64,) if quick else (128, 512, 1024)),
        threads=given["threads"] or 1,
    )
    common.measure("distributed", given, partial(bench.run, plan, say))


@command.command(
    short_help="Rehearse the full size, on made-up text.",
    epilog="""\b
Example:
  lstlm bench scale --quick
  lstlm bench scale --threads 1 --json scale.json                  # 20 GB of disk, half an hour
  lstlm bench scale --words 100000000 --minutes 2 --dir /data/rehearsal --keep
""",
)
@option("--config", "configs", multiple=True, metavar="FILE|RECIPE",
        help="Configuration to train; repeatable.  [paper-z, lm-shortlist]")  # fmt: skip
@set_option
@option("--words", type=click.IntRange(1000), help="Words of text to make up.  [768,648,884]")
@option("--types", type=click.IntRange(10), help="Words of the vocabulary, D.  [793,471]")
@option("--minutes", type=ABOVE_0, help="Minutes of training for each.  [10]")
@option("--dir", "folder", type=FOLDER, help="Where the text, the corpus and the runs go.  [a temporary folder]")
@option("--keep", is_flag=True, help="Leave the prepared corpus in --dir, for the next time.")
@common.record_options("1")
def scale(**given: Any) -> None:
    """Rehearse the full size: prepare made-up text as large as the One Billion Word benchmark, train on it, resume."""
    from lstlm.bench import scale as bench

    usual: dict[str, Any] = {"configs": bench.CONFIGS, "words": bench.WORDS, "types": bench.TYPES, "threads": 1}
    usual |= {"words": 300_000, "types": 5_000, "minutes": 0.1} if given["quick"] else {"minutes": 10.0}
    plan = common.plan_of(bench.Plan, given | {name: given[name] or value for name, value in usual.items()})
    common.measure("scale", given, partial(bench.run, plan, say))


@command.command(
    short_help="Print and draw recorded results.",
    epilog="""\b
Example:
  lstlm bench plot output-1.json output-2.json --plot output.png
  lstlm bench plot learning-*.json --extrapolate paper-softmax=paper-hierarchical --plot learning.png
  lstlm bench plot learning-*.json --scores simlex,wordsim --plot vectors.png
""",
)
@click.argument("records", nargs=-1, required=True, type=PATH)
@option("--extrapolate", multiple=True, metavar="MODEL=OTHER",
        help="Show MODEL of learning curves at its own time a step, with OTHER's scores; repeatable.")  # fmt: skip
@common.names_option("--scores", "Scores of learning curves to show: simlex, wordsim, top10, perplexity", "all")
@common.plot_option
def plot(records: tuple[Path, ...], plot: Path | None, **given: Any) -> None:
    """Print the table of recorded results, several files as one, and draw their figure. Measures nothing."""
    common.replay(records, plot, given)
