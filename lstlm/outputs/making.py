"""The one place that makes an output layer from a configuration."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lstlm.errors import ConfigError
from lstlm.protocol.output_layer import OutputLayer
from lstlm.registry import OUTPUTS, OutputKind, load

if TYPE_CHECKING:
    from lstlm.config import OutputConfig


def make_output(
    config: OutputConfig,
    hidden: int,
    counts: np.ndarray[Any, np.dtype[Any]] | Tensor,
    *,
    optimiser: str | None = None,
    ranks: Any = None,
    **place: Any,
) -> OutputLayer:
    """Return the output layer that `config` names, for a vocabulary with these word counts (D,).

    `optimiser` is that of its rows, sgd or adagrad, by default the kind's own; `place` are the dtype, the device and
    the generator of the first weights, each optional. With `ranks`, this rank's part of the layer.
    """
    kind, making = OUTPUTS[config.kind], {"bias": config.bias, "init_scale": config.init_scale, **place}
    if kind.adagrad_rate is not None:
        making["optimiser"] = optimiser or kind.optimiser
    elif optimiser == "adagrad":
        raise ConfigError(f"optim.output adagrad: output.kind {kind.name} has no rates for single rows; use sgd")
    frequencies = torch.as_tensor(counts).to("cpu", torch.float64)
    layer = _maker(kind, ranks)(config, hidden, frequencies, **making)
    assert isinstance(layer, OutputLayer), f"{type(layer).__name__} must be an OutputLayer"
    return layer


def _maker(kind: OutputKind, ranks: Any) -> Callable[..., Any]:
    if ranks is None:
        return load(kind.make)
    if kind.sharded is None:
        shared = " or ".join(kind.name for kind in OUTPUTS if kind.sharded is not None)
        raise ConfigError(
            f"output.kind {kind.name}: several ranks train {shared}; choose one, or start a single process"
        )
    return partial(load(kind.sharded), ranks)
