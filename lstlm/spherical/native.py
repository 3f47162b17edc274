"""The compiled functions of `kernel/`, where they were built.

The package's installation compiles them where there is a C compiler, and goes on without one. Their products are those
of the BLAS library inside PyTorch or, where that has none that is as good, their own; threads are PyTorch's. They
believe what they are told about sizes and types: who calls them has checked that, and takes another way where it does
not hold.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

AT_ONCE = 64  # rows that repair_rows takes at once, as in kernel/common.h
_GEMM = {torch.float32: "sgemm_", torch.float64: "dgemm_"}
_OPENMP = {"parallel": "GOMP_parallel", "thread_number": "omp_get_thread_num", "threads_at_work": "omp_get_num_threads"}
# pointer, count, number, word
_KINDS = {"p": ctypes.c_void_p, "n": ctypes.c_int64, "x": ctypes.c_double, "s": ctypes.c_char_p}
# what each function returns (nothing where "-") and takes
_SIGNATURES = {
    "sum_rows": "n pnnpnnxp",
    "write_rows": "n pnnpnp",
    "add_rows": "n pnnpnpnx",
    "adagrad_rows": "n pnnpnpnxpxxpnp",
    "product": "- psnnnxpnpnxpn",
    "layers_forward": "- pnnpnp",
    "layers_backward": "- pnnpnpppnp",
    "below_forward": "n p",
    "below_backward": "x p",
    "adagrad": "- nppppxx",
    "repair_rows": "n pnppnppnpp",
    "leave_segments": "- ppppnpppp",
    "power_iteration": "- pnnpnnppp",
    "repair": "- nnppnpppp",
    "read": "n p",
    "outputs": "- p",
    "backward": "- p",
    "differentiate": "n p",
    "shrinking": "- pp",
    "update": "n pn",
    "size_of_structs": "n ",
}
_UNTYPED = {"outside": "n pnn", "read_stamps": "n pnpnnnp", "write_stamps": "n pnpnn", "has_own_product": "n "}


class Products(ctypes.Structure):
    """`Products` of kernel/product.h, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("gemm", "parallel", "thread_number", "threads_at_work")),
        ("threads", ctypes.c_int64),
    )


class Below(ctypes.Structure):
    """`Below` of kernel/layers.h, field by field."""

    _fields_ = (
        ("by", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("m", "D", "size", "bags", "each")),
        ("scale", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("E", "context")),
        *((name, ctypes.c_int64) for name in ("activation", "count", "largest")),
        *((name, ctypes.c_void_p) for name in ("layers", "x", "dx", "dY", "spare")),
    )


class Step(ctypes.Structure):
    """`Step` of kernel/low_rank.h, field by field."""

    _fields_ = (
        ("by", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("d", "m", "width", "D")),
        *((name, ctypes.c_void_p) for name in ("table", "base", "deviation", "V", "ids", "HT", "p", "rows")),
        *((name, ctypes.c_void_p) for name in ("products", "outputs", "dq", "ds", "do", "grad_H")),
        *((name, ctypes.c_void_p) for name in ("A", "N", "C", "J", "stamp")),
        ("now", ctypes.c_int64),
        *((name, ctypes.c_double) for name in ("eta", "p_norm2")),
        ("loss", ctypes.c_int64),
        *((name, ctypes.c_double) for name in ("a", "b")),
        *((name, ctypes.c_void_p) for name in ("t", "upstream", "partials")),
    )


class Segments(ctypes.Structure):
    """`Segments` of kernel/history.h, field by field."""

    _fields_ = (
        ("by", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("d", "slots", "repairs", "open")),
        *((name, ctypes.c_void_p) for name in ("X", "Y", "U", "onward", "reached")),
    )


class Kernel:
    """The compiled functions for one type of number, by name, and the products that they shall take.

    `blas` is the address of those of PyTorch's BLAS, for a few rows; `products` of the faster ones for many.
    """

    def __init__(self, compiled: ctypes.CDLL, torch_cpu: ctypes.CDLL, dtype: torch.dtype) -> None:
        self._blas = Products(gemm=_address(torch_cpu, _GEMM[dtype]))
        self.blas = ctypes.addressof(self._blas)
        if not self._blas.gemm:
            raise AttributeError("PyTorch was built without a BLAS that can be called from here")
        suffix = str(dtype).removeprefix("torch.")
        names = {**{name: f"{name}_{suffix}" for name in _SIGNATURES}, **{name: name for name in _UNTYPED}}
        for name, symbol in names.items():
            function = getattr(compiled, symbol)
            returned, taken = (_SIGNATURES | _UNTYPED)[name].split(" ")
            function.restype, function.argtypes = _KINDS.get(returned), [_KINDS[kind] for kind in taken]
            setattr(self, name, function)
        sizes = [ctypes.sizeof(kind) for kind in (Step, Segments, Products, Below)]
        if self.size_of_structs() != sum(size * 1000**place for place, size in enumerate(reversed(sizes))):
            raise AttributeError("compiled from another revision")
        self._own = Products(**{name: _address(torch_cpu, symbol) for name, symbol in _OPENMP.items()})
        found = all((self._own.parallel, self._own.thread_number, self._own.threads_at_work))
        self.own_product = bool(found and self.has_own_product())

    @property
    def products(self) -> int:
        """The address of our own products where they are the faster ones, by as many threads as torch takes now."""
        if not self.own_product:
            return self.blas
        self._own.threads = torch.get_num_threads()
        return ctypes.addressof(self._own)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)  # here for the type checker: functions are attributes of their own


def kernel_for(x: Tensor) -> Kernel | None:
    """Return the compiled functions for tensors like x, of float32 or float64 on the CPU; None where it has none."""
    return _load(x.dtype) if plain(x) and not torch.compiler.is_compiling() else None


def kernel_of_ids(ids: Tensor) -> Kernel | None:
    """Return the compiled functions that take ids alone."""
    return _load(torch.float32) if plain(ids) else None


def plain(x: Tensor) -> bool:
    """Say whether x has its numbers in this machine's memory: not on a device, and not a tensor in name only."""
    return x.is_cpu and type(x) in (Tensor, nn.Parameter)


def _address(library: ctypes.CDLL, name: str) -> int | None:
    """Return where a function is, of a library or of those that it needs; None where it is not."""
    function = getattr(library, name, None)
    return None if function is None else ctypes.cast(function, ctypes.c_void_p).value


@cache
def _load(dtype: torch.dtype) -> Kernel | None:
    """Return the compiled functions for a dtype; None where they were not built or find no BLAS."""
    spec = find_spec("lstlm.spherical._kernel")
    if dtype not in _GEMM or spec is None or spec.origin is None:
        return None
    if sys.byteorder != "little":  # see Gemm in kernel/product.h
        return None
    try:
        torch_cpu = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        return Kernel(ctypes.CDLL(spec.origin), torch_cpu, dtype)
    except (OSError, AttributeError):
        return None
