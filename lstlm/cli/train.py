"""`lstlm train`."""

import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lstlm.cli import common
from lstlm.cli.common import PATH, json_option, option, set_option, threads_option
from lstlm.errors import ConfigError
from lstlm.streams import discard

if TYPE_CHECKING:
    from lstlm.config import Config
    from lstlm.training.loop.dryrun import Estimate
    from lstlm.training.run.session import Summary

# What a corpus alone is trained with, apart from the defaults: larger minibatches learn more in the same time.
CORPUS_ALONE = ("lm-shortlist", "train.max_epochs=1", "train.batch_size=512")  # the recipe, and what is changed

EPILOGUE = """\b
Example:
  lstlm train --config tiny --run runs/tiny
  lstlm train --set data.dir=data/mine --run runs/mine
  lstlm train --config tiny --run runs/tiny --resume auto --set train.max_steps=600
  tensorboard --logdir runs
  torchrun --standalone --nproc-per-node 2 -m lstlm train --config tiny --run-folder runs/two

Ctrl-C (or SIGTERM, SIGHUP) finishes the step, saves and exits with 130 (143, 129); a second one exits at once.
"""


@click.command(epilog=EPILOGUE)
@option(
    "--config",
    "config_path",
    type=PATH,
    metavar="FILE|RECIPE",
    help="A YAML file, or a recipe by name (see `lstlm config list`). May be left out when a run is resumed; with "
    "--set data.dir=DIR alone, the language model that suits the corpus is trained.",
)
@set_option
@option(
    "--run",
    "--run-folder",
    "folder",
    type=PATH,
    help="Run folder; torchrun stumbles over --run, so spell it out there.  [default: runs/<config>-<time>]",
)
@option(
    "--resume",
    metavar="auto|PATH",
    help="Continue: from the newest good checkpoint of the run, or from a checkpoint or run folder.",
)
@option("--device", default="cpu", help="Where to compute: cpu, cuda, cuda:1, …")
@threads_option()
@option("--dry-run", is_flag=True,
        help="Show settings, size, disk, steps and speed (20 timed steps); write nothing.")  # fmt: skip
@option("--force", is_flag=True,
        help="Start anew in a folder that holds a run, or drop checkpoints newer than --resume PATH.")  # fmt: skip
@json_option
@option("--rank-timeout", type=click.FloatRange(min=1), metavar="SECONDS",
        help="Under torchrun: how long to wait for the other ranks before giving up.  [300]")  # fmt: skip
def command(
    config_path: Path | None,
    overrides: tuple[str, ...],
    folder: Path | None,
    resume: str | None,
    device: str,
    threads: int | None,
    dry_run: bool,
    force: bool,
    as_json: bool,
    rank_timeout: float | None,
) -> None:
    """Train a model: progress, TensorBoard events and checkpoints go to the run folder."""

    def settle() -> tuple[Path, "Config"]:
        if config_path is None and resume is None:
            return _corpus_alone(folder, overrides)
        chosen = _choose_folder(config_path, folder, resume)
        return chosen, _settings(config_path, chosen, overrides)

    if several := _world_size() > 1:
        if dry_run:
            raise ConfigError("--dry-run: measures one process; leave torchrun out")
        if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0:
            resume, force = resume or "auto", False  # torchrun has restarted the same command: go on
    else:
        run, config = settle()
    from lstlm.training.run.session import Options, train, use_device

    place, ranks = use_device(device), None
    if several:
        from lstlm.distributed import TIMEOUT_S, Ranks

        ranks = Ranks.from_torchrun(place, rank_timeout or TIMEOUT_S)
        assert ranks is not None
        place, (run, config) = ranks.device, ranks.on_first(settle)
    if dry_run:
        _show_estimate(config, place, threads, as_json=as_json)
        return
    quiet = common.is_quiet()
    options = Options(device=place, resume=resume, threads=threads, force=force, quiet=quiet, ranks=ranks)
    summary = train(config, run, options)
    if ranks is None or ranks.first:
        try:
            _show_summary(summary, as_json=as_json)
        except OSError:
            if summary.signal is None:
                raise
            discard(sys.stdout)  # the terminal may be what has gone; the exit code tells
    if ranks is not None:
        ranks.close()
    if summary.signal is not None:
        click.get_current_context().exit(128 + summary.signal)


