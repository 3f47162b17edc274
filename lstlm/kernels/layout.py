"""Where everything stands in the two large matrices of a step; `native/low_rank.h` has the same."""

from __future__ import annotations

from torch import Tensor


class Layout:
    """The rows of `table`, which holds the d-sized state, and of `products`, what a minibatch H makes of it.

        table       Q   ω    w̄    U⁻ᵀ    U     recent: changes of Q, ω, w̄
        products  X HQ  Hω   Hw̄   HU⁻¹   HUᵀ   steps: what, times H, is subtracted from `recent`

    From `backward` to `update` the last row of the steps, that of w̄, holds Yp.
    One product with H reads all that a step reads, `read`; one adds to all that it changes but U⁻ᵀ, `U_and_recent`.
    """

    def __init__(self, d: int) -> None:
        self.d = d
        self.Q, self.omega, self.w_bar = slice(0, d), d, d + 1
        self.gram = slice(0, d + 2)  # Q, ω, w̄
        self.U_inv_T, self.U = slice(d + 2, 2 * d + 2), slice(2 * d + 2, 3 * d + 2)
        self.read = slice(0, 3 * d + 2)
        self.recent, self.U_and_recent = slice(3 * d + 2, 4 * d + 4), slice(2 * d + 2, 4 * d + 4)
        self.table_rows = 4 * d + 4

        self.X, self.HQ, self.H_omega, self.Hw_bar = slice(0, d), slice(d, 2 * d), 2 * d, 2 * d + 1
        self.HU_inv, self.HU = slice(2 * d + 2, 3 * d + 2), slice(3 * d + 2, 4 * d + 2)
        self.of_read = slice(d, 4 * d + 2)  # the products with `read`
        self.Q_step, self.omega_step, self.w_bar_step = slice(4 * d + 2, 5 * d + 2), 5 * d + 2, 5 * d + 3
        self.HU_and_steps = slice(3 * d + 2, 5 * d + 4)
        self.product_rows = 5 * d + 4

    @classmethod
    def of(cls, table: Tensor) -> Layout:
        """Return the layout of a table (4d+4,≥d)."""
        return cls(table.shape[0] // 4 - 1)
