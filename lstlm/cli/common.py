"""What all commands share: verbosity, messages on stderr, suggestions, tables or one JSON document on stdout."""

import difflib
import json
import logging
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from lstlm.errors import ConfigError
from lstlm.files import file_above
from lstlm.streams import settle_streams

LEVEL = "lstlm.level"  # where a click context keeps the chosen logging level
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}
_LEFT_BY_JSON = {code: f"\\u{code:04x}" for code in range(127, 160)}  # of the controls; json escapes the others itself
MOST_THREADS = 1024  # with many more, OpenMP crashes where it makes them
PATH = click.Path(path_type=Path)
FROM_1 = click.IntRange(min=1)
FROM_0 = click.IntRange(min=0)
ABOVE_0 = click.FloatRange(min=0, min_open=True)
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def option(*names: str, **settings: Any) -> Decorator:
    """Return click's option; its help tells the default, if there is one."""
    return click.option(*names, show_default=True, **settings)


def together(*options: Decorator) -> Decorator:
    """Return one decorator for several options, in this order in the help."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for add in reversed(options):
            function = add(function)
        return function

    return decorate


def threads_option(default: str = "as many as a step is worth") -> Decorator:
    """Return --threads, whose default is told in words."""
    return option("--threads", type=click.IntRange(1, MOST_THREADS), help=f"Number of threads.  [{default}]")


json_option = option("--json", "as_json", is_flag=True, help="Print one JSON document.")
set_option = option("--set", "overrides", multiple=True, metavar="KEY=VALUE",
                    help="Change a setting, such as train.max_steps=100; repeatable.")  # fmt: skip


class _StderrHandler(logging.Handler):
    """Writes to whatever sys.stderr is at that moment; a test or a pipe may replace it."""

    def emit(self, record: logging.LogRecord) -> None:
        click.echo(self.format(record), err=True)


def start_logging() -> None:
    """Send what the library logs to stderr, from INFO on unless -v or --quiet said otherwise."""
    ctx = click.get_current_context()
    logger = logging.getLogger("lstlm")
    logger.setLevel(ctx.meta.setdefault(LEVEL, logging.INFO))
    if not any(isinstance(handler, _StderrHandler) for handler in logger.handlers):
        logger.addHandler(_StderrHandler())


def _shared_options(hidden: bool) -> list[click.Option]:
    """Return -v, --quiet and --debug; they act through the context, so no command needs to take them."""

    def setting(level: int) -> Callable[[click.Context, click.Parameter, bool], None]:
        def set_level(ctx: click.Context, param: click.Parameter, value: bool) -> None:
            if value:
                ctx.meta[LEVEL] = level
                logging.getLogger("lstlm").setLevel(level)

        return set_level

    flags = [
        (["-v", "--verbose"], setting(logging.DEBUG), "Say more on stderr."),
        (["--quiet"], setting(logging.WARNING), "Say only what is wrong on stderr; no progress bars."),
        (["--debug"], None, "Show the traceback of an error."),  # `outcome` looks for it among the arguments
    ]
    return [
        click.Option(names, is_flag=True, expose_value=False, callback=callback, help=text, hidden=hidden)
        for names, callback, text in flags
    ]


def add_shared_options(command: click.Command, *, hidden: bool = True) -> None:
    """Give -v, --quiet and --debug to a command and its sub-commands: ``lstlm train -v`` means ``lstlm -v train``."""
    taken = {name for param in command.params for name in param.opts}
    command.params += [option for option in _shared_options(hidden) if taken.isdisjoint(option.opts)]
    command.context_settings.setdefault("help_option_names", ["-h", "--help"])
    if isinstance(command, click.Group):
        for child in command.commands.values():
            add_shared_options(child)


def is_quiet() -> bool:
    """Whether --quiet was given: no progress bars, no remarks."""
    ctx = click.get_current_context(silent=True)
    return ctx is not None and ctx.meta.get(LEVEL, logging.INFO) >= logging.WARNING


def say(text: str) -> None:
    """Tell the person at the keyboard something, on stderr, unless --quiet."""
    if not is_quiet():
        click.echo(visible(text), err=True)


def warn(text: str) -> None:
    """Tell what may be wrong with a result, on stderr, --quiet or not."""
    click.echo(f"lstlm: warning: {visible(text)}", err=True)


def print_json(document: Any) -> None:
    """Print one JSON document on stdout; a number that JSON does not have is a mistake of ours, hence an error."""
    click.echo(json_text(document, indent=2))


def json_text(document: Any, indent: int | None = None) -> str:
    """Return JSON that a terminal can show: words as they are, control characters as escapes."""
    return json.dumps(document, indent=indent, ensure_ascii=False, allow_nan=False).translate(_LEFT_BY_JSON)


def visible(text: str) -> str:
    """Return text from a file with control characters as escapes: a terminal would obey them."""
    return text.translate(_CONTROLS)


def print_table(rows: Sequence[Sequence[str]], numbers: Collection[int] = ()) -> None:
    """Print rows as lines of aligned columns on stdout; the columns in `numbers` are set to the right."""
    rows = [[visible(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (c.rjust(w) if i in numbers else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        click.echo("  ".join(cells).rstrip())


def suggest(name: str, known: Iterable[str]) -> str:
    """Return ``did you mean X?``, or the list of what is known."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"


def check_out(path: Path, force: bool) -> None:
    """Refuse now a file to write at the end: one that is there, or a place that no file can have."""
    if above := file_above(path):
        raise ConfigError(f"--out {path}: {above} is a file, and nothing lies inside a file; choose another name")
    if path.exists() and not path.is_file():  # a device or a pipe would be replaced by a file
        raise ConfigError(f"--out {path}: is a folder or a device; name a file")
    if path.exists() and not force:
        raise ConfigError(f"--out {path}: exists; choose another name or add --force")


def prepare_streams() -> None:
    """Write words that the terminal's encoding lacks as escapes rather than stop; survive streams that are closed."""
    settle_streams()
    for stream in (sys.stdout, sys.stderr):
        # Either may have been replaced by an object that cannot be reconfigured.
        if (reconfigure := getattr(stream, "reconfigure", None)) is not None:
            reconfigure(errors="backslashreplace")
