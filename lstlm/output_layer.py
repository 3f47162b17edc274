"""`OutputLayer`: the one face that every output layer shows to a network."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from lstlm.errors import ConfigError

P = ParamSpec("P")
R = TypeVar("R")

_LEARNING = ("forward", "value_and_grad", "learn", "update", "_backward")


def alone(method: Callable[P, R]) -> Callable[P, R]:
    """Refuse a thread that comes to a layer while another is inside: both would write, and neither would know.

    Tried, not waited for: to wait would mix the backward passes of the two. Reading, without gradients, is free.
    """

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        inside: dict[str, Any] = vars(args[0])
        me = threading.get_ident()
        if inside.get("_learning") == me or (method.__name__ == "forward" and not torch.is_grad_enabled()):
            return method(*args, **kwargs)
        if inside.setdefault("_learning", me) != me:  # one step of the interpreter: no lock that copies would share
            raise ConfigError(
                "two threads learn with one output layer at once; give each its own copy, or hold a lock from "
                "forward to update"
            )
        try:
            return method(*args, **kwargs)
        finally:
            del inside["_learning"]

    return call


class OutputLayer(nn.Module):
    """What stands at the end of a network: it owns W (D,hidden), gives losses, and takes its own exact step.

        losses = layer(h, target_ids)       # (m,), differentiable to h
        losses.mean().backward()            # the gradient reaches h; the layer keeps what its step needs
        layer.update(lr)                    # once, for the backward passes since the last update

    or, without autograd, `losses, gradient = layer.value_and_grad(h, target_ids)` and `layer.update(lr)`.

    A kind of layer says how `forward` and `update` go, and how it is read (`log_prob`, `topk`, `rank_of`, `weight`);
    the rest has defaults for a layer that has nothing to tell. `state_dict` holds all that the next step depends on.
    """

    hidden: int

    def __init_subclass__(cls, **options: Any) -> None:
        """Let every kind of layer learn in one thread at a time."""
        super().__init_subclass__(**options)
        for name in _LEARNING:
            if name in vars(cls):
                setattr(cls, name, alone(vars(cls)[name]))

    @property
    def vocab(self) -> int:
        """The number of outputs D."""
        raise NotImplementedError

    @property
    def normalised(self) -> bool:
        """Whether the layer defines a probability over the vocabulary, so that `log_prob` works."""
        raise NotImplementedError

    @property
    def dtype(self) -> torch.dtype:
        """The type it computes in: float32 or float64."""
        raise NotImplementedError

    def _unusual(self, h: Tensor) -> bool:
        """Whether h is no matrix, or empty, or of half precision, as under autocast: what `_by_rows` is for."""
        if not isinstance(h, Tensor):
            raise ConfigError(f"h is a {type(h).__name__}; expected a tensor")
        return h.dim() > 2 or h.dtype in (torch.bfloat16, torch.float16) or (h.dim() == 2 and len(h) == 0)

    def _by_rows(
        self,
        h: Tensor,
        target_ids: Tensor,
        target_values: Tensor | None,
        weight: Tensor | None,
        offsets: Tensor | None = None,
    ) -> Tensor:
        """Return losses (…) of h (…,hidden), ids and values (…) or (…,K), weight (…), computed in the layer's dtype.

        With offsets, ids and values are (n,) all the same.
        """
        shape = h.shape[:-1]

        def rows(x: Tensor | None) -> Tensor | None:
            return None if x is None else x.reshape(shape.numel(), *x.shape[len(shape) :])

        if shape.numel() == 0:
            return h.sum(-1).to(self.dtype)  # no losses, but part of the graph
        matrix = h.reshape(shape.numel(), h.shape[-1]).to(self.dtype)
        if offsets is not None:
            ragged: Tensor = self(matrix, target_ids, target_values, rows(weight), offsets)
            return ragged.view(shape)
        losses: Tensor = self(matrix, rows(target_ids), rows(target_values), rows(weight))
        return losses.view(shape)

    # ---- learning ------------------------------------------------------------------------------------------------
    def forward(
        self,
        h: Tensor,
        target_ids: Tensor,
        target_values: Tensor | None = None,
        weight: Tensor | None = None,
        offsets: Tensor | None = None,
    ) -> Tensor:
        """Return losses (m,).  h (m,hidden); target_ids, target_values (m,) or (m,K); weight (m,).

        Also h (B,T,hidden) with target_ids (B,T), for losses (B,T). With offsets (m,) or (m+1,), target_ids and
        target_values are (n,), and example i has those from offsets[i] on; a kind that cannot do so raises ConfigError.
        """
        raise NotImplementedError

    def value_and_grad(
        self,
        h: Tensor,
        target_ids: Tensor,
        target_values: Tensor | None = None,
        weight: Tensor | None = None,
        offsets: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the losses (m,) and the gradient to h (m,hidden) of Σ weight·loss, weight (m,), the mean where None.

        `update` comes next, as after `backward`.
        """
        with torch.enable_grad():
            leaf = h.detach().requires_grad_()
            losses: Tensor = self(leaf, target_ids, target_values, offsets=offsets)
        upstream = torch.full_like(losses, 1 / len(losses)) if weight is None else weight.to(losses)
        (gradient,) = torch.autograd.grad(losses, leaf, upstream)
        return losses.detach(), gradient

    def update(self, lr: float, weight_decay: float = 0.0) -> None:
        """W ← (1 − lr·weight_decay)·W − lr·∇W for the backward passes since the last update."""
        raise NotImplementedError

    def discard(self) -> None:
        """Forget the backward passes since the last update."""
        raise NotImplementedError

    def expect(self, target_ids: Tensor) -> None:
        """Hear the targets of some minibatches to come, of any shape; changes no weight."""

    def restore(self) -> bool:
        """Fold whatever stands for W into plain weights, without changing W; say whether there was anything to fold."""
        return False

    # ---- reading -------------------------------------------------------------------------------------------------
    def log_prob(self, h: Tensor, ids: Tensor) -> Tensor:
        """Return log p(ids | h) in the shape of ids, (m,) or (m,K), where the layer is normalised."""
        raise ConfigError(f"{type(self).__name__} defines no probability")

    def topk(self, h: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return (scores, ids), both (m,k), best first; the scores are log-probabilities where there are any."""
        raise NotImplementedError

    def rank_of(self, h: Tensor, ids: Tensor) -> Tensor:
        """Return 1 + how many words score above ids, (m,) or (m,K), int64; of equal scores, the lower id is above."""
        raise NotImplementedError

    def weight(self) -> Tensor:
        """Return the word vectors of the output side (D,hidden), a copy."""
        raise NotImplementedError

    # ---- figures about the layer -----------------------------------------------------------------------------------
    def grad_norm(self) -> float:
        """Return ‖∇W‖_F of what backward delivered since the last update; nan where the layer does not know it."""
        return math.nan

    def statistics(self) -> dict[str, float]:
        """Return figures that cost little, for every line of a log."""
        return {}

    def diagnostics(self) -> dict[str, float]:
        """Return figures that cost as much as many steps."""
        return {}

    @property
    def last_stabilise_ms(self) -> float:
        """How many milliseconds of the last update went into keeping the numbers healthy."""
        return 0.0
