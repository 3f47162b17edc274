"""The mathematics: a linear output layer with a spherical loss, updated in time independent of its size."""

from lstlm.spherical.layer import DenseSphericalOutput, SphericalOutput
from lstlm.spherical.losses import (
    CustomLoss,
    SphericalLoss,
    SphericalSoftmax,
    SquaredError,
    TaylorSoftmax,
    ZLoss,
    make_loss,
)

__all__ = [
    "CustomLoss",
    "DenseSphericalOutput",
    "SphericalLoss",
    "SphericalOutput",
    "SphericalSoftmax",
    "SquaredError",
    "TaylorSoftmax",
    "ZLoss",
    "make_loss",
]
