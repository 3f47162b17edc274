"""Worker processes that encode blocks; a worker that dies is an error, never a hang or a gap."""

import multiprocessing
import signal
from collections.abc import Iterable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from lstlm.data.encoder import Block, BlockEncoder, BlockReport
from lstlm.data.tokenise import TextOptions
from lstlm.errors import LstlmError

AHEAD = 2
"""Blocks that wait at each worker: one in work, one in the pipe; so memory does not depend on the corpus."""


def _serve(connection: Connection, folder: Path, worker: int, options: TextOptions) -> None:
    """The loop of one worker process: (header, bytes) in, report out; None ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides what it means
    try:
        encoder = BlockEncoder(folder, worker, options)
        while (header := connection.recv()) is not None:
            number, part, valid_fraction = header
            block = Block(number, part, valid_fraction, connection.recv_bytes())
            connection.send(encoder.encode(block))
        encoder.finish()
        connection.send(None)
    except EOFError:
        return  # the parent is gone
    except OSError as error:
        with suppress(OSError):
            connection.send(error)


class WorkerPool:
    """`workers` processes behind pipes; blocks are dealt to whoever is free."""

    def __init__(self, folder: Path, workers: int, options: TextOptions) -> None:
        # spawn, not fork: the caller may have started threads (a BLAS, a progress bar)
        context = multiprocessing.get_context("spawn")
        self._processes: list[BaseProcess] = []
        self._connections: list[Connection] = []
        for number in range(workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, folder, number, options), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._connections.append(ours)
        self._waiting = [0] * workers  # blocks that were sent to each and not answered

    def run(self, blocks: Iterable[Block]) -> Iterator[tuple[int, BlockReport]]:
        """Yield (worker, report) for each block, in order of completion; then all workers have saved their types."""
        for block in blocks:
            while min(self._waiting) >= AHEAD:
                yield from self._collect()
            worker = self._waiting.index(min(self._waiting))
            self._send(worker, (block.number, block.part, block.valid_fraction), block.data)
            self._waiting[worker] += 1
        while any(self._waiting):
            yield from self._collect()
        for worker in range(len(self._waiting)):
            self._send(worker, None, None)
        for worker in range(len(self._waiting)):
            self._receive(worker)

    def _collect(self) -> Iterator[tuple[int, BlockReport]]:
        """Yield the reports that are there; wait for one where there is none."""
        for connection in wait(self._connections):
            worker = self._connections.index(connection)  # type: ignore[arg-type]  # they are what was waited for
            self._waiting[worker] -= 1
            yield worker, self._receive(worker)

    def _send(self, worker: int, header: tuple[int, str, float] | None, data: bytes | None) -> None:
        try:
            self._connections[worker].send(header)
            if data is not None:
                self._connections[worker].send_bytes(data)
        except (BrokenPipeError, ConnectionResetError):
            self._receive(worker)  # it may have said why
            raise self._death(worker) from None

    def _receive(self, worker: int) -> Any:
        try:
            answer = self._connections[worker].recv()
        except (EOFError, ConnectionResetError):
            raise self._death(worker) from None
        if isinstance(answer, OSError):
            raise answer
        return answer

    def _death(self, worker: int) -> LstlmError:
        process = self._processes[worker]
        process.join(timeout=5)
        code = process.exitcode
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with status {code}"
        return LstlmError(
            f"worker {worker + 1} of {len(self._processes)} (process {process.pid}) {how}; nothing was written; "
            "if memory ran out, use fewer --workers"
        )

    def close(self) -> None:
        """End the workers, whatever they are doing."""
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.terminate()
            process.join()
