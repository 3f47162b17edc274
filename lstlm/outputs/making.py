"""The one place that makes an output layer from a configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lstlm.errors import ConfigError
from lstlm.protocol.output_layer import OutputLayer
from lstlm.registry import OUTPUTS, load

if TYPE_CHECKING:
    from lstlm.config import OutputConfig


def make_output(
    config: OutputConfig,
    hidden: int,
    counts: np.ndarray[Any, np.dtype[Any]] | Tensor,
    *,
    optimiser: str | None = None,
    **place: Any,
) -> OutputLayer:
    """Return the output layer that `config` names, for a vocabulary with these word counts (D,).

    `optimiser` is that of its rows, sgd or adagrad, by default the kind's own; `place` are the dtype, the device and
    the generator of the first weights, each optional.
    """
    make = load(OUTPUTS[config.kind].make)
    return _checked(make(config, hidden, frequencies_of(counts), **making_of(config, optimiser, place)))


def frequencies_of(counts: np.ndarray[Any, np.dtype[Any]] | Tensor) -> Tensor:
    """Return word counts (D,) as every maker of a layer takes them."""
    return torch.as_tensor(counts).to("cpu", torch.float64)


def making_of(config: OutputConfig, optimiser: str | None, place: dict[str, Any]) -> dict[str, Any]:
    """Return the keywords that every layer takes, and the optimiser for one that has a choice."""
    kind, common = OUTPUTS[config.kind], {"bias": config.bias, "init_scale": config.init_scale, **place}
    if kind.adagrad_rate is not None:
        return {**common, "optimiser": optimiser or kind.optimiser}
    if optimiser == "adagrad":
        raise ConfigError(f"optim.output adagrad: output.kind {kind.name} has no rates for single rows; use sgd")
    return common


def _checked(layer: object) -> OutputLayer:
    assert isinstance(layer, OutputLayer), f"{type(layer).__name__} must be an OutputLayer"
    return layer
