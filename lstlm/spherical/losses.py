"""The spherical family: losses of an output o = W h that see only ‖o‖², sum(o) and the few target outputs.

Every loss is a function ℓ(q, s, o, t) of q = ‖o‖² (m,), s = sum(o) (m,), the target outputs o (m,K) and the target
values t (m,K), for D outputs in all. Its value and its partial derivatives dq = ∂ℓ/∂q, ds = ∂ℓ/∂s, do = ∂ℓ/∂o cost
O(mK), whatever D is; they are evaluated in float64, because q/D − (s/D)² cancels. Where examples differ in the number
of their targets, o and t are (n,), and `example` (n,) says whose each is. Compiled code has the same formulas,
kernels/native/losses.h; a test compares them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from lstlm.errors import ConfigError
from lstlm.registry import LOSSES, load


class Outputs(NamedTuple):
    """q = ‖o‖², s = sum(o) (m,), and the target outputs o, (m,K) or (n,)."""

    q: Tensor
    s: Tensor
    o: Tensor


class Partials(NamedTuple):
    """The value of a loss and its partial derivatives: value, dq, ds (m,), do like o; ds is None where ℓ ignores s."""

    value: Tensor
    dq: Tensor
    ds: Tensor | None
    do: Tensor


class SphericalLoss(ABC):
    """One member of the family. `normalised` says whether it defines a probability over the D outputs."""

    normalised: bool = False
    uses_sum: bool = True
    without_targets: bool = False  # whether an example without any target has a loss to speak of

    @abstractmethod
    def partials(self, q: Tensor, s: Tensor, o: Tensor, t: Tensor, D: float, example: Tensor | None = None) -> Partials:
        """Return ℓ and ∂ℓ/∂q, ∂ℓ/∂s, ∂ℓ/∂o for a minibatch; q, s (m,), o, t (m,K), or (n,) with `example` (n,)."""

    def tilted(self, outputs: Outputs, t: Tensor, D: float, p: Tensor | None, example: Tensor | None) -> Partials:
        """Return the same for a softmax that is tilted by a prior π: p, like o, is √π at the targets, D = Σπ."""
        q, s, o = outputs
        whose = () if example is None else (example,)
        if p is None:
            return self.partials(q, s, o, t, D, *whose)
        # π(1 + õ + õ²/2) = π + √π o + o²/2 with o = √π õ: the untilted formulas hold for õ = o/p and D = ‖p‖² = Σπ.
        value, dq, ds, do = self.partials(q, s, o / p, t, D, *whose)
        return Partials(value - 2 * _total(t * p.log(), q, example), dq, ds, do / p)

    def log_prob(self, q: Tensor, s: Tensor, o: Tensor, D: float) -> Tensor:
        """Return log p(c) for each target output o (m,K); only where `normalised`."""
        raise ConfigError(f"{self!r} defines no probability; use the spherical or Taylor softmax for log_prob")

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({settings})"


class SquaredError(SphericalLoss):
    """ℓ = ‖o − y‖² = q − 2 Σ o·t + Σ t², for a K-sparse real target y. Domain: all reals. Not normalised."""

    uses_sum = False
    without_targets = True

    def partials(self, q: Tensor, s: Tensor, o: Tensor, t: Tensor, D: float, example: Tensor | None = None) -> Partials:
        return Partials(q + _total(t * (t - 2 * o), q, example), torch.ones_like(q), None, -2 * t)


class SphericalSoftmax(SphericalLoss):
    """p_c = (o_c² + ε) / (q + Dε);  ℓ = −Σ t log p, ε > 0. Normalised; blind to the sign of an output."""

    normalised = True
    uses_sum = False

    def __init__(self, epsilon: float = 1e-2) -> None:
        self.epsilon = _positive("epsilon", epsilon)

    def partials(self, q: Tensor, s: Tensor, o: Tensor, t: Tensor, D: float, example: Tensor | None = None) -> Partials:
        Z, numerator, mass = q + D * self.epsilon, o * o + self.epsilon, _total(t, q, example)
        value = mass * Z.log() - _total(t * numerator.log(), q, example)
        return Partials(value, mass / Z, None, -2 * t * o / numerator)

    def log_prob(self, q: Tensor, s: Tensor, o: Tensor, D: float) -> Tensor:
        return (o * o + self.epsilon).log() - (q + D * self.epsilon).log()[:, None]


class TaylorSoftmax(SphericalLoss):
    """p_c = (1 + o_c + o_c²/2) / Z, Z = D + s + q/2;  ℓ = −Σ t log p. Normalised; smallest p_c at o_c = −1."""

    normalised = True

    def partials(self, q: Tensor, s: Tensor, o: Tensor, t: Tensor, D: float, example: Tensor | None = None) -> Partials:
        Z, numerator, mass = D + s + q / 2, 1 + o + o * o / 2, _total(t, q, example)
        value = mass * Z.log() - _total(t * numerator.log(), q, example)
        ds = mass / Z
        return Partials(value, ds / 2, ds, -t * (1 + o) / numerator)

    def log_prob(self, q: Tensor, s: Tensor, o: Tensor, D: float) -> Tensor:
        return (1 + o + o * o / 2).log() - (D + s + q / 2).log()[:, None]


class ZLoss(SphericalLoss):
    """ℓ = Σ t softplus(a(b − z))/a with z = (o_c − μ)/σ, μ = s/D, σ² = q/D − μ². Not normalised.

    Domain: σ > 0, so the outputs may not all be equal. ℓ does not change when o is shifted or scaled.
    """

    def __init__(self, a: float = 0.1, b: float = 10.0) -> None:
        self.a, self.b = _positive("a", a), _finite("b", b)

    def partials(self, q: Tensor, s: Tensor, o: Tensor, t: Tensor, D: float, example: Tensor | None = None) -> Partials:
        mu = s / D
        sigma = _spread((q / D - mu * mu).sqrt(), example)
        z = (o - _spread(mu, example)) / sigma  # nan where all outputs are equal
        margin = self.a * (self.b - z)
        softplus = torch.logaddexp(margin, torch.zeros_like(margin))
        do = -t * (margin - softplus).exp() / sigma  # the exponential is the sigmoid of the margin
        dq = _total(do * z / sigma, q, example) * (-0.5 / D)
        ds = _total(do, q, example) * (-1 / D) - 2 * dq * mu
        return Partials(_total(t * softplus, q, example) / self.a, dq, ds, do)


class CustomLoss(SphericalLoss):
    """ℓ = fn(q, s, o, t, D) -> (m,), any torch function; autograd on these m-sized tensors gives the partials.

    q, s (m,), o, t (m,K). Where examples have fewer targets than K, the rest of their o and t are 0.
    """

    without_targets = True

    def __init__(self, fn: Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor]) -> None:
        self.fn = fn

    def partials(self, q: Tensor, s: Tensor, o: Tensor, t: Tensor, D: float, example: Tensor | None = None) -> Partials:
        if example is not None:
            at = example, _place_in_bag(example, len(q))
            wide = q.new_zeros(len(q), 1 + (int(at[1].max()) if len(o) else 0))
            value, dq, ds, do = self.partials(q, s, wide.index_put(at, o), wide.index_put(at, t), D)
            return Partials(value, dq, ds, do[at])
        with torch.inference_mode(False), torch.enable_grad():
            q_, s_, o_ = inputs = [x.detach().clone().requires_grad_() for x in (q, s, o)]
            value = self.fn(q_, s_, o_, t.clone(), D)
            if value.shape != q.shape:
                raise ConfigError(f"CustomLoss: fn returned shape {tuple(value.shape)}, expected {tuple(q.shape)}")
            slopes = torch.autograd.grad(value.sum(), inputs, allow_unused=True, materialize_grads=True)
        return Partials(value.detach(), *slopes)


def make_loss(name: str, **settings: float) -> SphericalLoss:
    """Return the loss of a registered name, with those of the settings that it takes; the others are its defaults.

    Settings of other losses (`a`, `b` of the Z-loss, `epsilon` of the spherical softmax) are passed over, so that all
    of a configuration's can be given.
    """
    kind, known = LOSSES[name], {setting for kind in LOSSES for setting in kind.settings}
    if unknown := settings.keys() - known:
        raise ConfigError(f"make_loss: no loss has a setting {min(unknown)!r}; known: {', '.join(sorted(known))}")
    loss = load(kind.make)(**{key: value for key, value in settings.items() if key in kind.settings})
    if not isinstance(loss, SphericalLoss):
        raise ConfigError(f"output.loss {name!r} is registered with {kind.make!r}, which makes no SphericalLoss")
    return loss


def _total(x: Tensor, like: Tensor, example: Tensor | None) -> Tensor:
    """Return the sums (m,), like `like`, over the targets of an example, for x (m,K), or (n,) with `example`."""
    if example is not None:
        return torch.zeros_like(like).index_add_(0, example, x)
    return x[:, 0] if x.shape[1] == 1 else x.sum(1)


def _spread(x: Tensor, example: Tensor | None) -> Tensor:
    """Return x (m,) for each target: (m,1), or (n,) with `example`."""
    return x[:, None] if example is None else x[example]


def _place_in_bag(example: Tensor, m: int) -> Tensor:
    """Return for each pair how many of its example come before it (n,)."""
    start = torch.zeros(m + 1, dtype=torch.int64, device=example.device)
    start[1:] = torch.bincount(example, minlength=m).cumsum(0)
    return torch.arange(len(example), device=example.device) - start[example]


def _finite(name: str, value: float) -> float:
    if not math.isfinite(value):
        raise ConfigError(f"{name} = {value}: must be a finite number")
    return float(value)


def _positive(name: str, value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{name} = {value}: must be finite and above 0")
    return float(value)
