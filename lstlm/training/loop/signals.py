"""SIGINT, SIGTERM and SIGHUP: the first asks for a clean stop, the second stops at once."""

import os
import signal
import sys
import threading
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

STOPPING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Interrupts:
    """While entered, remembers the first SIGINT, SIGTERM or SIGHUP in `received`; a second one ends the process.

    The handler only sets a number, so no write to disk is ever cut in two by it. Outside the main thread, where Python
    allows no handlers, it does nothing.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._previous: dict[int, Any] = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            os._exit(128 + number)
        self.received = number
        name = signal.Signals(number).name
        # os.write, not print: a handler may interrupt a print that holds the lock of the buffer.
        with suppress(OSError):  # the terminal may be what has gone
            os.write(2, f"\n{name}: finishing the step and saving; a second signal exits at once\n".encode())

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            with suppress(OSError, AttributeError):
                sys.stderr.flush()
            for number in STOPPING:
                if number.name == "SIGHUP" and signal.getsignal(number) == signal.SIG_IGN:  # under nohup
                    continue
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()
