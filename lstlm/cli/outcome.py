"""The one place where an outcome becomes a line on stderr and an exit code."""

import ctypes
import os
import select
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

import click

from lstlm.errors import LstlmError, is_out_of_memory
from lstlm.streams import discard

EXIT_OK, EXIT_FAILURE, EXIT_DATA, EXIT_INTERRUPTED = 0, 1, 3, 130

OUT_OF_MEMORY = (
    "out of memory; `lstlm train --dry-run` says what training takes: lower model.embedding, model.hidden or "
    "train.batch_size, or the vocabulary with `lstlm prepare --max-vocab`"
)
NO_THREAD = "no further thread can be started: memory or processes are limited (ulimit -v, ulimit -u); raise the limit"
CUT_SHORT = (
    "lstlm: error: a file that is being read has been cut short, or its disk fails (SIGBUS): a corpus, a checkpoint or "
    "a file of vectors; restore it, then continue with --resume auto\n"
)


def explain_cut_files() -> Any:
    """End with a line and the exit code of damaged files where a mapped file is shortened by somebody else.

    The system tells by SIGBUS, in the middle of an instruction. Python's own handlers would return to it, for ever, so
    this one is C's; it says its line and leaves. Returns what must be kept for as long as the process lives.
    """

    def end(number: int) -> None:
        with suppress(OSError):
            os.write(2, CUT_SHORT.encode())
        os._exit(EXIT_DATA)

    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(end)
    ctypes.CDLL(None).signal(int(signal.SIGBUS), handler)
    return handler


def run_and_report(cli: click.Group, arguments: list[str]) -> int:
    """Run one command line and return its exit code; whatever went wrong has been said on stderr."""
    try:
        with _unwinding_on_signals(), _threads_in_one_line(debug="--debug" in arguments):
            code = _run(cli, arguments)
        if sys.stdout is not None:
            sys.stdout.flush()  # here, where a full disk or a closed pipe can still be reported
        return code
    except SystemExit as leave:
        return _exit_code(leave)
    except (KeyboardInterrupt, click.Abort):
        return _report("interrupted", EXIT_INTERRUPTED)
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _reader_left():
            return EXIT_OK
        debug = "--debug" in arguments and not isinstance(error, click.ClickException)
        if debug:
            traceback.print_exc()
        return _explain(error, "" if debug else "; run again with --debug for details")


def leave(code: int) -> NoReturn:
    """End the process; at once where it is still in a group of ranks, as after a failure: nobody says goodbye then.

    The group's threads would go on while the interpreter ends, and abort the process with an exit code of their own.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # has been reported; the interpreter would try once more, and complain
            discard(stream)
    group = sys.modules.get("torch.distributed")
    if group is not None and group.is_available() and group.is_initialized():
        os._exit(code)
    sys.exit(code)


def _run(cli: click.Group, arguments: list[str]) -> int:
    # Not click's own main: it ends silently on every EPIPE, even that of a worker's pipe.
    try:
        with cli.make_context("lstlm", list(arguments)) as ctx:  # a copy, because click empties the list
            cli.invoke(ctx)
    except click.exceptions.Exit as leave:
        return leave.exit_code
    return EXIT_OK


def _exit_code(leave: SystemExit) -> int:
    if leave.code is None or isinstance(leave.code, int):
        return leave.code or EXIT_OK
    return _report(str(leave.code), EXIT_FAILURE)


def _explain(error: Exception, hint: str) -> int:
    """Report an exception in one line (a ConfigError may list several problems, one line each)."""
    if isinstance(error, LstlmError):
        return _report(str(error), error.exit_code)
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)
        return error.exit_code
    if isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "lstlm"
        message = " ".join(error.format_message().split()).rstrip(".")
        return _report(f"{message} (see '{command} --help')", error.exit_code)
    if is_out_of_memory(error):
        return _report(OUT_OF_MEMORY, EXIT_FAILURE)
    if isinstance(error, OSError) and error.strerror:
        if error.filename is None and _of_stdout(error):
            return _report(
                f"the standard output cannot be written: {error.strerror}; give it another place", EXIT_FAILURE
            )
        place = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
        return _report(f"{place}{error.strerror}{hint}", EXIT_FAILURE)
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return _report(NO_THREAD, EXIT_FAILURE)
    message = " ".join(str(error).split())[:300]
    what = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return _report(f"unexpected {what}{hint}", EXIT_FAILURE)


def _report(message: str, code: int) -> int:
    """Write each line of ``message`` on stderr, and return ``code``."""
    with suppress(OSError):  # a closed stderr must not hide the exit code
        try:
            for line in message.splitlines() or [""]:
                click.echo(f"lstlm: error: {line}", err=True)
        except MemoryError:  # click takes some
            os.write(2, f"lstlm: error: {message}\n".encode())
    return code


def _of_stdout(error: OSError) -> bool:
    """Whether a result could not be written: click's echo says so, or the flush in this file; stderr never fails."""
    return traceback.extract_tb(error.__traceback__)[-1].filename in (click.utils.__file__, __file__)


def _reader_left() -> bool:
    """Whether the reader of stdout is gone (``lstlm … | head -1``); it has seen enough, so that is no failure."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), select.POLLOUT)
        gone = any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
        if gone:  # the interpreter flushes stdout once more at exit: give it somewhere to write
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return gone
    except (OSError, ValueError, AttributeError):
        return False


@contextmanager
def _threads_in_one_line(*, debug: bool) -> Iterator[None]:
    """Say in one line what ends a thread that nobody waits for (TensorBoard has one), not with its traceback."""

    def say(ended: threading.ExceptHookArgs) -> None:
        click.echo(f"lstlm: a thread has ended: {ended.exc_value}", err=True)

    before = threading.excepthook
    threading.excepthook = before if debug else say
    try:
        yield
    finally:
        threading.excepthook = before


@contextmanager
def _unwinding_on_signals() -> Iterator[None]:
    """Turn SIGINT, SIGTERM and SIGHUP into exceptions, so that temporary files are removed; a command may handle them.

    Not in the middle of an import: an exception there ends in native code that aborts, or in a module half made.
    """

    def leave(signum: int, frame: FrameType | None) -> None:
        if _importing(frame):
            again = threading.Timer(0.05, os.kill, (os.getpid(), signum))
            again.daemon = True
            again.start()
        elif signum == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            raise SystemExit(128 + signum)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    all_three = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    heard = [s for s in all_three if signal.getsignal(s) not in (signal.SIG_IGN, None)]
    before = {signum: signal.signal(signum, leave) for signum in heard}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _importing(frame: FrameType | None) -> bool:
    """Whether the interrupted code is within an import."""
    while frame is not None and "importlib._bootstrap" not in frame.f_code.co_filename:
        frame = frame.f_back
    return frame is not None
