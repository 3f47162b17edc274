"""The exact SGD step on W = V U + p ωᵀ in time independent of D: only the rows of the targets are read or written.

For a minibatch H (m,d) with derivatives dq, ds (m,), do (m,K), step η and right preconditioner P (Hp = HP, or H), the
naive update of all D rows is

    W' = W − E Hp,   E = W Hᵀ B + η Yᵀ + η p dsᵀ   (D,m),   b = 2η dq, B = diag(b),   Y (m,D) holds do at the targets.

With T = I − HᵀB Hp and c = η Hpᵀ ds this is W' = W T − η YᵀHp − p cᵀ: right multiplication, which U and ω absorb, and a
change of the rows that Y touches. Two ways to compute it, with the same result:

`LowRank` (m up to about d) never forms T; 7md² + 4m²d multiply-adds and one m×m inverse:

    X  = YW + dq ∘ HQ + ds ⊗ w̄ ;   ∇H = X + dq ∘ HQ ;   R = η ∇H − η² N Hp ;   J = (I − HpHᵀB)⁻¹ Hp U⁻¹ = Hp U'⁻¹
    N  = 2 (X Hᵀ) diag(dq) + ½ YYᵀ + ds ⊗ (Yp + ½ ‖p‖² ds),   N + Nᵀ = EᵀE/η²
    Q' = Q − RᵀHp − HpᵀR ;   w̄' = w̄ − Hpᵀ(b∘Hw̄ + η Yp + ‖p‖² η ds) ;   ω' = ω − Hpᵀ(b∘Hω + η ds)
    U' = U − (UHᵀ)B Hp ;   U'⁻ᵀ = U⁻ᵀ + Jᵀ B H ;   V' = V − η Yᵀ J

`Square` (m above d) forms T; 2md² + 4nd² + 5d³ for n distinct targets, with F = YᵀHp on these n rows:

    K  = HᵀB Hp,  T = I − K ;   A = W_uᵀF ;   G = ½Q − ½QK − ηA ;   z = w̄ − Kᵀw̄ − η Fᵀp
    Q' = sym of  ½Q − ½QK − ηA − KᵀG + ½η² FᵀF − z cᵀ + ½‖p‖² ccᵀ  (added to its transpose) ;   w̄' = z − ‖p‖² c
    U' = U − UK ;   U'⁻¹ = T⁻¹U⁻¹ ;   ω' = ω − Kᵀω − c ;   V_u' = V_u − η F U'⁻¹
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from lstlm.spherical.host import Numbers, from_host, product, rounded, store, symmetric_product, to_host
from lstlm.spherical.shrink import Shrink, shrink_inverse, solver_of_shrink
from lstlm.spherical.state import FactoredState

LOW_RANK_UP_TO = 0.85  # m/d: above it 7md² + 4m²d is more than 2md² + 4nd² + 5d³


class Gradient:
    """The loss's partial derivatives, already multiplied by what came from upstream: dq, ds (m,), do (m,K).

    As tensors of the compute dtype, and the same numbers on the host.
    """

    def __init__(self, dq: Numbers, ds: Numbers | None, do: Numbers, like: Tensor) -> None:
        self.dq_host, self.do_host = rounded(dq, like), rounded(do, like)
        self.ds_host = None if ds is None else rounded(ds, like)
        self.dq, self.do = from_host(self.dq_host, like), from_host(self.do_host, like)
        self.ds = None if self.ds_host is None else from_host(self.ds_host, like)


class TouchedRows:
    """One minibatch on its way through outputs(), backward() and update(); both forms share what is here."""

    gradient: Gradient
    grad_H: Tensor
    HQ: Tensor
    Hw_bar: Tensor

    def __init__(self, state: FactoredState, H: Tensor, ids: Tensor) -> None:
        """Take H (m,d) and target ids (m,K)."""
        self.state, self.H, self.ids = state, H, ids
        self.p = None if state.p is None else state.p[ids]
        self.version = state.version

    def Yp(self) -> Numbers:
        """Return Yp (m,): the sum over the targets of do·p."""
        do = self.gradient.do_host if self.p is None else self.gradient.do_host * to_host(self.p)
        return do[:, 0] if do.shape[1] == 1 else do.sum(1)

    def tensor(self, numbers: Numbers) -> Tensor:
        """Return numbers in the dtype and on the device of H."""
        return from_host(numbers, self.H)

    def add_half_YYT(self, sums: Numbers) -> None:
        """sums (m,m) ← sums + ½YYᵀ: how much the targets of two examples coincide, weighted by do."""
        ids, do = self.ids, self.gradient.do
        if ids.shape[1] == 1:
            y, weight = to_host(ids), self.gradient.do_host
            np.add(sums, 0.5 * weight * weight.T, out=sums, where=y == y.T)
            return
        words, column = torch.unique(ids, return_inverse=True)
        YT = do.new_zeros(len(words), len(ids))
        # accumulate: a word that is the target twice, even within one example, must count twice
        YT.index_put_((column.T, torch.arange(len(ids), device=ids.device)), do.T, accumulate=True)
        sums += to_host(embedding_bag(column, YT, per_sample_weights=0.5 * do, mode="sum"))

    def half_gram(self, X: Tensor) -> Tensor:
        """Return half of EᵀE/η² (m,m), the other half being its transpose; X (m,d) is ∇H − dq ∘ HQ. O(m²d)."""
        g, half = self.gradient, X @ self.H.T
        numbers = to_host(half)
        numbers *= 2 * g.dq_host
        self.add_half_YYT(numbers)
        if g.ds_host is not None:
            numbers += np.multiply.outer(g.ds_host, self.Yp() + (0.5 * self.state.p_norm2) * g.ds_host)
        return half if half.is_cpu else self.tensor(numbers)

    def grad_norm(self) -> float:
        """Return ‖∇W‖_F, from ‖EH‖² = tr(EᵀE HHᵀ) at η = 1. O(m²d)."""
        X = torch.addcmul(self.grad_H, self.HQ, self.gradient.dq[:, None], value=-1)
        gram = self.half_gram(X) * (self.H @ self.H.T)
        return math.sqrt(max(0.0, 2 * float(gram.sum())))


class LowRank(TouchedRows):
    """The form for m below d, without a d×d temporary.

    Its tensors (m,d), but for rows of V and J, are views of (d,m), examples as columns in memory: so the large products
    run a fifth faster, and their results are used as they lie.
    """

    def outputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return q = ‖o‖² (m,), s = p·o (m,) and the outputs at the targets (m,K). One product reads the state."""
        state, d, m = self.state, self.state.d, len(self.H)
        # rows: Xᵀ, then as in state.table, those of `recent` for later: what multiplies H to give the state's change
        self.products = products = self.H.new_empty(d + len(state.table), m)
        torch.mm(state.value, self.H.T, out=products[d : 4 * d + 2])
        self._name_products()
        self.rows = state.read(self.ids.reshape(-1)).view(*self.ids.shape, d)
        if self.ids.shape[1] == 1:
            self._times_U(self.rows[:, 0], self.p)
            o, q = (products[: 2 * d].view(2, d, m) * self.H.T).sum(1)
            return q, self.Hw_bar, o[:, None]
        o = torch.linalg.vecdot(self.rows, products[3 * d + 2 : 4 * d + 2].T[:, None])
        o += self.H_omega[:, None] if self.p is None else self.H_omega[:, None] * self.p
        return (self.H * self.HQ).sum(1), self.Hw_bar, o

    def _name_products(self) -> None:
        products, d = self.products, self.state.d
        self.X, self.HQ = products[:d].T, products[d : 2 * d].T
        self.H_omega, self.Hw_bar = products[2 * d], products[2 * d + 1]

    def _times_U(self, rows: Tensor, p: Tensor | None) -> None:
        """X ← rows U + p ω  (m,d); p (m,1), ones where None."""
        omega = self.state.omega[:, None]
        torch.addmm(omega if p is None else omega * p.T, self.state.U.T, rows.T, out=self.X.T)

    def backward(self, gradient: Gradient) -> Tensor:
        """Return ∇H = 2 dq ∘ HQ + YW + ds ⊗ w̄  (m,d), with YW = (YV)U + Yp ⊗ ω."""
        self.gradient, do = gradient, gradient.do
        XT, HQT = self.X.T, self.HQ.T
        if do.shape[1] == 1:
            XT.mul_(do[:, 0])
        else:
            self._times_U((do[..., None] * self.rows).sum(1), self.tensor(self.Yp())[:, None])
        if gradient.ds is not None:
            XT.addr_(self.state.w_bar, gradient.ds)
        XT.addcmul_(HQT, gradient.dq)
        self.grad_H = torch.addcmul(XT, HQT, gradient.dq).T
        return self.grad_H.clone()  # which the caller may change: update() reads the other

    def update(self, eta: float, P: Tensor | None = None) -> Shrink:
        """Apply W ← W − η ∇W P to the state; raises NumericsError, changing nothing, when η is above its limit."""
        state, H, g, d = self.state, self.H, self.gradient, self.state.d
        Hp = H if P is None else H @ P
        b = 2 * eta * g.dq_host
        B = self.tensor(b)
        BH = (H.T * B).T
        C, shrink = shrink_inverse(Hp @ BH.T, b, eta)
        HU_inv = self.products[2 * d + 2 : 3 * d + 2].T if P is None else Hp @ state.U_inv_T.T
        J = product(C, HU_inv)

        # steps: what each row of Q, ω, w̄ changes by, as coefficients of the rows of Hp
        steps, ds = self.products[4 * d + 2 :], 0 if g.ds_host is None else g.ds_host
        torch.addmm(self.grad_H.T, Hp.T, self.half_gram(self.X).T, beta=eta, alpha=-eta * eta, out=steps[:d])  # Rᵀ
        store(b * to_host(self.H_omega) + eta * ds, steps[d])
        store(b * to_host(self.Hw_bar) + eta * (self.Yp() + state.p_norm2 * ds), steps[d + 1])
        do = self.tensor(-eta * g.do_host)
        change = J * do if do.shape[1] == 1 else (do[..., None] * J[:, None]).flatten(0, 1)
        state.add_to_rows(self.ids.reshape(-1), self.rows.flatten(0, 1), change)  # V − η YᵀJ
        self.products[3 * d + 2 : 4 * d + 2].mul_(B)  # (UHᵀ)B
        state.change(self.products[3 * d + 2 :], Hp, J, BH)
        return shrink


