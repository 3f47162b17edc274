"""`lstlm bench distributed`: whole training steps by 1, 2, 4 … processes of this machine; time and bytes a step."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from lstlm.bench.layer_steps import MOST_HALVINGS
from lstlm.bench.methods import expand
from lstlm.bench.model import Plan as ModelPlan
from lstlm.bench.model import configuration, synthetic_corpus
from lstlm.bench.processes import in_ranks
from lstlm.bench.records import Column, Record, table
from lstlm.bench.timing import median_ms, spread
from lstlm.config import Config
from lstlm.data import Corpus
from lstlm.distributed import Ranks
from lstlm.errors import NumericsError
from lstlm.spherical.steps import LOW_RANK_UP_TO
from lstlm.training.loop.learner import Learner
from lstlm.training.loop.ranked import RankLearner

TOKENS = 400_000
CONTROL_VOCAB = 10_000
_WARM_UP = 4
_TURNS = 4
_ITEM = 4  # bytes of a float32


@dataclass(frozen=True)
class Plan:
    """What to measure: every number of ranks with every vocabulary and every minibatch (`batch_sizes` a rank)."""

    worlds: Sequence[int]
    vocab_sizes: Sequence[int]
    batch_sizes: Sequence[int]
    hidden: int = 300
    context: int = 4
    layers: int = 2
    threads: int = 1
    seconds: float = 4.0

    def config(self, vocab: int, m: int) -> Config:
        """Return the model: the paper's, with the factored layer and the Z-loss."""
        method = expand(("factored",), ("z",), ("lazy",))[0]
        plan = ModelPlan([method], vocab, self.hidden, m, self.context, layers=self.layers, combine="concat")
        return configuration(plan, method)


def run(plan: Plan, say: Callable[[str], None]) -> list[Record]:
    """Measure; the ranks of one number of them are started once and go through all sizes together."""
    records: list[Record] = []
    for world in plan.worlds:
        found = in_ranks(world, partial(_measure, plan))
        records += found
        say(f"{world} rank{'s' if world > 1 else ''}: {len(found)} sizes measured")
    return records


def _measure(plan: Plan, ranks: Ranks) -> list[Record]:
    """Go through all sizes as one rank."""
    torch.set_num_threads(plan.threads)
    world, records = ranks.world, []
    for vocab in plan.vocab_sizes:
        corpus = synthetic_corpus(vocab, TOKENS)
        for m in plan.batch_sizes:
            turns = _turns(plan, corpus, vocab, m, ranks)
            _take_turns(plan, turns, ranks)
            record = {"world": world, "D": vocab, "d": plan.hidden + 1, "m": m, **_figures(plan, turns[0], ranks)}
            rates = [turn.words_per_s for turn in turns]
            record["speedup"] = rates[0] / rates[-1]  # against the first rank alone
            record["of_independent"] = rates[0] / sum(ranks.collect(rates[1])) if world > 1 else None
            hidden = turns[0].learner.network.hidden
            bound = bytes_bound(plan, m * world, world, sum(p.numel() for p in hidden.parameters()))
            records.append({**record, "bytes_bound": bound, **_constants(ranks)})
            del turns, hidden  # gigabytes, which the next ones need
    return records


class _Turn:
    """Steps of one learner, by all ranks at once or by the first alone: how long each took, and what all took.

    Where an update is refused because the learning rate is too large, the rate is halved and the step is repeated,
    as in training, by all ranks alike; the refused step is not counted.
    """

    def __init__(self, learner: Learner, *, everyone: bool = True) -> None:
        self.learner, self.everyone, self.steps = learner, everyone, _WARM_UP
        self.halvings = 0
        self.forget()

    def forget(self) -> None:
        self.times: list[float] = []
        self.cpu_ms, self.sent = 0.0, 0

    def take(self, ranks: Ranks) -> None:
        ranks.on_first(lambda: None)  # all begin at once
        if not (self.everyone or ranks.first):
            return
        for _ in range(self.steps):
            self._step(ranks)

    def _step(self, ranks: Ranks) -> None:
        while True:
            cpu, sent, began = time.process_time(), ranks.sent, time.perf_counter()
            try:
                self.learner.step(0.5**self.halvings, measured=False)
                break
            except NumericsError:
                self.halvings += 1
                if self.halvings > MOST_HALVINGS:
                    raise
        self.times.append(1e3 * (time.perf_counter() - began))
        self.cpu_ms += 1e3 * (time.process_time() - cpu)
        self.sent += ranks.sent - sent

    @property
    def words_per_s(self) -> float:
        return 1e3 * self.learner.words_per_step / statistics.median(self.times) if self.times else math.nan


