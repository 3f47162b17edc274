"""The one place that makes an output layer from a configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lstlm.output_layer import OutputLayer
from lstlm.registry import OUTPUTS, load

if TYPE_CHECKING:
    from lstlm.config import OutputConfig


def make_output(
    config: OutputConfig, hidden: int, counts: np.ndarray[Any, np.dtype[Any]] | Tensor, **place: Any
) -> OutputLayer:
    """Return the output layer that `config` names, for a vocabulary with these word counts (D,).

    `place` are the dtype, the device and the generator of the first weights, each optional.
    """
    return _checked(load(OUTPUTS[config.kind].make)(config, hidden, frequencies_of(counts), **making_of(config, place)))


def frequencies_of(counts: np.ndarray[Any, np.dtype[Any]] | Tensor) -> Tensor:
    """Return word counts (D,) as every maker of a layer takes them."""
    return torch.as_tensor(counts).to("cpu", torch.float64)


def making_of(config: OutputConfig, place: dict[str, Any]) -> dict[str, Any]:
    """Return the keywords that every layer takes."""
    return {"bias": config.bias, "init_scale": config.init_scale, **place}


def _checked(layer: object) -> OutputLayer:
    assert isinstance(layer, OutputLayer), f"{type(layer).__name__} must be an OutputLayer"
    return layer
