"""`Targets`: what a minibatch is aimed at, as one flat list of pairs (example, output)."""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from lstlm.kernels import reference
from lstlm.kernels.choice import Impl, native_for_ids


class Distinct(NamedTuple):
    """The outputs that occur, each once, words (u,), and the place of every pair's among them (n,), int64.

    `repeated` says whether an example names an output twice; None where the torch form did not look.
    """

    words: Tensor
    place: Tensor
    repeated: bool | None


class Targets:
    """Pairs (example, output), all those of an example after each other: ids, values (n,); Y (m,D) has values at ids.

    Example i has the pairs from offsets[i] up to offsets[i+1]. Where all have K of them, that is (m,K) flattened, and
    `each` is K; it is 0 where they differ in number. What follows from this is computed when it is first asked for.
    """

    def __init__(
        self, ids: Tensor, values: Tensor | None, m: int, offsets: Tensor | None = None, *, impl: Impl = "auto"
    ) -> None:
        """Take int64 ids and float64 values (n,), all ones where None, and offsets (m+1,), None where all have n/m."""
        self.ids, self.given, self.m, self.impl = ids, values, m, impl
        self.n = ids.shape[0]
        self.each = self.n // m if offsets is None else 0
        self.offsets = torch.arange(0, self.n + 1, self.each, device=ids.device) if offsets is None else offsets
        self._distinct: Distinct | None = None

    @cached_property
    def values(self) -> Tensor:
        return torch.ones_like(self.ids, dtype=torch.float64) if self.given is None else self.given

    @cached_property
    def example(self) -> Tensor:
        """The example of each pair (n,)."""
        examples = torch.arange(self.m, device=self.ids.device)
        return torch.repeat_interleave(examples, self.each or self.offsets.diff(), output_size=self.n)

    @property
    def distinct(self) -> Distinct:
        if self._distinct is None:
            self._distinct = self._find_distinct()
        return self._distinct

    def _find_distinct(self) -> Distinct:
        ids, n = self.ids, self.n
        if (code := native_for_ids(self.impl, ids)) is None:
            return Distinct(*reference.distinct(ids), None)
        words, place, scratch = ids.new_empty(n), ids.new_empty(n), ids.new_empty(n + (2 << n.bit_length()))
        number, repeated = code.distinct(ids, self.offsets, words, place, scratch)
        return Distinct(words if number == n else words[:number], place, bool(repeated))

    @property
    def words(self) -> Tensor:
        return self.distinct.words

    @property
    def place(self) -> Tensor:
        return self.distinct.place

    @property
    def bags(self) -> tuple[Tensor, Tensor]:
        """What compiled code reads: the place of every pair's output among the words, and the offsets."""
        return self.distinct.place, self.offsets

    def total(self, x: Tensor) -> Tensor:
        """Return the sums (m,) over the pairs of an example, for x (n,)."""
        if self.each:
            return x if self.each == 1 else x.view(self.m, -1).sum(1)
        return x.new_zeros(self.m).index_add_(0, self.example, x)

    def spread(self, x: Tensor) -> Tensor:
        """Return for every pair what belongs to its example, (n,…) for x (m,…)."""
        return x if self.each == 1 else x.index_select(0, self.example)

    def merged(self) -> Targets:
        """Give the first of an example's pairs with one output the sum of their values, and 0 to the others."""
        if self.each == 1:
            return self
        if (code := native_for_ids(self.impl, self.ids)) is None:
            values = reference.merge(self)
        elif not self.distinct.repeated:
            return self
        else:
            values, first = torch.empty_like(self.values), torch.empty_like(self.words)
            code.merge(self.place, self.offsets, self.values, values, first)
        merged = Targets(self.ids, values, self.m, None if self.each else self.offsets, impl=self.impl)
        merged._distinct = self.distinct
        return merged

    @staticmethod
    def join(parts: list[Targets]) -> Targets:
        """Return the targets of several minibatches as those of one."""
        ids, values = (torch.cat([getattr(part, name) for part in parts]) for name in ("ids", "values"))
        m, impl = sum(part.m for part in parts), parts[0].impl
        if parts[0].each and len({part.each for part in parts}) == 1:
            return Targets(ids, values, m, impl=impl)
        starts = [0]
        for part in parts:
            starts.append(starts[-1] + len(part.ids))
        offsets = [part.offsets[:-1] + start for part, (start, _) in zip(parts, pairwise(starts), strict=True)]
        return Targets(ids, values, m, torch.cat([*offsets, ids.new_tensor(starts[-1:])]), impl=impl)
