"""The two forms of the touched-rows step on rows that are spread over ranks.

`LowRankHere`, for minibatches below about 2d/3: every rank does all of the O(md²) work, from H and rows of V that all
have; at this size the sums below would cost more to send than to compute.

`SquareHere`, above: a rank multiplies its own part of the examples and its own touched rows, and four sums are added up
over the ranks, K = HᵀB Hp, FᵀW_u, FᵀF and Fᵀp. Rows of V stay where they are. Sent: the outputs at the targets O(mK),
the rows of YW that another rank's examples need, at most O(md), and the sums, O(d²). On every rank: O(d³) alone.
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
    """The form for many examples: this rank's examples and rows, and sums over the ranks."""

    state: ShardedState

    def outputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, s (m,) and the outputs at the targets (m,K), of all m examples, on every rank."""
        state, d, K = self.state, self.state.d, self.ids.shape[1]
        self.part = state.ranks.part(len(self.H))
        own = self.H[self.part]
        products = own @ state.value[: d + 2].T  # HQ | Hω | Hw̄, of this rank's examples
        self.HQ = products[:, :d]
        self.owned = state.owned(self.ids)
        self.example = self.owned.nonzero()[:, 0]  # of each pair (example, target) whose row is here
        self.words, self.place = torch.unique(self.ids[self.owned], return_inverse=True)
        self.V_u = state.read_here(self.words)
        self.p_u = self.V_u.new_ones(len(self.words)) if state.p is None else state.p[self.words]
        self.W_u = (self.V_u @ state.U).addr_(self.p_u, state.omega)
        figures = self.H.new_zeros(len(self.H), 2 + K)
        figures[self.part, 0] = torch.linalg.vecdot(own, self.HQ)
        figures[self.part, 1] = products[:, d + 1]
        figures[:, 2:][self.owned] = torch.linalg.vecdot(self.W_u[self.place], self.H[self.example])
        state.total(figures)
        self.Hw_bar = figures[:, 1]
        return figures[:, 0], self.Hw_bar, figures[:, 2:]

    def backward(self, gradient: Gradient) -> Tensor:
        """Return this rank's rows of ∇H = 2 dq ∘ HQ + YW + ds ⊗ w̄."""
        self.gradient = gradient
        self.do_here = gradient.do[self.owned]
        YW = torch.zeros_like(self.H).index_add_(0, self.example, self.do_here[:, None] * self.W_u[self.place])
        grad_H = _sums_at_home(YW, self.ids, self.state.ranks)
        grad_H.addcmul_(self.HQ, gradient.dq[self.part, None], value=2)
        if gradient.ds is not None:
            grad_H.addr_(gradient.ds[self.part], self.state.w_bar)
        self.grad_H = grad_H
        return grad_H

    def sums(self, Hp: Tensor, eta: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return K, FᵀW_u, FᵀF (d,d) and Fᵀp (d,), summed over all examples and rows; F of the rows here is kept."""
        d, g = Hp.shape[1], self.gradient
        F = self.F = Hp.new_zeros(len(self.words), d)
        F.index_add_(0, self.place, self.do_here[:, None] * Hp[self.example])
        stack = Hp.new_empty(3 * d + 1, d)
        torch.mm((self.H[self.part] * (2 * eta * g.dq[self.part])[:, None]).T, Hp[self.part], out=stack[:d])
        torch.mm(F.T, self.W_u, out=stack[d : 2 * d])
        torch.mm(F.T, F, out=stack[2 * d : 3 * d])
        torch.mv(F.T, self.p_u, out=stack[3 * d])
        K, FTW, FTF, pF = torch.split(self.state.total(stack), [d, d, d, 1])
        return K, FTW, FTF, pF[0]

    def grad_norm(self) -> float:
        """Return ‖∇W‖_F. Collective; sends O(md)."""
        own, parts = (self.grad_H, self.HQ), self.state.ranks.parts(len(self.H))
        self.grad_H, self.HQ = (self.state.ranks.gather(rows, parts) for rows in own)
        norm = super().grad_norm()
        self.grad_H, self.HQ = own
        return norm


def _sums_at_home(YW: Tensor, ids: Tensor, ranks: Ranks) -> Tensor:
    """Return the sum over the ranks of YW (m,d), for this rank's part of the m examples. Collective.

    A rank has something for an example only where one of its targets lives there; all know the targets ids (m,K), so
    only those rows travel, and nobody has to announce them.
    """
    m, world, rank = len(YW), ranks.world, ranks.rank
    owner = ids % world
    part = [slice(m * r // world, m * (r + 1) // world) for r in range(world)]
    mine = (owner == rank).any(1)
    send = [int(mine[p].sum()) for p in part]
    useful = [(owner[part[rank]] == r).any(1).nonzero().squeeze(1) for r in range(world)]
    rows = ranks.exchange(YW[mine], send, [len(u) for u in useful])
    total = YW.new_zeros(part[rank].stop - part[rank].start, YW.shape[1])
    return total.index_add_(0, torch.cat(useful), rows)


def begin(state: ShardedState, H: Tensor, ids: Tensor) -> LowRankHere | SquareHere:
    """Choose the cheaper form for the global minibatch H (m,d) with target ids (m,K)."""
    few = len(H) <= LOW_RANK_UP_TO * state.d or len(H) < state.ranks.world
    return (LowRankHere if few else SquareHere)(state, H, ids)
