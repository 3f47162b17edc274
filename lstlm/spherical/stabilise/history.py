"""Repairs of U that reach a row of V when it is read.

When a singular value of U leaves its range along a unit vector x, U is multiplied by E⁻¹ on the left and V by
E = I + αxxᵀ on the right: W = V U stays as it is. Applied at once, that is a pass over all D rows. Here E is only
written down: each row keeps a *stamp*, the number of repairs it has seen, and a row that is read is first multiplied
by the repairs recorded since. That needs no inverse of E.

The repairs x_1 … x_r of the open segment act on a row v that has seen τ of them as

    v ← v + ((v Xᵀ) ∘ [j > τ]) Y,     Y = M X,     M upper triangular:  M_jj = α_j,  M_ij = α_j y_i·x_j

and since a trailing block of M is the M of the trailing repairs alone, rows of every age go through one product. Y is
what is kept: a new repair adds M_ij x_j to each y_i before it.
When a segment has all the repairs that it can hold it closes, and U itself is absorbed (U becomes I). A row of a closed
segment k goes through the rest of the repairs of k, then one product (d,d) of that U and all segments since, then the
open segment. One that has seen none of the repairs of k needs a single product: that of k and all segments since.

The cost of keeping this bounded is paid a little with every repair: one n-th of the rows is brought to the start of the
open segment, in id order, so that the oldest segment is empty when its place is needed; and one n-th of the products is
extended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from lstlm.errors import CheckpointError, NumericsError
from lstlm.kernels import step_ops
from lstlm.kernels.choice import Impl
from lstlm.kernels.ops import read_rows, write_rows
from lstlm.kernels.step_ops import Segments

_ON_THE_HOST = ("reached", "moved_at", "clock")


class History(nn.Module):
    """Stamps of the D rows, and the repairs of the open and the closed segments, in preallocated buffers.

    On devices other than the CPU no segment is ever closed (`Lazy` absorbs U into V instead), so that reading a row
    needs no number on the host.
    """

    stamp: Tensor
    X: Tensor
    Y: Tensor
    U: Tensor
    onward: Tensor
    reached: Tensor
    moved_at: Tensor
    clock: Tensor

    def __init__(self, D: int, d: int, like: Tensor, segments: int, repairs: int, impl: Impl = "auto") -> None:
        """Serve D rows of d numbers by `segments` closed segments at most; 0 where no repair will ever be recorded."""
        super().__init__()
        self.D, self.segments, self.repairs, self.impl = D, segments, repairs, impl
        slots, each = (segments + 1, repairs) if segments else (0, 0)
        self.register_buffer("stamp", torch.zeros(D if segments else 0, dtype=torch.int32, device=like.device))
        self.register_buffer("X", like.new_zeros(slots, each, d))
        self.register_buffer("Y", like.new_zeros(slots, each, d))
        self.register_buffer("U", like.new_zeros(slots, d, d))  # what the segment itself multiplies by, closed
        self.register_buffer("onward", like.new_zeros(slots, 2, d, d))  # to the open segment: from its start, its end
        # `onward` covers segments below `reached`; rows brought forward before it closed; the three counters below
        for name, size in zip(_ON_THE_HOST, (slots, slots, 3), strict=True):
            self.register_buffer(name, torch.zeros(size, dtype=torch.int64, device="cpu"))
        self._sync()

    def _sync(self) -> None:
        """Copy the three counters into Python, where reading them is free, and note what follows from them."""
        counters: list[int] = self.clock.tolist()
        self.open, self.count, self.moved = counters  # the open segment, its repairs, rows moved on
        self.empty = self.open == 0 and self.count == 0  # no repair has been recorded
        self.start = self.open * (self.repairs + 1)  # the stamp of a row that has seen all up to the open segment
        self.now = self.start + self.count  # the stamp of a row that has seen everything

    def _tick(self, *, open: int | None = None, count: int | None = None, moved: int | None = None) -> None:
        now = [
            self.open if open is None else open,
            self.count if count is None else count,
            self.moved if moved is None else moved,
        ]
        self.clock[:] = torch.tensor(now, device="cpu")
        self._sync()

    @property
    def live(self) -> range:
        """The closed segments that may still hold rows, oldest first."""
        return range(max(0, self.open - self.segments), self.open)

    # ---- reading -------------------------------------------------------------------------------------------------
    def bring_forward(self, rows: Tensor, ids: Tensor | slice) -> Tensor:
        """Return rows (n,d), stored when their stamps say, in the current frame. Changes nothing but these rows."""
        if self.empty or rows.shape[0] == 0:
            return rows
        if isinstance(ids, slice):
            ids = torch.arange(len(self.stamp), device=rows.device)[ids]
        seen = step_ops.read_stamps(self.stamp, ids, self.start, self.count, impl=self.impl)
        if seen is None:  # there are some of closed segments
            stamp = self.stamp.index_select(0, ids).long()
            old = (stamp < self.start).nonzero().squeeze(1)
            old = old[stamp[old].argsort()]
            rows.index_copy_(0, old, self._to_open_segment(rows.index_select(0, old), stamp[old]))
            seen = (stamp - self.start).clamp_(min=0)
        if self.count:
            first = self.open % (self.segments + 1) * self.repairs
            step_ops.repair_rows(rows, seen, self.X, self.Y, first, self.count, impl=self.impl)
        return rows

    def bring_to_open_segment(self, V: Tensor, ids: Tensor, most: int | None = None) -> None:
        """Take rows ids (n,) of V (D,d), the `most` oldest, from closed segments to the start of the open one."""
        stamp = self.stamp.index_select(0, ids).long()
        by_age = torch.unique((stamp * self.D + ids)[stamp < self.start])[:most]
        ids, stamp = by_age % self.D, by_age // self.D
        if len(ids):
            rows = read_rows(V, ids, impl=self.impl)
            write_rows(V, ids, self._to_open_segment(rows, stamp), impl=self.impl)
            self.stamp.index_fill_(0, ids, self.start)

    def _to_open_segment(self, rows: Tensor, stamp: Tensor) -> Tensor:
        """Return rows of closed segments, oldest first, as they are at the start of the open one."""
        segment, seen = stamp // (self.repairs + 1), stamp % (self.repairs + 1)
        if len(segment) and not self.live.start <= int(segment[0]) <= int(segment[-1]) < self.open:
            raise NumericsError("a row says that it is of a segment that is gone or yet to come: the state is damaged")
        segments = Segments(self.X, self.Y, self.U, self.onward, self.reached)
        return step_ops.leave_segments(rows, segment, seen, self.open, segments, impl=self.impl)

    def written(self, ids: Tensor | slice) -> None:
        """Note that rows were written in the current frame."""
        if self.empty:
            return
        if isinstance(ids, slice):
            self.stamp[ids] = self.now
        else:
            self.stamp.index_fill_(0, ids, self.now)

    # ---- recording -----------------------------------------------------------------------------------------------
    def record(self, x: Tensor, alpha: float) -> None:
        """Append the repair E = I + α x xᵀ to the open segment, x (d,) in the dtype of V."""
        slot, r = self.open % (self.segments + 1), self.count
        Y = self.Y[slot]
        Y[:r].addr_(Y[:r] @ x, x, alpha=alpha)
        torch.mul(x, alpha, out=Y[r])
        self.X[slot, r] = x
        self._tick(count=r + 1)

    def close(self, U: Tensor) -> None:
        """End the open segment, absorbing U (d,d); the caller sets U ← I and has moved enough rows for a free place."""
        slot = self.open % (self.segments + 1)
        self.U[slot] = U + self.X[slot].T @ (self.Y[slot] @ U)
        self.onward[slot, 0], self.onward[slot, 1] = self.U[slot], U
        self.moved_at[slot] = self.moved
        self.reached[slot] = self.open + 1
        following = (self.open + 1) % (self.segments + 1)
        self.X[following].zero_()
        self.Y[following].zero_()
        self._tick(open=self.open + 1, count=0)

    def extend(self, products: int) -> None:
        """Let `onward` of up to `products` closed segments catch up with one more segment each. O(d³) each."""
        for segment in self.live:
            slot = segment % (self.segments + 1)
            if products > 0 and int(self.reached[slot]) < self.open:
                self.onward[slot] = self.onward[slot] @ self.U[int(self.reached[slot]) % (self.segments + 1)]
                self.reached[slot] += 1
                products -= 1

    def advance(self, rows: int) -> None:
        """Count rows that were brought forward in id order."""
        self._tick(moved=self.moved + rows)

    def rows_due(self) -> int:
        """Rows to bring forward by now, so that all have been when so many segments have closed as there may be."""
        due = self.D * (self.open * self.repairs + self.count) // (self.segments * self.repairs) - self.moved
        return min(self.D, due)  # more is never due, whatever a state says that was loaded

    def rows_to_move(self) -> int:
        """Rows to bring forward before the next close, so that its place in the ring is free."""
        if self.open < self.segments:
            return 0
        oldest = self.live[0] % (self.segments + 1)
        return min(self.D, max(0, self.D - (self.moved - int(self.moved_at[oldest]))))

    def clear(self) -> None:
        """Forget everything: every row is in the current frame."""
        for buffer in self.buffers():
            buffer.zero_()
        self._sync()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        counters = {name: getattr(self, name) for name in _ON_THE_HOST}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, tensor in counters.items():
            setattr(self, name, tensor)
        self._close_gaps()
        return self

    def _close_gaps(self) -> None:
        """Make every buffer one that compiled code can read."""
        self.stamp = self.stamp.to(torch.int32)
        for name, buffer in [*self.named_buffers()]:
            if not buffer.is_contiguous():
                setattr(self, name, buffer.contiguous())

    def _load_from_state_dict(self, *args: object, **kwargs: object) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._close_gaps()  # they may have been replaced by others
        self._sync()
        if not self._fits_together():
            raise CheckpointError("the history of the output layer does not fit together: the state is damaged")

    def _fits_together(self) -> bool:
        """Say whether counters and stamps may be of one history: reading and moving go as far as they say."""
        if self.segments == 0:
            return self.empty
        oldest, newest = (int(stamp) for stamp in self.stamp.aminmax())
        reached = [(segment, int(self.reached[segment % (self.segments + 1)])) for segment in self.live]
        return (
            0 <= self.count <= self.repairs
            and self.open >= 0
            and self.moved >= 0
            and 0 <= oldest <= newest <= self.now <= torch.iinfo(torch.int32).max
            and all(segment < beyond <= self.open for segment, beyond in reached)
        )
