"""torch's adaptive softmax: frequent words in full, rare ones in clusters of ever smaller projections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lstlm.errors import ConfigError
from lstlm.outputs.base import RecordedOutput, RecordedStep
from lstlm.outputs.rows import Making, ScaledRows
from lstlm.protocol.saved import are_inverse, bounds, insist
from lstlm.protocol.scan import Block, Scan

if TYPE_CHECKING:
    from lstlm.config import OutputConfig

_SMALLEST_VOCABULARY = 8


class AdaptiveSoftmax(RecordedOutput):
    """`torch.nn.AdaptiveLogSoftmaxWithLoss` behind the protocol of this package, with SGD of its own.

    Words are ranked by counts (D,); the short list holds D^0.6 of them and the two tails end at D^0.8 and D, with
    projections of hidden/4 and hidden/16 (halving less for tiny hidden sizes). A bias exists for the short list alone.
    """

    rank: Tensor
    word_of_rank: Tensor

    def __init__(self, hidden: int, counts: Tensor, **making: Any) -> None:
        """Make a layer for as many words as have a count; the keywords are those of `Making`."""
        make = Making(**making)
        vocab = len(counts)
        super().__init__(hidden, vocab)
        if vocab < _SMALLEST_VOCABULARY:
            raise ConfigError(f"output.kind adaptive: {vocab} words are too few for its clusters; use softmax")
        cutoffs = [round(vocab**0.6), round(vocab**0.8)]
        shrink = 4.0 if hidden >= 16 else 2.0 if hidden >= 4 else 1.0
        # skip_init: the module would draw from the global generator, and we draw below from our own
        self.module: nn.AdaptiveLogSoftmaxWithLoss = nn.utils.skip_init(  # type: ignore[no-untyped-call]
            nn.AdaptiveLogSoftmaxWithLoss,
            hidden,
            vocab,
            cutoffs,
            div_value=shrink,
            head_bias=make.bias,
            dtype=make.dtype or torch.get_default_dtype(),
            device=make.device or "cpu",
        )
        with torch.no_grad():
            for name, p in self.module.named_parameters():
                limit = (3.0 / p.shape[-1]) ** 0.5 if make.init_scale is None else make.init_scale * 3.0**0.5
                p.zero_() if name.endswith("bias") else p.uniform_(-limit, limit, generator=make.generator)
        for number, p in enumerate(self.module.parameters() if make.adagrad else ()):
            self.register_buffer(f"squares_{number}", p.new_full((len(p),), make.squares))
        self.adagrad = make.adagrad
        order = counts.argsort(descending=True, stable=True).cpu()
        self.register_buffer("word_of_rank", order.to(self._anchor().device))
        self.register_buffer("rank", order.argsort().to(self._anchor().device))

    def _load_from_state_dict(self, *args: object, **kwargs: object) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        insist(are_inverse(self.word_of_rank, self.rank), "an order of words that is none")
        for name, buffer in self.named_buffers(recurse=False):
            insist(not name.startswith("squares") or bounds(buffer)[0] >= 0, "a sum of squares below 0")

    def _anchor(self) -> Tensor:
        return self.module.head.weight

    @property
    def like(self) -> Tensor:
        return self._anchor()

    def _losses(self, h: Tensor, ids: Tensor, t: Tensor) -> tuple[Tensor, RecordedStep]:
        step = _AutogradStep(self, h, ids, t)
        return step.losses.detach(), step

    def _apply_steps(self, steps: list[RecordedStep], lr: float, keep: float) -> None:
        if not self.adagrad:
            return super()._apply_steps(steps, lr, keep)
        for number, parameter in enumerate(self.module.parameters()):
            found = [step.found[number] for step in steps if isinstance(step, _AutogradStep)]
            parameter.mul_(keep)
            if gradients := [gradient for gradient in found if gradient is not None]:
                total = torch.stack(gradients).sum(0)
                squares = self.get_buffer(f"squares_{number}")
                squares += total.view(len(total), -1).square().mean(1)
                rates = squares.sqrt().add_(1e-10).reciprocal_().mul_(-lr)
                parameter.addcmul_(total, rates if total.ndim == 1 else rates[:, None])
        return None

    def log_prob_pairs(self, h: Tensor, ids: Tensor) -> Tensor:
        """Return log p(ids | h) (m,K) with autograd's graph if it is on.  h (m,hidden), ids (m,K)."""
        each = h if ids.shape[1] == 1 else h.repeat_interleave(ids.shape[1], 0)
        output: Tensor = self.module(each, self.rank[ids.reshape(-1)]).output
        return output.view(ids.shape)

    @torch.no_grad()
    def log_prob(self, h: Tensor, ids: Tensor) -> Tensor:
        """Return log p(ids | h) in the shape of ids, (m,) or (m,K)."""
        self._check(h, ids)
        return self.log_prob_pairs(h, ids.reshape(len(h), -1)).view(ids.shape)

    def _scan(self, h: Tensor) -> Scan:
        """Log-probabilities: the short list, then the tails by blocks."""
        short = self.module.shortlist_size
        head = self.module.head(h).log_softmax(1)
        tails = []  # the projected h, its matrix, and what makes log-probabilities of their products
        for number, tail in enumerate(self.module.tail):
            small, rows = tail[0](h), ScaledRows(tail[1].weight.detach(), bias=False)  # type: ignore[index]
            tails.append((small, rows, head[:, short + number, None] - rows.log_normaliser(small)[:, None]))

        def blocks() -> Iterator[Block]:
            words, rest = self.word_of_rank[:short], self.word_of_rank[short:]
            yield words, lambda: head[:, :short]
            for small, rows, shift in tails:
                for at, compute in rows.score_blocks(small):
                    yield rest[at], lambda compute=compute, shift=shift: compute().add_(shift)  # type: ignore[misc]
                rest = rest[len(rows.matrix) :]

        return blocks

    @torch.no_grad()
    def weight(self) -> Tensor:
        """Return the word vectors (D,hidden) in word order: for a tail, its rows times its projection."""
        tails = [tail[1].weight @ tail[0].weight for tail in self.module.tail]  # type: ignore[index]
        short = self.module.head.weight[: self.module.shortlist_size]
        return torch.cat([short, *tails])[self.rank]


class _AutogradStep(RecordedStep):
    """Forward and backward by autograd on a detached copy of h; the gradients of the weights wait for `apply`."""

    def __init__(self, layer: AdaptiveSoftmax, h: Tensor, ids: Tensor, t: Tensor) -> None:
        self.parameters = list(layer.module.parameters())
        self.found: list[Tensor | None] = []
        with torch.enable_grad():
            self.h = h.detach().requires_grad_()
            self.losses = -(t * layer.log_prob_pairs(self.h, ids)).sum(1)

    def backward(self, upstream: Tensor) -> Tensor:
        with torch.enable_grad():
            # allow_unused: a tail without a target in this batch has no gradient
            found = torch.autograd.grad(self.losses, [self.h, *self.parameters], upstream, allow_unused=True)
        self.found = list(found[1:])
        return found[0]

    def apply(self, lr: float, keep: float) -> None:
        for parameter, gradient in zip(self.parameters, self.found, strict=True):
            if keep != 1.0:
                parameter.mul_(keep)
            if gradient is not None:
                parameter.add_(gradient, alpha=-lr)


def adaptive(config: OutputConfig, hidden: int, counts: Tensor, **making: Any) -> AdaptiveSoftmax:
    """Return the layer of `output.kind: adaptive`."""
    return AdaptiveSoftmax(hidden, counts, **making)
