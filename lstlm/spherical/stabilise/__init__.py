"""Keeping U well-conditioned. Every method leaves W = V U + p ωᵀ exactly as it is.

U ← U T shrinks U along the directions that H is strong in, and a row stored as v = w U⁻¹ loses digits in proportion to
1/σ_min(U). A repair moves an offending singular value from U into V (the paper's fix-singular-value):
with the left singular vector x of σ and E = I + (σ−1)xxᵀ,  V U = (V E)(E⁻¹ U), and E⁻¹U has 1 in place of σ.

    none      nothing
    restore   V ← V U + p ωᵀ, U ← I when a value is out of range.        O(Dd²) each
    svd       every value that is out of range, in one pass over V.      O(d³ + Ddk)
    power     the paper's power iteration, one value and one pass over V at a time.   O(Dd) a repair
    lazy      repairs are recorded in the history and reach a row when it is read; no pass over V.
"""

from lstlm.spherical.stabilise.base import PAPER_PERIOD, READ_EVERY, Stabiliser

__all__ = ["PAPER_PERIOD", "READ_EVERY", "Stabiliser"]
