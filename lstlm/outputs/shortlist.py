"""The shortlist head: a softmax where the text is, the factored layer where the vocabulary is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from lstlm.errors import ConfigError
from lstlm.outputs.base import RecordedOutput, RecordedStep
from lstlm.outputs.rows import Making, RowGradient
from lstlm.outputs.shortlist_step import Route, ShortlistStep
from lstlm.outputs.spherical import loss_of
from lstlm.protocol.arguments import without_autocast
from lstlm.protocol.saved import are_inverse, insist
from lstlm.protocol.scan import Block, Scan
from lstlm.spherical import SphericalLoss, SphericalOutput, TaylorSoftmax
from lstlm.spherical.shrink import LearningRateTooLarge

if TYPE_CHECKING:
    from lstlm.config import OutputConfig

TAIL_RATE = 0.04
TAIL_INPUTS = 128


class ShortlistOutput(RecordedOutput):
    """A softmax over the k most frequent words and "the rest", and a factored softmax over the words of the rest.

        p(c | h) = softmax_c(W_s h + b_s)                          for the k words of the short list
        p(c | h) = softmax_rest(W_s h + b_s) · ρ_c t(õ_c) / Z(h)   for the others,   Z(h) = Σ ρ_c t(õ_c)

    with t of the spherical family, 1 + õ + õ²/2 by default, and the tempered prior ρ ∝ count^prior_power. õ = W̃ h' + b̃
    reads h', the first `tail_inputs` units of h: what is to be known of rare words finds room there, and learns faster.
    Exactly normalised; a log-probability costs O(k·hidden + tail_inputs²), a step 3·m·k·hidden and a factored step of
    the examples whose target is in the tail: neither depends on the number of words. The k + 1 rows of the short list
    learn by row-wise Adagrad (or SGD). The tail learns by exact SGD at `tail_rate` times the rate of the short list;
    there prior × rate = const, that is a word's own rate is proportional to count^−prior_power: see `SphericalOutput`.

    counts (D,) give the order. `make_tail` makes the factored layer.
    """

    rank: Tensor
    word_of_rank: Tensor

    def __init__(
        self,
        hidden: int,
        counts: Tensor,
        *,
        shortlist: int = 250,
        loss: SphericalLoss | None = None,
        prior_power: float = 0.5,
        tail_rate: float = TAIL_RATE,
        tail_inputs: int = TAIL_INPUTS,
        make_tail: Callable[..., SphericalOutput] = SphericalOutput,
        tail_settings: dict[str, Any] | None = None,
        **making: Any,
    ) -> None:
        """Make a layer for as many words as have a count; the other keywords are those of `Making`."""
        make, vocab = Making(**{"optimiser": "adagrad", **making}), len(counts)
        loss = TaylorSoftmax() if loss is None else loss
        super().__init__(hidden, vocab)
        if shortlist < 1:
            raise ConfigError(f"output.shortlist is {shortlist}: at least 1 is needed")
        if tail_inputs < 1:
            raise ConfigError(f"output.tail_inputs is {tail_inputs}: at least 1 is needed")
        if vocab < 4:
            raise ConfigError(f"output.kind shortlist: {vocab} words are too few for a list and a tail; use softmax")
        self.shortlist = min(shortlist, vocab - 2)  # the factored layer has at least two words
        self.tail_rate, self.tail_inputs = tail_rate, min(tail_inputs, hidden)
        self.head = make.rows(self.shortlist + 1, hidden)  # the last row is "the rest"
        order = counts.argsort(descending=True, stable=True).cpu()
        where = self.head.matrix.device
        self.register_buffer("word_of_rank", order.to(where))
        self.register_buffer("rank", order.argsort().to(where))
        self._make_tail = partial(
            make_tail,
            self.tail_inputs,
            loss=loss,
            bias=make.bias,
            dtype=make.dtype,
            device=make.device,
            **(tail_settings or {}),
        )
        self._prior_power = prior_power
        self.tail = self._make_tail(
            vocab - self.shortlist,
            prior=self._prior(counts.cpu()[order[self.shortlist :]]),
            init_scale=make.init_scale,
            generator=make.generator,
        )

    def _load_from_state_dict(self, *args: object, **kwargs: object) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        insist(are_inverse(self.word_of_rank, self.rank), "an order of words that is none")

    def _prior(self, counts: Tensor) -> Tensor:
        # one more of each: a word that the corpus lacks must not be impossible
        return (counts.double() + 1.0) ** self._prior_power

    @property
    def like(self) -> Tensor:
        return self.head.matrix

    def tail_part(self, x: Tensor) -> Tensor:
        """Return what the tail reads of h, or a gradient to it: the first columns, no copy.  x (m,hidden)."""
        return x[:, : self.tail_inputs]

    # ---- learning ------------------------------------------------------------------------------------------------
    def _losses(self, h: Tensor, ids: Tensor, t: Tensor) -> tuple[Tensor, RecordedStep]:
        step = ShortlistStep(self, h, ids, t)
        return step.forward(), step

    def _at_once(self, h: Tensor, ids: Tensor, t: Tensor, upstream: Tensor) -> tuple[Tensor, Tensor]:
        step = ShortlistStep(self, h, ids, t, upstream)
        losses, gradient = step.at_once(upstream)
        self._pending.append(step)
        return losses, gradient

    def discard(self) -> None:
        """Forget the backward passes since the last update."""
        super().discard()
        self.tail.discard()

    # ---- hooks for a layer that is spread over processes; here they are the identity --------------------------------
    def _route(self, pairs: int) -> Route:
        """Return the way of the pairs (example, target) of the tail to where they are worked on, and back."""
        return Route(pairs)

    def _summed(self, gradient: RowGradient) -> RowGradient:
        """Return the gradient of the short list for the whole minibatch."""
        return gradient

    # ----------------------------------------------------------------------------------------------------------------
    def _apply_steps(self, steps: list[RecordedStep], lr: float, keep: float) -> None:
        # the tail first: if it refuses the rate, nothing has moved
        if any(step.route.any for step in steps if isinstance(step, ShortlistStep)):
            tail_lr = lr * self.tail_rate
            try:
                self.tail.update(tail_lr, (1.0 - keep) / tail_lr)
            except LearningRateTooLarge as error:
                raise LearningRateTooLarge(lr, error.limit / self.tail_rate) from None
        elif keep != 1.0:
            self.tail.state.scale_(keep)
        super()._apply_steps(steps, lr, keep)

    def expect(self, target_ids: Tensor) -> None:
        """Hear the targets of some minibatches to come, of any shape; changes no weight."""
        ranks = self.rank[target_ids.reshape(-1)] - self.shortlist
        if len(tail := ranks[ranks >= 0]):
            self.tail.expect(tail)

    @torch.no_grad()
    def resize_vocabulary(self, keep: Tensor | None, counts: Tensor) -> None:
        """Keep the words `keep` (distinct ids, in this order; all by default), append words up to len(counts).

        Words stay in the list or the tail where they are; new ones start in the tail, as their counts (D',) say.
        """
        keep = torch.arange(self.vocab) if keep is None else keep.cpu()
        if len(torch.unique(keep)) != len(keep) or bool(((keep < 0) | (keep >= self.vocab)).any()):
            raise ConfigError(f"keep: ids must be distinct and within the vocabulary of {self.vocab}")
        if len(counts) < len(keep):
            raise ConfigError(f"counts has {len(counts)} words, {len(keep)} are kept: give one for every word")
        rank = self.rank.cpu()[keep]
        listed = rank < self.shortlist
        if not bool(listed.any()) or len(counts) - int(listed.sum()) < 2:
            raise ConfigError("resize: at least one word of the list and two of the tail must stay")
        where, vectors = self.rank.device, self.tail_part(self.weight())
        vectors = torch.cat([vectors, self.bias_vector()[:, None]], 1)[keep]
        words = torch.arange(len(counts))
        tail = torch.cat([words[: len(keep)][~listed], words[len(keep) :]])
        order = torch.cat([words[: len(keep)][listed][rank[listed].argsort()], tail])
        self.head.keep_(torch.cat([rank[listed].sort().values, torch.tensor([self.shortlist])]).to(where))
        W = vectors.new_zeros(len(tail), vectors.shape[1])
        W[: len(keep) - int(listed.sum())] = vectors[~listed]
        prior = self._prior(counts.cpu()[tail])
        self.discard()
        self._vocab, self.shortlist = len(counts), int(listed.sum())
        self.word_of_rank, self.rank = order.to(where), order.argsort().to(where)
        self.tail = self._make_tail(len(tail), prior=prior, init_scale=0.0)
        W *= (prior / prior.sum()).sqrt()[:, None].to(W)
        self.tail.set_weight(W if self.tail.has_bias else self.tail_part(W))

    def restore(self) -> bool:
        """Fold the factors of the tail into plain weights. O(D·hidden²)."""
        super().discard()
        return self.tail.restore()

    # ---- reading -------------------------------------------------------------------------------------------------
    @torch.no_grad()
    @without_autocast
    def log_prob(self, h: Tensor, ids: Tensor) -> Tensor:
        """Return log p(ids | h) in the shape of ids, (m,) or (m,K). Exact; O(k·hidden + hidden²) an example."""
        self._check(h, ids)
        rank = self.rank[ids.reshape(len(h), -1)]
        top = self.head.scores(h, slice(None)).log_softmax(1)
        found = top.gather(1, rank.clamp(max=self.shortlist))
        if len(pairs := (rank >= self.shortlist).nonzero()):
            example, column = pairs.T
            found[example, column] += self.tail.log_prob(
                self.tail_part(h)[example], rank[example, column] - self.shortlist
            )
        return found.view(ids.shape)

    def _scan(self, h: Tensor) -> Scan:
        """Log-probabilities: the short list, then the tail by blocks."""
        top, k = self.head.scores(h, slice(None)).log_softmax(1), self.shortlist
        rest, tail = top[:, k:], self.tail._scan(self.tail_part(h))

        def blocks() -> Iterator[Block]:
            yield self.word_of_rank[:k], lambda: top[:, :k]
            for ids, compute in tail():
                yield self.word_of_rank[k + ids], lambda compute=compute: compute() + rest  # type: ignore[misc]

        return blocks

    @torch.no_grad()
    @without_autocast
    def all_log_probs(self, h: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (ids (n,), log-probabilities (m,n)) that cover the vocabulary.  h (m,hidden)."""
        if len(h):
            for ids, compute in self._scan(h.to(self.dtype))():
                yield ids, compute()

    @torch.no_grad()
    def weight(self) -> Tensor:
        """Return the word vectors (D,hidden) in word order: rows of the softmax, and õ's of the tail, filled with 0."""
        return self._joined(self.head.weight(), pad(self.tail.weight(), (0, self.hidden - self.tail_inputs)))

    @torch.no_grad()
    def bias_vector(self) -> Tensor:
        """Return the biases (D,) in word order."""
        return self._joined(self.head.bias_vector(), self.tail.bias_vector())

    def _joined(self, head: Tensor, tail: Tensor) -> Tensor:
        assert self.tail.state.p is not None
        p = self.tail.state.p.to(tail)
        tail = tail / (p if tail.ndim == 1 else p[:, None])  # W is √ρ ∘ W̃
        return torch.cat([head[: self.shortlist], tail])[self.rank]

    # ---- figures about the layer ---------------------------------------------------------------------------------
    def statistics(self) -> dict[str, float]:
        """Return those of the tail."""
        return self.tail.statistics()

    def diagnostics(self) -> dict[str, float]:
        """Return those of the tail."""
        return self.tail.diagnostics()

    @property
    def last_stabilise_ms(self) -> float:
        """How many milliseconds of the last update the tail's stabiliser took."""
        return self.tail.last_stabilise_ms


def shortlist(
    config: OutputConfig,
    hidden: int,
    counts: Tensor,
    make: Callable[..., ShortlistOutput] = ShortlistOutput,
    **making: Any,
) -> ShortlistOutput:
    """Return the layer of `output.kind: shortlist`; ranks that share its rows pass their own `make`."""
    settings = {name: getattr(config, name) for name in ("stabilise", "stabilise_range", "stabilise_every")}
    return make(
        hidden,
        counts,
        shortlist=config.shortlist,
        loss=loss_of(config),
        prior_power=config.prior_power,
        tail_rate=config.tail_rate,
        tail_inputs=config.tail_inputs,
        tail_settings=settings,
        **making,
    )
