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
    squares: float = 0.0,
    classes: Tensor | None = None,
    ranks: Any = None,
    **place: Any,
) -> OutputLayer:
    """Return the output layer that `config` names, for a vocabulary with these word counts (D,).

    `optimiser` is that of its rows, sgd or adagrad, by default the kind's own, and `squares` what adagrad begins at;
    `classes` are those of the middle of a shortlist; `place` are the dtype, the device and the generator of the first
    weights, each optional. With `ranks`, this rank's part of the layer.
    """
    kind, making = OUTPUTS[config.kind], {"bias": config.bias, "init_scale": config.init_scale, **place}
    if kind.adagrad_rate is not None:
        making |= {"optimiser": optimiser or kind.optimiser, "squares": squares}
    elif optimiser == "adagrad":
        raise ConfigError(f"optim.output adagrad: output.kind {kind.name} has no rates for single rows; use sgd")
    frequencies = torch.as_tensor(counts).to("cpu", torch.float64)
    if classes is not None:
        making["classes"] = classes
    if ranks is not None:
        making["make"] = partial(_sharded(kind), ranks)
    layer = load(kind.make)(config, hidden, frequencies, **making)
    assert isinstance(layer, OutputLayer), f"{type(layer).__name__} must be an OutputLayer"
    return layer


def _sharded(kind: OutputKind) -> Callable[..., Any]:
    if kind.sharded is None:
        shared = " or ".join(kind.name for kind in OUTPUTS if kind.sharded is not None)
        raise ConfigError(
            f"output.kind {kind.name}: several ranks train {shared}; choose one, or start a single process"
        )
    return load(kind.sharded)
