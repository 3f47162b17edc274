"""`lstlm bench model`: a whole training step (data, forward, backward, all updates) and its parts, method by method."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Literal

import numpy as np
import torch

from lstlm.bench.check import verify
from lstlm.bench.methods import Method, by_blocks, learning_rate
from lstlm.bench.output import Outcome, in_groups
from lstlm.bench.output import Plan as OutputPlan
from lstlm.bench.records import Column, Record, mean_ms, table
from lstlm.bench.timing import Effort, GemmFloor, Timed, in_turn, median_ms
from lstlm.bench.workload import Workload, zipf_counts
from lstlm.config import Config, DataConfig, ModelConfig, OptimConfig, TrainConfig
from lstlm.data import Corpus, Split, Vocabulary
from lstlm.data.vocabulary import EOS_ID, SPECIALS
from lstlm.training.loop.clock import PhaseClock
from lstlm.training.loop.learner import Learner

TOKENS = 2_000_000
SENTENCE = 25
OUTPUT_PHASES = ("output", "output_update")
HIDDEN_PHASES = ("hidden_forward", "backward", "hidden_update")

# The table of the paper: speed-ups against its naive CPU layer, output layer only and whole model, at its vocabulary.
PAPER_D = 793_471
PAPER = {
    ("cpu", "naive"): (1.0, 1.0),
    ("gpu", "naive"): (6.8, 4.7),
    ("gpu", "hierarchical"): (125.2, 178.1),
    ("cpu", "factored"): (763.3, 501.0),
    ("gpu", "factored"): (3257.3, 1852.3),
}


@dataclass(frozen=True)
class Plan:
    """What to time: an n-gram model of `context` words and `layers` hidden layers of `hidden` units.

    `combine` is how the words' vectors become the first layer's input. The paper's model has 300 units on all layers,
    the first of them W⁽¹⁾ᵀx for a sparse x: a sum. `concat` makes the input `context` times as wide.
    """

    methods: Sequence[Method]
    vocab: int = 793_471
    hidden: int = 300
    m: int = 128
    context: int = 4
    layers: int = 2
    combine: Literal["concat", "sum", "mean"] = "sum"
    effort: Effort = field(default_factory=Effort)


def synthetic_corpus(vocab: int, tokens: int = TOKENS, seed: int = 1) -> Corpus:
    """Return a corpus in memory: Zipfian words in sentences of 25, a vocabulary of `vocab` names."""
    random = np.random.default_rng(seed)
    counts = np.concatenate([[1, 0, 1], zipf_counts(vocab - len(SPECIALS)).numpy()])
    cumulative = np.cumsum(counts[len(SPECIALS) :])
    ids = np.searchsorted(cumulative, random.random(tokens) * cumulative[-1]).clip(0, len(cumulative) - 1)
    ids = (ids + len(SPECIALS)).astype(np.uint32)
    ids[SENTENCE - 1 :: SENTENCE] = EOS_ID
    ids[-1] = EOS_ID
    words = [*SPECIALS, *(f"w{number}" for number in range(vocab - len(SPECIALS)))]
    split = Split.from_ids("train", ids)
    return Corpus(Path("synthetic"), {}, Vocabulary(words, counts.astype(np.int64)), train=split, valid=split)


def configuration(plan: Plan, method: Method) -> Config:
    """Return the model of the paper with one output layer or another."""
    work = Workload(plan.hidden, plan.vocab, plan.m)
    rate = learning_rate(method, plan.vocab, [next(work)[0] for _ in range(3)])
    return Config(
        data=DataConfig(context=plan.context),
        model=ModelConfig(embedding=plan.hidden, hidden=(plan.hidden,) * plan.layers, combine=plan.combine),
        output=method.config(),
        optim=OptimConfig(output_lr=rate),
        train=TrainConfig(batch_size=plan.m),
    )


class WholeSteps:
    """Steps of the trainer's own learner, and the same step taken apart for the phases."""

    def __init__(self, plan: Plan, method: Method, corpus: Corpus) -> None:
        self.learner = Learner(configuration(plan, method), corpus, torch.device("cpu"))
        if method.name == "naive-blocked":
            by_blocks(self.learner.network.output)
        self.clock = PhaseClock()
        self.phases: list[dict[str, float]] = []
        self._number = 0

    def __call__(self) -> tuple[float, float]:
        """Take a whole step on the clock; every other one is preceded by one that is taken apart, off the clock."""
        if self._number % 2 == 0:
            self.phases.append(self._apart())
        self._number += 1
        began = perf_counter()
        self.learner.step(1.0, measured=False)  # as all steps of training but one in log_every
        spent = 1e3 * (perf_counter() - began)
        return spent, self.learner.network.output.last_stabilise_ms

    def _apart(self) -> dict[str, float]:
        """Take one step, phase by phase; return milliseconds."""
        learner, clock = self.learner, self.clock
        optimisers = learner.optimisers
        clock.start()
        batch = next(learner.examples)
        context, ids = torch.as_tensor(batch.context), torch.as_tensor(batch.target_ids)
        clock.lap("data")
        optimisers.zero()
        learner.gradients(context, ids, None, clock.lap)
        optimisers.step_output()
        clock.lap("output_update")
        optimisers.step_hidden()
        clock.lap("hidden_update")
        optimisers.step_embedding()
        clock.lap("embedding_update")
        return clock.milliseconds()

    def summary(self) -> tuple[dict[str, float], float]:
        """Return the median milliseconds of each phase, and the mean of the output layer's three together.

        The first step taken apart is a warm-up. A mean, because stabilisation may come in few, long steps.
        """
        kept = self.phases[1:] or self.phases
        medians = {name: statistics.median(step[name] for step in kept) for name in kept[0]}
        return medians, statistics.fmean(sum(step[name] for name in OUTPUT_PHASES) for step in kept)


