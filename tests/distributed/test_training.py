"""Runs of several ranks: the run of one process, resumed at any number of ranks, stopped and repaired together."""

import json
import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from lstlm.config import Config, parse_config
from lstlm.data import Corpus
from lstlm.distributed import RankLost, Ranks
from lstlm.errors import ConfigError
from lstlm.nn.network import Network
from lstlm.training.loop.learner import Learner
from lstlm.training.loop.ranked import RankLearner
from lstlm.training.run.saved import load_run
from lstlm.training.run.session import Options, train
from tests.distributed.processes import run_ranks
from tests.helpers import wait_until, write_tiny_corpus

CPU = torch.device("cpu")
SMALL = """
data: {context: 4}
model: {embedding: 8, hidden: [12]}
output: {loss: taylor}
optim: {output_lr: 0.5}
train: {batch_size: 12, dtype: float64, max_epochs: null, max_steps: 20, log_every: 10, eval_every: 20,
        eval_examples: 100, checkpoint_every: 10, simlex: false}
"""
# strong repairs of U, so that rows wait in their history when a checkpoint is written
SQUARED = ["output.loss=squared", "output.init_scale=0.1", "optim.output_lr=0.1", "model.hidden=[]"]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus") / "tiny"
    write_tiny_corpus(folder)
    return folder


def configuration(corpus: Path, *overrides: str) -> Config:
    return parse_config(SMALL, "small", [f"data.dir={corpus}", *overrides])


def steps_of(learner: Learner, steps: int) -> dict[str, Any]:
    losses = [learner.step(1.0) for _ in range(steps)]
    network = learner.network
    return {
        "losses": torch.tensor([step.loss for step in losses]),
        "examples": torch.tensor([step.examples for step in losses]),
        "input": network.input_vectors().clone(),
        "output": network.output_vectors(),
        "hidden": torch.cat([p.detach().reshape(-1) for p in network.hidden.parameters()] or [torch.zeros(0)]),
    }


def learn(ranks: Ranks, config: Config, steps: int) -> dict[str, Any]:
    learner = RankLearner(config, Corpus.open(Path(config.data.dir)), CPU, ranks)
    return {**steps_of(learner, steps), "digest": learner.digest(), "rows": len(learner.network.embedding.weight)}


@pytest.mark.parametrize(
    ("world", "overrides"),
    [
        (2, ["data.context_kind=previous"]),
        (2, ["data.context_kind=previous", "output.kind=shortlist", "output.loss=taylor", "output.shortlist=20"]),
        (
            2,
            [
                "data.context_kind=previous",
                "output.kind=shortlist",
                "output.loss=taylor",
                "output.shortlist=9",
                "output.middle=15",
            ],
        ),
        (3, ["data.context_kind=bag", "optim.embedding=sgd", "optim.hidden=adam", "train.batch_size=4"]),
    ],
)
def test_a_network_of_several_ranks_is_that_of_one(
    tmp_path: Path, corpus: Path, world: int, overrides: list[str]
) -> None:
    config = configuration(corpus, *overrides)
    several = run_ranks(world, tmp_path, learn, config, 30)
    whole = configuration(corpus, *overrides, f"train.batch_size={config.train.batch_size * world}")
    one = steps_of(Learner(whole, Corpus.open(corpus), CPU), 30)
    for found in several:
        for key, expected in one.items():
            torch.testing.assert_close(found[key], expected, rtol=1e-9, atol=1e-9)
    assert len({found["digest"] for found in several}) == 1
    assert sum(found["rows"] for found in several) == len(one["input"])


def run(ranks: Ranks, config: Config, folder: Path, resume: str | None = None) -> dict[str, Any]:
    summary = train(config, folder, Options(device=CPU, resume=resume, quiet=True, ranks=ranks))
    return {"signal": summary.signal, **summary.report}


def files(folder: Path, step: int) -> dict[str, Any]:
    """Return name → hash of the tensors of a checkpoint."""
    manifest = json.loads((folder / "checkpoints" / f"step-{step:08d}" / "manifest.json").read_text())
    return {name: record["sha256"] for name, record in manifest["files"].items() if name.endswith(".pt")}


