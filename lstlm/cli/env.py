"""``lstlm env``: what to paste into a bug report or beside a benchmark."""

import click

from lstlm.cli.common import json_option, print_json, print_table

EPILOGUE = """\b
Example:
  lstlm env
  lstlm env --json > environment.json
"""


@click.command("env", epilog=EPILOGUE)
@json_option
def command(as_json: bool) -> None:
    """Show versions, processor, threads, BLAS and devices."""
    from lstlm.environment import describe

    facts = describe()
    if as_json:
        print_json(facts)
        return
    packages = facts.pop("packages")
    variables = facts.pop("variables")
    memory = facts.pop("memory_bytes")
    rows = {"lstlm": facts.pop("lstlm"), **facts}
    rows["memory"] = "unknown" if memory is None else f"{memory / 2**30:.1f} GiB"
    rows["devices"] = ", ".join(rows["devices"])
    rows |= {name: found or "not installed" for name, found in packages.items()}
    rows |= variables
    names = [name.replace("_", " ") if name.islower() else name for name in rows]
    print_table([*zip(names, ("-" if value is None else str(value) for value in rows.values()), strict=True)])
