"""The command line.  Commands are imported when they are called, so ``lstlm --help`` does not wait for torch."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

import click
from click.shell_completion import shell_complete

from lstlm import __version__
from lstlm.cli import common
from lstlm.cli.outcome import explain_cut_files, leave, run_and_report

# name → one line of help; the command is the attribute `command` of lstlm.cli.<name>
COMMANDS = {
    "vectors": "Learn word vectors from your own text, in one command.",
    "prepare": "Turn text into a vocabulary and encoded training data.",
    "train": "Train a model described by a recipe or a configuration file.",
    "eval": "Score a run or a file of word vectors.",
    "nn": "List the nearest neighbours of words.",
    "predict": "List the likeliest next words of a context.",
    "info": "Say what a run, a corpus or a file of vectors is.",
    "export": "Write word vectors for gensim, TensorBoard and others.",
    "bench": "Measure speed and learning, and draw the figures.",
    "verify": "Compare the factored layer with the naive one.",
    "selftest": "Try whether training survives kills, damage and full disks here.",
    "config": "List recipes, show or check a configuration.",
    "env": "Show versions, threads, BLAS and devices.",
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are needed, and whose outcome is always an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = import_module(f"lstlm.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        command.name = cmd_name  # each file calls its own `command`
        common.add_shared_options(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            raise click.UsageError(f"unknown command {args[0]!r}; {common.suggest(args[0], COMMANDS)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def main(self, args: Sequence[str] | None = None, *_: Any, **__: Any) -> NoReturn:
        """Run one command line (by default the process's own) and leave with the exit code of the contract."""
        common.prepare_streams()
        # "bash_source" prints the completion script, "bash_complete" answers the shell's question.
        if instruction := os.environ.get("_LSTLM_COMPLETE"):
            sys.exit(shell_complete(self, {}, "lstlm", "_LSTLM_COMPLETE", instruction))
        leave(run_and_report(self, list(sys.argv[1:] if args is None else args) or ["--help"]))


EPILOGUE = """\b
Example:
  lstlm prepare --source demo --out data/demo
  lstlm train --config demo --run runs/demo
  lstlm eval simlex runs/demo

Each command answers --help with its options and an example.
"""


@click.group(cls=LazyGroup, epilog=EPILOGUE, context_settings={"max_content_width": 100})
@click.version_option(__version__, prog_name="lstlm", message="%(prog)s %(version)s")
def cli() -> None:
    """Train language models and word vectors over a full, huge vocabulary.

    Gradients are exact, and the cost of the output layer does not depend on the number of words.
    Results go to stdout, everything else to stderr.
    """
    common.start_logging()


common.add_shared_options(cli, hidden=False)


def main() -> NoReturn:
    """Entry point of the console script."""
    kept = explain_cut_files()
    cli.main(kept=kept)
