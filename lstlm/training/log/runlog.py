"""The log of a run: TensorBoard, metrics.jsonl, status.json and the console get the same figures from one place."""

import contextlib
import errno
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lstlm.files import write_json
from lstlm.sealed import finite_or_none
from lstlm.training.log.console import Console
from lstlm.training.log.metrics import MetricsFile, cut_after, read_metrics
from lstlm.training.log.tensorboard import Board


class RunLog:
    """Writes what happens in `folder`; a rank that is not the first has none, and keeps nothing.

    `step` is where training starts: later entries of an earlier process are cut.
    """

    def __init__(self, folder: Path | None, console: Console, *, step: int) -> None:
        self._folder = folder
        self._started = time.time()
        self._told = 0.0  # when status.json was last written
        self.console = console
        self._metrics, self.board = self._open(step)

    def _open(self, step: int) -> tuple[MetricsFile, Board]:
        if self._folder is None:
            nobody: Any = _Nobody()
            return nobody, nobody
        path = self._folder / "metrics.jsonl"
        cut_after(path, step)
        # A new run purges nothing, but says so: TensorBoard takes only the second mark of a run for a restart.
        board = Board(self._folder, purge_step=step + 1 if step else 0)
        for values in read_metrics(path):
            board.by_words(values)  # words are larger numbers than steps, so that the purge took these, too
        return MetricsFile(path), board

    def train(self, step: int, values: Mapping[str, Any], elapsed: float) -> None:
        """Log an interval of training."""
        self.scalars(step, values)
        self.console.train_line(step, values, elapsed)

    def evaluation(self, step: int, values: Mapping[str, Any], *, best: bool) -> None:
        """Log an evaluation; flushed, since these are the figures people wait for."""
        self.scalars(step, values)
        self.board.flush()
        self.console.eval_line(step, values, best=best)

    def event(self, step: int, name: str, text: str) -> None:
        """Log something that is not a figure: a roll-back, a restore, an interruption."""
        self._metrics.write(step, {"event": name, "message": text})
        self.console.say(text)

    def rewind(self, step: int) -> None:
        """Forget what was logged after `step`, in every place."""
        self.close_files()
        self._metrics, self.board = self._open(step)
        self.console.rewind(step)

    def status(self, state: str, facts: Mapping[str, Any], *, durable: bool = False) -> None:
        """Replace status.json: `state` is running, finished, interrupted or failed.

        Unless it must be `durable`, at most every half second: it costs as much as four lines of metrics. A run whose
        config.yaml has gone is being removed, and ends here: what is still written would be no run.
        """
        now = time.time()
        if self._folder is None or (not durable and now - self._told < 0.5):
            return
        self._told = now
        if not (config := self._folder / "config.yaml").exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(config))
        head = {
            "state": state,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "started": self._started,
            "updated": now,
        }
        write_json(self._folder / "status.json", finite_or_none({**head, **facts}), durable=durable)

    def scalars(self, step: int, values: Mapping[str, Any]) -> None:
        """Log figures in both files."""
        self._metrics.write(step, values)
        self.board.scalars(step, values)

    def close_files(self) -> None:
        """Close the two files."""
        self.board.close()
        self._metrics.close()

    def close(self) -> None:
        """Close everything; errors here (a full disk) must not hide the one that ended the run."""
        self.console.close()
        with contextlib.suppress(OSError, ValueError):
            self.close_files()


class _Nobody:
    """Takes whatever it is told, and keeps nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **settings: None
