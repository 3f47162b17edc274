"""Repairs of U that no row of V has to hear about until it is read.

When a singular value of U leaves its range along a unit vector x, U is multiplied by E⁻¹ on the left and V by
E = I + αxxᵀ on the right: W = V U stays as it is. Applied at once, that is a sweep over all D rows. Here E is only
written down: each row keeps a *stamp*, the number of repairs it has seen, and a row that is read is first multiplied
by the repairs recorded since. That needs no inverse of E.

The repairs x_1 … x_r of the open segment act on a row v that has seen τ of them as

    v ← v + ((v Xᵀ) ∘ [j > τ]) Y,     Y = M X,     M upper triangular:  M_jj = α_j,  M_ij = α_j y_i·x_j

and since a trailing block of M is the M of the trailing repairs alone, rows of every age go through one product. Y is
what is kept: a new repair adds M_ij x_j to each y_i before it.
After REPAIRS repairs the segment closes and U itself is absorbed (U becomes I). A row of a closed segment k goes
through the rest of the repairs of k, then one product (d,d) of that U and all segments since, then the open segment.
One that has seen none of the repairs of k needs a single product: that of k and all segments since.

The cost of keeping this bounded is paid a little with every repair: one n-th of the rows is brought to the start of the
open segment, in id order, so that the oldest segment is empty when its place is needed; and one n-th of the products is
extended.
"""

from __future__ import annotations

import ctypes
import math

import numpy as np
import torch
from torch import Tensor, nn

from lstlm.errors import CheckpointError, NumericsError
from lstlm.spherical.host import Numbers, to_host
from lstlm.spherical.native import AT_ONCE, Kernel, Segments, kernel_for, plain
from lstlm.spherical.rows import listed, read_rows, write_rows

REPAIRS = 128  # repairs in a segment: reading m rows costs up to 2·m·d·REPAIRS
MOST_SEGMENTS = 40  # closed segments alive: more mean less sweeping, more products to extend, 1.4 MB each at d = 300


