"""The exact SGD step on W = V U + p ωᵀ in time independent of D: only the rows of the targets are read or written.

For a minibatch H (m,d) with derivatives dq, ds (m,), do (n,) and step η, the naive update of all D rows is

    W' = W − E H,   E = W Hᵀ B + η Yᵀ + η p dsᵀ   (D,m),   b = 2η dq, B = diag(b),   Y (m,D) holds do at the targets.

With T = I − HᵀB H and c = η Hᵀ ds this is W' = W T − η YᵀH − p cᵀ: right multiplication, which U and ω absorb, and a
change of the rows that Y touches. Two ways to compute it, with the same result:

`LowRank` (m up to about d) never forms T; 7md² + 4m²d multiply-adds and one m×m inverse:

    X  = YW + dq ∘ HQ + ds ⊗ w̄ ;   ∇H = X + dq ∘ HQ ;   R = η ∇H − η² N H ;   J = (I − HHᵀB)⁻¹ H U⁻¹ = H U'⁻¹
    N  = 2 (X Hᵀ) diag(dq) + ½ YYᵀ + ds ⊗ (Yp + ½ ‖p‖² ds),   N + Nᵀ = EᵀE/η²
    Q' = Q − RᵀH − HᵀR ;   w̄' = w̄ − Hᵀ(b∘Hw̄ + η Yp + ‖p‖² η ds) ;   ω' = ω − Hᵀ(b∘Hω + η ds)
    U' = U − (UHᵀ)B H ;   U'⁻ᵀ = U⁻ᵀ + Jᵀ B H ;   V' = V − η Yᵀ J

`Square` (m above d) forms T; 1.6md² + 3.6nd² + 4d³ for n distinct targets, with F = YᵀH on these n rows:

    K  = HᵀB H,  T = I − K ;   A = W_uᵀF ;   G = ½Q − ½QK − ηA ;   z = w̄ − Kᵀw̄ − η Fᵀp
    Q' = sym of  ½Q − ½QK − ηA − KᵀG + ½η² FᵀF − z cᵀ + ½‖p‖² ccᵀ  (added to its transpose) ;   w̄' = z − ‖p‖² c
    U' = U − UK ;   U'⁻¹ = T⁻¹U⁻¹ ;   ω' = ω − Kᵀω − c ;   V_u' = V_u − η F U'⁻¹
"""

from __future__ import annotations

from torch import Tensor

from lstlm.kernels.targets import Targets
from lstlm.spherical.state import FactoredState
from lstlm.spherical.steps.common import Step
from lstlm.spherical.steps.low_rank import LowRank
from lstlm.spherical.steps.square import Square

__all__ = ["LOW_RANK_UP_TO", "LowRank", "Square", "Step", "begin"]

LOW_RANK_UP_TO = 0.85  # m/d: above it 7md² + 4m²d is more than 2md² + 4nd² + 5d³


def begin(state: FactoredState, h: Tensor, targets: Targets) -> Step:
    """Choose the cheaper form for h (m,hidden) and its targets."""
    return (Square if h.shape[0] > LOW_RANK_UP_TO * state.d else LowRank)(state, h, targets)
