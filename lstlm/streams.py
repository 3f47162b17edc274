"""The streams of a process when somebody has closed them: the console falls silent, and the work goes on."""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TextIO, cast


class Forgiving:
    """A text stream that falls silent for good once it cannot be written to (a pipe without reader, a full disk).

    Everything else is the stream's own; `None` for a stream is one that was closed before the process began.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, if anybody still reads."""
        return self._try(lambda stream: stream.write(text)) or 0

    def flush(self) -> None:
        """Flush, if anybody still reads."""
        self._try(lambda stream: stream.flush())

    def isatty(self) -> bool:
        """Whether it is a terminal, and still there."""
        return bool(self._try(lambda stream: stream.isatty()))

    def _try(self, act: Callable[[TextIO], Any]) -> Any:
        if self._stream is None:
            return None
        try:
            return act(self._stream)
        except (OSError, ValueError):  # the latter where it was closed
            lost, self._stream = self._stream, None
            discard(lost)
            return None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def discard(stream: TextIO) -> None:
    """Let what the stream still holds go nowhere: the interpreter flushes it once more when it ends."""
    with suppress(OSError, ValueError, AttributeError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def forgiving(stream: TextIO | None) -> TextIO:
    """Return a stream that never fails."""
    return stream if isinstance(stream, Forgiving) else cast(TextIO, Forgiving(stream))


def settle_streams() -> None:
    """Give a process whose standard streams were closed others in their place, and let stderr fall silent if need be.

    The next file to be opened would take a free number, and messages for the console would end up in it. What is
    written to a stdout that was closed is lost, so that is an error, said when it is flushed.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_WRONLY if number == 2 else os.O_RDONLY)  # takes the lowest free number: this one
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = forgiving(sys.stderr)
