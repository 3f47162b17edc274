"""The shortlist head: a softmax where the text is, classes beside it, the factored layer where the vocabulary is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from lstlm.errors import ConfigError
from lstlm.outputs.base import RecordedOutput, RecordedStep
from lstlm.outputs.middle import Middle, bounds_of, order_of
from lstlm.outputs.rows import Making, RowGradient, ScaledRows
from lstlm.outputs.shortlist_resize import resize
from lstlm.outputs.shortlist_step import Pairs, Route, ShortlistStep
from lstlm.outputs.spherical import loss_of
from lstlm.protocol.arguments import without_autocast
from lstlm.protocol.saved import are_inverse, insist
from lstlm.protocol.scan import Block, Scan
from lstlm.spherical import SphericalLoss, SphericalOutput, TaylorSoftmax
from lstlm.spherical.shrink import LearningRateTooLarge

if TYPE_CHECKING:
    from lstlm.config import OutputConfig

FEWEST = 4
TAIL_RATE = 0.04
TAIL_INPUTS = 128
MIDDLE_INPUTS = 128


class ShortlistOutput(RecordedOutput):
    """A softmax over the frequent words, classes of less frequent ones and "the rest", whose words are factored.

        p(c | h) = softmax_c(W_s h + b_s)                          for the k words of the short list
        p(c | h) = softmax_g(W_s h + b_s) · softmax_c(V_g h'' + b) for the M words of the middle, each in a class g
        p(c | h) = softmax_rest(W_s h + b_s) · ρ_c t(õ_c) / Z(h)   for all others,   Z(h) = Σ ρ_c t(õ_c)

    with t of the spherical family, 1 + õ + õ²/2 by default, and the tempered prior ρ ∝ count^prior_power. õ = W̃ h' + b̃
    reads h', the first `tail_inputs` units of h: what is to be known of rare words finds room there, and learns faster;
    h'' are the first `middle_inputs`. Exactly normalised. A log-probability costs O((k + G)·hidden + size of a
    class·middle_inputs + tail_inputs²), a step three products with the k + G + 1 rows of the top, one with a class for
    each example of the middle, and a factored step of the examples of the tail: none depends on the number of words.
    The stored rows learn by row-wise Adagrad (or SGD). The tail learns by exact SGD at `tail_rate` times their rate;
    there prior × rate = const, that is a word's own rate is proportional to count^−prior_power: see `SphericalOutput`.

    counts (D,) give the order. `classes` (M,) are those of the words after the list, the most frequent first; without
    them there is no middle. Words that are used alike should share a class: `lstlm.data.classes` finds such ones. The
    rows of the top begin as frequent as their words. `make_tail` makes the factored layer.
    """

    rank: Tensor
    word_of_rank: Tensor

    def __init__(
        self,
        hidden: int,
        counts: Tensor,
        *,
        shortlist: int = 250,
        classes: Tensor | None = None,
        middle_inputs: int = MIDDLE_INPUTS,
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
        for name, value in (("shortlist", shortlist), ("middle_inputs", middle_inputs), ("tail_inputs", tail_inputs)):
            if value < 1:
                raise ConfigError(f"output.{name} is {value}: at least 1 is needed")
        if vocab < FEWEST:
            raise ConfigError(f"output.kind shortlist: {vocab} words are too few for a list and a tail; use softmax")
        self.shortlist = min(shortlist, vocab - 2)  # the factored layer has at least two words
        self.tail_rate, self.tail_inputs = tail_rate, min(tail_inputs, hidden)
        order, group = order_of(counts, self.shortlist, classes)
        near, sizes = self.shortlist + len(group), torch.bincount(group)
        self.head = make.rows(self.shortlist + len(sizes) + 1, hidden)  # the last row is "the rest"
        self.middle = (
            Middle(make.rows(len(group), min(middle_inputs, hidden)), bounds_of(sizes)) if len(sizes) else None
        )
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
            vocab - near,
            prior=self._prior(counts.cpu()[order[near:]]),
            init_scale=make.init_scale,
            generator=make.generator,
        )
        self._begin_as_frequent(counts.cpu().double()[order] + 1.0)

    def _begin_as_frequent(self, counts: Tensor) -> None:
        """Set the biases of the top, where it has some, to the logarithms of the shares.  counts by rank (D,)."""
        rows = self.top_of(torch.arange(len(counts), device=self.rank.device))
        if self.head.bias is not None:
            mass = counts.new_zeros(len(self.head.bias)).index_add_(0, rows.cpu(), counts)
            self.head.bias.copy_((mass / mass.sum()).log())

    def top_of(self, rank: Tensor) -> Tensor:
        """Return the row of the top that a word of this rank belongs to: its own, its class's or that of the rest."""
        k = self.shortlist
        if self.middle is None:
            return rank.clamp(max=k)
        return torch.where(rank < k, rank, k + self.middle.class_of((rank - k).clamp_(0, self.middle.words)))

    def _load_from_state_dict(self, *args: object, **kwargs: object) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        insist(are_inverse(self.word_of_rank, self.rank), "an order of words that is none")

    def _prior(self, counts: Tensor) -> Tensor:
        # one more of each: a word that the corpus lacks must not be impossible
        return (counts.double() + 1.0) ** self._prior_power

    @property
    def like(self) -> Tensor:
        return self.head.matrix

    def tables(self) -> list[ScaledRows]:
        """Return the tables of stored rows: of the top and of the middle."""
        return [self.head] if self.middle is None else [self.head, self.middle.rows]

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

    def _mid_route(self, pairs: int) -> Route:
        """Return the way of those of the middle."""
        return Route(pairs)

    def _summed(self, gradient: RowGradient) -> RowGradient:
        """Return the gradient of the top for the whole minibatch."""
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
        ranks = self.rank[target_ids.reshape(-1)] - (self.vocab - self.tail.vocab)
        if len(tail := ranks[ranks >= 0]):
            self.tail.expect(tail)

    def resize_vocabulary(self, keep: Tensor | None, counts: Tensor) -> None:
        """Keep the words `keep` (distinct ids, in this order; all by default), append words up to len(counts).

        Words stay in the list, their class or the tail; new ones start in the tail, as their counts (D',) say.
        """
        resize(self, keep, counts)

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
        found = self.head.scores(h, slice(None)).log_softmax(1).gather(1, self.top_of(rank))
        near, flat = self.vocab - self.tail.vocab, found.view(-1)
        if len(far := Pairs(rank, found, near, self.vocab)):
            flat[far.at] += self.tail.log_prob(self.tail_part(h)[far.example], far.rows)
        if self.middle is not None and len(mid := Pairs(rank, found, self.shortlist, near)):
            flat[mid.at] += self.middle.log_prob(self.middle.part(h)[mid.example], mid.rows)
        return found.view(ids.shape)

    def _scan(self, h: Tensor) -> Scan:
        """Log-probabilities: the short list, the middle by classes, then the tail by blocks."""
        top, k, near = self.head.scores(h, slice(None)).log_softmax(1), self.shortlist, self.vocab - self.tail.vocab
        rest, tail = top[:, -1:], self.tail._scan(self.tail_part(h))

        def blocks() -> Iterator[Block]:
            yield self.word_of_rank[:k], lambda: top[:, :k]
            if self.middle is not None:
                yield from self.middle.blocks(self.middle.part(h), self.word_of_rank[k:near], top[:, k:-1])
            for ids, compute in tail():
                yield self.word_of_rank[near + ids], lambda compute=compute: compute() + rest  # type: ignore[misc]

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
        """Return the word vectors (D,hidden) in word order, those of middle and tail filled with 0; õ's in the tail."""
        tail = self.tail.weight() / self._root_prior()[:, None]
        tables = [self.head.weight()[: self.shortlist], *(table.weight() for table in self.tables()[1:]), tail]
        return torch.cat([pad(table, (0, self.hidden - table.shape[1])) for table in tables])[self.rank]

    @torch.no_grad()
    def bias_vector(self) -> Tensor:
        """Return the biases (D,) in word order."""
        tail = self.tail.bias_vector() / self._root_prior()
        listed = self.head.bias_vector()[: self.shortlist]
        return torch.cat([listed, *(table.bias_vector() for table in self.tables()[1:]), tail])[self.rank]

    def _root_prior(self) -> Tensor:
        assert self.tail.state.p is not None
        return self.tail.state.p.to(self.like)  # W is √ρ ∘ W̃

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


