"""`SphericalOutput`: the factored output layer as a PyTorch module; `DenseSphericalOutput`: its naive twin."""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from torch import Tensor

from lstlm.errors import ConfigError
from lstlm.kernels.choice import Impl
from lstlm.kernels.targets import Targets
from lstlm.protocol.arguments import checked_ids, checked_tensor
from lstlm.registry import STABILISERS, load
from lstlm.spherical.head import SphericalHead
from lstlm.spherical.losses import SphericalLoss, SquaredError, TaylorSoftmax
from lstlm.spherical.shrink import Shrink
from lstlm.spherical.stabilise import Stabiliser
from lstlm.spherical.state import BLOCK_ROWS, DEFAULT_SIZES, FactoredState, Sizes
from lstlm.spherical.steps import Step, begin
from lstlm.spherical.steps.dense import DenseState


class SphericalOutput(SphericalHead):
    """A linear output layer over a large vocabulary with a spherical loss, updated exactly in time independent of it.

        head = SphericalOutput(hidden, vocab, loss=ZLoss(a=0.1, b=10.0))
        loss = head(h, target_ids)          # (m,), or (m,K) with target_values, or (n,) with offsets too
        loss.mean().backward()              # exact gradient to h; nothing of size D was made
        head.update(lr=0.5)                 # the exact SGD step on W, with the weights that backward() saw

    It replaces, at O(md²) instead of O(Dmd) a step, the code

        o = torch.cat([h, ones], 1) @ W.T;  loss = ℓ(o.square().sum(1), o.sum(1), o.gather(1, target_ids))
        loss.mean().backward();  W -= lr * W.grad

    W (vocab, hidden + 1) exists only as factors, in buffers. They are not parameters: hand no part of this layer to an
    optimizer, and do not wrap it in DistributedDataParallel or FSDP, which would overwrite or average the factors.
    Adam, Adagrad, momentum and per-row rates are not of the form that the factors can follow. The bias is a constant
    feature. `prior` (vocab,) tilts a softmax: p_c ∝ π_c(1 + õ_c + õ_c²/2), or π_c(õ_c² + ε), so that W = 0 predicts π.

    A prior also chooses the rates of the rows: prior × row rate = const. The layer keeps W = √π ∘ W̃ and takes a plain
    SGD step of rate η on W, which is one of rate η/π_c on row c of W̃. So π ∝ count^½ (a tempered unigram) lets rare
    words learn faster, about as row-wise Adagrad would; with no prior all rows learn at one rate.

    hidden           length of h, which comes from your network
    vocab            number of outputs D: words, items, labels
    loss             ZLoss() unless given; SquaredError(), SphericalSoftmax(), TaylorSoftmax(); the last two define
                     probabilities
    bias             whether every output has a bias
    stabilise        how U is kept well-conditioned: "lazy" repairs rows when they are next used, at no cost that grows
                     with D; "svd", "power" and "restore" repair all at once; "none" leaves it alone
    stabilise_range  (low, high) for the singular values of U; None for the method's own
    stabilise_every  steps between two checks; None for the method's own
    init_scale       standard deviation of the first weights; None for the loss's own, 1/√hidden or 0
    prior            (vocab,) of positive weights such as counts, for the losses with probabilities; None for none
    dtype            float32 or float64; None for torch's default
    device           where the factors live; None for torch's default
    generator        draws the first weights; None for torch's own
    sizes            how much of its past the lazy stabiliser keeps: memory against time, never the result
    impl             "native" for the compiled operations, "torch" for those of any device; "auto" takes what is there
    """

    state: FactoredState

    def __init__(
        self,
        hidden: int,
        vocab: int,
        loss: SphericalLoss | None = None,
        *,
        bias: bool = True,
        stabilise: str = "lazy",
        stabilise_range: tuple[float, float] | None = None,
        stabilise_every: int | None = None,
        init_scale: float | None = None,
        prior: Tensor | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        generator: torch.Generator | None = None,
        sizes: Sizes = DEFAULT_SIZES,
        impl: Impl = "auto",
    ) -> None:
        super().__init__(hidden, vocab, loss, bias)
        self.impl = impl
        p = _root_of(prior, self)
        W = _initial_weight(self, init_scale, p, dtype, device, generator)
        self.state = self._new_state(W, p, lazy=stabilise == "lazy", sizes=sizes, impl=impl)
        make = load(STABILISERS[stabilise].make)
        self.stabiliser: Stabiliser = make(W.shape[1], stabilise_range, stabilise_every)

    def _new_state(self, W: Tensor, p: Tensor | None, **settings: Any) -> FactoredState:
        return FactoredState(W, p, **settings)

    def _new_step(self, h: Tensor, targets: Targets) -> Step:
        return begin(self.state, h, targets)

    def _after_update(self, shrink: Shrink) -> None:
        stabiliser, start = self.stabiliser, time.perf_counter()
        stabiliser.after_update(self.state, shrink)
        stabiliser.tally.milliseconds = 1e3 * (time.perf_counter() - start)

    @property
    def last_stabilise_ms(self) -> float:
        """How many milliseconds the stabiliser took after the last update."""
        return self.stabiliser.tally.milliseconds

    @torch.no_grad()
    def expect(self, target_ids: Tensor) -> None:
        """Take note of the targets of minibatches to come, ids of any shape. Optional; changes no weight.

        Rows that missed many repairs are brought up to date together: where the stabiliser has much to do, for a
        fraction of what it costs to do so minibatch by minibatch.
        """
        checked_tensor("target_ids", target_ids)
        self.state.bring_forward(checked_ids(target_ids.reshape(-1), None, self.vocab))

    @torch.no_grad()
    def restore(self) -> bool:
        """Bring the factors to V = W, U = I, and Q, w̄ computed anew. O(Dd²); W does not change. Returns True."""
        self._pending.clear()
        self.state.restore()
        return True

    def statistics(self) -> dict[str, float]:
        """Return ‖W‖_F, and how many singular values of U have been repaired."""
        return {**super().statistics(), "stabilisations": float(self.stabiliser.total)}

    @torch.no_grad()
    def resize_vocabulary(self, keep: Tensor | None = None, new_rows: Tensor | None = None) -> None:
        """Keep the rows `keep` (distinct ids, in this order; all by default), append `new_rows` (n, hidden [+1])."""
        if self.state.p is not None:
            raise ConfigError("a layer with a prior cannot be resized: make a new one with the new prior")
        d, like = self.state.d, self.state.like
        for name, given in (("keep", keep), ("new_rows", new_rows)):
            if given is not None:
                checked_tensor(name, given)
        if keep is not None and (
            len(torch.unique(keep)) != len(keep) or bool(((keep < 0) | (keep >= self.vocab)).any())
        ):
            raise ConfigError(f"keep: ids must be distinct and within the vocabulary of {self.vocab}")
        if new_rows is not None and (new_rows.dim() != 2 or new_rows.shape[1] not in (self.hidden, d)):
            raise ConfigError(f"new_rows has shape {tuple(new_rows.shape)}; expected (n, {self.hidden}) or (n, {d})")
        if (self.vocab if keep is None else len(keep)) + (0 if new_rows is None else len(new_rows)) < 2:
            raise ConfigError("a vocabulary needs at least 2 words")
        W_new = like.new_zeros(0 if new_rows is None else len(new_rows), d)
        if new_rows is not None:
            W_new[:, : new_rows.shape[1]] = new_rows
        self._pending.clear()
        self.state.resize(keep, W_new)

    @torch.no_grad()
    def diagnostics(self) -> dict[str, float]:
        """Return the health of the factors: range of U, largest entry of UU⁻¹ − I, and `gram_error`, a pass over V."""
        state = self.state
        U, U_inv_T = state.exactly("U"), state.exactly("U_inv_T")
        sigma = torch.linalg.svdvals(U)
        unit = torch.eye(state.d, dtype=U.dtype, device=U.device)
        return {
            "sigma_min": float(sigma[-1]),
            "sigma_max": float(sigma[0]),
            "inverse_error": float((U @ U_inv_T.T - unit).abs().max()),
            "q_error_sampled": self.gram_error(),
        }

    @torch.no_grad()
    def gram_error(self) -> float:
        """Return max |xᵀ(Q − WᵀW)x| / xᵀQx over four random x: how far Q has drifted from W. Reads all of V."""
        state = self.state
        generator = torch.Generator(device=state.V.device).manual_seed(0)
        X = torch.randn(state.d, 4, dtype=torch.float64, device=state.V.device, generator=generator)
        actual = torch.zeros_like(X[0])
        for rows in state.blocks():
            actual += (state.weight_rows(rows).to(torch.float64) @ X).square().sum(0)
        actual = state.total(actual)
        tracked = torch.linalg.vecdot(X, state.exactly("Q") @ X, dim=0)
        return float(((tracked - actual).abs() / tracked.clamp_min(torch.finfo(torch.float64).tiny)).max())


