"""A run that was interrupted, however rudely, continues as if nothing had happened: bit for bit."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lstlm.sealed import seal
from lstlm.selftest.bench import after_events
from lstlm.training.loop.learner import Learner
from lstlm.training.run.checkpoint import step_folders
from lstlm.training.run.saved import load_run
from tests.helpers import PATIENCE_S
from tests.training.harness import LOW_RANK, Cli, arguments, figures, fingerprint, make_corpus, status
from tests.warm import run_lstlm

KINDS = ["softmax", "sampled", "factored", "factored svd", "low rank"]


@pytest.mark.parametrize("kind", KINDS)
def test_stop_and_go_equals_one_go(lstlm: Cli, tmp_path: Path, kind: str) -> None:
    """Stopped between two log intervals, across an epoch and a schedule, with every optimiser's state in play."""
    settings = {"output__candidates": 32, "optim__schedule": "cosine", "optim__hidden": "adam"}
    settings["output__kind"] = kind.split()[0]
    if kind == "low rank":
        settings |= LOW_RANK
    if kind == "factored svd":  # repairs every fifth step: the count to the next one must survive too
        settings |= {
            "output__stabilise": "svd",
            "output__stabilise_every": 5,
            "output__stabilise_range": "[0.99, 1.01]",
        }
    lstlm.ok(tmp_path / "whole", **settings, train__checkpoint_every=7)
    stop = Learner.step
    with pytest.MonkeyPatch.context() as patch:

        def step(self: Learner, lr_scale: float, *, measured: bool = True) -> object:
            result = stop(self, lr_scale, measured=measured)
            if not (tmp_path / "told").exists() and self.examples.state()["batch"] == 17:
                (tmp_path / "told").touch()
                os.kill(os.getpid(), signal.SIGINT)
            return result

        patch.setattr(Learner, "step", step)
        assert lstlm(tmp_path / "parts", **settings, train__checkpoint_every=7).code == 130
    assert status(tmp_path / "parts")["state"] == "interrupted" and status(tmp_path / "parts")["step"] == 17
    resumed = lstlm.ok(tmp_path / "parts", "--resume", "auto", **settings, train__checkpoint_every=7)
    assert "continuing from" in resumed.err and "step-00000017" in resumed.err
    for at in (28, 35, 40):
        assert fingerprint(tmp_path / "parts", at) == fingerprint(tmp_path / "whole", at)
    for tag in ("loss/train", "eval/loss"):
        assert figures(tmp_path / "parts", tag) == figures(tmp_path / "whole", tag)


def test_a_signal_during_an_evaluation_leaves_it_due(lstlm: Cli, tmp_path: Path) -> None:
    from lstlm.training.loop import validate

    lstlm.ok(tmp_path / "whole")
    batches = validate.evaluation_batches
    with pytest.MonkeyPatch.context() as patch:

        def interrupting(*args: object, **kwargs: object) -> object:
            os.kill(os.getpid(), signal.SIGTERM)
            return batches(*args, **kwargs)  # type: ignore[arg-type]

        patch.setattr(validate, "evaluation_batches", interrupting)
        assert lstlm(tmp_path / "parts").code == 143
    assert figures(tmp_path / "parts", "eval/loss") == {}
    lstlm.ok(tmp_path / "parts", "--resume", "auto")
    assert figures(tmp_path / "parts", "eval/loss") == figures(tmp_path / "whole", "eval/loss")
    assert fingerprint(tmp_path / "parts", 40) == fingerprint(tmp_path / "whole", 40)


