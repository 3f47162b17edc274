"""The two forms of the touched-rows step on rows that are spread over ranks.

`LowRankHere`, for minibatches below about 2d/3: every rank does all of the O(md²) work, from H and rows of V that all
have; at this size the sums below would cost more to send than to compute.

`SquareHere`, above: a rank multiplies its own part of the examples and its own touched rows, and four sums are added up
over the ranks, K = HᵀB Hp, FᵀW_u, FᵀF, and with them Fᵀp and c. Rows of V stay where they are. Sent: rows of H to the
owners of their targets and rows of YW back, at most O(md) for the m examples of this rank; the outputs at the targets,
O(mK); the sums, O(d²). On every rank: O(d³) alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lstlm.distributed.ranks import Ranks
from lstlm.distributed.state import ShardedState
from lstlm.spherical.touched_rows import Gradient, LowRank, Square

LOW_RANK_UP_TO = 0.65  # m/d: above it 7md² + 4m²d is more than (2md² + 4nd²)/2 + 5d³


class LowRankHere(LowRank):
    """The form for few examples: the same on every rank, but for the part of ∇H that is returned."""

    state: ShardedState

    def backward(self, gradient: Gradient) -> Tensor:
        """Return this rank's rows of ∇H."""
        return super().backward(gradient)[self.state.ranks.part(len(self.H))]


class SquareHere(Square):
    """The form for many examples: this rank's examples and rows, and sums over the ranks.

    H has the rows of this rank's part of the minibatch, ids (m,K) those of all of it.
    """

    state: ShardedState

    def outputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, s (m,) and the outputs at the targets (m,K), of all m examples, on every rank."""
        state, d, (m, K) = self.state, self.state.d, self.ids.shape
        self.part = state.ranks.part(m)
        products = self.H @ state.value[: d + 2].T  # HQ | Hω | Hw̄, of this rank's examples
        self.HQ = products[:, :d]
        owner = self.ids % state.ranks.world
        self.routes = Routes(owner, state.ranks)
        self.H_here = self.routes.to_owners(self.H)
        self.owned = owner == state.ranks.rank
        self.words, self.place = torch.unique(self.ids[self.owned], return_inverse=True)
        self.V_u = state.read_here(self.words)
        self.p_u = self.V_u.new_ones(len(self.words)) if state.p is None else state.p[self.words]
        self.W_u = (self.V_u @ state.U).addr_(self.p_u, state.omega)
        self.W_pairs = self.W_u.index_select(0, self.place)  # of each pair (example, target) whose row is here
        figures = self.H.new_zeros(m, 2 + K)
        figures[self.part, 0] = torch.linalg.vecdot(self.H, self.HQ)
        figures[self.part, 1] = products[:, d + 1]
        figures[:, 2:][self.owned] = torch.linalg.vecdot(self.W_pairs, self._pairs(self.H_here))
        state.total(figures)
        self.Hw_bar = figures[:, 1]
        return figures[:, 0], self.Hw_bar, figures[:, 2:]

    def _pairs(self, rows: Tensor) -> Tensor:
        """Return for each pair whose row is here that of its example, given one for each example that came here."""
        return rows if len(rows) == len(self.place) else rows.index_select(0, self._arrival())

    def _arrival(self) -> Tensor:
        """Return for each pair whose row is here the place of its example among those that came here."""
        return (self.owned.any(1).cumsum(0) - 1)[self.owned.nonzero()[:, 0]]

    def backward(self, gradient: Gradient) -> Tensor:
        """Return this rank's rows of ∇H = 2 dq ∘ HQ + YW + ds ⊗ w̄."""
        self.gradient = gradient
        self.do_here = gradient.do[self.owned][:, None]
        YW = self.W_pairs.mul_(self.do_here)
        if len(YW) > len(self.H_here):
            YW = torch.zeros_like(self.H_here).index_add_(0, self._arrival(), YW)
        grad_H = self.routes.home(YW)
        grad_H.addcmul_(self.HQ, gradient.dq[self.part, None], value=2)
        if gradient.ds is not None:
            grad_H.addr_(gradient.ds[self.part], self.state.w_bar)
        self.grad_H = grad_H
        return grad_H

    def sums(self, Hp: Tensor, eta: float) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return K, FᵀW_u, FᵀF (d,d), Fᵀp, c (d,), summed over all examples and rows; F of the rows here is kept."""
        d, g = Hp.shape[1], self.gradient
        Hp_here = self.H_here if Hp is self.H else self.routes.to_owners(Hp)
        F = self.F = Hp.new_zeros(len(self.words), d)
        F.index_add_(0, self.place, self._pairs(Hp_here) * self.do_here)
        stack = Hp.new_empty(3 * d + 2, d)
        torch.mm((self.H * (2 * eta * g.dq[self.part])[:, None]).T, Hp, out=stack[:d])
        torch.mm(F.T, self.W_u, out=stack[d : 2 * d])
        torch.mm(F.T, F, out=stack[2 * d : 3 * d])
        torch.mv(F.T, self.p_u, out=stack[3 * d])
        stack[3 * d + 1] = 0 if g.ds is None else eta * (g.ds[self.part] @ Hp)
        K, FTW, FTF, pF, c = torch.split(self.state.total(stack), [d, d, d, 1, 1])
        return K, FTW, FTF, pF[0], c[0]

    def gather_H(self) -> None:
        """Make H that of all examples. Collective; sends O(md)."""
        if len(self.H) < len(self.ids):
            self.H = self.state.ranks.gather(self.H, self.state.ranks.parts(len(self.ids)))

    def grad_norm(self) -> float:
        """Return ‖∇W‖_F. Collective; sends O(md)."""
        own, parts = (self.H, self.grad_H, self.HQ), self.state.ranks.parts(len(self.ids))
        self.H, self.grad_H, self.HQ = (self.state.ranks.gather(rows, parts) for rows in own)
        norm = super().grad_norm()
        self.H, self.grad_H, self.HQ = own
        return norm


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


def begin(state: ShardedState, H: Tensor, ids: Tensor) -> LowRankHere | SquareHere:
    """Choose the cheaper form for target ids (m,K) and H, of all m examples; or of this rank's, where m is not few."""
    if few(state, len(ids)):
        return LowRankHere(state, H, ids)
    return SquareHere(state, H[state.ranks.part(len(ids))] if len(H) == len(ids) else H, ids)
