"""The middle of a shortlist head: words in classes, each with a softmax of its own."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from lstlm.errors import ConfigError
from lstlm.kernels.class_ops import ClassEntropy, ClassTable, adagrad_classes, class_entropy
from lstlm.outputs.rows import RowGradient, ScaledRows, take
from lstlm.protocol.saved import bounds, insist
from lstlm.protocol.scan import Block


class Middle(nn.Module):
    """p(c | h, class of c) = softmax of V h' + b over the words of that class: an example reads one class alone.

    Rows lie class by class, those of class g from bounds[g] to bounds[g+1] − 1. h' is the first units of h.
    """

    bounds: Tensor
    group: Tensor  # what class_of returns: looked up, where PyTorch's search would wake its threads for 200 numbers

    def __init__(self, rows: ScaledRows, ends: Tensor) -> None:
        super().__init__()
        self.rows = rows
        self.register_buffer("bounds", ends.to(rows.matrix.device))
        self.register_buffer("group", _classes(self.bounds, len(rows.matrix)), persistent=False)

    def _load_from_state_dict(self, *args: object, **kwargs: object) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        ends, words = self.bounds, self.words
        insist(ends.is_meta or [int(ends[0]), int(ends[-1])] == [0, words], "classes that are not those of the rows")
        insist(bounds(ends.diff())[0] > 0, "a class without words")
        self.group = _classes(ends, words)

    @property
    def words(self) -> int:
        """How many words there are."""
        return len(self.rows.matrix)

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return len(self.bounds) - 1

    def part(self, x: Tensor) -> Tensor:
        """Return what is read of h, or a gradient to it: the first columns, no copy.  x (m,hidden)."""
        return x[:, : self.rows.matrix.shape[1]]

    def class_of(self, rows: Tensor) -> Tensor:
        """Return the class of each row; of the row after the last, the number of classes."""
        return self.group[rows]

    def entropy(self, h: Tensor, rows: Tensor, t: Tensor, upstream: Tensor) -> ClassEntropy:
        """Return losses and gradients of examples h (n,inputs), whose targets' rows (n,) are in increasing order."""
        return class_entropy(h, self.table(), rows, t, upstream)

    def table(self) -> ClassTable:
        """Return the rows as the operations take them."""
        return ClassTable(self.rows.matrix, self.rows.bias, self.bounds, self.group, float(self.rows.scale))

    def log_prob(self, h: Tensor, rows: Tensor) -> Tensor:
        """Return log p(row | its class, h) (n,) for h (n,inputs) and rows (n,) in any order."""
        rows, order = rows.sort()
        one = h.new_ones(len(rows))
        return torch.empty_like(one).index_copy_(0, order, -self.entropy(h[order], rows, one, one).losses)

    def blocks(self, h: Tensor, words: Tensor, by_class: Tensor) -> Iterator[Block]:
        """Scan the words (M,) class by class, for log p(class) (m,G) given.  h (m,inputs)."""

        def log_probs(group: int, part: slice) -> Tensor:
            return self.rows.scores(h, part).log_softmax(1).add_(by_class[:, group, None])

        for group, ends in enumerate(pairwise(self.bounds.tolist())):
            part = slice(*ends)
            yield words[part], partial(log_probs, group, part)

    def keep_(self, rows: Tensor) -> Tensor:
        """Keep these rows (n,), in increasing order, and the classes that they belong to; return which those are."""
        kept, sizes = torch.unique_consecutive(self.class_of(rows), return_counts=True)
        self.rows.keep_(rows)
        self.bounds = bounds_of(sizes)
        self.group = _classes(self.bounds, self.words)
        classes: Tensor = kept
        return classes


class MiddleStep:
    """The examples of a minibatch whose targets are in the middle, sorted by their rows.  h (n,inputs)."""

    def __init__(self, middle: Middle, h: Tensor, rows: Tensor, t: Tensor, upstream: Tensor) -> None:
        self.middle = middle
        rows, self.order = rows.sort()
        self.found = middle.entropy(take(h, self.order), rows, t[self.order], upstream[self.order])

    def losses(self) -> Tensor:
        """Return the losses (n,), in the order in which the examples came, as the next."""
        return self._in_order(self.found.losses)

    def grad_h(self) -> Tensor:
        """Return the gradient to h (n,inputs)."""
        return self._in_order(self.found.grad_h)

    def _in_order(self, x: Tensor) -> Tensor:
        return torch.empty_like(x).index_copy_(0, self.order, x)

    def gradient(self) -> ClassGradient:
        """Return ∂/∂V and ∂/∂b of the classes that occur."""
        return ClassGradient(self.middle, self.found)


class ClassGradient:
    """A `RowGradient` that is a product, Gᵀh, and is not multiplied out where Adagrad takes its step at once."""

    def __init__(self, middle: Middle, found: ClassEntropy) -> None:
        self.middle, self.found, self.table = middle, found, middle.rows

    def whole(self) -> RowGradient:
        """Return it multiplied out."""
        return RowGradient(self.table, self.found.runs.rows(), *self.found.gradient())

    def adagrad_(self, lr: float) -> None:
        """Let the table take its step."""
        assert self.table.squares is not None
        adagrad_classes(self.middle.table(), self.table.squares, self.found, lr)


def _classes(ends: Tensor, words: int) -> Tensor:
    """Return the class of each of the rows, and of one beyond them, (words+1,), given where classes begin and end."""
    sizes = pad(ends.diff(), (0, 1), value=1)
    return torch.arange(len(sizes), device=ends.device).repeat_interleave(sizes, output_size=words + 1)


def bounds_of(sizes: Tensor) -> Tensor:
    """Return where classes of these sizes (G,) begin and end, (G+1,)."""
    return torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])


def order_of(counts: Tensor, shortlist: int, classes: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the words by rank (D,), the most frequent first but for a middle, class by class; and its classes (M,)."""
    order = counts.argsort(descending=True, stable=True).cpu()
    group = (
        torch.empty(0, dtype=torch.int64) if classes is None else _checked(classes, len(order) - shortlist - 2).cpu()
    )
    group, within = group.sort(stable=True)
    order[shortlist : shortlist + len(group)] = order[shortlist:][within]
    return order, group


def _checked(classes: Tensor, room: int) -> Tensor:
    if classes.dtype != torch.int64 or classes.ndim != 1 or not 0 < len(classes) <= room:
        raise ConfigError(
            f"classes is {classes.dtype} {tuple(classes.shape)}: give int64 (words,), the class of each of the next "
            f"words after the list, {max(room, 0)} at most"
        )
    if int(classes.min()) < 0 or bool((torch.bincount(classes) == 0).any()):
        raise ConfigError("classes: number them from 0 on, without a gap")
    return classes
