"""What the commands that use a trained model share: a run or a vector file from one argument, queries, options."""

from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lstlm.cli.common import PATH, Decorator, option, print_json, say
from lstlm.data.inputs import standard_input
from lstlm.errors import ConfigError, DataError

if TYPE_CHECKING:
    from lstlm.api import Run
    from lstlm.vectors import Vectors

which_option = option(
    "--which",
    type=click.Choice(["input", "output", "sum"]),
    help="Of a run: the embeddings (input, the default), the weights of the last layer (output), or their sum.",
)
vocab_option = option(
    "--vocab",
    "vocabulary",
    type=PATH,
    help="The words of a .npy file, one a line; by default NAME.vocab.tsv, NAME.txt or vocab.tsv beside it.",
)
case_option = option(
    "--case",
    type=click.Choice(["fold", "prefer", "exact"]),
    default="fold",
    help="fold: the first, so the most frequent, word that is equal but for case; exact: the very spelling only; "
    "prefer: the very spelling, else fold.",
)
oov_option = option(
    "--oov", is_flag=True, help="Give words without a vector one by their spelling (character n-grams)."
)


def source_argument(name: str = "source", metavar: str = "RUN_OR_VECTORS") -> Decorator:
    """A positional run folder, checkpoint or vector file."""
    return click.argument(name, metavar=metavar, type=PATH)


def is_run(path: Path) -> bool:
    """Whether the path is a run or a checkpoint; both keep their config.yaml."""
    if not path.exists():
        raise DataError(f"{path}: no such run folder or file")
    if path.is_dir() and not (path / "config.yaml").is_file():
        raise DataError(f"{path}: a folder without config.yaml is no run; name a run, a checkpoint or a vector file")
    return path.is_dir()


def open_run(path: Path, device: str = "cpu") -> "Run":
    """Load a run or checkpoint; a vector file is refused with the reason."""
    if not is_run(path):
        raise ConfigError(
            f"{path}: a file; this needs a run folder or a checkpoint, for the network and not only vectors"
        )
    from lstlm.api import load

    return load(path, device=device)


def open_vectors(
    path: Path,
    which: str | None = None,
    *,
    words: Collection[str] | None = None,
    case: str = "exact",
    vocabulary: Path | None = None,
) -> "Vectors":
    """The vectors of a run or of a file; with `words`, a file is read for those rows only."""
    if is_run(path):
        if vocabulary is not None:
            raise ConfigError(f"--vocab {vocabulary}: a run has its own words; --vocab goes with a .npy file")
        return open_run(path).word_vectors(which or "input")
    if which not in (None, "input"):
        raise ConfigError(f"--which {which}: {path} is a file, which has one set of vectors; --which goes with a run")
    from lstlm.vectors import load_vectors

    return load_vectors(path, words, case=case, vocabulary=vocabulary)


def queries(given: str | None) -> Iterator[str]:
    """The one query of the command line, or the non-empty lines of stdin."""
    if given is not None and given != "-":
        yield given
        return
    lines = standard_input()
    if lines.isatty():
        say("one query a line; end with Ctrl-D")
    # bytes, one line as it comes: an odd encoding costs one query, and a person at the terminal is answered at once
    for raw in lines:
        if line := raw.decode("utf-8", "replace").strip():
            yield line


def answer(answers: Iterable[dict[str, Any]], show: Callable[[dict[str, Any]], None], *, as_json: bool) -> None:
    """Show the answer to each query when it is there, or print all as one JSON document."""
    if as_json:
        print_json({"queries": list(answers)})
        return
    for one in answers:
        show(one)
