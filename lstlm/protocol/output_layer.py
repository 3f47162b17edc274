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
from lstlm.kernels.choice import Impl
from lstlm.kernels.targets import Targets
from lstlm.protocol.arguments import checked_targets, checked_tensor, without_autocast
from lstlm.protocol.scan import Scan, ranks_of, top_of

P = ParamSpec("P")
R = TypeVar("R")

_LEARNING = ("forward", "value_and_grad", "learn", "update", "_backward")


def alone(method: Callable[P, R]) -> Callable[P, R]:
    """Let a method that learns run in one thread at a time, and without autocast.

    A thread that comes to a layer while another is inside is refused: both would write, and neither would know. It does
    not wait: that would mix the backward passes of the two. Reading, without gradients, is free.
    """

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            return without_autocast(call)(*args, **kwargs)
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

    A kind of layer says how losses and gradients are computed (`_forward`, `_value_and_grad`, `update`), and how it is
    read (`log_prob`, `_scan`, `weight`); the rest has defaults. `state_dict` holds all that the next step depends on.
    """

    impl: Impl = "auto"  # of the operations that the layer calls
    takes_offsets = False  # whether examples may differ in the number of their targets

    def __init__(self, hidden: int, vocab: int) -> None:
        super().__init__()
        if hidden < 1 or vocab < 2:
            raise ConfigError(f"hidden = {hidden}, vocab = {vocab}: need hidden ≥ 1 and vocab ≥ 2")
        self.hidden = hidden
        self._pending: list[Any] = []  # the backward passes since the last update

    def __init_subclass__(cls, **options: Any) -> None:
        """Let every kind of layer learn in one thread at a time."""
        super().__init_subclass__(**options)
        for name in _LEARNING:
            if name in vars(cls):
                setattr(cls, name, alone(vars(cls)[name]))

    def __getstate__(self) -> dict[str, Any]:
        """A pending step belongs to an autograd graph: a copy starts without one."""
        return {**self.__dict__, "_pending": []}

    @property
    def vocab(self) -> int:
        """The number of outputs D."""
        raise NotImplementedError

    @property
    def normalised(self) -> bool:
        """Whether the layer defines a probability over the vocabulary, so that `log_prob` works."""
        raise NotImplementedError

    @property
    def like(self) -> Tensor:
        """A tensor of the layer's dtype and device."""
        raise NotImplementedError

    @property
    def dtype(self) -> torch.dtype:
        """The type it computes in: float32 or float64."""
        return self.like.dtype

    # ---- what it is given ----------------------------------------------------------------------------------------
    def _check(
        self,
        h: Tensor,
        target_ids: Tensor,
        target_values: Tensor | None = None,
        weight: Tensor | None = None,
        offsets: Tensor | None = None,
    ) -> Targets:
        """Return the targets, or say what is wrong with the arguments."""
        self._check_h(h)
        if offsets is not None and not self.takes_offsets:
            raise ConfigError(
                f"{type(self).__name__} takes targets (m,) or (m,K), without offsets; "
                "use output.kind factored or naive where examples differ in the number of their targets"
            )
        if weight is not None:
            checked_tensor("weight", weight)
        if weight is not None and weight.shape != (len(h),):
            raise ConfigError(f"weight has shape {tuple(weight.shape)}; expected ({len(h)},)")
        return checked_targets(target_ids, target_values, offsets, h.shape[0], self.vocab, self.impl)

    def _check_h(self, h: Tensor) -> None:
        checked_tensor("h", h)
        if h.dim() != 2 or h.shape[1] != self.hidden:
            raise ConfigError(f"h has shape {tuple(h.shape)}; expected (m, {self.hidden})")
        like = self.like
        if h.dtype != like.dtype or h.device != like.device:
            raise ConfigError(f"h is {h.dtype} on {h.device}; the layer is {like.dtype} on {like.device}")

    def _unusual(self, h: Tensor) -> bool:
        """Whether h is no matrix, or empty, or of half precision, as under autocast: what `_by_rows` is for."""
        checked_tensor("h", h)
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

        def rows(x: Any) -> Any:
            return None if x is None else x.reshape(shape.numel(), *x.shape[len(shape) :])

        if shape.numel() == 0:
            return h.sum(-1).to(self.dtype)  # no losses, but part of the graph
        if offsets is None:
            target_ids, target_values = rows(target_ids), rows(target_values)
        matrix = h.reshape(shape.numel(), h.shape[-1]).to(self.dtype)
        losses: Tensor = self(matrix, target_ids, target_values, rows(weight), offsets)
        return losses.view(shape)

    # ---- learning ------------------------------------------------------------------------------------------------
    @alone
    def forward(
        self,
        h: Tensor,
        target_ids: Tensor,
        target_values: Tensor | None = None,
        weight: Tensor | None = None,
        offsets: Tensor | None = None,
    ) -> Tensor:
        """Return the losses (m,) of h (m,hidden) for target_ids (m,) or (m,K), target_values like the ids or all ones.

        Also h (B,T,hidden) with target_ids (B,T), for losses (B,T). Where examples differ in the number of their
        targets, target_ids (n,) has all of them, one example's after the other's, and offsets (m,), or (m+1,) with the
        end, says where each begins, as in torch.nn.EmbeddingBag; a kind that cannot do so raises ConfigError.
        `weight` (m,) multiplies the losses. Autograd reaches h alone; the weights wait for `update`.
        """
        if self._unusual(h):
            return self._by_rows(h, target_ids, target_values, weight, offsets)
        targets = self._check(h, target_ids, target_values, weight, offsets)
        if torch.is_grad_enabled() and not h.requires_grad:
            h = h.detach().requires_grad_()  # fixed features: the weights of this layer learn all the same
        losses = self._forward(h, targets)
        return losses if weight is None else losses * weight

    @alone
    def value_and_grad(
        self,
        h: Tensor,
        target_ids: Tensor,
        target_values: Tensor | None = None,
        weight: Tensor | None = None,
        offsets: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the losses (m,) and the gradient to h (m,hidden) of Σ weight·loss, weight (m,), the mean where None.

        The targets are as in `forward`. That is forward and backward less the cost of autograd, about a tenth of a
        step. `update` comes next, and `h.backward(gradient)` goes on to the layers below.
        """
        targets = self._check(h, target_ids, target_values, weight, offsets)
        # what is detached leaves autograd nothing to record: the weights are buffers
        return self._value_and_grad(h.detach(), targets, None if weight is None else weight.detach())

    def _forward(self, h: Tensor, targets: Targets) -> Tensor:
        """Return the losses (m,) for arguments that have been checked; their backward leaves a step with the layer."""
        raise NotImplementedError

    def _value_and_grad(self, h: Tensor, targets: Targets, weight: Tensor | None) -> tuple[Tensor, Tensor]:
        """Do what `value_and_grad` does, for arguments that have been checked."""
        raise NotImplementedError

    def update(self, lr: float, weight_decay: float = 0.0) -> None:
        """W ← (1 − lr·weight_decay)·W − lr·∇W for the backward passes since the last update."""
        raise NotImplementedError

    def discard(self) -> None:
        """Forget the backward passes since the last update."""
        self._pending.clear()

    def expect(self, target_ids: Tensor) -> None:
        """Take note of the targets of minibatches to come, ids of any shape; changes no weight."""

    def restore(self) -> bool:
        """Fold whatever stands for W into plain weights, without changing W; say whether there was anything to fold."""
        return False

    # ---- reading -------------------------------------------------------------------------------------------------
    def log_prob(self, h: Tensor, ids: Tensor) -> Tensor:
        """Return log p(ids | h) in the shape of ids, (m,) or (m,K), where the layer is normalised."""
        raise ConfigError(f"{type(self).__name__} defines no probability")

    @torch.no_grad()
    @without_autocast
    def topk(self, h: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return (scores, ids), both (m,k), best first; the scores are log-probabilities where there are any.

        It reads the whole vocabulary, block by block: ask for many examples at once.
        """
        self._check_h(h)
        if not 1 <= k <= self.vocab:
            raise ConfigError(f"k = {k}: must be between 1 and the vocabulary size {self.vocab}")
        return self._best_of_all(*top_of(self._scan(h), k), k)

    @torch.no_grad()
    @without_autocast
    def rank_of(self, h: Tensor, ids: Tensor) -> Tensor:
        """Return 1 + how many words score above ids, (m,) or (m,K), int64; of equal scores, the lower id is above."""
        self._check(h, ids)
        return ranks_of(self._scan(h), ids, self._total)

    def _scan(self, h: Tensor) -> Scan:
        """Return a scan over the words kept here, whose scores order the words of an example."""
        raise NotImplementedError

    def _best_of_all(self, scores: Tensor, ids: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return the best k of all ranks' best (m,k) and their ids, given those of the words kept here: all words."""
        return scores, ids

    def _total(self, x: Tensor) -> Tensor:
        """Return the sum of x over the ranks that share the words; x itself where all are kept here."""
        return x

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
