"""The progress bar of everything that takes a while."""

from typing import Any

from tqdm import tqdm


class Bar(tqdm):  # type: ignore[type-arg]  # its type is generic in stubs alone
    """tqdm without the thread that watches for stalled bars: ending beside the interpreter, it can crash the process.

    It would see to bars that were told to look at the clock now and then; these look at every update.
    """

    monitor_interval = 0

    def __init__(self, **settings: Any) -> None:
        super().__init__(miniters=1, **settings)
