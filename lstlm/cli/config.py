"""``lstlm config list``, ``show`` and ``validate``."""

import sys
from pathlib import Path
from shutil import get_terminal_size

import click

from lstlm.cli.common import PATH, json_option, option, print_json, set_option

EPILOGUE = """\b
Example:
  lstlm config list
  lstlm config show demo > mine.yaml    # edit it; lstlm train --config mine.yaml
  lstlm config show demo --set train.batch_size=256
  lstlm config validate mine.yaml
"""


@click.group("config", epilog=EPILOGUE)
def command() -> None:
    """List recipes, show or check a configuration: a YAML file, or the name of a recipe."""


@command.command("list", short_help="List the recipes.", epilog="\b\nExample:\n  lstlm config list\n")
@json_option
def list_recipes(as_json: bool) -> None:
    """List the recipes that come with lstlm; `--config NAME` takes each by its name."""
    from lstlm.config import recipes

    found = recipes()
    if as_json:
        print_json(found)
        return
    formatter = click.HelpFormatter(width=get_terminal_size().columns if sys.stdout.isatty() else 1000)
    formatter.write_dl([*found.items()])
    click.echo(formatter.getvalue(), nl=False)


@command.command(
    "show",
    short_help="Print a configuration with all defaults.",
    epilog="\b\nExample:\n  lstlm config show demo --explain\n",
)
@click.argument("file", type=PATH, required=False, metavar="[FILE|RECIPE]")
@set_option
@option("--explain", is_flag=True, help="Put each key's meaning above it.")
@json_option
def show(file: Path | None, overrides: tuple[str, ...], explain: bool, as_json: bool) -> None:
    """Print a FILE or RECIPE with every default filled in; without one, the defaults.

    What is printed loads back to the same configuration.
    """
    from lstlm.config import Config, dump_config, load_config, parse_config, to_dict

    if file is not None:
        config = load_config(file, overrides)
    else:
        config = parse_config(dump_config(Config()), "defaults", overrides)
    if as_json:
        print_json(to_dict(config))
    else:
        click.echo(dump_config(config, explain=explain), nl=False)


@command.command(
    "validate",
    short_help="Say what is wrong with a configuration.",
    epilog="\b\nExample:\n  lstlm config validate mine.yaml demo\n",
)
@click.argument("files", type=PATH, nargs=-1, required=True, metavar="FILE|RECIPE...")
@set_option
def validate(files: tuple[Path, ...], overrides: tuple[str, ...]) -> None:
    """Check each FILE; list everything that is wrong and leave with 2, or say that it is valid."""
    from lstlm.config import load_config
    from lstlm.errors import ConfigError

    problems = []
    for file in files:
        try:
            load_config(file, overrides)
        except ConfigError as error:
            problems.append(str(error))
        else:
            click.echo(f"{file}: valid")
    if problems:
        raise ConfigError("\n".join(problems))
