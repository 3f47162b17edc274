"""Every key of the configuration: its type, default, limits and meaning, in one place.  ``Config()`` is the default."""

from dataclasses import dataclass, field
from typing import Any, Literal

from lstlm.registry import LOSSES, OUTPUTS, STABILISERS, Registry

LARGEST_INT = 2**63 - 1


def option(default: Any, doc: str, **limits: float) -> Any:
    """Return a dataclass field with its documentation and limits: ``above``, ``at_least``, ``below``, ``at_most``."""
    return field(default=default, metadata={"doc": doc, "limits": limits})


def choice(default: str, registry: Registry[Any], doc: str) -> Any:
    """Return a field whose values are the names in a registry."""
    return field(default=default, metadata={"doc": doc, "limits": {}, "registry": registry})


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What the model reads."""

    dir: str = option("data/demo", "folder that `lstlm prepare` wrote")
    context: int = option(4, "words of context per example", at_least=1, at_most=1024)
    context_kind: Literal["previous", "window", "bag", "cooccurrence"] = option(
        "previous",
        "previous: the words before the target; window: the words on both sides; bag: one word predicts the bag of "
        "words around it; cooccurrence: one word predicts its row of association scores",
    )
    subsample: float = option(0.0, "threshold for dropping frequent words; 0 keeps all", at_least=0, below=1)
    unknown: float = option(
        0.0,
        "share of the words that occur once which an epoch shows as <unk>, so that a model of all words learns how "
        "likely an unknown one is",
        at_least=0,
        at_most=1,
    )
    weighting: Literal["ppmi", "sqrt", "log"] = option(
        "ppmi", "cooccurrence: score of a pair: positive pointwise mutual information, or the counts' root or logarithm"
    )
    distance: Literal["flat", "linear", "harmonic"] = option(
        "linear", "cooccurrence: how a pair's weight falls with the distance"
    )
    smoothing: float = option(0.75, "cooccurrence: power of the context's frequency", at_least=0, at_most=1)
    discount: float = option(0.0, "cooccurrence: a score of n pairs is multiplied by n / (n + discount)", at_least=0)
    shift: float = option(1.0, "cooccurrence: ppmi is lowered by its logarithm", above=0)
    min_pair: float = option(0.0, "cooccurrence: pairs with less weight in the corpus are left out", at_least=0)

    @property
    def context_words(self) -> int:
        """The words of an example's context: `context`, or 1 where a word predicts its surroundings."""
        return self.context if self.context_kind in ("previous", "window") else 1


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What stands between the words and the output layer."""

    embedding: int = option(300, "size of a word's input vector", at_least=1, at_most=65536)
    hidden: tuple[int, ...] = option((300, 300), "sizes of the hidden layers; [] for none", at_least=1, at_most=65536)
    activation: Literal["tanh", "relu", "identity"] = option("tanh", "non-linearity of the hidden layers")
    start: Literal["random", "identity"] = option(
        "random",
        "hidden layers at the start: random weights, or the identity, so that words reach the output layer unmixed; "
        "identity needs layers as wide as their input",
    )
    combine: Literal["concat", "sum", "mean"] = option("concat", "how the context's vectors become one")
    vector_power: float = option(
        0.25, "cooccurrence: word vectors are principal axes times singular values to this power", at_least=0, at_most=1
    )


@dataclass(frozen=True, kw_only=True)
class OutputConfig:
    """The layer with one output per word."""

    kind: str = choice(
        "factored",
        OUTPUTS,
        "shortlist: a softmax of frequent words, a factored layer for the others; factored: exact and independent "
        "of the vocabulary; naive: the same, dense; the others: baselines",
    )
    loss: str = choice("z", LOSSES, "loss of the factored and naive kinds")
    a: float = option(0.1, "Z-loss: slope", above=0)
    b: float = option(10.0, "Z-loss: margin")
    epsilon: float = option(1e-2, "spherical softmax: added to every squared output", above=0)
    stabilise: str = choice("lazy", STABILISERS, "factored: how the factor U is kept well-conditioned")
    stabilise_range: tuple[float, float] | None = option(
        None, "factored: [low, high] for the singular values of U; null for the method's own", above=0
    )
    stabilise_every: int | None = option(
        None, "factored: steps between two checks; null for the method's own", at_least=1
    )
    weight_decay: float = option(0.0, "L2 penalty on the output weights", at_least=0)
    init_scale: float | None = option(
        None, "standard deviation of the initial output weights; null for the kind's own", at_least=0
    )
    candidates: int = option(8192, "sampled: candidate words per batch", at_least=1)
    classes: int | None = option(
        None,
        "hierarchical: classes; null for the root of the vocabulary; shortlist: those of the middle; null for the root "
        "of its words",
        at_least=2,
    )
    clustering: Literal["frequency", "brown"] = option("frequency", "hierarchical: how words are put into classes")
    bias: bool = option(True, "whether each output word has a bias")
    prior: Literal["none", "unigram"] = option(
        "none", "loss spherical or taylor: unigram makes the model a correction of the words' (tempered) frequencies"
    )
    prior_power: float = option(
        0.5,
        "prior unigram, and the tail of a shortlist: the prior is count^prior_power, and a word learns at a rate "
        "proportional to count^-prior_power; 0 for no prior",
        at_least=0,
        at_most=1,
    )
    shortlist: int = option(250, "shortlist: words of the softmax, before those of the middle and the tail", at_least=1)
    middle: int = option(
        0,
        "shortlist: words after the list that form classes of words used alike, each a softmax; 0 for none",
        at_least=0,
    )
    middle_inputs: int = option(128, "shortlist: inputs of the middle, the first of the layer's", at_least=1)
    tail_rate: float = option(0.04, "shortlist: learning rate of the tail, as a share of optim.output_lr", above=0)
    tail_inputs: int = option(
        128, "shortlist: inputs of the tail, the first of the layer's; fewer cost less, and learn faster", at_least=1
    )
    ridge: float = option(0.0, "cooccurrence: L2 penalty of a refit, as a share of the mean square", at_least=0)


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """Learning rates and the rules that use them."""

    output_lr: float | None = option(
        None,
        "learning rate of the output layer (mean loss of a batch); null for one that suits output.kind, "
        "output.loss and the vocabulary, chosen when training starts",
        above=0,
    )
    hidden_lr: float = option(0.02, "learning rate of the hidden layers", above=0)
    embedding_lr: float = option(0.1, "learning rate of the input word vectors", above=0)
    output: Literal["sgd", "adagrad"] | None = option(
        None,
        "optimiser of the output layer's rows, of kinds that are not factored: sgd or row-wise adagrad; null for the "
        "kind's own",
    )
    output_squares: float = option(
        1e-5,
        "adagrad: what the sums of squared gradients of the output layer's rows begin at; from 0 a rare word's first "
        "steps are too long",
        at_least=0,
    )
    hidden: Literal["adagrad", "sgd", "adam"] = option("adagrad", "optimiser of the hidden layers")
    momentum: float = option(0.9, "momentum when `hidden` is sgd", at_least=0, below=1)
    embedding: Literal["adagrad", "sgd"] = option("adagrad", "row-wise optimiser of the input word vectors")
    schedule: Literal["constant", "linear", "cosine"] = option("constant", "how the rates fall over the run")
    warmup_steps: int = option(0, "steps over which the rates rise from 0", at_least=0)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How long, how often, how careful."""

    batch_size: int = option(128, "examples per step", at_least=1, at_most=1_048_576)
    max_steps: int | None = option(None, "stop after this many steps", at_least=1)
    max_epochs: int | None = option(1, "stop after this many passes over the corpus", at_least=1)
    max_minutes: float | None = option(None, "stop after this many minutes of training", above=0)
    seed: int = option(1, "seed of everything random", at_least=0)
    dtype: Literal["float32", "float64"] = option("float32", "floating-point type of the model")
    eval_every: int = option(1000, "steps between two evaluations", at_least=1)
    eval_examples: int = option(20_000, "validation examples per evaluation", at_least=1)
    checkpoint_every: int = option(1000, "steps between two checkpoints", at_least=1)
    keep_checkpoints: int = option(3, "checkpoints kept besides the best", at_least=1)
    log_every: int = option(100, "steps between two lines of metrics", at_least=1)
    max_rollbacks: int = option(3, "returns to a checkpoint with a lower rate before giving up", at_least=0)
    patience: int | None = option(None, "stop after this many evaluations without a better one", at_least=1)
    simlex: bool = option(True, "score SimLex-999 at every evaluation when its file is found")


@dataclass(frozen=True, kw_only=True)
class Config:
    """One run, completely described."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    output: OutputConfig = field(default_factory=OutputConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    train: TrainConfig = field(default_factory=TrainConfig)

    @property
    def combined(self) -> int:
        """The length of the context's vectors combined: the inputs of the first hidden layer."""
        return self.model.embedding * (self.data.context_words if self.model.combine == "concat" else 1)

    @property
    def width(self) -> int:
        """The inputs of the output layer, without the constant one."""
        return self.model.hidden[-1] if self.model.hidden else self.combined