class Square(TouchedRows):
    """The form for m above d, by way of the d×d matrix T."""

    def outputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return q = ‖o‖² (m,), s = p·o (m,) and the outputs at the targets (m,K)."""
        state, d = self.state, self.state.d
        products = product(self.H, state.value[: d + 2].T)  # HQ | Hω | Hw̄
        self.HQ, self.Hw_bar = products[:, :d], products[:, d + 1]
        self.words, self.place = torch.unique(self.ids, return_inverse=True)
        self.V_u = state.read(self.words)
        self.p_u = self.V_u.new_ones(len(self.words)) if state.p is None else state.p[self.words]
        self.W_u = product(self.V_u, state.U).addr_(self.p_u, state.omega)
        o = torch.linalg.vecdot(self.W_u[self.place], self.H[:, None])
        return torch.linalg.vecdot(self.H, self.HQ), self.Hw_bar, o

    def backward(self, gradient: Gradient) -> Tensor:
        """Return ∇H = 2 dq ∘ HQ + YW + ds ⊗ w̄  (m,d)."""
        self.gradient = gradient
        YW = embedding_bag(self.place, self.W_u, per_sample_weights=gradient.do, mode="sum")
        grad_H = YW.addcmul_(self.HQ, gradient.dq[:, None], value=2)
        self.grad_H = grad_H if gradient.ds is None else grad_H.addr_(gradient.ds, self.state.w_bar)
        return self.grad_H.clone()  # which the caller may change: grad_norm() reads the other

    def update(self, eta: float, P: Tensor | None = None) -> Shrink:
        """Apply W ← W − η ∇W P to the state; raises NumericsError, changing nothing, when η is above its limit."""
        state, H, d = self.state, self.H, self.state.d
        Hp = H if P is None else H @ P
        K, FTW, FTF, pF, c = self.sums(Hp, eta)
        solve_minus, shrink = solver_of_shrink(K, eta, symmetric=P is None)
        z_step = state.w_bar @ K + eta * pF  # z = w̄ − z_step

        half = product(state.Q, K).mul_(0.5).add_(FTW.T, alpha=eta)  # ½QK + ηA
        half = half.addmm_(K.T, 0.5 * state.Q - half).sub_(FTF, alpha=0.5 * eta * eta)
        half.addr_(state.w_bar - z_step, c).addr_(c, c, alpha=-0.5 * state.p_norm2)
        UK, U_inv_step = product(state.U, K), solve_minus(state.U_inv_T.T)  # T⁻¹U⁻¹ − U⁻¹

        recent = state.recent
        recent[:d] -= half
        recent[d] -= state.omega @ K + c
        recent[d + 1] -= z_step + state.p_norm2 * c
        with state.changing_frame():
            state.U_inv_T.add_(U_inv_step.T)
            state.U.sub_(UK)
        state.write(self.words, self.V_u.sub_(product(self.F, state.U_inv_T.T), alpha=eta))
        state.commit()
        return shrink

    def sums(self, Hp: Tensor, eta: float) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return K = HᵀB Hp, FᵀW_u, FᵀF (d,d), Fᵀp, c (d,), each a sum over examples or touched rows; F is kept."""
        g = self.gradient
        F = self.F = Hp.new_zeros(len(self.words), Hp.shape[1])
        F.index_add_(0, self.place.reshape(-1), (g.do[..., None] * Hp[:, None]).flatten(0, 1))
        pF = self.p_u @ F
        c = torch.zeros_like(pF) if g.ds is None else eta * (g.ds @ Hp)
        BH = self.H * (2 * eta * g.dq)[:, None]
        K = symmetric_product(BH, Hp) if Hp is self.H else product(BH.T, Hp)
        return K, product(F.T, self.W_u), symmetric_product(F, F), pF, c
