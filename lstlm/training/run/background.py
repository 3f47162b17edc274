"""Checkpoints written while training goes on: it stands still only for a copy of the tensors.

The copy, as large as a checkpoint, stays in memory from one to the next: new memory from the system costs several times
what the copying does.
"""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from lstlm.training.run.checkpoint import keep_best_and_newest, save_checkpoint


class Copy:
    """Copies nested dictionaries and lists of tensors to main memory, into the same place every time."""

    def __init__(self) -> None:
        self._places: dict[tuple[Any, ...], Tensor] = {}

    def __call__(self, value: Any, path: tuple[Any, ...] = ()) -> Any:
        """Return `value` with its tensors copied; the copy is good until the next one is taken."""
        if isinstance(value, Tensor):
            return self._place(path, value).copy_(value)
        if isinstance(value, Mapping):
            return {key: self(item, (*path, key)) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self(item, (*path, index)) for index, item in enumerate(value))
        return value

    def _place(self, path: tuple[Any, ...], like: Tensor) -> Tensor:
        place = self._places.get(path)
        if place is None or place.shape != like.shape or place.dtype != like.dtype:
            place = self._places[path] = torch.empty(like.shape, dtype=like.dtype)
        return place

    def forget(self) -> None:
        """Give the memory back."""
        self._places.clear()


class CheckpointWriter:
    """Writes one checkpoint at a time in a thread of its own. While entered; whoever leaves waits for it.

    What fails there is raised by the next call here, so that training ends with it as if it had written itself.
    """

    def __init__(self, root: Path, facts: Mapping[str, Any], keep: int) -> None:
        self._root, self._facts, self._keep = root, facts, keep
        self._copy = Copy()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[float] | None = None

    def save(self, step: int, contents: Mapping[str, Any], *, best: bool) -> None:
        """Copy `contents` and begin to write them, once the checkpoint before is done.

        Where there is no memory for a copy, they are written at once, from where they are.
        """
        self.wait()
        try:
            copied = self._copy(contents)
        except (RuntimeError, MemoryError):  # torch says the first
            self._copy.forget()
            self._write(step, contents, best)
            return
        self._pending = self._thread.submit(self._write, step, copied, best)

    def _write(self, step: int, contents: Mapping[str, Any], best: bool) -> float:
        """Write a checkpoint; return the seconds it took."""
        began = perf_counter()
        folder = save_checkpoint(self._root, step, contents, self._facts)
        keep_best_and_newest(folder, best=best, keep=self._keep)
        return perf_counter() - began

    def poll(self) -> float | None:
        """Return the seconds that a checkpoint took, once, when it is written; else None."""
        return self.wait() if self._pending is not None and self._pending.done() else None

    def wait(self) -> float | None:
        """Wait until what was begun is on disk; return the seconds it took to write, or None if nothing was begun."""
        pending, self._pending = self._pending, None
        return None if pending is None else pending.result()

    def __enter__(self) -> "CheckpointWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(wait=True)