class History(nn.Module):
    """Stamps of the D rows, and the repairs of the open and the closed segments, in preallocated buffers."""

    stamp: Tensor
    X: Tensor
    Y: Tensor
    U: Tensor
    unseen: Tensor
    onward: Tensor
    reached: Tensor
    swept_at: Tensor
    clock: Tensor

    def __init__(self, D: int, d: int, like: Tensor, segments: int | None = None) -> None:
        """Serve D rows of d numbers; `segments` closed segments at most, 0 where no repair will ever be recorded."""
        super().__init__()
        if segments is None:
            segments = min(MOST_SEGMENTS, max(2, math.isqrt(D // d)))
        self.segments, self.D = segments, D
        slots, repairs = (segments + 1, REPAIRS) if segments else (0, 0)
        self.register_buffer("stamp", torch.zeros(D if segments else 0, dtype=torch.int32, device=like.device))
        self.register_buffer("X", like.new_zeros(slots, repairs, d))
        self.register_buffer("Y", like.new_zeros(slots, repairs, d))
        self.register_buffer("U", like.new_zeros(slots, d, d))  # what the segment itself multiplies by, closed
        self.register_buffer("onward", like.new_zeros(slots, 2, d, d))  # to the open segment: from its start, its end
        unseen = like.new_ones(repairs + 1, repairs).triu() if repairs else like.new_ones(0, 0)
        self.register_buffer("unseen", unseen, persistent=False)  # row τ: which repairs one that has seen τ has not
        self.register_buffer(
            "reached", torch.zeros(slots, dtype=torch.int64, device="cpu")
        )  # `onward` covers segments below this
        self.register_buffer(
            "swept_at", torch.zeros(slots, dtype=torch.int64, device="cpu")
        )  # rows swept before it closed
        self.register_buffer("clock", torch.zeros(3, dtype=torch.int64, device="cpu"))
        self._sync()

    def _sync(self) -> None:
        """Copy the three counters into Python, where reading them is free: open segment, its repairs, rows swept."""
        counters: list[int] = self.clock.tolist()
        self.open, self.count, self.swept = counters

    def _tick(self, *, open: int | None = None, count: int | None = None, swept: int | None = None) -> None:
        now = [
            self.open if open is None else open,
            self.count if count is None else count,
            self.swept if swept is None else swept,
        ]
        self.clock[:] = torch.tensor(now, device=self.clock.device)
        self._sync()

    def _kernel_for(self, rows: Tensor) -> Kernel | None:
        """Return the compiled code, where rows and what is kept here are of one dtype and without gaps in memory."""
        kept = self._buffers
        for x in (rows, kept["X"], kept["Y"], kept["U"], kept["onward"]):
            if x is None or x.dtype != rows.dtype or not x.is_contiguous():
                return None
        return kernel_for(rows) if self.stamp.dtype == torch.int32 and self.stamp.is_contiguous() else None

    @property
    def empty(self) -> bool:
        """True while no repair has been recorded."""
        return self.open == 0 and self.count == 0

    @property
    def live(self) -> range:
        """The closed segments that may still hold rows, oldest first."""
        return range(max(0, self.open - self.segments), self.open)

    @property
    def start(self) -> int:
        """The stamp of a row that has seen everything up to the open segment."""
        return self.open * (REPAIRS + 1)

    @property
    def now(self) -> int:
        """The stamp of a row that has seen everything."""
        return self.start + self.count

    # ---- reading -------------------------------------------------------------------------------------------------
    def bring_forward(self, rows: Tensor, ids: Tensor | slice) -> Tensor:
        """Return rows (n,d), stored when their stamps say, in the current frame. Changes nothing but these rows."""
        if self.empty or len(rows) == 0:
            return rows
        kernel = self._kernel_for(rows)
        if kernel is not None and not isinstance(ids, slice) and plain(ids):
            ids, seen = listed(ids), np.empty(len(rows), dtype=np.int64)
            place = self.stamp.data_ptr(), len(self.stamp), ids.data_ptr(), len(ids)
            if kernel.read_stamps(*place, self.start, self.count, seen.ctypes.data) == 0:  # none of a closed segment
                return self._repair(self.open, rows, seen, self.count)
        stamp = to_host(self.stamp[ids] if isinstance(ids, slice) else self.stamp.index_select(0, ids))
        old = np.flatnonzero(stamp < self.start)
        if len(old):
            old = old[stamp[old].argsort()]
            places = torch.from_numpy(old).to(rows.device)
            rows.index_copy_(0, places, self._to_open_segment(rows.index_select(0, places), stamp[old]))
        return self._repair(self.open, rows, np.maximum(stamp - self.start, 0), self.count)

    def bring_to_open_segment(self, V: Tensor, ids: Tensor, most: int | None = None) -> None:
        """Take rows ids (n,) of V (D,d), the `most` oldest, from closed segments to the start of the open one."""
        stamp = to_host(self.stamp.index_select(0, ids)).astype(np.int64)
        by_age = np.unique((stamp * self.D + to_host(ids))[stamp < self.start])[:most]
        stamp, distinct = np.divmod(by_age, self.D)
        ids = torch.from_numpy(distinct).to(ids.device)
        if len(ids):
            write_rows(V, ids, self._to_open_segment(read_rows(V, ids), stamp))
            self.stamp.index_fill_(0, ids, self.start)

    def _to_open_segment(self, rows: Tensor, stamp: Numbers) -> Tensor:
        """Return rows of closed segments, oldest first, as they are at the start of the open one."""
        taken = torch.empty_like(rows)
        segment, seen = np.divmod(stamp.astype(np.int64), REPAIRS + 1)
        if len(segment) and not self.live.start <= segment[0] <= segment[-1] < self.open:
            raise NumericsError("a row says that it is of a segment that is gone or yet to come: the state is damaged")
        if (kernel := self._kernel_for(rows)) is not None:
            self._leave_compiled(kernel, rows, segment, seen, taken)
            return taken
        numbers, starts = np.unique(segment, return_index=True)
        for number, start, stop in zip(numbers.tolist(), starts, [*starts[1:], len(rows)], strict=True):
            self._leave(number, rows[start:stop], seen[start:stop], out=taken[start:stop])
        return taken

    def _leave_compiled(self, kernel: Kernel, rows: Tensor, segment: Numbers, seen: Numbers, out: Tensor) -> None:
        """Do what `_leave` does, for rows of all segments in one call."""
        n, d = rows.shape
        segments = Segments(kernel.products, d, self.segments + 1, REPAIRS, self.open)
        for name in ("X", "Y", "U", "onward", "reached"):
            setattr(segments, name, getattr(self, name).data_ptr())
        stamps, spare = (segment.ctypes.data, seen.ctypes.data), self._spare(rows, REPAIRS)
        copy = torch.empty_like(rows)
        scratch = (*(x.data_ptr() for x in spare), copy.data_ptr())
        kernel.leave_segments(ctypes.byref(segments), rows.data_ptr(), *stamps, n, out.data_ptr(), *scratch)

    def _spare(self, rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return what compiled code needs to take rows (n,d) through `count` repairs."""
        return self.clock.new_empty(len(rows) + count + 2), rows.new_empty(AT_ONCE, count + rows.shape[1])

    def _leave(self, segment: int, rows: Tensor, seen: Numbers, out: Tensor) -> None:
        """Take rows of a closed segment, those that have seen least first, to the start of the open one."""
        slot = segment % (self.segments + 1)
        fresh = int(seen.searchsorted(1))
        torch.mm(rows[:fresh], self.onward[slot, 0], out=out[:fresh])
        torch.mm(self._repair(segment, rows[fresh:], seen[fresh:], REPAIRS), self.onward[slot, 1], out=out[fresh:])
        for later in range(int(self.reached[slot]), self.open):
            out.copy_(out @ self.U[later % (self.segments + 1)])

    def _repair(self, segment: int, rows: Tensor, seen: Numbers, count: int) -> Tensor:
        """v ← v + ((v Xᵀ) ∘ [j > seen]) Y over the first `count` repairs of a segment, in place."""
        if count == 0 or len(rows) == 0:
            return rows
        slot = segment % (self.segments + 1)
        X, Y, n = self.X[slot, :count], self.Y[slot, :count], len(rows)
        if (kernel := self._kernel_for(rows)) is not None:
            seen, spare = seen.astype(np.int64, copy=False), self._spare(rows, count)
            of_rows, repairs = (rows.data_ptr(), seen.ctypes.data, n), (X.data_ptr(), Y.data_ptr(), count)
            scratch = (x.data_ptr() for x in spare)
            if kernel.repair_rows(kernel.blas, rows.shape[1], *of_rows, *repairs, *scratch) == 0:
                return rows
        unseen = self.unseen.index_select(0, torch.from_numpy(seen).to(rows.device))[:, :count]
        return rows.addmm_((rows @ X.T).mul_(unseen), Y)

    def written(self, ids: Tensor | slice) -> None:
        """Note that rows were written in the current frame."""
        if self.empty:
            return
        if isinstance(ids, slice):
            self.stamp[ids] = self.now
            return
        ids = listed(ids)
        kernel = self._kernel_for(self.X) if plain(ids) else None
        place = self.stamp.data_ptr(), len(self.stamp), ids.data_ptr(), len(ids)
        if kernel is None or kernel.write_stamps(*place, self.now) != 0:
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
        """End the open segment, absorbing U (d,d); the caller sets U ← I and has swept enough for a free place."""
        slot = self.open % (self.segments + 1)
        self.U[slot] = U + self.X[slot].T @ (self.Y[slot] @ U)
        self.onward[slot, 0], self.onward[slot, 1] = self.U[slot], U
        self.swept_at[slot] = self.swept
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
        self._tick(swept=self.swept + rows)

    def rows_due(self) -> int:
        """Rows to bring forward by now, so that all have been when so many segments have closed as there may be."""
        return self.D * (self.open * REPAIRS + self.count) // (self.segments * REPAIRS) - self.swept

    def rows_to_sweep(self) -> int:
        """Rows to bring forward before the next close, so that its place in the ring is free."""
        if self.open < self.segments:
            return 0
        oldest = self.live[0] % (self.segments + 1)
        return max(0, self.D - (self.swept - int(self.swept_at[oldest])))

    def clear(self) -> None:
        """Forget everything: every row is in the current frame."""
        for name, buffer in self.named_buffers():
            if name != "unseen":
                buffer.zero_()
        self._sync()

    def _load_from_state_dict(self, *args: object, **kwargs: object) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._sync()
        newest = int(self.stamp.max()) if self.segments else 0
        if not (0 <= self.count <= REPAIRS and self.open >= 0 and newest <= self.now):
            raise CheckpointError("the history of the output layer does not fit together: the state is damaged")
