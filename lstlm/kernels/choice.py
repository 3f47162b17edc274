"""Which form of an operation is at work."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lstlm.errors import ConfigError

Impl = Literal["auto", "native", "torch"]

native: Any = None
"""The compiled functions; None where they could not be loaded, and then `problem` says why."""
problem: str | None = None
try:
    native = import_module("lstlm.kernels._native")
except ImportError as error:  # not compiled, or for another Python or PyTorch
    problem = str(error)

_FLOATS = (torch.float32, torch.float64)
_PLAIN = (Tensor, nn.Parameter)  # others are tensors in name only, such as those of a tracer


def native_for(impl: Impl, x: Tensor) -> Any:
    """Return the compiled functions, if numbers like x's are for them and `impl` agrees; else None.

    "auto" takes them wherever it can; "native" raises ConfigError where it cannot.
    """
    if impl == "torch":
        return None
    if native is not None and x.is_cpu and x.dtype in _FLOATS and type(x) in _PLAIN:
        return native
    if impl == "native":
        raise ConfigError(f"impl='native': {problem or f'no compiled code for {x.dtype} on {x.device}'}")
    return None


def native_for_ids(impl: Impl, ids: Tensor) -> Any:
    """Return the compiled functions, if ids are where they can be read and `impl` agrees; else None."""
    return native if impl != "torch" and ids.is_cpu and type(ids) is Tensor else None


def describe() -> dict[str, Any]:
    """Say which form is at work on the CPU, and why not the other: for `lstlm env`."""
    vectors = None if native is None else {4: "512 bits", 3: "256 bits"}.get(native.level(), "128 bits")
    return {"kernels": "torch" if native is None else "native", "why_not_native": problem, "vectors": vectors}
