"""Checkpoints are written while training goes on, from a copy; nobody leaves before they are on disk."""

import errno
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lstlm.errors import LstlmError
from lstlm.training.loop.learner import Learner
from lstlm.training.run import background
from lstlm.training.run.background import CheckpointWriter, Copy
from lstlm.training.run.checkpoint import open_checkpoint, step_folders
from lstlm.training.run.saved import load_run
from tests.helpers import PATIENCE_S
from tests.training.harness import Cli, figures, fingerprint, status

FACTS = {"config_sha256": "c", "vocabulary_sha256": "v"}


def before_saving(monkeypatch: pytest.MonkeyPatch, hook: Callable[[int], None]) -> None:
    """Call `hook` with the step, in the thread that writes, before a checkpoint is written."""
    save = background.save_checkpoint

    def hooked(root: Path, step: int, contents: Any, facts: Any) -> Path:
        hook(step)
        return save(root, step, contents, facts)

    monkeypatch.setattr(background, "save_checkpoint", hooked)


def after_steps(monkeypatch: pytest.MonkeyPatch, hook: Callable[[int], None]) -> None:
    """Call `hook` with the number of the batch after every step."""
    step = Learner.step

    def hooked(self: Learner, lr_scale: float, *, measured: bool = True) -> object:
        result = step(self, lr_scale, measured=measured)
        hook(self.examples.state()["batch"])
        return result

    monkeypatch.setattr(Learner, "step", hooked)


@pytest.mark.parametrize("kind", ["softmax", "factored"])
def test_training_goes_on_and_the_checkpoint_does_not_see_it(
    lstlm: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The checkpoint of step 10 is written only after step 15 was taken, and is that of a run that stopped at 10."""
    lstlm.ok(tmp_path / "short", output__kind=kind, train__max_steps=10)
    taken, saved = threading.Event(), []
    after_steps(monkeypatch, lambda batch: taken.set() if batch == 15 else None)

    def hold(step: int) -> None:
        if step == 10:
            assert taken.wait(PATIENCE_S)
        saved.append(step)

    before_saving(monkeypatch, hold)
    lstlm.ok(tmp_path / "run", output__kind=kind, train__keep_checkpoints=5)
    assert saved == [0, 10, 20, 30, 40]
    ours, theirs = (fingerprint(tmp_path / name, 10) for name in ("run", "short"))
    assert (ours["network"], ours["training"]) == (theirs["network"], theirs["training"])


def test_both_times_are_logged(lstlm: Cli, tmp_path: Path) -> None:
    lstlm.ok(tmp_path / "run")
    assert list(figures(tmp_path / "run", "time/checkpoint_s")) == [0, 10, 20, 30, 40]
    assert figures(tmp_path / "run", "time/checkpoint_finished_s")


def test_a_signal_waits_for_the_writer(lstlm: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM while step 10 is being written: that one and the one of the last step are whole."""
    told, steps = threading.Event(), []

    def tell(batch: int) -> None:
        if batch == 13:
            os.kill(os.getpid(), signal.SIGTERM)
            told.set()

    after_steps(monkeypatch, tell)

    def hold(step: int) -> None:
        steps.append(step)
        assert step != 10 or told.wait(PATIENCE_S)

    before_saving(monkeypatch, hold)
    assert lstlm(tmp_path / "run").code == 143
    assert steps == [0, 10, 13] and status(tmp_path / "run")["state"] == "interrupted"
    found = [open_checkpoint(folder).step for folder in step_folders(tmp_path / "run" / "checkpoints")]
    assert found == [13, 10, 0] and not list((tmp_path / "run" / "checkpoints").glob(".*"))


def test_a_failed_write_ends_training_with_one_line(
    lstlm: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    after_steps(monkeypatch, steps.append)

    def fail(step: int) -> None:
        if step == 10:
            raise LstlmError("the disk is full")

    before_saving(monkeypatch, fail)
    outcome = lstlm(tmp_path / "run", train__max_steps=100_000, train__checkpoint_every=10, train__eval_every=100_000)
    assert outcome.code == 1 and outcome.err.strip().splitlines()[-1] == "lstlm: error: the disk is full"
    assert status(tmp_path / "run")["state"] == "failed" and len(steps) <= 20  # the next save would have waited
    assert [path.name for path in step_folders(tmp_path / "run" / "checkpoints")] == ["step-00000000"]


def test_an_error_of_training_waits_for_the_writer_too(
    lstlm: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised = threading.Event()

    def fail(batch: int) -> None:
        if batch == 12:
            raised.set()
            raise LstlmError("something else")

    after_steps(monkeypatch, fail)
    before_saving(monkeypatch, lambda step: None if step < 10 else raised.wait(PATIENCE_S) and None)
    outcome = lstlm(tmp_path / "run")
    assert outcome.code == 1 and "something else" in outcome.err
    assert open_checkpoint(tmp_path / "run" / "checkpoints" / "last").step == 10


def test_a_roll_back_goes_to_the_checkpoint_that_was_being_written(
    lstlm: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisoned = threading.Event()
    finite = Learner._check_finite

    def poison(self: Learner, loss: float, slope: float) -> None:
        if self.examples.state()["batch"] == 13 and not poisoned.is_set():
            poisoned.set()
            loss = loss * float("nan")
        finite(self, loss, slope)

    monkeypatch.setattr(Learner, "_check_finite", poison)
    before_saving(monkeypatch, lambda step: None if step != 10 else poisoned.wait(PATIENCE_S) and None)
    outcome = lstlm.ok(tmp_path / "run")
    assert "step 12: the loss of the batch is nan; back to step 10 with the rates at ×0.5" in outcome.err


def test_without_memory_for_a_copy_training_waits(lstlm: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lstlm.ok(tmp_path / "with")

    def refuse(self: Copy, path: Any, like: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(Copy, "_place", refuse)
    threads: list[str] = []
    before_saving(monkeypatch, lambda step: threads.append(threading.current_thread().name))
    lstlm.ok(tmp_path / "without")
    assert set(threads) == {"MainThread"}
    ours, theirs = (load_run(tmp_path / name).network.state_dict() for name in ("without", "with"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_copy_is_apart_and_its_memory_is_kept() -> None:
    copy = Copy()
    whole = torch.arange(12.0).reshape(3, 4)
    state = {"a": whole[:, 1:3], "list": [torch.ones(2, dtype=torch.float64), "text", None], "pair": (1, whole[0])}
    first = copy(state)
    assert torch.equal(first["a"], whole[:, 1:3]) and first["a"].is_contiguous()
    assert first["list"][1:] == ["text", None] and first["pair"][0] == 1 and isinstance(first["pair"], tuple)
    where = first["a"].data_ptr()
    whole += 1
    assert first["a"][0, 0] == 1.0
    assert (again := copy(state))["a"].data_ptr() == where and again["a"][0, 0] == 2.0
    assert copy({"a": whole})["a"].shape == (3, 4)  # another shape, another place


def test_the_error_of_a_thread_comes_out_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with CheckpointWriter(tmp_path / "file", FACTS, keep=1) as writer:
        writer.save(1, {"network.pt": {"V": torch.ones(3)}}, best=False)
        with pytest.raises(LstlmError, match=os.strerror(errno.ENOTDIR)):
            writer.wait()
        assert writer.wait() is None and writer.poll() is None
