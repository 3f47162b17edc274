"""metrics.jsonl: one JSON object a line, the same names and figures as TensorBoard."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from lstlm.files import write_atomic
from lstlm.sealed import finite_or_none


def cut_after(path: Path, step: int) -> None:
    """Keep the lines of `path` up to `step`: what a resumed run will write again, and a half-written line, must go."""
    if not path.is_file():  # absent, or a device, which may have no end
        return
    kept = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
        try:
            keep = line.endswith("\n") and json.loads(line)["step"] <= step
        except (ValueError, KeyError, TypeError, RecursionError):
            keep = False
        if keep:
            kept.append(line)
    write_atomic(path, "".join(kept))


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a whole metrics.jsonl, as `cut_after` leaves it; none where there is no such file."""
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            yield json.loads(line)


class MetricsFile:
    """Appends to metrics.jsonl; every line is handed to the system at once, so that a kill loses none."""

    def __init__(self, path: Path) -> None:
        self._stream: TextIO = open(path, "a", encoding="utf-8")  # noqa: SIM115 - closed by close()

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Append {"step": step, **values}."""
        self._stream.write(json.dumps(finite_or_none({"step": step, **values}), ensure_ascii=False) + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Sync and close."""
        if not self._stream.closed:
            try:
                self._stream.flush()
                os.fsync(self._stream.fileno())
            finally:
                self._stream.close()
