"""Figures about the output layer (lst/…), at a bounded price."""

from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch

_SHARE = 0.004  # of the training time that the costly figures (singular values, sampled errors) may take


class Diagnostics:
    """Reads an output layer: its norm always, the layer's own diagnostics when their last price has been earned again.

    The norm costs O(d²). The rest needs a singular value decomposition, O(d³): at d=300 as much as ten steps, so at
    every log interval it would be a tenth of the time. Nothing here changes the model or draws its random numbers.
    """

    def __init__(self, decide: Callable[[bool], bool] = bool) -> None:
        """Take what makes of this process's opinion, whether the price is earned, a decision of all ranks."""
        self._decide = decide
        self._price = 0.0
        self._paid_at = float("-inf")

    def __call__(self, output: Any, *, full: bool = False) -> dict[str, float]:
        """Return lst/… figures; with `full`, all of them whatever they cost."""
        now = perf_counter()
        figures = {"lst/weight_norm": float(output.weight_norm())} if hasattr(output, "weight_norm") else {}
        affordable = self._decide((now - self._paid_at) * _SHARE >= self._price)
        if hasattr(output, "diagnostics") and (full or affordable):
            with torch.random.fork_rng(devices=[]):
                figures.update({f"lst/{name}": float(value) for name, value in output.diagnostics().items()})
            self._paid_at = perf_counter()
            self._price = self._paid_at - now
        return figures
