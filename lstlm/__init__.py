"""Language models with a full, huge output vocabulary: exact gradients at a cost that does not depend on its size.

The library in one line: ``from lstlm import SphericalOutput``.  Names are resolved on first use, so that
``import lstlm`` (and with it ``lstlm --help``) does not pay for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lstlm.spherical import (
        CustomLoss,
        DenseSphericalOutput,
        SphericalOutput,
        SphericalSoftmax,
        SquaredError,
        TaylorSoftmax,
        ZLoss,
        make_loss,
    )

__version__ = "0.1.0"

__all__ = [
    "CustomLoss",
    "DenseSphericalOutput",
    "SphericalOutput",
    "SphericalSoftmax",
    "SquaredError",
    "TaylorSoftmax",
    "ZLoss",
    "__version__",
    "make_loss",
]


def __getattr__(name: str) -> object:
    """Import a public name from ``lstlm.spherical`` when it is first asked for (PEP 562)."""
    if name in __all__:
        return getattr(import_module("lstlm.spherical"), name)
    raise AttributeError(f"module 'lstlm' has no attribute {name!r}; public names: {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
