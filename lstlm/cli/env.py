"""``lstlm env``: what to paste into a bug report or beside a benchmark."""

import click

from lstlm.cli.common import print_json

EPILOGUE = """\b
Example:
  lstlm env
  lstlm env --json > environment.json
"""


@click.command("env", epilog=EPILOGUE)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
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
    width = max(map(len, rows))
    for name, value in rows.items():
        click.echo(f"{name.replace('_', ' ') if name.islower() else name:<{width}}  {'-' if value is None else value}")