def _turns(plan: Plan, corpus: Corpus, vocab: int, m: int, ranks: Ranks) -> list[_Turn]:
    """Return what to measure: the ranks together; as many processes that exchange nothing; the first one alone.

    The second is what the machine allows. It has a small vocabulary, for the sake of memory, and is a little faster so.
    """
    config = plan.config(vocab, m)
    if ranks.world == 1:
        return [_Turn(Learner(config, corpus, ranks.device))]
    together = RankLearner(config, corpus, ranks.device, ranks)
    apart = Learner(plan.config(CONTROL_VOCAB, m), synthetic_corpus(CONTROL_VOCAB, TOKENS), ranks.device)
    alone = Learner(config, corpus, ranks.device) if ranks.first and vocab != CONTROL_VOCAB else apart
    return [_Turn(together), _Turn(apart), _Turn(alone, everyone=False)]


def _take_turns(plan: Plan, turns: Sequence[_Turn], ranks: Ranks) -> None:
    """Let the learners take turns: whatever else the machine does meets all of them."""
    for turn in turns:
        turn.take(ranks)
        wanted = max(10, min(1000, 1e3 * plan.seconds / min(turn.times, default=1.0)))
        turn.steps = ranks.collect(math.ceil(wanted / _TURNS))[0]
        turn.forget()
    for _ in range(_TURNS):
        for turn in turns:
            turn.take(ranks)


def _figures(plan: Plan, turn: _Turn, ranks: Ranks) -> Record:
    """Return milliseconds by the first rank's clock, processor time of all ranks, and bytes of the first."""
    times, lr = turn.times, turn.learner.config.optim.output_lr
    assert lr is not None  # `configuration` chooses one
    return {
        "threads": plan.threads,
        "dtype": "float32",
        **spread(times),
        "words_per_s": turn.words_per_s,
        "cpu_ms": sum(ranks.collect(turn.cpu_ms / len(times))),
        "bytes": turn.sent / len(times),
        "lr": lr * 0.5**turn.halvings,
        "lr_halvings": turn.halvings,
    }


def _constants(ranks: Ranks) -> Record:
    """Return the latency of a tiny sum in microseconds and the rate of a large one in MB/s, as this rank sends it."""
    if ranks.world == 1:
        return {"latency_us": None, "bandwidth_mb_s": None}
    small, large = torch.zeros(1), torch.zeros(1 << 20)
    latency_ms = median_ms(lambda: ranks.total_(small), 100)
    before = ranks.sent
    transfer_ms = median_ms(lambda: ranks.total_(large), 10)
    return {"latency_us": 1e3 * latency_ms, "bandwidth_mb_s": (ranks.sent - before) / 10 / 1e3 / transfer_ms}


def bytes_bound(plan: Plan, m: int, world: int, hidden_parameters: int) -> float:
    """Return the most bytes that a rank sends in a step of m examples in all; D is not in it.

    The examples (id, value, upstream gradient), H and the rows of V, or H to the owners of the targets, YW back and the
    sums of the output layer, the gradients of the hidden layers, and the words of the context: asked for, sent, and
    their gradients sent back.
    """
    d, others, own = plan.hidden + 1, world - 1, m / world
    examples = others * own * 24
    if m <= LOW_RANK_UP_TO * d:
        output = 2 * others * own * _ITEM * d  # more where the targets of a minibatch are unevenly spread
    else:
        output = 2 * others / world * _ITEM * (own * d + 3 * m + (3 * d + 2) * d)
    hidden = 2 * others / world * _ITEM * hidden_parameters
    words = others / world * own * plan.context * (2 * _ITEM * plan.hidden + 8)
    return examples + output + hidden + words


COLUMNS: list[Column] = [
    ("ranks", "world"),
    ("D", "D"),
    ("m a rank", "m"),
    ("step ms", "step_ms"),
    ("p10", "step_ms_p10"),
    ("p90", "step_ms_p90"),
    ("CPU ms, all ranks", "cpu_ms"),
    ("words/s", "words_per_s"),
    ("× one rank", "speedup"),
    ("of independent", "of_independent"),
    ("KB sent a step", lambda r: r["bytes"] / 1e3),
    ("at most", lambda r: r["bytes_bound"] / 1e3),
    ("latency µs", "latency_us"),
    ("MB/s", "bandwidth_mb_s"),
]


def markdown(records: Sequence[Record]) -> str:
    """Return the table."""
    return table(records, COLUMNS)
