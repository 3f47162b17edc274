"""What all commands share: verbosity, messages on stderr, suggestions, tables or one JSON document on stdout."""

import difflib
import json
import logging
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar

import click

from lstlm.streams import settle_streams

LEVEL = "lstlm.level"  # where a click context keeps the chosen logging level
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}
_LEFT_BY_JSON = {code: f"\\u{code:04x}" for code in range(127, 160)}  # of the controls; json escapes the others itself
MOST_THREADS = 1024  # with many more, OpenMP crashes where it makes them
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a setting, such as train.max_steps=100; repeatable.",
)
_Command = TypeVar("_Command", bound=Callable[..., Any])


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


def _options(hidden: bool) -> list[click.Option]:
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


def shared_options(function: _Command) -> _Command:
    """Decorate the top group with -v, --quiet and --debug."""
    params = getattr(function, "__click_params__", [])
    function.__click_params__ = params + list(reversed(_options(hidden=False)))  # type: ignore[attr-defined]
    return function


def accept_everywhere(command: click.Command) -> None:
    """Let ``lstlm train --debug`` mean ``lstlm --debug train``, for a command and all its sub-commands."""
    taken = {name for param in command.params for name in param.opts}
    command.params += [option for option in _options(hidden=True) if taken.isdisjoint(option.opts)]
    command.context_settings.setdefault("help_option_names", ["-h", "--help"])
    if isinstance(command, click.Group):
        for child in command.commands.values():
            accept_everywhere(child)


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


def prepare_streams() -> None:
    """Write words that the terminal's encoding lacks as escapes rather than stop; survive streams that are closed."""
    settle_streams()
    for stream in (sys.stdout, sys.stderr):
        # Either may have been replaced by an object that cannot be reconfigured.
        if (reconfigure := getattr(stream, "reconfigure", None)) is not None:
            reconfigure(errors="backslashreplace")