def _world_size() -> int:
    """Return how many ranks torchrun has started, 1 without it; refuse an environment that is half of torchrun's."""
    found = os.environ.get("WORLD_SIZE", "1")
    remedy = "start with torchrun, which sets it, or unset WORLD_SIZE"
    if not (found.isdecimal() and int(found) >= 1):
        raise ConfigError(f"WORLD_SIZE={found} in the environment is not a number of ranks; {remedy}")
    if int(found) > 1:
        for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
            if name not in os.environ:
                raise ConfigError(f"WORLD_SIZE={found} in the environment, but no {name}; {remedy}")
        for name in ("RANK", "LOCAL_RANK", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"):
            if not os.environ.get(name, "0").isdecimal():
                raise ConfigError(f"{name}={os.environ[name]} in the environment is not a whole number; {remedy}")
    return int(found)


def _choose_folder(config_path: Path | None, folder: Path | None, resume: str | None) -> Path:
    """Return --run, or the run that --resume means, or runs/<config>-<time>."""
    from lstlm.training.run.folders import default_folder, newest_run, run_of

    if folder is not None:
        return folder
    if resume not in (None, "auto"):
        return run_of(Path(str(resume)))
    if config_path is None:
        raise ConfigError("--config: missing; give a recipe or a configuration file, e.g. --config tiny")
    newest = newest_run(config_path) if resume == "auto" else None
    return newest or default_folder(config_path)


def _corpus_alone(folder: Path | None, overrides: tuple[str, ...]) -> tuple[Path, "Config"]:
    """Return the run folder and the best language model for the corpus that --set data.dir names; no --config."""
    from lstlm.config import load_config
    from lstlm.training.run.folders import default_folder

    if not any(override.replace(" ", "").startswith("data.dir=") for override in overrides):
        raise ConfigError(
            "--config: missing; give a recipe or a configuration file, e.g. --config tiny, "
            "or a corpus alone: --set data.dir=data/demo"
        )
    recipe, *changes = CORPUS_ALONE
    config = load_config(recipe, [*changes, *overrides])
    return folder or default_folder(Path(config.data.dir)), config


def _settings(config_path: Path | None, folder: Path, overrides: tuple[str, ...]) -> "Config":
    """Read --config; a resumed run may do without and keep its own."""
    from lstlm.config import load_config

    if config_path is None and not (folder / "config.yaml").is_file():
        raise ConfigError(f"--resume: no run at {folder} (no config.yaml there); name a run or a checkpoint")
    if config_path is not None:
        return load_config(config_path, overrides)
    from lstlm.training.run.origin import find_corpus

    own = load_config(folder / "config.yaml", overrides)
    return replace(own, data=replace(own.data, dir=str(find_corpus(own.data.dir, folder))))


def _show_summary(summary: "Summary", *, as_json: bool) -> None:
    from lstlm.sealed import finite_or_none

    report = summary.report
    if as_json:
        common.print_json(finite_or_none({"run": str(summary.run), "state": summary.state, **report}))
        return
    figures = report["evaluation"]
    scores = " ".join(
        f"{key.removeprefix('eval/')}={value if isinstance(value, int) else format(value, '.4f')}"
        for key, value in figures.items()
    )
    if "eval/loss" not in figures and summary.state == "finished":  # a run that was interrupted may have none yet
        common.say("no validation text, so no loss: prepare the corpus with --valid or a larger --valid-fraction")
    click.echo(
        f"{summary.state} step={report['step']} words={report['words']} elapsed_s={report['elapsed_s']:.1f} "
        f"{scores}{' ' if scores else ''}run={summary.run}"
    )


def _show_estimate(config: "Config", device: Any, threads: int | None, *, as_json: bool) -> None:
    from lstlm.config import dump_config, to_dict, with_rates
    from lstlm.data import Corpus
    from lstlm.training.loop.dryrun import dry_run
    from lstlm.training.run.threads import set_threads

    corpus = Corpus.open(Path(config.data.dir))
    config = with_rates(config, len(corpus.vocabulary))
    set_threads(config, len(corpus.vocabulary), threads)
    estimate = dry_run(config, corpus, device)
    if as_json:
        common.print_json({"config": to_dict(config), **asdict(estimate)})
        return
    click.echo(dump_config(config))
    common.print_table(_estimate_rows(estimate))


def _estimate_rows(estimate: "Estimate") -> list[tuple[str, str]]:
    from lstlm.training.log.console import bytes_text as size
    from lstlm.training.log.console import clock_text

    parts = estimate.parameters
    steps = "bounded by time alone" if estimate.steps is None else f"{estimate.steps:,}"
    learned = ", ".join(f"{part} {parts[part]:,}" for part in ("embedding", "hidden", "output"))
    memory = (
        f"{size(estimate.state_bytes)} of weights and optimiser state, {size(estimate.copy_bytes)} of a copy to write "
        f"checkpoints from; {size(estimate.peak_memory_bytes)} the whole process at its peak"
    )
    return [
        ("vocabulary", f"{estimate.vocabulary:,} words"),
        ("parameters", f"{parts['total']:,} ({learned})"),
        ("memory", memory),
        ("disk", f"{size(estimate.checkpoint_bytes)} a checkpoint, up to {size(estimate.disk_bytes)} a run"),
        ("steps", f"{steps} ({estimate.steps_per_epoch:,} an epoch)"),
        ("speed", f"{estimate.step_ms:.2f} ms a step, {estimate.words_per_s:,.0f} words/s (median of 20 steps)"),
        ("time", f"{clock_text(estimate.estimated_s)} without evaluations and checkpoints"),
    ]
