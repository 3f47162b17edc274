"""What can be timed: every output layer of the package, by the names that records use."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lstlm.bench.records import Record
from lstlm.config import OutputConfig
from lstlm.outputs import OutputLayer, make_output
from lstlm.registry import LOSSES, OUTPUTS, STABILISERS
from lstlm.spherical import DenseSphericalOutput, make_loss
from lstlm.spherical.stabilise import PAPER_PERIOD
from lstlm.spherical.steps.dense import squared_error_step

BENCH_ONLY = {"naive-blocked": "naive", "log_prob": "factored"}  # other ways to use a kind of layer
ROWS = {"sampled": "candidates", "shortlist": "shortlist"}  # settings that say how many rows a step reads
MIDDLE = 20_000  # words of a shortlist's classes, as lm-shortlist has them

# Learning rates that one would train with, for the mean loss of a minibatch; a spherical loss takes at most half of
# what is stable for its first minibatches.
SPHERICAL_LR = 10.0
SOFTMAX_LR = 0.05


@dataclass(frozen=True)
class Method:
    """One thing to time. `loss` is "softmax" for the softmaxes; `stabilise` is "none" for all but the factored.

    `every` is the period, in updates, of a stabiliser that sweeps; `rows` is the setting of ROWS, if not as configured.
    """

    name: str
    loss: str
    stabilise: str = "none"
    every: int = PAPER_PERIOD
    rows: int | None = None

    def __str__(self) -> str:
        parts = [
            self.name if self.rows is None else f"{self.name} {self.rows}",
            self.loss if self.loss != self.name else "",
        ]
        parts.append(f"{self.stabilise} stabiliser" if self.name == "factored" else "")
        return ", ".join(part for part in parts if part)

    @property
    def kind(self) -> str:
        """The kind of output layer."""
        return BENCH_ONLY.get(self.name, self.name)

    def config(self) -> OutputConfig:
        """Return the configuration of the layer."""
        config = OutputConfig(kind=self.kind)
        if OUTPUTS[self.kind].spherical:
            config = replace(config, loss=self.loss)
        if self.kind == "shortlist":
            config = replace(config, loss="taylor", middle=MIDDLE)
        if self.kind == "factored":
            every = self.every if self.sweeping else None
            config = replace(config, stabilise=self.stabilise, stabilise_every=every)
        rows: Any = {} if self.rows is None else {ROWS[self.name]: self.rows}
        return replace(config, **rows)

    def record(self, vocab: int, d: int, m: int, dtype: torch.dtype = torch.float32) -> Record:
        """Return the beginning of a record: what is timed, at which sizes."""
        rows = {ROWS[self.name]: getattr(self.config(), ROWS[self.name])} if self.name in ROWS else {}
        sizes = {"D": vocab, "d": d, "m": m, **rows}
        place = {"threads": torch.get_num_threads(), "dtype": str(dtype).removeprefix("torch.")}
        return {"method": self.name, "loss": self.loss, "stabilise": self.stabilise, **sizes, **place}

    @property
    def dense(self) -> bool:
        """Whether a step costs O(Dmd)."""
        return OUTPUTS[self.kind].dense

    @property
    def period(self) -> int:
        """The steps after which its cost repeats: a stabiliser that sweeps does so every so many updates."""
        return self.every if self.sweeping else 1

    @property
    def sweeping(self) -> bool:
        """Whether its stabiliser passes over all rows now and then."""
        return STABILISERS[self.stabilise].sweeps

    def memory_bytes(self, vocab: int, d: int, m: int, itemsize: int = 4) -> int:
        """Estimate what the layer and one step need: W, and the outputs (m,D) where a method keeps them."""
        weights = vocab * d * itemsize
        outputs = vocab * m * itemsize if self.dense and not self.one_pass else 0
        beside = {"factored": 96 << 20, "log_prob": 96 << 20, "sampled": 40 * vocab}.get(self.name, 16 << 20)
        return int(1.1 * weights) + outputs + beside

    @property
    def one_pass(self) -> bool:
        """Whether it is the squared error's own naive step, three products in one pass over W."""
        return self.name == "naive-blocked" and self.loss == "squared"


def method_names() -> tuple[str, ...]:
    """Return what can be timed: the kinds of layer, the naive one by blocks after it, and reading probabilities."""
    spherical = [kind.name for kind in OUTPUTS if kind.spherical]
    others = [kind.name for kind in OUTPUTS if not kind.spherical]
    return (*spherical, "naive-blocked", *others, "log_prob")


