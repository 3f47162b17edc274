"""Language models with a full, huge output vocabulary: exact gradients at a cost that does not depend on its size.

    run = lstlm.load("runs/x")                  # use a trained model: run.most_similar("water"), run.generate("the")
    run = lstlm.train("demo", data="data/mine")
    head = lstlm.SphericalOutput(300, 800_000)  # an output layer for your own model

Names are resolved on first use, so that ``import lstlm`` (and with it ``lstlm --help``) does not pay for torch.
"""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

from lstlm.cores import openmp_settings

if TYPE_CHECKING:
    from lstlm.api import Corpus, Run, Vectors, load, load_vectors, prepare, train, train_vectors
    from lstlm.errors import CheckpointError, ConfigError, DataError, LstlmError, NumericsError, UnknownWord
    from lstlm.outputs import ShortlistSoftmax
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

if "torch" not in sys.modules:  # which reads them once, as it is imported
    for _name, _value in openmp_settings().items():
        os.environ.setdefault(_name, _value)

__version__ = "0.1.0"

__all__ = [
    "CheckpointError",
    "ConfigError",
    "Corpus",
    "CustomLoss",
    "DataError",
    "DenseSphericalOutput",
    "LstlmError",
    "NumericsError",
    "Run",
    "ShortlistSoftmax",
    "SphericalOutput",
    "SphericalSoftmax",
    "SquaredError",
    "TaylorSoftmax",
    "UnknownWord",
    "Vectors",
    "ZLoss",
    "__version__",
    "load",
    "load_vectors",
    "make_loss",
    "prepare",
    "train",
    "train_vectors",
]

_ROOMS = {  # where a public name lives; all others in spherical
    "api": {"Corpus", "Run", "Vectors", "load", "load_vectors", "prepare", "train", "train_vectors"},
    "errors": {"CheckpointError", "ConfigError", "DataError", "LstlmError", "NumericsError", "UnknownWord"},
    "outputs": {"ShortlistSoftmax"},
}


def __getattr__(name: str) -> object:
    """Import a public name from its room when it is first asked for (PEP 562)."""
    if name in __all__:
        room = next((room for room, names in _ROOMS.items() if name in names), "spherical")
        return getattr(import_module(f"lstlm.{room}"), name)
    raise AttributeError(f"module 'lstlm' has no attribute {name!r}; public names: {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
