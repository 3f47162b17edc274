"""The whole of it under torchrun: a rank is killed, torchrun restarts the job, and it ends as if nothing had been."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from lstlm.config import dump_config
from tests.distributed.test_training import configuration, corpus, files, run, run_ranks

__all__ = ["corpus"]  # the fixture

STEPS = 1000  # so many that the job is still at work when the test, on a busy machine, gets to see its first checkpoint


def worker(parent: int, rank: int) -> int | None:
    """Return the process id of a rank among the children of torchrun, if it is there yet."""
    for entry in Path("/proc").iterdir():
        try:
            child = entry.name.isdigit() and int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1]) == parent
            if child and f"RANK={rank}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                return int(entry.name)
        except (OSError, ValueError):
            continue
    return None


def wait_for(happened: Callable[[], bool], job: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 200
    while not happened():
        assert job.poll() is None and time.monotonic() < deadline, "the job ended or hangs before its first checkpoint"
        time.sleep(0.02)


def test_a_killed_rank_costs_nothing_but_time(tmp_path: Path, corpus: Path) -> None:
    folder = tmp_path / "run"
    settings = [f"train.max_steps={STEPS}", "train.eval_every=100000", "train.keep_checkpoints=100"]
    config = configuration(corpus, *settings)
    (tmp_path / "config.yaml").write_text(dump_config(config))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["--max-restarts", "1", "--monitor-interval", "0.2", "-m", "lstlm", "train", "--threads", "1"]
    command += ["--config", str(tmp_path / "config.yaml"), "--run-folder", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        wait_for(lambda: worker(job.pid, 1) is not None, job)
        victim = worker(job.pid, 1)
        assert victim is not None
        wait_for((folder / "checkpoints" / "step-00000010").exists, job)
        os.kill(victim, signal.SIGKILL)
        out, err = job.communicate(timeout=200)
    finally:
        job.kill()
    assert job.returncode == 0, err
    assert f"finished step={STEPS}" in out and out.count("finished") == 1
    assert "continuing from" in err and "one of them has died or hangs" in err
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    logged = [line["step"] for line in lines if "loss/train" in line]
    assert logged == list(range(10, STEPS + 1, 10))
    run_ranks(2, tmp_path / "ranks", run, config, tmp_path / "straight")
    assert files(folder, STEPS) == files(tmp_path / "straight", STEPS)
