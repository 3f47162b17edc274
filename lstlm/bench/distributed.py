"""`lstlm bench distributed`: whole training steps by 1, 2, 4 … processes of this machine; time and bytes a step."""

from __future__ import annotations

import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import torch

from lstlm.bench.methods import expand
from lstlm.bench.model import Plan as ModelPlan
from lstlm.bench.model import configuration, synthetic_corpus
from lstlm.bench.records import Column, Record, table
from lstlm.bench.timing import percentile
from lstlm.config import Config
from lstlm.distributed import Ranks
from lstlm.distributed.steps import LOW_RANK_UP_TO
from lstlm.errors import LstlmError
from lstlm.training.learner import Learner
from lstlm.training.ranked import RankLearner

TOKENS = 400_000
TIMEOUT_S = 300.0
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
    share_memory: bool = True  # else through gloo, as ranks on several machines do

    def config(self, vocab: int, m: int) -> Config:
        """Return the model: the paper's, with the factored layer and the Z-loss."""
        method = expand(("factored",), ("z",), ("lazy",))[0]
        return configuration(ModelPlan([method], vocab, self.hidden, m, self.context, self.layers), method)


def run(plan: Plan, say: Callable[[str], None]) -> list[Record]:
    """Measure; the ranks of one number of them are started once and go through all sizes together."""
    records: list[Record] = []
    for world in plan.worlds:
        found = _ranks(plan, world)
        for record in found:
            alone = [
                r for r in [*records, *found] if r["world"] == 1 and (r["D"], r["m"]) == (record["D"], record["m"])
            ]
            speedup = record["words_per_s"] / alone[0]["words_per_s"] if alone else None
            records.append({**record, "speedup": speedup})
        say(f"{world} rank{'s' if world > 1 else ''}: {len(found)} sizes measured")
    return records


def _ranks(plan: Plan, world: int) -> list[Record]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        started = [
            get_context("spawn").Process(target=_rank, args=(plan, rank, world, folder)) for rank in range(world)
        ]
        for process in started:
            process.start()
        for process in started:
            process.join()
        try:
            found: list[Record] = json.loads((folder / "records.json").read_text())
        except OSError:
            codes = [process.exitcode for process in started]
            raise LstlmError(f"bench distributed: the ranks ended with {codes}; see their messages above") from None
    return found


def _rank(plan: Plan, rank: int, world: int, folder: Path) -> None:
    torch.set_num_threads(plan.threads)
    device = torch.device("cpu")
    ranks = Ranks.through_file(folder / "store", rank, world, device, TIMEOUT_S, share_memory=plan.share_memory)
    records = []
    for vocab in plan.vocab_sizes:
        corpus = synthetic_corpus(vocab, TOKENS)
        for m in plan.batch_sizes:
            config = plan.config(vocab, m)
            learner = RankLearner(config, corpus, device, ranks) if world > 1 else Learner(config, corpus, device)
            learners = [learner] if world == 1 else [learner, _independent(plan, m, device)]
            measured, *control = _measure(plan, learners, ranks)
            record = {"world": world, "D": vocab, "d": plan.hidden + 1, "m": m, **measured}
            record["through"] = None if world == 1 else "gloo" if ranks.memory is None else "memory"
            apart = sum(ranks.collect(control[0]["words_per_s"])) if control else None
            record["of_independent"] = record["words_per_s"] / apart if apart else None
            bound = bytes_bound(plan, m * world, world, sum(p.numel() for p in learner.network.hidden.parameters()))
            records.append({**record, "bytes_bound": bound, **_constants(ranks)})
            del learner, learners
    if ranks.first:
        (folder / "records.json").write_text(json.dumps(records))
    ranks.on_first(lambda: None)  # nobody leaves before the others have heard everything
    ranks.close()


