"""`lstlm selftest`."""

import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path

import click

from lstlm.cli import common
from lstlm.cli.common import PATH, json_option, option
from lstlm.errors import ConfigError, LstlmError

EPILOGUE = """\b
Example:
  lstlm selftest
  lstlm selftest --faults 1000 --seed 7
"""


@click.command(epilog=EPILOGUE)
@option("--faults", type=click.IntRange(1, 1_000_000), default=100, help="About how many.")
@option("--seed", type=int, default=1, help="Chooses which; the same seed, the same faults.")
@option(
    "--folder",
    type=PATH,
    help="An empty folder to work in, on the disk to be tried; kept.  [default: a temporary one, kept after failures]",
)
@json_option
def command(faults: int, seed: int, folder: Path | None, as_json: bool) -> None:
    """Try whether training loses anything on this machine: it is killed, its files damaged, its disk filled.

    A tiny model is trained again and again, disturbed in every way, and must end with the very weights of a run that
    nobody disturbed. 100 faults take about a minute. Exit code 1 where anything was lost.
    """
    from lstlm.selftest.run import selftest, table

    if folder is not None and folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(f"--folder {folder}: not empty; name another")
    place = Path(tempfile.mkdtemp(prefix="lstlm-selftest-")) if folder is None else folder
    place.mkdir(parents=True, exist_ok=True)
    outcomes = selftest(place, faults, seed, common.say)
    if as_json:
        common.print_json({"faults": faults, "seed": seed, "outcomes": [asdict(one) for one in outcomes]})
    else:
        common.print_table(table(outcomes), numbers=range(1, 4))
    failures = sum(len(one.failures) for one in outcomes)
    if failures:
        raise LstlmError(f"selftest: {failures} faults were not survived; what is left of them is in {place}")
    if folder is None:
        shutil.rmtree(place, ignore_errors=True)
