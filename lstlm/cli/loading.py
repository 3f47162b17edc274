"""What the commands that use a trained model share: a run or a vector file from one argument, queries, small tables."""

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lstlm.cli.common import say
from lstlm.data.inputs import standard_input
from lstlm.errors import ConfigError, DataError

if TYPE_CHECKING:
    from lstlm.training.run.saved import LoadedRun
    from lstlm.vectors import Vectors

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
which_option = click.option(
    "--which",
    type=click.Choice(["input", "output", "sum"]),
    help="Of a run: the embeddings (input, the default), the weights of the last layer (output), or their sum.",
)
vocab_option = click.option(
    "--vocab",
    "vocabulary",
    type=click.Path(path_type=Path),
    help="The words of a .npy file, one a line; by default NAME.vocab.tsv, NAME.txt or vocab.tsv beside it.",
)
case_option = click.option(
    "--case",
    type=click.Choice(["fold", "prefer", "exact"]),
    default="fold",
    show_default=True,
    help="fold: the first, so the most frequent, word that is equal but for case; exact: the very spelling only; "
    "prefer: the very spelling, else fold.",
)


oov_option = click.option(
    "--oov", is_flag=True, help="Give words without a vector one by their spelling (character n-grams)."
)


def source_argument(
    name: str = "source", metavar: str = "RUN_OR_VECTORS"
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A positional run folder, checkpoint or vector file."""
    return click.argument(name, metavar=metavar, type=click.Path(path_type=Path))


def is_run(path: Path) -> bool:
    """Whether the path is a run or a checkpoint; both keep their config.yaml."""
    if not path.exists():
        raise DataError(f"{path}: no such run folder or file")
    if path.is_dir() and not (path / "config.yaml").is_file():
        raise DataError(f"{path}: a folder without config.yaml is no run; name a run, a checkpoint or a vector file")
    return path.is_dir()


def open_run(path: Path, device: str = "cpu") -> "LoadedRun":
    """Load a run or checkpoint; a vector file is refused with the reason."""
    if not is_run(path):
        raise ConfigError(
            f"{path}: a file; this needs a run folder or a checkpoint, for the network and not only vectors"
        )
    from lstlm.training.run.saved import load_run
    from lstlm.training.run.session import use_device

    return load_run(path, device=use_device(device))


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
        from lstlm.evaluation.embeddings import word_vectors

        run = open_run(path)
        return word_vectors(run.network, run.vocabulary.words, which or "input", run.vocabulary.counts.tolist())
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


def table(rows: Sequence[Sequence[str]], numbers: Collection[int] = ()) -> Iterator[str]:
    """Rows as lines of aligned columns; the columns in `numbers` are set to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))] if rows else []
    for row in rows:
        cells = (c.rjust(w) if i in numbers else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        yield "  ".join(cells).rstrip()
