"""``lstlm bench``: speed, learning and data rates; each command measures, prints a table and can draw its figure."""

from pathlib import Path
from typing import Any

import click

from lstlm.cli import bench_common as common
from lstlm.cli.common import say, set_option
from lstlm.registry import LOSSES, OUTPUTS, STABILISERS

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
@click.option("--hidden", "d", type=click.IntRange(2), default=300, show_default=True,
              help="Inputs of the layer, d, the constant feature included.")  # fmt: skip
@click.option("--batch-size", "batch_sizes", type=common.Counts(), default="128", show_default=True,
              help="Examples a step, m; several with commas.")  # fmt: skip
@click.option("--candidates", type=common.Counts(), help="Candidates of sampled, with commas.  [8192]")
@click.option("--shortlist", type=common.Counts(), help="Words of the softmax of shortlist, with commas.  [250]")
@click.option("--targets", type=click.IntRange(1), default=1, show_default=True,
              help="Targets an example, K, of value 1/K each; above 1 for factored and naive alone.")  # fmt: skip
@common.names_option("--methods", "Output layers", "naive-blocked, log_prob, " + ", ".join(OUTPUTS.names()))
@common.names_option("--losses", "Losses", f"{', '.join(LOSSES.names())}; naive and sweeping ones the first two")
@common.names_option("--stabilise", "Stabilisers", "lazy, none; restore, svd, power at the end sizes alone")
@click.option("--stabilise-every", type=click.IntRange(1), default=100, show_default=True,
              help="Updates between two sweeps of restore, svd and power.")  # fmt: skip
