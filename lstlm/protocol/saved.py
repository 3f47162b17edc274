"""What a saved state may say: a file can be whole, and well sealed, and yet nobody's weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lstlm.errors import CheckpointError

MOST_COUNT = 1 << 62
"""More has nobody counted: of steps, of words. TensorBoard has no room for it, either."""


def insist(holds: bool, what: str) -> None:
    """Raise with `what` the state says unless it makes sense."""
    if not holds:
        raise CheckpointError(f"{what}: makes no sense; the state is damaged")


def check_like(name: str, saved: object, like: Tensor) -> None:
    """Raise unless `saved` is a tensor of the kind of `like`, all of its numbers finite. Shapes are torch's affair."""
    if not isinstance(saved, Tensor):
        raise CheckpointError(f"{name}: {type(saved).__name__} where a tensor belongs; the state is damaged")
    if saved.dtype != like.dtype:
        raise CheckpointError(f"{name}: {saved.dtype} where {like.dtype} belongs; the state is damaged")
    if saved.is_floating_point():
        insist(all(map(math.isfinite, bounds(saved))), f"{name} with numbers that are not finite")


def bounds(x: Tensor | None) -> tuple[float, float]:
    """Return the smallest and the largest number, nan where one is; (1, 1) of nothing. Takes no memory."""
    if x is None or x.numel() == 0 or x.is_meta:
        return 1.0, 1.0
    low, high = x.aminmax()
    return low.item(), high.item()


def are_inverse(order: Tensor, place: Tensor) -> bool:
    """Say whether two tensors (n,) are permutations of 0 … n − 1, each the other's inverse."""
    low, high = bounds(place)
    n = len(order)
    return low >= 0 and high < n and torch.equal(order[place], torch.arange(n, device=order.device))
