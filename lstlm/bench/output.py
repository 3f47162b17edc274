"""`lstlm bench output`: forward, backward and weight update of an output layer, against the vocabulary size."""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter

import torch

from lstlm.bench.check import verify
from lstlm.bench.layer_steps import LayerSteps
from lstlm.bench.methods import Method, Runner, learning_rate, make_layer, make_runner
from lstlm.bench.records import Column, Record, mean_ms, table
from lstlm.bench.timing import Effort, GemmFloor, Timed, TimeLeft, available_memory, in_turn
from lstlm.bench.workload import Workload

SIZES = (1000, 3000, 10_000, 30_000, 100_000, 300_000, 793_471)
QUICK_SIZES = (1000, 3000, 10_000, 30_000)
_SHARE_OF_ONE = 0.8  # of the free memory that one method may take
_SHARE_OF_GROUP = 0.5  # of it that the methods which take turns may take together


@dataclass(frozen=True)
class Plan:
    """What to time. `d` counts the constant feature. An example has `targets` targets, of value 1/targets.

    `everywhere`: sweeping stabilisers at every size, not at the smallest and the largest alone.
    """

    methods: Sequence[Method]
    vocab_sizes: Sequence[int] = SIZES
    d: int = 300
    m: int = 128
    targets: int = 1
    dtype: torch.dtype = torch.float32
    effort: Effort = field(default_factory=Effort)
    everywhere: bool = True

    def at(self, vocab: int) -> list[Method]:
        """Return the methods to time at one size."""
        ends = vocab in (min(self.vocab_sizes), max(self.vocab_sizes))
        return [x for x in self.methods if ends or self.everywhere or not x.sweeping]

    def work(self, method: Method, vocab: int) -> float:
        """Estimate the seconds that a method takes at a size, for the time left."""
        setup = 1e-7 * vocab * self.d * (1 + self.d / 300)
        steps = 3e-11 * vocab * self.d * self.m * 4 if method.dense else 0.0
        return self.effort.seconds * 1.2 + setup + steps


@dataclass
class Outcome:
    """Records, and what was left out with the reason."""

    records: list[Record] = field(default_factory=list)
    skipped: list[Record] = field(default_factory=list)


def run(plan: Plan, say: Callable[[str], None]) -> Outcome:
    """Verify every method, then time them size by size."""
    errors = {method: verify(method, plan.d, plan.m, plan.targets) for method in plan.methods}
    return in_groups(plan, errors, partial(_time_group, plan, say), say)


TimeGroup = Callable[[Sequence[Method], int, "Outcome"], list[tuple[Method, Record]]]
"""Times some methods in turn at a size, and notes in the outcome what it left out."""


def in_groups(plan: Plan, errors: Mapping[Method, float], time: TimeGroup, say: Callable[[str], None]) -> Outcome:
    """Time methods that were verified, with these errors, size by size, in groups that fit into memory together."""
    outcome = Outcome()
    say(f"{len(errors)} methods verified against plain autograd; largest error {max(errors.values()):.1e}")
    left = TimeLeft(say, sum(plan.work(method, vocab) for vocab in plan.vocab_sizes for method in plan.at(vocab)))
    for vocab in plan.vocab_sizes:
        for group in groups(plan, vocab, outcome, say):
            records = time(group, vocab, outcome)
            gc.collect()  # the layers, before the next ones are made
            outcome.records += [{**record, "verified_error": errors[method]} for method, record in records]
            work = sum(plan.work(method, vocab) for method in group)
            left.done(work, f"D = {vocab:,}: {len(group)} methods")
    return outcome


def groups(plan: Plan, vocab: int, outcome: Outcome, say: Callable[[str], None]) -> Iterator[list[Method]]:
    """Yield the methods of a size in groups that fit into memory together; skip what does not fit alone."""
    group: list[Method] = []
    used = 0
    for method in plan.at(vocab):
        free = available_memory()
        need = method.memory_bytes(vocab, plan.d, plan.m, plan.dtype.itemsize)
        if free is not None and need > _SHARE_OF_ONE * free:
            skip(
                outcome, say, method, vocab, f"needs {need / 2**30:.1f} GiB of memory, {free / 2**30:.1f} GiB are free"
            )
            continue
        if group and free is not None and used + need > _SHARE_OF_GROUP * free:
            yield group
            group, used = [], 0
        group.append(method)
        used += need
    if group:
        yield group