def hidden_floor_ms(plan: Plan) -> float:
    """Return the milliseconds of the products of the hidden layers alone, three a layer, each in its own shape."""
    total, inputs = 0.0, plan.hidden * (plan.context if plan.combine == "concat" else 1)
    for _ in range(plan.layers):
        x, A, g = torch.randn(plan.m, inputs), torch.randn(plan.hidden, inputs), torch.randn(plan.m, plan.hidden)
        total += sum(median_ms(partial(torch.mm, *product)) for product in ((x, A.T), (g.T, x), (g, A)))
        inputs = plan.hidden
    return total


def run(plan: Plan, say: Callable[[str], None]) -> Outcome:
    """Verify every output layer, then time whole steps in groups that fit into memory."""
    errors = {method: verify(method, plan.hidden + 1, plan.m) for method in plan.methods}
    corpus = synthetic_corpus(plan.vocab)
    # The embedding table is another matrix of the same size as W.
    sizes = OutputPlan(plan.methods, (plan.vocab,), 2 * plan.hidden + 1, plan.m, effort=plan.effort)
    outcome = in_groups(sizes, errors, lambda group, *_: _time_group(plan, group, corpus), say)
    outcome.records = with_paper(outcome.records)
    return outcome


def _time_group(plan: Plan, group: Sequence[Method], corpus: Corpus) -> list[tuple[Method, Record]]:
    floor = GemmFloor(plan.m, plan.hidden + 1, torch.float32)
    hidden = hidden_floor_ms(plan)
    steps = {method: WholeSteps(plan, method, corpus) for method in group}
    clocks = {method: Timed(steps[method], method.period) for method in group}
    # Half of the steps are taken apart, off the clock: they cost as much time again.
    effort = replace(plan.effort, seconds=plan.effort.seconds / 1.5)
    for clock in clocks.values():
        clock.warm_up(effort)
    in_turn(clocks.values(), effort, floor)
    records = []
    for method, clock in clocks.items():
        record = _record(plan, method, clock, steps[method].summary())
        records.append((method, {**record, "gemm_floor_ms": floor.milliseconds, "hidden_floor_ms": hidden}))
    return records


def _record(plan: Plan, method: Method, clock: Timed, summary: tuple[dict[str, float], float]) -> Record:
    figures, (phases, output_ms) = clock.summary(), summary
    return {
        **method.record(plan.vocab, plan.hidden + 1, plan.m),
        "context": plan.context,
        "combine": plan.combine,
        "hidden_layers": plan.layers,
        **figures,
        "words_per_s": 1e3 * plan.m / figures["step_ms_mean"],
        "output_ms": output_ms,
        "hidden_ms": sum(phases[name] for name in HIDDEN_PHASES),
        "phases_ms": phases,
    }


def with_paper(records: Sequence[Record]) -> list[Record]:
    """Add speed-ups against naive of the same D and loss (else any loss), and the paper's own where it has them."""
    out = []
    for record in records:
        naive = [r for r in records if r["method"] == "naive" and r["D"] == record["D"]]
        base = next((r for r in naive if r["loss"] == record["loss"]), naive[0] if naive else None)
        added: Record = {}
        if base is not None:
            added["speedup_output"] = base["output_ms"] / record["output_ms"]
            added["speedup_model"] = mean_ms(base) / mean_ms(record)
        for place in ("cpu", "gpu"):
            if record["D"] == PAPER_D and (found := PAPER.get((place, record["method"]))):
                added[f"paper_{place}_output"], added[f"paper_{place}_model"] = found
        out.append({**record, **added})
    return out


NAMES: list[Column] = [("output layer", "method"), ("loss", "loss"), ("D", "D")]
COLUMNS: list[Column] = [
    *NAMES,
    ("step ms", "step_ms"),
    ("mean", "step_ms_mean"),
    ("words/s", "words_per_s"),
    ("output ms", "output_ms"),
    ("× output", lambda r: r.get("speedup_output")),
    ("paper cpu", lambda r: r.get("paper_cpu_output")),
    ("paper gpu", lambda r: r.get("paper_gpu_output")),
    ("× model", lambda r: r.get("speedup_model")),
    ("paper cpu ", lambda r: r.get("paper_cpu_model")),
    ("paper gpu ", lambda r: r.get("paper_gpu_model")),
]
PHASES = ("data", "hidden_forward", *OUTPUT_PHASES, "backward", "hidden_update", "embedding_update")


def markdown(records: Sequence[Record]) -> str:
    """Return the paper's table with ours, and the phases of a step in milliseconds."""
    phases = list(NAMES)
    phases += [(name.replace("_", " "), lambda r, name=name: r["phases_ms"][name]) for name in PHASES]  # type: ignore[misc]
    phases += [("hidden part", "hidden_ms"), ("its GEMM floor", "hidden_floor_ms")]
    return table(records, COLUMNS) + "\n\n" + table(records, phases)