def test_auto_skips_damaged_checkpoints_and_says_which(lstlm: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    lstlm.ok(run)
    whole = fingerprint(run, 40)
    damaged = run / "checkpoints" / "step-00000040" / "network.pt"
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    os.truncate(run / "checkpoints" / "step-00000030" / "training.pt", 100)
    resumed = lstlm.ok(run, "--resume", "auto")
    assert "skipped" in resumed.err and "step-00000040/network.pt: damaged: its SHA-256" in resumed.err
    assert "step-00000030/training.pt: 100 bytes" in resumed.err
    assert fingerprint(run, 40) == whole


def test_an_explicit_path_is_an_error_when_damaged(lstlm: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    lstlm.ok(run)
    (run / "checkpoints" / "step-00000040" / "network.pt").unlink()
    for path in (run / "checkpoints" / "step-00000040", run / "checkpoints" / "last", run):
        outcome = lstlm(run, "--resume", str(path))
        assert outcome.code == 3 and "network.pt: missing" in outcome.err.strip().splitlines()[-1]
    assert lstlm(run, "--resume", str(tmp_path / "absent")).code == 3


def test_all_damaged_is_an_error_not_a_fresh_start(lstlm: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    lstlm.ok(run)
    for folder in step_folders(run / "checkpoints"):
        (folder / "manifest.json").unlink()
    outcome = lstlm(run, "--resume", "auto")
    assert outcome.code == 3 and "none of 3 checkpoints verifies" in outcome.err


def test_auto_without_a_checkpoint_begins(lstlm: Cli, tmp_path: Path) -> None:
    outcome = lstlm.ok(tmp_path / "new", "--resume", "auto")
    assert "no checkpoint yet; starting at step 0" in outcome.err


def test_a_folder_that_cannot_be_read_is_no_fresh_start(
    lstlm: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    lstlm.ok(run)
    before = (run / "metrics.jsonl").read_text()
    listdir, scandir = os.listdir, os.scandir

    def refuse(wrapped: Callable[..., Any]) -> Callable[..., Any]:
        def listing(path: Any = ".") -> Any:
            if str(path).endswith("checkpoints"):
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return wrapped(path)

        return listing

    monkeypatch.setattr(os, "listdir", refuse(listdir))  # chmod would not stop root
    monkeypatch.setattr(os, "scandir", refuse(scandir))
    outcome = lstlm(run, "--resume", "auto")
    assert outcome.code == 3 and "checkpoints: cannot be read (Permission denied)" in outcome.err
    assert "starting at step 0" not in outcome.err and (run / "metrics.jsonl").read_text() == before


def test_more_steps_continue_and_other_models_are_refused(lstlm: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    lstlm.ok(tmp_path / "whole", train__max_steps=60)
    lstlm.ok(run, train__max_steps=40)
    longer = lstlm.ok(run, "--resume", "auto", train__max_steps=60)
    assert "changed: train.max_steps 40 → 60" in longer.err
    assert fingerprint(run, 60) == fingerprint(tmp_path / "whole", 60)
    other = lstlm(run, "--resume", "auto", model__hidden="[13]", train__batch_size=17)
    assert other.code == 2
    assert "model.hidden [12] → [13]; train.batch_size 16 → 17" in other.err


def test_a_setting_that_an_older_version_lacked_has_its_default(lstlm: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    lstlm.ok(run)
    path = run / "checkpoints" / "step-00000040" / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["config"]["output"]["bias"], manifest["config"]["train"]["patience"]
    path.write_text(seal(manifest))
    assert "changed:" not in lstlm.ok(run, "--resume", "auto").err
    assert lstlm(run, "--resume", "auto", output__bias="false").code == 2


def test_an_older_checkpoint_needs_a_new_folder_or_force(lstlm: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    lstlm.ok(run)
    whole = fingerprint(run, 40)
    older = str(run / "checkpoints" / "step-00000020")
    refused = lstlm(run, "--resume", older)
    assert refused.code == 2 and "newer checkpoints (step-00000040, step-00000030)" in refused.err
    lstlm.ok(tmp_path / "branch", "--resume", older)
    assert fingerprint(tmp_path / "branch", 40) == whole
    lstlm.ok(run, "--resume", older, "--force")
    assert fingerprint(run, 40) == whole


def test_force_costs_nobody_but_a_run_its_files(lstlm: Cli, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "checkpoints").mkdir(parents=True)
    (other / "checkpoints" / "other-tool.pt").write_text("mine")
    (other / "config.yaml").write_text("mine: 1\n")
    refused = lstlm(other, "--force")
    assert refused.code == 2 and "checkpoints, which would be lost, and no status.json or .lock" in refused.err
    assert sorted(p.name for p in other.rglob("*")) == ["checkpoints", "config.yaml", "other-tool.pt"]
    (tmp_path / "mixed").mkdir()
    (tmp_path / "mixed" / "notes.txt").write_text("mine")
    lstlm.ok(tmp_path / "mixed", "--force", train__max_steps=2)  # nothing there is in its way
    assert (tmp_path / "mixed" / "notes.txt").read_text() == "mine"
    corpus = make_corpus(tmp_path / "corpus")
    before = sorted(corpus.iterdir())
    for extra in (("--force",), ("--resume", "auto")):
        refused = lstlm(corpus, *extra)
        assert refused.code == 2 and "so a corpus or a checkpoint; choose another folder" in refused.err
    (corpus / ".lock").touch()
    assert lstlm(corpus, "--force").code == 2
    (corpus / ".lock").unlink()
    assert sorted(corpus.iterdir()) == before


def test_checkpoints_may_lie_behind_a_link(lstlm: Cli, tmp_path: Path) -> None:
    run, disk = tmp_path / "run", tmp_path / "disk"
    lstlm.ok(run, train__max_steps=20)
    (run / "checkpoints").rename(disk)
    (run / "checkpoints").symlink_to("../disk")
    lstlm.ok(run, "--resume", str(run / "checkpoints" / "last"))
    assert load_run(run).step == load_run(run / "checkpoints" / "best").step == 40
    assert load_run(run).folder == run and step_folders(disk)[0].name == "step-00000040"
    (run / "checkpoints" / "step-00000030").rename(tmp_path / "elsewhere")
    (run / "checkpoints" / "step-00000030").symlink_to(tmp_path / "elsewhere")
    assert load_run(run / "checkpoints" / "step-00000030").folder == run
    refused = lstlm(run, "--force", train__max_steps=10)  # or its old checkpoints would pass for its newest ones
    assert refused.code == 2 and "cannot be removed" in refused.err


def test_a_folder_is_refused_without_leave(lstlm: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    lstlm.ok(run)
    (run / "notes.txt").write_text("mine")
    refused = lstlm(run)
    assert (
        refused.code == 2 and "not empty; continue it with --resume auto, or start it anew with --force" in refused.err
    )
    lstlm.ok(run, "--force", train__max_steps=10)
    assert (run / "notes.txt").read_text() == "mine"
    assert [p.name for p in step_folders(run / "checkpoints")] == ["step-00000010", "step-00000000"]
    assert len(list(run.glob("events.out.tfevents.*"))) == 1


def die(after: int) -> None:
    """Let this process be killed by what it has done, not by the clock: every machine is killed at the same places."""
    after_events(after, lambda: os.kill(os.getpid(), signal.SIGKILL))


@pytest.mark.parametrize("more", [{}, LOW_RANK], ids=["softmax", "low rank"])
def test_kill_9_at_random_moments(lstlm: Cli, corpus: Path, tmp_path: Path, more: dict[str, str]) -> None:
    """Eight processes of one run are killed, in steps, or in the writing of checkpoints; the ninth finishes it."""
    settings = {"train__max_steps": 120, "train__checkpoint_every": 4, "train__eval_every": 20, **more}
    lstlm.ok(tmp_path / "whole", **settings)
    command = arguments(corpus, tmp_path / "killed", "--resume", "auto", **settings)
    chance = random.Random(5)
    ends = [run_lstlm(command, tmp_path, partial(die, chance.randint(1, 400))) for _ in range(8)]
    ends.append(run_lstlm(command, tmp_path))
    assert [end.code for end in ends] == [-9] * 8 + [0], ends[-1].err
    assert fingerprint(tmp_path / "killed", 120) == fingerprint(tmp_path / "whole", 120)
    assert figures(tmp_path / "killed", "eval/loss") == figures(tmp_path / "whole", "eval/loss")
    assert not list((tmp_path / "killed" / "checkpoints").glob(".*"))
    started = {line for end in ends for line in end.err.splitlines() if "continuing from" in line}
    assert len(started) >= 4  # the kills did fall at different places of the run


def terminate_from_outside(step: int) -> None:
    """Let another process send SIGTERM when this one has come so far, at whatever moment that then is."""
    signalled, learn, me = False, Learner.step, os.getpid()

    def then_tell(self: Learner, *some: Any, **more: Any) -> Any:
        nonlocal signalled
        if not signalled and self.examples.state()["batch"] >= step:
            signalled = True
            subprocess.Popen(["sh", "-c", f"sleep 0.1; kill -TERM {me}"])
        return learn(self, *some, **more)

    Learner.step = then_tell  # type: ignore[method-assign]


def test_sigterm_from_outside(lstlm: Cli, corpus: Path, tmp_path: Path) -> None:
    settings = {"train__max_steps": 10**9, "train__checkpoint_every": 10**9}
    done = run_lstlm(arguments(corpus, tmp_path / "run", **settings), tmp_path, partial(terminate_from_outside, 50))
    assert done.code == 143, done.err
    assert "SIGTERM: finishing the step and saving" in done.err
    step = status(tmp_path / "run")["step"]
    assert status(tmp_path / "run")["state"] == "interrupted"
    assert os.readlink(tmp_path / "run" / "checkpoints" / "last") == f"step-{step:08d}"
    lstlm.ok(tmp_path / "run", "--resume", "auto", **{**settings, "train__max_steps": step + 30})
    lstlm.ok(tmp_path / "whole", **{**settings, "train__max_steps": step + 30})
    ours, theirs = (fingerprint(tmp_path / name, step + 30) for name in ("run", "whole"))
    assert (ours["network"], ours["training"]) == (theirs["network"], theirs["training"])


def test_a_second_signal_exits_at_once() -> None:
    code = "import os, signal, time\nfrom lstlm.training.loop.signals import Interrupts\nwith Interrupts() as stop:\n"
    code += "    os.kill(os.getpid(), signal.SIGTERM)\n    print(stop.received, flush=True)\n"
    code += "    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(600)\n"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (result.returncode, result.stdout) == (130, "15\n")


def test_a_full_disk_ends_the_run_with_one_line(lstlm: Cli, tmp_path: Path) -> None:
    """metrics.jsonl on a device that is always full."""
    run = tmp_path / "run"
    run.mkdir()
    os.symlink("/dev/full", run / "metrics.jsonl")
    outcome = lstlm(run, "--resume", "auto")
    assert outcome.code == 1
    assert "No space left on device" in outcome.err.strip().splitlines()[-1] and "Traceback" not in outcome.err


def test_a_run_in_use_is_refused(lstlm: Cli, tmp_path: Path) -> None:
    from lstlm.training.run.folders import claim

    lock = claim(tmp_path / "run", resuming=False, force=False)
    try:
        outcome = lstlm(tmp_path / "run", "--resume", "auto")
    finally:
        lock.close()
    assert outcome.code == 2 and "in use by another process" in outcome.err


def test_status_is_always_whole_json(lstlm: Cli, tmp_path: Path) -> None:
    lstlm.ok(tmp_path / "run")
    assert json.loads((tmp_path / "run" / "status.json").read_text())["step"] == 40
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["threads"] == 1
