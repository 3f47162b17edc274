"""The compiled functions of `kernel.c`, where they were built.

The package's installation compiles the kernel where there is a C compiler, and goes on without one. Its products are
those of the BLAS library inside PyTorch, so that threads and results are PyTorch's.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_POINTER, _COUNT, _NUMBER = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
_TABLE = [_POINTER, _COUNT]
_ARGUMENTS = {
    "read": [_POINTER],
    "outputs": [_POINTER],
    "backward": [_POINTER],
    "shrinking": [_POINTER, _POINTER],
    "series": [_POINTER, _COUNT],
    "update": [_POINTER],
    "sum_rows": [*_TABLE, _POINTER, _COUNT, _COUNT, _NUMBER, _POINTER],
    "add_rows": [*_TABLE, _POINTER, _COUNT, _POINTER, _COUNT, _NUMBER],
    "adagrad_rows": [*_TABLE, _POINTER, _POINTER, _COUNT, _POINTER, _COUNT, *[_NUMBER] * 3, _POINTER, _COUNT, _POINTER],
}
_ARGUMENTS |= {
    "layer_forward": [_POINTER, *[_COUNT] * 4, _POINTER, _POINTER, _POINTER, _COUNT, _POINTER],
    "layer_backward": [_POINTER, *[_COUNT] * 4, _POINTER, _POINTER, _COUNT, *[_POINTER] * 6],
}


class Kernel:
    """The functions of kernel.c for one type of number, and the address of the product that they call."""

    read: Any
    outputs: Any
    backward: Any
    shrinking: Any
    series: Any
    update: Any
    sum_rows: Any
    add_rows: Any
    adagrad_rows: Any
    layer_forward: Any
    layer_backward: Any

    def __init__(self, compiled: ctypes.CDLL, blas: ctypes.CDLL, dtype: torch.dtype) -> None:
        gemm = getattr(blas, {torch.float32: "sgemm_", torch.float64: "dgemm_"}[dtype])
        self.gemm = ctypes.cast(gemm, _POINTER).value
        for name, arguments in _ARGUMENTS.items():
            function = getattr(compiled, f"{name}_{str(dtype).removeprefix('torch.')}")
            function.argtypes, function.restype = arguments, None
            setattr(self, name, function)
        self.outside = compiled.outside
        self.outside.argtypes, self.outside.restype = [_POINTER, _COUNT, _COUNT], _COUNT


def kernel_for(x: Tensor) -> Kernel | None:
    """Return the compiled functions for tensors like x; None where it has none."""
    return _load(x.dtype if x.is_floating_point() else torch.float32) if x.is_cpu else None


@cache
def _load(dtype: torch.dtype) -> Kernel | None:
    """Return the compiled functions for float32 or float64; None where they were not built or find no BLAS."""
    spec = find_spec("lstlm.spherical.kernel")
    if spec is None or spec.origin is None or sys.byteorder != "little":  # see Gemm in kernel.c
        return None
    try:
        blas = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        return Kernel(ctypes.CDLL(spec.origin), blas, dtype)
    except (OSError, AttributeError):
        return None