@click.option("--dtype", type=click.Choice(["float32", "float64"]), default="float32", show_default=True,
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
    names = common.names(given["methods"], known, known[:-1] if quick and given["targets"] == 1 else known)
    losses = common.names(given["losses"], LOSSES.names(), ("z", "squared") if quick else LOSSES.names())
    stabilisers = common.names(given["stabilise"], STABILISERS.names(), ("lazy",) if quick else STABILISERS.names())
    rows = {name: given[name] for name in ("candidates", "shortlist") if given[name]}
    methods = expand(names, losses, stabilisers, given["stabilise_every"], rows)
    common.check_before_work(given)
    records, skipped = [], []
    for m in given["batch_sizes"]:
        plan = common.plan_of(
            bench.Plan,
            given,
            methods=methods if given["losses"] else without_repetition(methods),
            vocab_sizes=given["vocab_sizes"] or (bench.QUICK_SIZES if quick else bench.SIZES),
            m=m,
            dtype=getattr(torch, given["dtype"]),
            effort=common.effort(given, OUTPUT_EFFORT, (0.25, 60)),
            everywhere=given["stabilise"] is not None,
        )
        outcome = bench.run(plan, say)
        records += outcome.records
        skipped += outcome.skipped
    common.deliver("output", records, given, skipped=skipped)


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
@click.option("--hidden", type=click.IntRange(1), default=300, show_default=True, help="Size of embeddings and layers.")
@click.option("--layers", type=click.IntRange(0), default=2, show_default=True, help="Hidden layers.")
@click.option("--context", type=click.IntRange(1), default=4, show_default=True, help="Words of context.")
@click.option("--combine", type=click.Choice(["concat", "sum", "mean"]), default="sum", show_default=True,
              help="How their vectors become one; the paper has 300 units everywhere.")  # fmt: skip
@click.option("--batch-size", "m", type=click.IntRange(1), default=128, show_default=True, help="Examples a step.")
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
    names = common.names(given["methods"], known, known)
    losses = common.names(given["losses"], LOSSES.names(), ("z",))
    sizes = given["vocab_sizes"] or ((10_000,) if quick else (793_471,))
    common.check_before_work(given)
    records, skipped = [], []
    for vocab in sizes:
        effort = common.effort(given, MODEL_EFFORT, (1.0, 100))
        methods = expand(names, losses, ("lazy",))
        plan = common.plan_of(bench.Plan, given, methods=methods, vocab=vocab, effort=effort)
        outcome = bench.run(plan, say)
        records += outcome.records
        skipped += outcome.skipped
    common.deliver("model", records, given, skipped=skipped)


@command.command(
    short_help="Compare how configurations learn on one corpus.",
    epilog="""\b
Example:
  lstlm bench learning --data data/demo --config demo --budget 60 --seeds 3 --plot learning.png
  lstlm bench learning --data data/demo --config demo --methods gensim-sg,gensim-cbow --json learning.json
  lstlm bench learning --data data/all --config paper-z --budget 3600 --points 30 --runs runs/paper --json paper-z.json
""",
)
@click.option("--data", type=click.Path(path_type=Path), required=True, help="Prepared corpus that all train on.")
@click.option("--config", "configs", type=click.Path(path_type=Path), multiple=True, metavar="FILE|RECIPE",
              help="Configuration to train; repeatable.")  # fmt: skip
@set_option
@common.names_option("--methods", "Models of gensim's to train beside them", "none; gensim-sg, gensim-cbow")
@click.option("--budget", "seconds", type=click.FloatRange(min=0, min_open=True), default=60.0, show_default=True,
              help="Seconds of training for each configuration and seed.")  # fmt: skip
@click.option(
    "--steps", type=click.IntRange(1), help="Train for this many steps each, however long they take, instead."
)
@click.option(
    "--seeds", type=click.IntRange(1), default=1, show_default=True, help="Runs of each, one seed after another."
)
@click.option("--first-seed", type=click.IntRange(0), default=1, show_default=True,
              help="Seed of the first run; another than settings were chosen with keeps the report apart.")  # fmt: skip
@common.cpu_time_option
@click.option("--points", type=click.IntRange(1), default=8, show_default=True, help="Evaluations in a run.")
@click.option("--epochs", type=click.IntRange(1), default=5, show_default=True, help="Epochs of the gensim models.")
@click.option("--dimension", type=click.IntRange(1), default=300, show_default=True, help="Size of gensim's vectors.")
@click.option("--runs", type=click.Path(path_type=Path, file_okay=False),
              help="Folder where runs stay; the same command goes on with what was stopped.")  # fmt: skip
@click.option("--simlex", type=click.Path(path_type=Path), help="SimLex-999 file.  [as for `lstlm eval simlex`]")
@click.option("--wordsim", type=click.Path(path_type=Path), help="WordSim-353 file.  [as for `lstlm eval wordsim`]")
@common.shared_options()
def learning(**given: Any) -> None:
    """Train configurations on one corpus for the same time, or the same steps, and score them as they learn."""
    common.use_threads(given["threads"])
    from lstlm.bench import learning as bench

    peers = common.names(given["methods"], bench.PEERS, ())
    plan = common.plan_of(bench.Plan, given, quick={"seconds": 5.0}, peers=peers)
    common.measure("learning", given, lambda: bench.run(plan, say))


@command.command(
    short_help="Measure how fast text is prepared and read.",
    epilog="""\b
Example:
  lstlm bench data --quick
  lstlm bench data --source news.txt --threads 2 --json data.json
""",
)
@click.option("--source", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="Text file, one sentence a line.  [made up: 5 million Zipfian words]")  # fmt: skip
@click.option("--words", type=click.IntRange(1000), default=5_000_000, show_default=True,
              help="Words of the text that is made up.")  # fmt: skip
@click.option("--batch-size", "m", type=click.IntRange(1), default=128, show_default=True, help="Examples a minibatch.")
@click.option("--context", type=click.IntRange(2), default=4, show_default=True, help="Words of context; even.")
@click.option("--budget", "seconds", type=click.FloatRange(min=0, min_open=True), default=3.0, show_default=True,
              help="Seconds for each rate of minibatches.")  # fmt: skip
@common.shared_options("all cores")
def data(**given: Any) -> None:
    """Measure how fast text is prepared and minibatches are drawn, with other counters on the same file."""
    common.use_threads(given["threads"])
    from lstlm.bench import data as bench

    rounds = 1 if given["quick"] else 3
    most = {"words": 300_000, "seconds": 0.3}
    plan = common.plan_of(bench.Plan, given, quick=most, workers=given["threads"], rounds=rounds)
    common.measure("data", given, lambda: bench.run(plan, say))


@command.command(
    short_help="Time steps by several processes, and what they send.",
    epilog="""\b
Example:
  lstlm bench distributed --quick
  lstlm bench distributed --worlds 1,2 --vocab-sizes 10000,1000000 --batch-sizes 128,1024 --json distributed.json
""",
)
@click.option("--worlds", type=common.Counts(), default="1,2", show_default=True, help="Numbers of ranks, with commas.")
@common.sizes_option("10000,1000000")
@click.option("--batch-sizes", "--batch-size", "batch_sizes", type=common.Counts(),
              help="Examples a rank and step, with commas.  [128,512,1024]")  # fmt: skip
@click.option("--hidden", type=click.IntRange(1), default=300, show_default=True, help="Size of embeddings and layers.")
@click.option("--budget", "seconds", type=click.FloatRange(min=0, min_open=True), default=4.0, show_default=True,
              help="Seconds for each number of ranks and size, about.")  # fmt: skip
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
    common.measure("distributed", given, lambda: bench.run(plan, say))


@command.command(
    short_help="Rehearse the full size, on made-up text.",
    epilog="""\b
Example:
  lstlm bench scale --quick
  lstlm bench scale --threads 1 --json scale.json                  # 20 GB of disk, half an hour
  lstlm bench scale --words 100000000 --minutes 2 --dir /data/rehearsal --keep
""",
)
@click.option("--config", "configs", multiple=True, metavar="FILE|RECIPE",
              help="Configuration to train; repeatable.  [paper-z, lm-shortlist]")  # fmt: skip
@set_option
@click.option("--words", type=click.IntRange(1000), help="Words of text to make up.  [768,648,884]")
@click.option("--types", type=click.IntRange(10), help="Words of the vocabulary, D.  [793,471]")
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), help="Minutes of training for each.  [10]")
@click.option("--dir", "folder", type=click.Path(path_type=Path, file_okay=False),
              help="Where the text, the corpus and the runs go.  [a temporary folder]")  # fmt: skip
@click.option("--keep", is_flag=True, help="Leave the prepared corpus in --dir, for the next time.")
@common.record_options("1")
def scale(**given: Any) -> None:
    """Rehearse the full size: prepare made-up text as large as the One Billion Word benchmark, train on it, resume."""
    from lstlm.bench import scale as bench

    usual: dict[str, Any] = {"configs": bench.CONFIGS, "words": bench.WORDS, "types": bench.TYPES, "threads": 1}
    usual |= {"words": 300_000, "types": 5_000, "minutes": 0.1} if given["quick"] else {"minutes": 10.0}
    plan = common.plan_of(bench.Plan, given | {name: given[name] or value for name, value in usual.items()})
    common.measure("scale", given, lambda: bench.run(plan, say))


@command.command(
    short_help="Print and draw recorded results.",
    epilog="""\b
Example:
  lstlm bench plot output-1.json output-2.json --plot output.png
""",
)
@click.argument("records", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--plot", type=click.Path(path_type=Path), help="Picture to draw: .png, .pdf or .svg.")
def plot(records: tuple[Path, ...], plot: Path | None) -> None:
    """Print the table of recorded results, several files as one, and draw their figure. Measures nothing."""
    common.replay(records, plot)
