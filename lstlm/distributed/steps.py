"""The two forms of the touched-rows step on rows that are spread over ranks.

`LowRankHere`, for small minibatches: every rank does all of the O(md²) work, from H and rows of V that all
have; at this size the sums below would cost more to send than to compute.

`SquareHere`, above: a rank multiplies its own part of the examples and its own touched rows, and three sums are added
up over the ranks, K = HᵀBH, A = W_uᵀF, FᵀF, and Fᵀp and c. Rows of V stay where they are. Sent: rows of H to the
owners of their targets and rows of YW back, at most O(md) for the m examples of this rank; the outputs at the targets,
O(mK); the sums, O(d²). On every rank: O(d³) alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lstlm.distributed.ranks import Ranks
from lstlm.distributed.state import ShardedState
from lstlm.kernels.targets import Targets
from lstlm.spherical.steps import LOW_RANK_UP_TO, LowRank, Square
from lstlm.spherical.steps.common import with_bias


class LowRankHere(LowRank):
    """The form for few examples: the same on every rank, but for the part of ∇H that is returned."""

    state: ShardedState

    def backward(self, partials: Tensor) -> Tensor:
        """Return this rank's rows of ∇H."""
        return super().backward(partials)[self.state.ranks.part(len(self.h))]


class SquareHere(Square):
    """The form for many examples: this rank's examples and rows, and sums over the ranks.

    h has the rows of this rank's part of the minibatch, the targets, K each, are those of all of it.
    """

    state: ShardedState

    def read(self) -> None:
        """Compute the outputs of all m examples, on every rank."""
        state, d, m, ids = self.state, self.state.d, self.targets.m, self.targets.ids
        self.H, self.table = with_bias(self.h, d), state.table
        self.part = state.ranks.part(m)
        products = self.H @ self.table[state.at.gram, :d].T  # HQ | Hω | Hw̄, of this rank's examples
        self.HQ = products[:, :d]
        owner = ids % state.ranks.world
        self.routes = Routes(owner.view(m, -1), state.ranks)
        self.H_here = self.routes.to_owners(self.H)
        self.owned = owner == state.ranks.rank
        self.words, self.place = torch.unique(ids[self.owned], return_inverse=True)
        self.rows = state.read_here(self.words)
        self.p_here = self.rows.new_ones(len(self.words)) if state.p is None else state.p[self.words]
        self.W_u = (self.rows @ state.U).addr_(self.p_here, state.omega)
        self.W_pairs = self.W_u.index_select(0, self.place)  # of each pair (example, target) whose row is here
        figures = self.H.new_zeros(2 * m + len(ids))
        q, s, o = torch.split(figures, [m, m, len(ids)])
        q[self.part] = torch.linalg.vecdot(self.H, self.HQ)
        s[self.part] = products[:, state.at.w_bar]
        o[self.owned] = torch.linalg.vecdot(self.W_pairs, self._pairs(self.H_here))
        self.outputs = state.total(figures).to(torch.float64)

    def _pairs(self, rows: Tensor) -> Tensor:
        """Return for each pair whose row is here that of its example, given one for each example that came here."""
        return rows if len(rows) == len(self.place) else rows.index_select(0, self._arrival())

    def _arrival(self) -> Tensor:
        """Return for each pair whose row is here the place of its example among those that came here."""
        came = self.owned.view(self.targets.m, -1).any(1)
        return (came.cumsum(0) - 1)[self.targets.example[self.owned]]

    def backward(self, partials: Tensor) -> Tensor:
        """Return this rank's rows of ∇H = 2 dq ∘ HQ + YW + ds ⊗ w̄."""
        self.partials = partials
        self.do_here = self.do[self.owned][:, None]
        YW = self.W_pairs.mul_(self.do_here)
        if len(YW) > len(self.H_here):
            YW = torch.zeros_like(self.H_here).index_add_(0, self._arrival(), YW)
        grad_H = self.routes.home(YW)
        grad_H.addcmul_(self.HQ, self.dq[self.part, None], value=2)
        if self.ds is not None:
            grad_H.addr_(self.ds[self.part], self.state.w_bar)
        return grad_H

    def sums(self, eta: float) -> tuple[Tensor, Tensor, Tensor]:
        """Return F of the rows here, the sums over all examples and rows, and ‖K‖²."""
        H, d = self.H, self.state.d
        F = H.new_zeros(len(self.words), d)
        F.index_add_(0, self.place, self._pairs(self.H_here) * self.do_here)
        stack = H.new_empty(3 * d + 2, d)
        torch.mm((H * (2 * eta * self.dq[self.part])[:, None]).T, H, out=stack[:d])
        torch.mm(self.W_u.T, F, out=stack[d : 2 * d])
        torch.mm(F.T, F, out=stack[2 * d : 3 * d])
        stack[3 * d] = self.p_here @ F
        stack[3 * d + 1] = 0 if self.ds is None else eta * (self.ds[self.part] @ H)
        total = self.state.total(stack)
        return F, total, torch.linalg.vector_norm(total[:d]).square()

    def gather_h(self) -> None:
        """Make h that of all examples. Collective; sends O(md)."""
        if len(self.h) < self.targets.m:
            self.h = self.state.ranks.gather(self.h, self.state.ranks.parts(self.targets.m))


class Routes:
    """Which examples' rows travel to the owners of their targets, and back.

    All ranks know the owners (m,K) of all targets, so nobody has to announce anything. An example whose targets live
    on several ranks goes to all of them, one with several targets on a rank goes there once.
    """

    def __init__(self, owner: Tensor, ranks: Ranks) -> None:
        self.ranks = ranks
        parts, own = ranks.parts(len(owner)), owner[ranks.part(len(owner))]
        came = (owner == ranks.rank).any(1)
        self.coming = [int(part.sum()) for part in torch.split(came, parts)]
        going = [(own == rank).any(1).nonzero().squeeze(1) for rank in range(ranks.world)]
        self.going, self.order, self.own = [len(examples) for examples in going], torch.cat(going), len(own)

    def to_owners(self, rows: Tensor) -> Tensor:
        """Send rows (one for each example of this rank); return those of the examples with a target here, in order."""
        return self.ranks.exchange(rows.index_select(0, self.order), self.going, self.coming)

    def home(self, rows: Tensor) -> Tensor:
        """Send rows (one for each example with a target here) back; return their sums by example of this rank."""
        found = self.ranks.exchange(rows, self.coming, self.going)
        if len(found) == self.own:  # every example has been to one rank
            return torch.empty_like(found).index_copy_(0, self.order, found)
        return rows.new_zeros(self.own, rows.shape[1]).index_add_(0, self.order, found)


def few(state: ShardedState, m: int) -> bool:
    """Say whether the form for few examples is the cheaper one for a global minibatch of m."""
    return m <= LOW_RANK_UP_TO * state.d or m < state.ranks.world


def begin(state: ShardedState, h: Tensor, targets: Targets) -> LowRankHere | SquareHere:
    """Choose the cheaper form for targets and h, of all m examples; or of this rank's, where m is not few."""
    m = targets.m
    if few(state, m):
        return LowRankHere(state, h, targets)
    return SquareHere(state, h[state.ranks.part(m)] if len(h) == m else h, targets)
