"""How numbers lie in memory, which decides how fast a step is.

The few numbers of each example (q, s, the target outputs, their derivatives) are numpy arrays.
A minibatch has some hundreds of them. An operation on so few costs far more to launch on a tensor than to compute;
numpy launches it in a fraction of that, and the tensor that numbers come from or go to shares their memory on the CPU.
Large products go into rows that start at cache lines.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

CACHE_LINE_BYTES = 64
LINE_NUMBERS = 16  # float32 in a cache line; float64 has two lines, so that converting a layer keeps its shapes
Numbers = NDArray[Any]  # of float32 or float64
_DTYPES: dict[torch.dtype, Any] = {torch.float32: np.float32, torch.float64: np.float64}


def to_host(x: Tensor) -> Numbers:
    """Return x, which needs no gradient; shares the memory of a tensor on the CPU."""
    numbers: Numbers = x.numpy() if x.is_cpu else x.cpu().numpy()
    return numbers


def handy(x: Tensor) -> Any:
    """Return x for element-wise work: its numbers, in the same memory, on the CPU; itself elsewhere."""
    return to_host(x) if x.is_cpu else x


def rounded(numbers: Numbers, like: Tensor) -> Numbers:
    """Return the numbers in the dtype of `like`."""
    return np.asarray(numbers, dtype=_DTYPES[like.dtype])


def from_host(numbers: Numbers, like: Tensor) -> Tensor:
    """Return the numbers in the dtype and on the device of `like`; on the CPU in the same memory, where it can."""
    x = torch.from_numpy(rounded(numbers, like))
    return x if like.is_cpu else x.to(like.device)


def store(numbers: Numbers, place: Tensor) -> None:
    """place ← numbers, of any dtype."""
    if place.is_cpu:
        to_host(place)[...] = numbers
    else:
        place.copy_(torch.from_numpy(numbers))


def aligned(like: Tensor, rows: int, columns: int) -> Tensor:
    """Return an empty (rows,columns), of the dtype and on the device of `like`, whose rows start at cache lines.

    A product is written into such memory up to a third faster than into rows of 300 floats, half of which start
    in the middle of what the processor writes at once.
    """
    return like.new_empty(rows, aligned_width(columns))[:, :columns]


def product(A: Tensor, B: Tensor) -> Tensor:
    """Return AB in aligned memory."""
    return torch.mm(A, B, out=aligned(A, len(A), B.shape[1]))


def symmetric_product(A: Tensor, B: Tensor) -> Tensor:
    """Return AᵀB (d,d) in aligned memory, of which is known that it is symmetric: a quarter of it is copied."""
    C, half = aligned(A, A.shape[1], B.shape[1]), B.shape[1] // 2
    torch.mm(A.T, B[:, :half], out=C[:, :half])
    torch.mm(A[:, half:].T, B[:, half:], out=C[half:, half:])
    C[:half, half:] = C[half:, :half].T
    return C


def aligned_width(columns: int) -> int:
    """Return how many columns to keep room for, so that every row starts at a cache line."""
    return -(-columns // LINE_NUMBERS) * LINE_NUMBERS
