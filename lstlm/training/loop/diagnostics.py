"""Figures about the output layer (lst/…), at a bounded price."""

from collections.abc import Callable
from time import perf_counter

import torch

from lstlm.outputs import OutputLayer

_SHARE = 0.004  # of the training time that the costly figures (singular values, sampled errors) may take


class Diagnostics:
    """Reads an output layer: its norm always, the layer's own diagnostics when their last price has been earned again.

    The norm costs O(d²). The rest needs a singular value decomposition, O(d³): at d=300 as much as ten steps, so at
    every log interval it would be a tenth of the time. Nothing here changes the model or draws its random numbers.
    """

    def __init__(self, decide: Callable[[bool], bool] = bool) -> None:
        """`decide` turns this process's vote, whether the price is earned, into the decision of all ranks."""
        self._decide = decide
        self._price = 0.0
        self._paid_at = float("-inf")

    def __call__(self, output: OutputLayer, *, full: bool = False) -> dict[str, float]:
        """Return lst/… figures; with `full`, all of them whatever they cost."""
        now = perf_counter()
        figures = _named(output.statistics())
        affordable = self._decide((now - self._paid_at) * _SHARE >= self._price)
        if full or affordable:
            with torch.random.fork_rng(devices=[]):
                figures.update(_named(output.diagnostics()))
            self._paid_at = perf_counter()
            self._price = self._paid_at - now
        return figures


def _named(figures: dict[str, float]) -> dict[str, float]:
    return {f"lst/{name}": value for name, value in figures.items()}
