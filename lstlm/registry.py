"""What a configuration can name: losses of the spherical family, kinds of output layer, stabilisers.

One entry says everything that others need to know of it: configuration takes its choices and rates from here,
factories the classes, `bench` and `verify` what they time and compare. Nothing here needs torch: an entry names
its class as "module:name", which is imported when it is first made. A program may add its own:

    LOSSES.add(LossKind("mine", MyLoss, rate=per_word(1 / 200, 10.0), verify_rate=1.0))
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Generic, TypeVar

from lstlm.errors import ConfigError

Maker = str | Callable[..., Any]  # itself, or where to import it from: "module:name"
Rate = Callable[[int, int], float]  # of the size of the vocabulary and the inputs of the output layer


def load(maker: Maker) -> Callable[..., Any]:
    """Return what a maker stands for, imported now if it was given by name."""
    if not isinstance(maker, str):
        return maker
    module, _, name = maker.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), name)
    return found


def per_word(share: float, most: float) -> Rate:
    """Return the rule min(share · vocabulary, most).

    An update shrinks W by I − 2η Hᵀdiag(dq)H, and of most losses dq goes as 1/D: the largest stable rate grows with the
    vocabulary. `most` is the largest that was of use in trials.
    """
    return lambda vocab, width: min(share * vocab, most)


def per_input(share: float) -> Rate:
    """Return the rule share / (inputs + 1).

    For squared error dq = 1: η is stable below 1/(2 λmax(HᵀH/m)), and λmax ≤ inputs + 1 while |h| ≤ 1, as after tanh.
    """
    return lambda vocab, width: share / (width + 1)


def constant(rate: float) -> Rate:
    """Return the rule that is the same for all sizes."""
    return lambda vocab, width: rate


@dataclass(frozen=True)
class LossKind:
    """A loss of the spherical family, by the name that configurations use."""

    name: str
    make: Maker  # the class; its arguments are `settings`
    rate: Rate  # of the output layer, where the configuration leaves it open
    verify_rate: float  # of `lstlm verify`: at most a third of what is stable there, and large enough to move W a lot
    settings: tuple[str, ...] = ()  # its arguments, which are keys of `output`
    normalised: bool = False  # whether it defines a probability, so that it has a perplexity and can have a prior
    native_id: int | None = None  # its number in compiled code, whose parameters are `settings` in this order
    prior_rate: float | None = None  # the rate where a prior, which sums to 1, takes the place of D equal words


@dataclass(frozen=True)
class OutputKind:
    """An output layer, by the name that configurations use.

    `make(config, hidden, counts, **place)` returns the layer for an OutputConfig, inputs and word counts (D,); `place`
    are the dtype, device and generator. `sharded` is the class of a rank's part, which takes the ranks before the
    arguments of the layer's own class; it is handed to `make` as the keyword `make`.
    """

    name: str
    make: Maker
    sharded: Maker | None = None  # None where ranks cannot share it
    rate: Rate | None = None  # of SGD; None: that of its loss
    adagrad_rate: float | None = None  # of row-wise Adagrad; None where rows cannot have rates of their own
    optimiser: str = "sgd"  # of its rows, where the configuration leaves it open
    spherical: bool = False  # whether `output.loss` and what belongs to it apply
    dense: bool = False  # whether a step costs O(D·m·hidden), for estimates of time and memory
    reference: Maker | None = None  # (layer) → the same by plain autograd over stored weights, for `lstlm bench`


@dataclass(frozen=True)
class StabiliserKind:
    """A way to keep U well-conditioned, by the name that configurations use."""

    name: str
    make: Maker  # (d, range or None, period or None) → Stabiliser
    sweeps: bool = False  # whether a repair is a pass over all rows, every so many updates


Entry = TypeVar("Entry", LossKind, OutputKind, StabiliserKind)


class Registry(Generic[Entry]):
    """Entries by name, in the order in which they were added."""

    def __init__(self, key: str, *entries: Entry) -> None:
        self._key = key  # of the configuration, for messages
        self._entries: dict[str, Entry] = {entry.name: entry for entry in entries}

    def add(self, entry: Entry) -> None:
        """Add an entry under a new name."""
        if entry.name in self._entries:
            raise ConfigError(f"{self._key} {entry.name!r} is registered already; choose another name")
        self._entries[entry.name] = entry

    def remove(self, name: str) -> None:
        """Forget an entry."""
        self[name]
        del self._entries[name]

    def __getitem__(self, name: str) -> Entry:
        if name not in self._entries:
            raise ConfigError(f"{self._key} {name!r} is unknown; choose one of {', '.join(self._entries)}")
        return self._entries[name]

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def names(self) -> tuple[str, ...]:
        """Return the names, first come first."""
        return tuple(self._entries)


LOSSES = Registry(
    "output.loss",
    LossKind("z", "lstlm.spherical.losses:ZLoss", per_word(1 / 200, 100.0), 6.0, ("a", "b"), native_id=3),
    LossKind("squared", "lstlm.spherical.losses:SquaredError", per_input(0.45), 0.02, native_id=0),
    LossKind(
        "spherical",
        "lstlm.spherical.losses:SphericalSoftmax",
        per_word(1 / 200, 0.1),
        2.0,
        ("epsilon",),
        normalised=True,
        native_id=1,
        prior_rate=0.002,
    ),
    LossKind(
        "taylor",
        "lstlm.spherical.losses:TaylorSoftmax",
        per_word(1 / 200, 10.0),
        20.0,
        normalised=True,
        native_id=2,
        prior_rate=0.004,
    ),
)

STABILISERS = Registry(
    "output.stabilise",
    StabiliserKind("lazy", "lstlm.spherical.stabilise.lazy:Lazy"),
    StabiliserKind("none", "lstlm.spherical.stabilise.base:Stabiliser"),
    StabiliserKind("restore", "lstlm.spherical.stabilise.swept:Restore", sweeps=True),
    StabiliserKind("svd", "lstlm.spherical.stabilise.swept:Svd", sweeps=True),
    StabiliserKind("power", "lstlm.spherical.stabilise.swept:Power", sweeps=True),
)

OUTPUTS = Registry(
    "output.kind",
    OutputKind(
        "factored",
        "lstlm.outputs.spherical:factored",
        sharded="lstlm.distributed.spherical:ShardedOutput",
        spherical=True,
        reference="lstlm.bench.check:SphericalOracle",
    ),
    OutputKind(
        "naive",
        "lstlm.outputs.spherical:naive",
        sharded="lstlm.distributed.spherical:ShardedDenseOutput",
        spherical=True,
        dense=True,
        reference="lstlm.bench.check:SphericalOracle",
    ),
    OutputKind(
        "shortlist",
        "lstlm.outputs.shortlist:shortlist",
        sharded="lstlm.distributed.shortlist:ShardedShortlist",
        rate=constant(1.0),
        adagrad_rate=0.05,
        optimiser="adagrad",
        reference="lstlm.bench.check:ShortlistOracle",
    ),
    OutputKind(
        "softmax",
        "lstlm.outputs.softmax:full",
        rate=constant(1.0),
        adagrad_rate=0.05,
        dense=True,
        reference="lstlm.bench.check:SoftmaxOracle",
    ),
    OutputKind(
        "hierarchical",
        "lstlm.outputs.hierarchical:two_level",
        rate=constant(1.0),
        adagrad_rate=0.05,
        reference="lstlm.bench.check:TwoLevelOracle",
    ),
    OutputKind(
        "adaptive",
        "lstlm.outputs.adaptive:adaptive",
        rate=constant(1.0),
        adagrad_rate=0.05,
        reference="lstlm.bench.check:AdaptiveOracle",
    ),
    OutputKind(
        "sampled",
        "lstlm.outputs.sampled:sampled",
        rate=constant(5.0),
        adagrad_rate=0.1,
        reference="lstlm.bench.check:SoftmaxOracle",
    ),
)
