"""The factored and the naive layer of the spherical family, from a configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from lstlm.protocol.output_layer import OutputLayer
from lstlm.registry import LOSSES
from lstlm.spherical import DenseSphericalOutput, SphericalLoss, SphericalOutput, make_loss

if TYPE_CHECKING:
    from lstlm.config import OutputConfig


def factored(
    config: OutputConfig, hidden: int, counts: Tensor, make: Callable[..., OutputLayer] = SphericalOutput, **making: Any
) -> OutputLayer:
    """Return the layer of `output.kind: factored`; ranks that share its rows pass their own `make`."""
    settings = {name: getattr(config, name) for name in ("stabilise", "stabilise_range", "stabilise_every")}
    return make(hidden, len(counts), loss_of(config), **prior_of(config, counts), **settings, **making)


def naive(
    config: OutputConfig,
    hidden: int,
    counts: Tensor,
    make: Callable[..., OutputLayer] = DenseSphericalOutput,
    **making: Any,
) -> OutputLayer:
    """Return the layer of `output.kind: naive`; ranks that share its rows pass their own `make`."""
    return make(hidden, len(counts), loss_of(config), **prior_of(config, counts), **making)


def loss_of(config: OutputConfig) -> SphericalLoss:
    """Return the loss that the configuration names, with its settings."""
    return make_loss(config.loss, **{name: getattr(config, name) for name in LOSSES[config.loss].settings})


def prior_of(config: OutputConfig, counts: Tensor) -> dict[str, Tensor]:
    """Return the prior that the configuration names, as a keyword; nothing where it names none."""
    # one more of each: a word that the corpus lacks must not be impossible
    return {} if config.prior == "none" else {"prior": (counts + 1.0) ** config.prior_power}
