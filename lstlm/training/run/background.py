"""Checkpoints that training does not wait for: it writes to a temporary folder and goes on; a thread finishes them.

Gigabytes are in the system's cache within a second; that is the consistent copy, and takes no memory of the process.
The long part is syncing, hashing, naming. Where the cache has no room, on a small machine with a slow disk, the writing
itself waits for the disk, as it always did.
"""

from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any

from lstlm.training.run.checkpoint import begin_checkpoint, finish_checkpoint, keep_best_and_newest


class CheckpointWriter:
    """Finishes one checkpoint at a time in a thread of its own. While entered; whoever leaves waits for it.

    What fails there is raised by the next call here, so that training ends with it as if it had waited.
    """

    def __init__(self, root: Path, facts: Mapping[str, Any], keep: int) -> None:
        self._root, self._facts, self._keep = root, facts, keep
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[float] | None = None

    def save(self, step: int, contents: Mapping[str, Any], *, best: bool) -> None:
        """Write `contents`, once the checkpoint before is done, and begin to make a checkpoint of them.

        They may change as soon as this returns.
        """
        self.wait()
        temporary = begin_checkpoint(self._root, step, contents)
        self._pending = self._thread.submit(self._finish, temporary, step, list(contents), best)

    def _finish(self, temporary: Path, step: int, names: Iterable[str], best: bool) -> float:
        """Make the checkpoint out of the files; return the seconds it took."""
        began = perf_counter()
        folder = finish_checkpoint(temporary, step, names, self._facts)
        keep_best_and_newest(folder, best=best, keep=self._keep)
        return perf_counter() - began

    def poll(self) -> float | None:
        """Return the seconds that a checkpoint took in the background, once, when it is done; else None."""
        return self.wait() if self._pending is not None and self._pending.done() else None

    def wait(self) -> float | None:
        """Wait until what was begun is a checkpoint; return the seconds that took, or None if nothing was begun."""
        pending, self._pending = self._pending, None
        return None if pending is None else pending.result()

    def __enter__(self) -> "CheckpointWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(wait=True)