def _measure(plan: Plan, learners: Sequence[Learner], ranks: Ranks) -> list[Record]:
    """Time steps that all ranks take at once; milliseconds of the first rank's clock, processor time of all.

    Several learners take turns: whatever else the machine does meets all of them.
    """
    steps: list[int] = []
    for learner in learners:
        spent = []
        for _ in range(_WARM_UP):
            began = time.perf_counter()
            learner.step(1.0, measured=False)
            spent.append(time.perf_counter() - began)
        wanted = math.ceil(max(10, min(1000, plan.seconds / min(spent))) / _TURNS)
        steps.append(ranks.collect(wanted)[0])
    times: list[list[float]] = [[] for _ in learners]
    used, sent = [0.0] * len(learners), [0] * len(learners)
    for _ in range(_TURNS):
        for i, learner in enumerate(learners):
            ranks.on_first(lambda: None)  # all begin at once
            began_cpu, sent_before = time.process_time(), ranks.sent
            for _ in range(steps[i]):
                began = time.perf_counter()
                learner.step(1.0, measured=False)
                times[i].append(1e3 * (time.perf_counter() - began))
            used[i] += 1e3 * (time.process_time() - began_cpu)
            sent[i] += ranks.sent - sent_before
    return [
        {
            "threads": plan.threads,
            "dtype": "float32",
            "step_ms": statistics.median(taken),
            "step_ms_p10": percentile(sorted(taken), 0.1),
            "step_ms_p90": percentile(sorted(taken), 0.9),
            "steps": len(taken),
            "words_per_s": 1e3 * learner.words_per_step / statistics.median(taken),
            "cpu_ms": sum(ranks.collect(cpu / len(taken))),
            "bytes": bytes_sent / len(taken),
        }
        for learner, taken, cpu, bytes_sent in zip(learners, times, used, sent, strict=True)
    ]


def _independent(plan: Plan, m: int, device: torch.device) -> Learner:
    """Return a learner that talks to nobody: as many of them side by side are what the machine allows.

    A small vocabulary: D does not matter, memory does.
    """
    return Learner(plan.config(CONTROL_VOCAB, m), synthetic_corpus(CONTROL_VOCAB, TOKENS), device)


def _constants(ranks: Ranks) -> Record:
    """Return the latency of a tiny sum in microseconds and the rate of a large one in MB/s, as this rank sends it."""
    if ranks.world == 1:
        return {"latency_us": None, "bandwidth_mb_s": None}

    def seconds(x: torch.Tensor, repeats: int) -> float:
        times = []
        for _ in range(repeats):
            began = time.perf_counter()
            ranks.total_(x)
            times.append(time.perf_counter() - began)
        return statistics.median(times)

    small, large = torch.zeros(1), torch.zeros(1 << 20)
    latency, before = seconds(small, 100), ranks.sent
    transfer = seconds(large, 10)
    return {"latency_us": 1e6 * latency, "bandwidth_mb_s": (ranks.sent - before) / 10 / 1e6 / transfer}


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
    ("ranks", lambda r: r["world"]),
    ("D", lambda r: r["D"]),
    ("m a rank", lambda r: r["m"]),
    ("through", lambda r: r.get("through")),
    ("step ms", lambda r: r["step_ms"]),
    ("p10", lambda r: r["step_ms_p10"]),
    ("p90", lambda r: r["step_ms_p90"]),
    ("CPU ms, all ranks", lambda r: r["cpu_ms"]),
    ("words/s", lambda r: r["words_per_s"]),
    ("× one rank", lambda r: r["speedup"]),
    ("of independent", lambda r: r["of_independent"]),
    ("KB sent a step", lambda r: r["bytes"] / 1e3),
    ("at most", lambda r: r["bytes_bound"] / 1e3),
    ("latency µs", lambda r: r["latency_us"]),
    ("MB/s", lambda r: r["bandwidth_mb_s"]),
]


def markdown(records: Sequence[Record]) -> str:
    """Return the table."""
    return table(records, COLUMNS)