class DenseSphericalOutput(SphericalHead):
    """The naive layer: the same losses and interface over a stored W (vocab, hidden + 1). O(Dmd) a step."""

    state: DenseState

    def __init__(
        self,
        hidden: int,
        vocab: int,
        loss: SphericalLoss | None = None,
        *,
        bias: bool = True,
        blocked: bool = False,
        init_scale: float | None = None,
        prior: Tensor | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(hidden, vocab, loss, bias)
        p = _root_of(prior, self)
        W = _initial_weight(self, init_scale, p, dtype, device, generator)
        self.state = DenseState(W, p, blocked=blocked)

    def _new_step(self, h: Tensor, targets: Targets) -> Step:
        return self.state.begin(h, targets)


def _initial_weight(
    head: SphericalHead,
    scale: float | None,
    p: Tensor | None,
    dtype: torch.dtype | None,
    device: torch.device | str | None,
    generator: torch.Generator | None,
) -> Tensor:
    """Return W (D,d) ~ scale·N(0,1), times p = √π where there is a prior; bias 0.

    By default scale is 1/√hidden; 0 for squared error, whose minimum is near 0, and for a Taylor softmax with a prior,
    which starts as that prior. (At 0 the spherical softmax has no gradient.)
    """
    if scale is None:
        zero = isinstance(head.loss, SquaredError) or (p is not None and isinstance(head.loss, TaylorSoftmax))
        scale = 0.0 if zero else 1 / math.sqrt(head.hidden)
    if dtype not in (None, torch.float32, torch.float64):
        raise ConfigError(f"dtype = {dtype}: the layer computes in float32 or float64")
    if not (math.isfinite(scale) and scale >= 0):
        raise ConfigError(f"init_scale = {scale}: must be finite and at least 0")
    (D, d), (first, every) = head._initial_shape, head._kept
    W = torch.zeros(len(range(first, D, every)), d, dtype=dtype or torch.get_default_dtype(), device=device)
    for start in range(0, D if scale > 0 else 0, BLOCK_ROWS):
        # drawn for all D rows by everyone, so that a row does not depend on who keeps it
        block = W.new_empty(min(BLOCK_ROWS, D - start), head.hidden).normal_(0, scale, generator=generator)
        skip = (first - start) % every
        mine = block[skip::every]
        place = (start + skip) // every
        W[place : place + len(mine), : head.hidden] = mine
    return W if p is None else W.mul_(p[first::every, None].to(W))


def _root_of(prior: Tensor | None, head: SphericalHead) -> Tensor | None:
    """Return √(π/Σπ) for a prior over the vocabulary."""
    if prior is None:
        return None
    if not head.normalised:
        raise ConfigError(f"a prior tilts a softmax; {head.loss!r} defines no probability")
    if prior.shape != head._initial_shape[:1] or not bool((torch.isfinite(prior) & (prior > 0)).all()):
        raise ConfigError(f"prior {tuple(prior.shape)}: expected {head._initial_shape[0]} finite values above 0")
    return (prior.double() / prior.double().sum()).sqrt()
