"""The compiled functions of `kernel.c`, for whoever finds them built; and what takes their place where they are not.

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

_POINTER, _COUNT = ctypes.c_void_p, ctypes.c_int64
_ARGUMENTS = {
    "read": [_POINTER],
    "outputs": [_POINTER],
    "backward": [_POINTER],
    "shrinking": [_POINTER, _POINTER],
    "series": [_POINTER, _COUNT],
    "update": [_POINTER],
    "gather": [_POINTER, _COUNT, _POINTER, _COUNT, _POINTER],
    "add_rows": [_POINTER, _COUNT, _POINTER, _COUNT, _POINTER],
}


class Kernel:
    """The functions of kernel.c for one type of number, and the address of the product that they call."""

    read: Any
    outputs: Any
    backward: Any
    shrinking: Any
    series: Any
    update: Any
    gather: Any
    add_rows: Any

    def __init__(self, compiled: ctypes.CDLL, blas: ctypes.CDLL, dtype: torch.dtype) -> None:
        gemm = getattr(blas, {torch.float32: "sgemm_", torch.float64: "dgemm_"}[dtype])
        self.gemm = ctypes.cast(gemm, _POINTER).value
        for name, arguments in _ARGUMENTS.items():
            function = getattr(compiled, f"{name}_{str(dtype).removeprefix('torch.')}")
            function.argtypes, function.restype = arguments, None
            setattr(self, name, function)


def kernel_for(x: Tensor) -> Kernel | None:
    """Return the compiled functions for tensors like x; None where it has none."""
    return _load(x.dtype) if x.is_cpu else None


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


def gather(table: Tensor, ids: Tensor) -> Tensor:
    """Return table[ids] (n,size) for ids (n,), which are not checked."""
    kernel = kernel_for(table)
    if kernel is None or not table.is_contiguous():
        return table.index_select(0, ids)
    ids, rows = ids.contiguous(), table.new_empty(len(ids), table.shape[1])
    kernel.gather(table.data_ptr(), table.shape[1], ids.data_ptr(), len(ids), rows.data_ptr())
    return rows


def add_rows(table: Tensor, ids: Tensor, change: Tensor) -> None:
    """table[ids] ← table[ids] + change, for ids (n,) and change (n,size); changes of a repeated id add up."""
    kernel = kernel_for(table)
    if kernel is None or not table.is_contiguous():
        # index_add_, not table[ids] += …: a word that is the target twice must count twice
        table.index_add_(0, ids, change)
        return
    ids, change = ids.contiguous(), change.contiguous()
    kernel.add_rows(table.data_ptr(), table.shape[1], ids.data_ptr(), len(ids), change.data_ptr())