def test_two_ranks_resume_bit_for_bit(tmp_path: Path, corpus: Path) -> None:
    config = configuration(corpus, *SQUARED)
    first = configuration(corpus, *SQUARED, "train.max_steps=10")
    run_ranks(2, tmp_path / "a", run, config, tmp_path / "straight")
    run_ranks(2, tmp_path / "b", run, first, tmp_path / "broken")
    run_ranks(2, tmp_path / "c", run, config, tmp_path / "broken", "auto")
    straight = files(tmp_path / "straight", 20)
    assert set(straight) == {"network.pt", "training.pt", "rows-0-of-2.pt", "rows-1-of-2.pt"}
    assert files(tmp_path / "broken", 20) == straight
    lines = [json.loads(line) for line in (tmp_path / "broken" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss/train" in line] == [10, 20]  # one rank logs, and once


def vectors(network: Network) -> tuple[torch.Tensor, torch.Tensor]:
    return network.input_vectors().clone(), network.output_vectors()


def resumed(ranks: Ranks, config: Config, folder: Path) -> tuple[torch.Tensor, torch.Tensor, int]:
    from lstlm.training.run.saved import checkpoint_for

    learner = RankLearner(config, Corpus.open(Path(config.data.dir)), CPU, ranks)
    checkpoint = checkpoint_for(folder)
    learner.load(checkpoint, checkpoint.json("counters.json")["examples"])
    found = vectors(learner.network)
    learner.step(1.0)
    return *found, learner.examples.state()["batch"]


def test_checkpoints_load_at_any_number_of_ranks(tmp_path: Path, corpus: Path) -> None:
    config = configuration(corpus, *SQUARED)
    run_ranks(3, tmp_path / "a", run, config, tmp_path / "three")
    train(config, tmp_path / "one", Options(device=CPU, quiet=True))
    waiting = load_run(tmp_path / "one").network.output.state.history
    assert not waiting.empty  # or the test would not see whether histories are understood
    for name in ("three", "one"):
        expected = vectors(load_run(tmp_path / name).network)
        for world in (2, 3):
            for found in run_ranks(world, tmp_path / f"{name}-{world}", resumed, config, tmp_path / name):
                torch.testing.assert_close(found[0], expected[0], rtol=0, atol=0)
                torch.testing.assert_close(found[1], expected[1], rtol=1e-9, atol=1e-11)
                assert found[2] == 21
    longer = configuration(corpus, *SQUARED, "train.max_steps=30")
    summary = train(longer, tmp_path / "three", Options(device=CPU, resume="auto"))
    assert summary.report["step"] == 30 and set(files(tmp_path / "three", 30)) == {"network.pt", "training.pt"}


def test_a_shortlist_loads_at_another_number_of_ranks(tmp_path: Path, corpus: Path) -> None:
    settings = [
        "output.kind=shortlist",
        "output.loss=taylor",
        "output.shortlist=10",
        "output.middle=12",
        "output.stabilise_range=[0.9, 1.1]",
    ]
    config = configuration(corpus, *settings, "output.init_scale=0.3", "output.tail_rate=2")
    run_ranks(2, tmp_path / "a", run, config, tmp_path / "two")
    train(config, tmp_path / "one", Options(device=CPU, quiet=True))
    for name, world in (("two", 3), ("one", 2), ("two", 2)):
        expected = vectors(load_run(tmp_path / name).network)
        for found in run_ranks(world, tmp_path / f"{name}-{world}", resumed, config, tmp_path / name):
            torch.testing.assert_close(found[0], expected[0], rtol=0, atol=0)
            torch.testing.assert_close(found[1], expected[1], rtol=1e-9, atol=1e-11)


def signalled(ranks: Ranks, config: Config, folder: Path, number: signal.Signals) -> dict[str, Any]:
    signal.signal(number, signal.SIG_DFL)  # whoever started this may ignore it
    step = RankLearner.step

    def interrupted(self: RankLearner, *arguments: Any, **options: Any) -> Any:
        if ranks.rank == 1 and self.examples.state()["batch"] == 7:
            os.kill(os.getpid(), number)
        return step(self, *arguments, **options)

    RankLearner.step = interrupted  # type: ignore[method-assign]
    return run(ranks, config, folder)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_one_rank_stops_all_at_the_same_step(tmp_path: Path, corpus: Path, number: signal.Signals) -> None:
    config = configuration(corpus, "train.max_steps=1000000", "train.checkpoint_every=1000000")
    first, second = run_ranks(2, tmp_path, signalled, config, tmp_path / "run", number)
    assert first["signal"] == second["signal"] == number
    assert first["step"] == second["step"] == 8
    assert "rows-1-of-2.pt" in files(tmp_path / "run", first["step"])


def damaged(ranks: Ranks, config: Config) -> dict[str, Any]:
    learner = RankLearner(config, Corpus.open(Path(config.data.dir)), CPU, ranks)
    steps_of(learner, 5)
    before = vectors(learner.network)[1]
    agreed = learner.compare_replicas()
    if ranks.rank == 1:
        learner.network.output.state.exact[0, 0] += 1e-9
        next(learner.network.hidden.parameters()).data[0, 0] = 7.0
    wrong = learner.compare_replicas()
    digests = [row[0] for row in ranks.numbers([learner.digest()])]
    again = learner.step(1.0).loss
    return {"agreed": agreed, "wrong": wrong, "digests": digests, "before": before, "again": again}


def test_a_replica_that_differs_is_found_and_mended(tmp_path: Path, corpus: Path) -> None:
    found = run_ranks(2, tmp_path, damaged, configuration(corpus))
    for one in found:
        assert one["agreed"] == [] and one["wrong"] == [1]
        assert len(set(one["digests"])) == 1
        assert one["again"] == found[0]["again"]


def refused(ranks: Ranks, config: Config) -> str:
    with pytest.raises(ConfigError) as error:
        RankLearner(config, Corpus.open(Path(config.data.dir)), CPU, ranks)
    return str(error.value)


def test_what_ranks_cannot_share_is_refused_in_one_line(tmp_path: Path, corpus: Path) -> None:
    lines = run_ranks(2, tmp_path, refused, configuration(corpus, "output.kind=softmax"))
    expected = (
        "output.kind softmax: several ranks train factored or naive or shortlist; choose one, or start a single process"
    )
    assert lines == [expected] * 2


def hanging(ranks: Ranks, folder: Path) -> str:
    ranks.timeout_s = 2.0  # from now on: to find each other, they may take their time
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=2.0), None)
    given_up = folder / "given-up"
    if ranks.rank == 1:
        wait_until(given_up.exists, "nobody gives this rank up")
        return "was given up"
    with pytest.raises(RankLost) as error:
        ranks.total_(torch.ones(3))
    given_up.touch()
    return str(error.value)


