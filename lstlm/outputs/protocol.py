"""The one face that every output layer shows to a network, and the one place that makes a layer from a config."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from lstlm.errors import ConfigError
from lstlm.outputs.adaptive import AdaptiveSoftmax
from lstlm.outputs.hierarchical import HierarchicalSoftmax, assign_classes
from lstlm.outputs.sampled import SampledSoftmax
from lstlm.outputs.softmax import FullSoftmax
from lstlm.spherical import DenseSphericalOutput, SphericalOutput, make_loss

if TYPE_CHECKING:
    from lstlm.config import OutputConfig


@runtime_checkable
class OutputLayer(Protocol):
    """What stands at the end of a network: it owns W (D,hidden), gives losses, and takes its own exact SGD step.

        losses = layer(h, target_ids)       # (m,), differentiable to h
        losses.mean().backward()            # the gradient reaches h; the layer keeps what its step needs
        layer.update(lr)                    # once, for the backward passes since the last update

    Layers satisfy it by shape; they need not inherit from it.
    """

    hidden: int
    vocab: int

    @property
    def normalised(self) -> bool:
        """True when the layer defines a probability over the vocabulary, so that `log_prob` works."""

    def __call__(
        self, h: Tensor, target_ids: Tensor, target_values: Tensor | None = None, weight: Tensor | None = None
    ) -> Tensor:
        """Return losses (m,).  h (m,hidden); target_ids, target_values (m,) or (m,K); weight (m,)."""

    def update(self, lr: float, weight_decay: float = 0.0) -> None:
        """Apply W ← (1 − lr·weight_decay)·W − lr·∇W for the last backward."""

    def discard(self) -> None:
        """Forget the backward passes since the last update."""

    def log_prob(self, h: Tensor, ids: Tensor) -> Tensor:
        """Return log p(ids | h) (m,), normalised layers only."""

    def topk(self, h: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return (scores, ids), both (m,k), best first."""

    def rank_of(self, h: Tensor, ids: Tensor) -> Tensor:
        """Return 1 + how many words score above ids, (m,) or (m,K), int64; of equal scores, the lower id is above."""

    def weight(self) -> Tensor:
        """Return the word vectors of the output side (D,hidden), a copy."""

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a bit-identical continuation needs."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """Take over such a state."""


def make_output(
    config: OutputConfig,
    hidden: int,
    counts: np.ndarray[Any, np.dtype[Any]] | Tensor,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    generator: torch.Generator | None = None,
    factored: Callable[..., nn.Module] = SphericalOutput,
    naive: Callable[..., nn.Module] = DenseSphericalOutput,
) -> nn.Module:
    """Return the output layer that `config` names, for a vocabulary with these word counts (D,).

    `factored` and `naive` make these two: ranks that share the rows pass their own.
    """
    frequencies = torch.as_tensor(counts).to("cpu", torch.float64)
    vocab = len(frequencies)
    common: dict[str, Any] = {
        "bias": config.bias,
        "init_scale": config.init_scale,
        "dtype": dtype,
        "device": device,
        "generator": generator,
    }

    match config.kind:
        case "factored" | "naive":
            return _spherical(config, hidden, frequencies, common, factored if config.kind == "factored" else naive)
        case "softmax":
            return FullSoftmax(hidden, vocab, **common)
        case "hierarchical":
            classes = assign_classes(frequencies, config.classes, config.clustering)
            return HierarchicalSoftmax(hidden, classes, **common)
        case "adaptive":
            return AdaptiveSoftmax(hidden, frequencies, **common)
        case "sampled":
            return SampledSoftmax(hidden, frequencies, candidates=config.candidates, **common)
    raise ConfigError(
        f"output.kind {config.kind!r}: choose factored, naive, softmax, hierarchical, adaptive or sampled"
    )


def _spherical(
    config: OutputConfig, hidden: int, frequencies: Tensor, common: dict[str, Any], make: Callable[..., nn.Module]
) -> nn.Module:
    loss = make_loss(config.loss, a=config.a, b=config.b, epsilon=config.epsilon)
    vocab = len(frequencies)
    if config.prior == "unigram":
        # one more of each: a word that the corpus lacks must not be impossible
        common = {**common, "prior": frequencies + 1.0}
    if config.kind == "naive":
        return make(hidden, vocab, loss, **common)
    return make(
        hidden,
        vocab,
        loss,
        stabilise=config.stabilise,
        stabilise_range=config.stabilise_range,
        stabilise_every=config.stabilise_every,
        **common,
    )
