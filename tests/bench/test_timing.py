"""The clock: turns, periods, percentiles, failures, memory. Nothing here looks at how long something took."""

import pytest
import torch

from lstlm.bench import output, timing
from lstlm.bench.layer_steps import LayerSteps
from lstlm.bench.methods import Method, Runner
from lstlm.bench.timing import Effort, GemmFloor, Timed, TimeLeft, in_turn, spread
from lstlm.bench.workload import Workload
from lstlm.errors import NumericsError
from lstlm.outputs import OutputLayer


class Scripted:
    """Steps that claim to take given milliseconds."""

    def __init__(self, log: list[str], name: str, milliseconds: float, stabilise: float = 0.0) -> None:
        self.log, self.name, self.milliseconds, self.stabilise = log, name, milliseconds, stabilise

    def __call__(self) -> tuple[float, float]:
        self.log.append(self.name)
        return self.milliseconds, self.stabilise


def test_methods_take_turns() -> None:
    log: list[str] = []
    cheap, dear = Timed(Scripted(log, "c", 1.0)), Timed(Scripted(log, "d", 400.0))
    cheap.estimate_ms, dear.estimate_ms = 1.0, 400.0
    in_turn([cheap, dear], Effort(seconds=1.0, steps=20, rounds=4), GemmFloor(4, 4, torch.float32))
    assert "".join(log) == "cccccd" * 4
    assert cheap.summary()["steps"] == 20 and dear.summary()["steps"] == 4


def test_a_sweeping_stabiliser_is_timed_in_whole_periods() -> None:
    log: list[str] = []
    clock = Timed(Scripted(log, "s", 2.0), period=100)
    clock.estimate_ms = 2.0
    in_turn([clock], Effort(seconds=0.5, steps=30, rounds=2), GemmFloor(4, 4, torch.float32))
    assert clock.summary()["steps"] == 200


def test_a_method_that_proves_dearer_than_estimated_stops() -> None:
    clock = Timed(Scripted([], "x", 5000.0))
    clock.estimate_ms = 1.0
    in_turn([clock], Effort(seconds=1.0, steps=15, rounds=5), GemmFloor(4, 4, torch.float32))
    assert clock.summary()["steps"] == 3


def test_summary() -> None:
    clock = Timed(Scripted([], "x", 0.0))
    clock.milliseconds, clock.stabilise = [3.0, 1.0, 2.0, 10.0], [0.0, 0.0, 0.0, 8.0]
    assert clock.summary() == {
        "step_ms": 2.5,
        "step_ms_p10": pytest.approx(1.3),
        "step_ms_p90": pytest.approx(7.9),
        "step_ms_mean": 4.0,
        "step_ms_max": 10.0,
        "steps": 4,
        "warm_up_steps": 0,
        "stabilise_ms": 2.0,
    }
    assert spread([5.0]) == {"step_ms": 5.0, "step_ms_p10": 5.0, "step_ms_p90": 5.0, "steps": 1}


def test_the_floor_counts_five_products() -> None:
    floor = GemmFloor(8, 8, torch.float32)
    floor._milliseconds = [1.0, 2.0, 9.0]
    assert floor.milliseconds == 10.0


def test_time_left() -> None:
    said: list[str] = []
    left = TimeLeft(said.append, 4.0)
    left.done(1.0, "a quarter")
    left.done(3.0, "the rest")
    assert said[0].startswith("[ 25 %] a quarter; 0:") and said[1].startswith("[100 %]")


class Failing(Runner):
    """Refuses the first updates, or gives a loss that is not finite after some steps."""

    def __init__(self, refusals: int = 0, finite: int = 10**9) -> None:
        super().__init__(OutputLayer(1, 2), 8.0)
        self.refusals, self.finite = refusals, finite

    def step(self, h: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        if self.refusals:
            self.refusals -= 1
            raise NumericsError("lr is above the largest stable one")
        self.finite -= 1
        self.losses = torch.tensor(1.0 if self.finite >= 0 else float("inf"))
        return h


def test_a_refused_rate_is_halved() -> None:
    steps = LayerSteps(lambda: Failing(refusals=2), Workload(4, 50, 3), restart=False)
    steps()
    assert steps.runner.lr == 2.0 and steps.halvings == 2


def test_without_a_stabiliser_the_layer_is_made_anew_when_it_fails() -> None:
    steps = LayerSteps(lambda: Failing(finite=25), Workload(4, 50, 3), restart=True)
    for _ in range(60):
        steps()
    assert steps.restarts == 2 and steps.halvings == 0


def test_what_diverges_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "make_layer", lambda *_, **__: None)
    monkeypatch.setattr(output, "make_runner", lambda *_: Failing(finite=2))
    said: list[str] = []
    plan = output.Plan([Method("factored", "z", "svd")], [60], d=8, m=4, effort=Effort(0.01, 3, 1))
    outcome = output.run(plan, said.append)
    assert outcome.records == []
    assert outcome.skipped[0]["reason"] == "the loss became inf after 2 steps"
    assert any("skipped: factored, z, svd stabiliser at D = 60" in line for line in said)


def test_what_does_not_fit_into_memory_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "available_memory", lambda: 2**30)
    said: list[str] = []
    methods = [Method("naive", "z"), Method("naive-blocked", "squared"), Method("sampled", "softmax")]
    plan = output.Plan(methods, [793_471, 100_000], d=300, m=128)
    outcome = output.Outcome()
    assert list(output.groups(plan, 793_471, outcome, said.append)) == []
    assert len(outcome.skipped) == 3
    assert "naive, z at D = 793,471: needs 1.4 GiB of memory, 1.0 GiB are free" in said[0]
    assert len(list(output.groups(plan, 100_000, outcome, said.append))) == 1


def test_groups_fit_into_half_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "available_memory", lambda: 6 * 2**30)
    methods = [Method("naive", loss) for loss in ("z", "squared", "taylor")]
    plan = output.Plan(methods, [793_471], d=300, m=128)
    groups = list(output.groups(plan, 793_471, output.Outcome(), lambda _: None))
    assert [len(group) for group in groups] == [2, 1]


def test_available_memory_is_known_here() -> None:
    found = timing.available_memory()
    assert found is None or 2**20 < found < 2**50
