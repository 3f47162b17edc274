"""The two-level softmax: p(word | h) = p(class | h) · p(word | class, h), about 2√D scores an example."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lstlm.errors import ConfigError
from lstlm.outputs.base import RecordedOutput, RecordedStep
from lstlm.outputs.rows import Making, RowGradient
from lstlm.outputs.softmax import SoftmaxProduct
from lstlm.protocol.saved import are_inverse, bounds, insist
from lstlm.protocol.scan import Block, Scan

if TYPE_CHECKING:
    from lstlm.config import OutputConfig


def assign_classes(counts: Tensor, classes: int | None = None, clustering: str = "frequency") -> Tensor:
    """Return the class of every word (D,) int64, `classes` of them (default ⌈√D⌉), equal in size to within one word.

    `frequency`: words in order of count, cut into runs of equal length. Most of a batch then falls into the first
    few classes, so few class matrices are read: the fastest choice.
    `brown`: Brown clustering merges words by the mutual information of adjacent classes, for which it needs bigram
    counts; from unigram counts alone every clustering has the same score (zero). What counts can do is to make the
    class as informative as possible, so this deals the words out in order of count, forth and back, and
    every class gets nearly the same probability mass as well as size. For real Brown clusters give your
    own assignment to HierarchicalSoftmax.
    """
    vocab = len(counts)
    number = -int(-(vocab**0.5) // 1) if classes is None else classes
    if not 1 <= number <= vocab:
        raise ConfigError(f"output.classes is {number}: a vocabulary of {vocab} words allows 1 to {vocab}")
    rank = torch.arange(vocab)
    if clustering == "frequency":
        by_rank = rank * number // vocab
    elif clustering == "brown":
        turn, seat = rank // number, rank % number
        by_rank = torch.where(turn % 2 == 0, seat, number - 1 - seat)
    else:
        raise ConfigError(f"output.clustering {clustering!r}: choose frequency or brown")
    assigned = torch.empty(vocab, dtype=torch.int64)
    assigned[counts.argsort(descending=True, stable=True).cpu()] = by_rank
    return assigned


class HierarchicalSoftmax(RecordedOutput):
    """log p(w | h) = log softmax(h Rᵀ + r)[class of w] + log softmax(h W_cᵀ + b_c)[w within its class].

    Rows of W lie class by class, so a class is a slice: nothing is gathered, and a step reads and writes only the
    classes that occur in it. Examples are sorted by class and each class that occurs takes one product
    for all of its examples. Cost ≈ 3·m·hidden·(C + class size). class_of_word (D,) int64.
    """

    order: Tensor
    slot: Tensor
    start: Tensor

    def __init__(self, hidden: int, class_of_word: Tensor, **making: Any) -> None:
        """Make a layer for as many words as have a class; the keywords are those of `Making`."""
        vocab = len(class_of_word)
        super().__init__(hidden, vocab)
        sizes = torch.bincount(class_of_word.cpu())
        if bool((sizes == 0).any()):
            raise ConfigError(
                f"hierarchical softmax: class {int(sizes.argmin())} has no word; number classes from 0 on"
            )
        make = Making(**making)
        self.classes, self.words = make.rows(len(sizes), hidden), make.rows(vocab, hidden)
        where = self.words.matrix.device
        order = class_of_word.cpu().argsort(stable=True)
        self.register_buffer("order", order.to(where))  # slot → word
        self.register_buffer("slot", order.argsort().to(where))  # word → slot
        starts = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        self.register_buffer("start", starts.to(where))  # class c holds slots start[c]:start[c+1]

    def _load_from_state_dict(self, *args: object, **kwargs: object) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        insist(are_inverse(self.order, self.slot), "an order of words that is none")
        sizes = self.start.diff()
        whole = int(self.start[0]) == 0 and int(self.start[-1]) == len(self.order)
        insist(whole and bounds(sizes)[0] > 0, "classes that do not hold the words")

    @property
    def like(self) -> Tensor:
        return self.words.matrix

    def _losses(self, h: Tensor, ids: Tensor, t: Tensor) -> tuple[Tensor, RecordedStep]:
        step = _TwoLevelStep(self, h, ids, t)
        return step.losses, step

    def locate(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return (class, position within the class) of word ids, in the shape of ids."""
        slot = self.slot[ids]
        group = torch.bucketize(slot, self.start, right=True) - 1
        return group, slot - self.start[group]

    @torch.no_grad()
    def log_prob(self, h: Tensor, ids: Tensor) -> Tensor:
        """Return log p(ids | h) in the shape of ids, (m,) or (m,K); only the classes of ids are read."""
        self._check(h, ids)
        pairs = ids.reshape(-1, 1).long()
        each = h.repeat_interleave(ids.numel() // len(h), 0)
        return -_TwoLevelStep(self, each, pairs, torch.ones_like(pairs, dtype=h.dtype)).losses.view(ids.shape)

    def _scan(self, h: Tensor) -> Scan:
        """Log-probabilities, a class at a time."""
        by_class = self.classes.scores(h, slice(None)).log_softmax(1)
        bounds = self.start.tolist()

        def scores(group: int, part: slice) -> Tensor:
            return self.words.scores(h, part).log_softmax(1).add_(by_class[:, group, None])

        def blocks() -> Iterator[Block]:
            for group, (first, last) in enumerate(pairwise(bounds)):
                part = slice(first, last)
                yield self.order[part], partial(scores, group, part)

        return blocks

    def weight(self) -> Tensor:
        """Return the within-class word vectors (D,hidden) in word order, a copy."""
        return self.words.weight()[self.slot]

    def bias_vector(self) -> Tensor:
        """Return the within-class biases (D,) in word order, a copy."""
        return self.words.bias_vector()[self.slot]


class _TwoLevelStep(RecordedStep):
    """The product with the class matrix, and one product for each class that occurs among the targets."""

    def __init__(self, layer: HierarchicalSoftmax, h: Tensor, ids: Tensor, t: Tensor) -> None:
        self.layer = layer
        group, position = layer.locate(ids)
        self.top = SoftmaxProduct(h, layer.classes, slice(None), group, t)
        self.example, bounds, by_class = _sort_pairs(group)
        h_sorted = h[self.example]
        t_sorted, position = t.reshape(-1)[by_class], position.reshape(-1)[by_class]
        starts = layer.start.tolist()
        self.parts: list[SoftmaxProduct] = []
        for c, first, last in bounds:  # over the classes that occur, not over examples
            part = slice(starts[c], starts[c + 1])
            at, value = position[first:last, None], t_sorted[first:last, None]
            self.parts.append(SoftmaxProduct(h_sorted[first:last], layer.words, part, at, value))
        within = torch.cat([part.losses for part in self.parts])
        self.losses = self.top.losses.index_add(0, self.example, within)

    def backward(self, upstream: Tensor) -> Tensor:
        grad_h = self.top.backward(upstream)
        sizes = [len(part.h) for part in self.parts]
        pieces = torch.split(upstream[self.example], sizes)
        grads = [part.backward(piece) for part, piece in zip(self.parts, pieces, strict=True)]
        return grad_h.index_add_(0, self.example, torch.cat(grads))

    def apply(self, lr: float, keep: float) -> None:
        self.top.apply(lr, keep)
        if keep != 1.0:
            self.layer.words.decay_(keep)
        for part in self.parts:
            part.apply(lr)

    def gradients(self) -> list[RowGradient]:
        return [product.gradient() for product in (self.top, *self.parts)]


def _sort_pairs(group: Tensor) -> tuple[Tensor, list[tuple[int, int, int]], Tensor]:
    """Sort the (example, target) pairs of group (m,K) by class.

    Return the example of each sorted pair (mK,), (class, first, last) for each class that occurs, and the permutation.
    """
    sorted_group, by_class = group.reshape(-1).sort(stable=True)
    found, sizes = torch.unique_consecutive(sorted_group, return_counts=True)
    ends = sizes.cumsum(0)
    bounds = list(zip(found.tolist(), (ends - sizes).tolist(), ends.tolist(), strict=True))
    return by_class // group.shape[1], bounds, by_class


def two_level(config: OutputConfig, hidden: int, counts: Tensor, **making: Any) -> HierarchicalSoftmax:
    """Return the layer of `output.kind: hierarchical`."""
    return HierarchicalSoftmax(hidden, assign_classes(counts, config.classes, config.clustering), **making)