def expand(
    names: Sequence[str],
    losses: Sequence[str],
    stabilisers: Sequence[str],
    every: int = PAPER_PERIOD,
    rows: Mapping[str, Sequence[int]] | None = None,
) -> list[Method]:
    """Return the methods to time, contenders for one table beside each other, the sweeping stabilisers last.

    `rows` has the numbers to try of a setting of ROWS.
    """
    first = [s for s in stabilisers if not STABILISERS[s].sweeps][:1] or list(stabilisers[:1])
    methods = [Method("factored", loss, s, every) for s in first for loss in losses if "factored" in names]
    stored = [name for name in method_names() if name in names and name not in ("factored", "log_prob")]
    for name in stored:
        spherical = OUTPUTS[BENCH_ONLY.get(name, name)].spherical
        numbers = (rows or {}).get(ROWS.get(name, ""), (None,))
        methods += [Method(name, x, rows=n) for x in (losses if spherical else ("softmax",)) for n in numbers]
    if "log_prob" in names:
        methods += [Method("log_prob", loss, "lazy") for loss in losses if LOSSES[loss].normalised]
    rest = [s for s in STABILISERS.names() if s in stabilisers and s not in first]
    return methods + [Method("factored", loss, s, every) for s in rest for loss in losses if "factored" in names]


def without_repetition(methods: Sequence[Method]) -> list[Method]:
    """Leave out what takes minutes and tells nothing new: naive and sweeping methods with a third and fourth loss."""
    return [x for x in methods if x.loss in ("z", "squared", "softmax") or not (x.dense or x.sweeping)]


class Runner:
    """A layer with a step: forward, backward and weight update on one minibatch."""

    def __init__(self, layer: OutputLayer, lr: float) -> None:
        self.layer, self.lr = layer, lr
        self.losses = torch.zeros(1)  # of the last step: one number, or one an example

    def step(self, h: Tensor, ids: Tensor) -> Tensor:
        """Take one step; return ∂(mean loss)/∂h."""
        self.layer.discard()  # a step that was refused
        values = None if ids.dim() == 1 else torch.full_like(ids, 1 / ids.shape[1], dtype=h.dtype)
        self.losses, gradient = self.layer.value_and_grad(h, ids, values)
        self.layer.update(self.lr)
        return gradient

    @property
    def last_loss(self) -> float:
        """The mean loss of the last step."""
        return float(self.losses.mean())


class OnePassRunner(Runner):
    """The naive squared error in one pass over W."""

    def step(self, h: Tensor, ids: Tensor) -> Tensor:
        H = torch.cat([h.detach(), h.new_ones(len(h), 1)], 1)
        values = h.new_ones(len(h), 1)
        assert isinstance(self.layer, DenseSphericalOutput)
        losses, grad_H = squared_error_step(self.layer.state.W, H, ids[:, None], values, self.lr / len(h))
        self.losses = losses
        return grad_H[:, :-1] / len(h)


class LogProbRunner(Runner):
    """Reading, not learning: the exact log-probability of each target, which is what perplexity costs."""

    def step(self, h: Tensor, ids: Tensor) -> Tensor:
        log_prob: Tensor = self.layer.log_prob(h, ids)
        self.losses = -log_prob
        return log_prob


def make_layer(
    method: Method, hidden: int, counts: Tensor, *, dtype: torch.dtype, settings: dict[str, Any] | None = None
) -> OutputLayer:
    """Return the output layer of a method over `hidden` inputs and a bias; `settings` are keys of `output`."""
    config = replace(method.config(), **(settings or {}))
    layer = make_output(config, hidden, counts, dtype=dtype, generator=torch.Generator().manual_seed(1))
    if method.name == "naive-blocked":
        by_blocks(layer)
    return layer


def by_blocks(layer: OutputLayer) -> None:
    """Let a naive layer walk W in chunks that stay in the cache."""
    assert isinstance(layer, DenseSphericalOutput)
    layer.state.blocked = True


def make_runner(method: Method, layer: OutputLayer, lr: float) -> Runner:
    """Return what takes the steps of a method on its layer."""
    if method.name == "log_prob":
        return LogProbRunner(layer, lr)
    return (OnePassRunner if method.one_pass else Runner)(layer, lr)


def learning_rate(method: Method, vocab: int, batches: Sequence[Tensor]) -> float:
    """Return a rate to train with: half of what is stable for the given h (m,hidden), and at most 10.

    An update multiplies W from the right by I − 2η Hᵀdiag(dq)H, so the largest stable η is 1/λmax(2 Hᵀdiag(dq)H). dq is
    that of the initial weights, N(0, 1/hidden), ‖o‖² ≈ D‖h‖²/hidden, for a target that stands out a little.
    """
    if not OUTPUTS[method.kind].spherical:
        return SOFTMAX_LR
    loss, largest = make_loss(method.loss), 0.0
    for h in batches:
        H = torch.cat([h, h.new_ones(len(h), 1)], 1).double()
        q = vocab * H[:, :-1].square().mean(1)
        o = (q / vocab).sqrt()[:, None]
        dq = loss.partials(q, torch.zeros_like(q), o, torch.ones_like(o), float(vocab)).dq / len(h)
        scaled = H * (2 * dq).sqrt()[:, None]
        largest = max(largest, float(torch.linalg.matrix_norm(scaled, ord=2)) ** 2)
    return min(SPHERICAL_LR, 0.5 / largest)