def skip(outcome: Outcome, say: Callable[[str], None], method: Method, vocab: int, reason: str) -> None:
    """Note that a method was left out at a size, and say so."""
    outcome.skipped.append(
        {"method": method.name, "loss": method.loss, "stabilise": method.stabilise, "D": vocab, "reason": reason}
    )
    say(f"skipped: {method} at D = {vocab:,}: {reason}")


def _time_group(
    plan: Plan, say: Callable[[str], None], group: Sequence[Method], vocab: int, outcome: Outcome
) -> list[tuple[Method, Record]]:
    """Time some methods in turn and return their records."""
    floor = GemmFloor(plan.m, plan.d, plan.dtype, now=plan.effort.now)
    steps = {method: _prepare(plan, method, vocab) for method in group}
    clocks = {method: Timed(steps[method], method.period) for method in group}
    for clock in clocks.values():
        clock.warm_up(plan.effort)
    in_turn(clocks.values(), plan.effort, floor)
    records = []
    for method, clock in clocks.items():
        taken = steps[method]
        if taken.failure is not None:
            skip(outcome, say, method, vocab, f"{taken.failure} after {taken.taken} steps")
            continue
        record = _record(plan, method, vocab, clock, taken)
        records.append((method, {**record, "gemm_floor_ms": floor.milliseconds}))
    return records


def _prepare(plan: Plan, method: Method, vocab: int) -> LayerSteps:
    """Build the layer and its stream of minibatches; every method sees the same stream."""
    work, first = (Workload(plan.d - 1, vocab, plan.m, targets=plan.targets, dtype=plan.dtype) for _ in range(2))
    lr = learning_rate(method, vocab, [next(first)[0] for _ in range(3)])

    def make() -> Runner:
        return make_runner(method, make_layer(method, plan.d - 1, work.counts, dtype=plan.dtype), lr)

    restart = method.name == "factored" and method.stabilise == "none"
    return LayerSteps(make, work, restart=restart, now=plan.effort.now)


def _record(plan: Plan, method: Method, vocab: int, clock: Timed, steps: LayerSteps) -> Record:
    figures = clock.summary()
    repairs = steps.runner.layer.statistics().get("stabilisations", 0.0)
    return {
        **method.record(vocab, plan.d, plan.m, plan.dtype),
        **({"targets": plan.targets} if plan.targets > 1 else {}),
        **figures,
        "repairs_per_step": repairs / (figures["steps"] + figures["warm_up_steps"]),
        "words_per_s": 1e3 * plan.m / figures["step_ms_mean"],
        "lr": steps.runner.lr,
        "lr_halvings": steps.halvings,
        **({} if plan.effort.now is perf_counter else {"clock": "cpu"}),
        **({"restarts": steps.restarts} if steps.restarts else {}),
        **({"stabilise_every": method.every} if method.sweeping else {}),
    }


COLUMNS: list[Column] = [
    ("method", "method"),
    ("loss", "loss"),
    ("stabilise", lambda r: r["stabilise"] if r["method"] == "factored" else None),
    ("D", "D"),
    ("m", "m"),
    ("rows", lambda r: r.get("candidates", r.get("shortlist"))),
    ("step ms", "step_ms"),
    ("p10", "step_ms_p10"),
    ("p90", "step_ms_p90"),
    ("mean", lambda r: r.get("step_ms_mean")),
    ("max", lambda r: r.get("step_ms_max")),
    ("of it stabilise", "stabilise_ms"),
    ("GEMM floor", "gemm_floor_ms"),
    ("steps", "steps"),
    ("× naive", lambda r: r.get("times_naive")),
    ("× blocked", lambda r: r.get("times_blocked")),
]


def with_speedups(records: Sequence[Record]) -> list[Record]:
    """Add how many times faster than that of naive and naive-blocked (same loss, else z, else any) a mean step is."""
    out = []
    for record in records:
        added = {}
        for key, name in (("times_naive", "naive"), ("times_blocked", "naive-blocked")):
            base = baseline(records, record, name)
            if base is not None and record["method"] != "log_prob":
                added[key] = mean_ms(base) / mean_ms(record)
        out.append({**record, **added})
    return out


def baseline(records: Sequence[Record], record: Record, name: str) -> Record | None:
    """Return the naive record to compare with: same sizes and threads, and the same loss where there is one."""
    same = ("D", "d", "m", "threads", "dtype")
    found = [r for r in records if r["method"] == name and all(r[key] == record[key] for key in same)]
    found.sort(key=lambda r: (r["loss"] != record["loss"], r["loss"] != "z"))
    return found[0] if found else None


def markdown(records: Sequence[Record]) -> str:
    """Return the records as a table; times in milliseconds."""
    return table(with_speedups(records), COLUMNS)
