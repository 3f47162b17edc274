"""The few numbers of each example (q, s, the target outputs, their derivatives) as numpy arrays.

A minibatch has some hundreds of them. An operation on so few costs far more to launch on a tensor than to compute;
numpy launches it in a fraction of that, and the tensor that numbers come from or go to shares their memory on the CPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Numbers = NDArray[Any]  # of float32 or float64
_DTYPES: dict[torch.dtype, Any] = {torch.float32: np.float32, torch.float64: np.float64}


def to_host(x: Tensor) -> Numbers:
    """Return x, which needs no gradient; shares the memory of a tensor on the CPU."""
    numbers: Numbers = x.numpy() if x.is_cpu else x.cpu().numpy()
    return numbers


def rounded(numbers: Numbers, like: Tensor) -> Numbers:
    """Return the numbers in the dtype of `like`."""
    return np.asarray(numbers, dtype=_DTYPES[like.dtype])


def from_host(numbers: Numbers, like: Tensor) -> Tensor:
    """Return the numbers in the dtype and on the device of `like`; on the CPU in the same memory, where it can."""
    x = torch.from_numpy(rounded(numbers, like))
    return x if like.is_cpu else x.to(like.device)