def test_a_rank_that_hangs_is_given_up_after_the_time_limit(tmp_path: Path) -> None:
    line, other = run_ranks(2, tmp_path, hanging, tmp_path)
    assert line.startswith("rank 0 of 2: no answer from the other ranks (limit 2 s)") and "\n" not in line
    assert other == "was given up"


def dying(ranks: Ranks, config: Config, folder: Path) -> str:
    if ranks.rank == 1:
        RankLearner.step = lambda *_, **__: os._exit(0)  # type: ignore[method-assign]
    with pytest.raises(RankLost) as error:
        run(ranks, config, folder)
    return str(error.value)


def test_a_rank_that_dies_ends_the_others_with_one_line(tmp_path: Path, corpus: Path) -> None:
    with pytest.raises(FileNotFoundError):  # of the rank that died: it left no result
        run_ranks(2, tmp_path, dying, configuration(corpus), tmp_path / "run")
    line = torch.load(tmp_path / "result-0", weights_only=False)
    assert "one of them has died or hangs" in line and "--resume auto" in line and "\n" not in line
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["state"] == "failed" and "RankLost" in status["error"]


def test_closing_a_group_ends_its_threads(tmp_path: Path, corpus: Path) -> None:
    """A thread that outlives the group may wake when the interpreter is gone, and abort a process that was done."""
    run_ranks(2, tmp_path, run, configuration(corpus), tmp_path / "run")
    for rank in range(2):
        before, after = map(int, (tmp_path / f"threads-{rank}").read_text().split())
        assert before > 0 and after == 0