def parts_of(config: OutputConfig, vocab: int) -> tuple[int, int, int]:
    """Return the words of the list, the words of the middle, and the classes of the latter."""
    listed = min(config.shortlist, vocab - 2)
    words = min(config.middle, vocab - listed - 2)
    return listed, words, min(words, config.classes or round(words**0.5))


def shortlist(
    config: OutputConfig,
    hidden: int,
    counts: Tensor,
    make: Callable[..., ShortlistOutput] = ShortlistOutput,
    classes: Tensor | None = None,
    **making: Any,
) -> ShortlistOutput:
    """Return the layer of `output.kind: shortlist`; ranks that share its rows pass their own `make`.

    Without `classes`, words of like frequency share one: what a layer has before it is loaded.
    """
    _, words, number = parts_of(config, len(counts))
    if words > 0 and classes is None:
        classes = torch.arange(words) * number // words
    settings = {name: getattr(config, name) for name in ("stabilise", "stabilise_range", "stabilise_every")}
    return make(
        hidden,
        counts,
        shortlist=config.shortlist,
        classes=classes,
        middle_inputs=config.middle_inputs,
        loss=loss_of(config),
        prior_power=config.prior_power,
        tail_rate=config.tail_rate,
        tail_inputs=config.tail_inputs,
        tail_settings=settings,
        **making,
    )
