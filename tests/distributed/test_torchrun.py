"""The whole of it under torchrun: a rank is killed, torchrun restarts the job, and it ends as if nothing had been."""

import json
import os
import subprocess
import sys
from pathlib import Path

from lstlm.config import dump_config
from tests.distributed.test_training import configuration, corpus, files, run, run_ranks
from tests.helpers import PATIENCE_S

__all__ = ["corpus"]  # the fixture


def test_a_killed_rank_costs_nothing_but_time(tmp_path: Path, corpus: Path) -> None:
    folder, config = tmp_path / "run", configuration(corpus, "train.max_steps=40", "train.keep_checkpoints=9")
    (tmp_path / "config.yaml").write_text(dump_config(config))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["--max-restarts", "1", "--monitor-interval", "0.2", "-m", "tests.distributed.killed_rank", "train"]
    command += ["--threads", "1", "--config", str(tmp_path / "config.yaml"), "--run-folder", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    job = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, env=environment, cwd=Path(__file__).parents[2]
    )
    assert job.returncode == 0, job.stderr
    assert "finished step=40" in job.stdout and job.stdout.count("finished") == 1
    assert f"continuing from {folder / 'checkpoints' / 'step-00000010'}" in job.stderr
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss/train" in line] == [10, 20, 30, 40]
    run_ranks(2, tmp_path / "ranks", run, config, tmp_path / "straight")
    assert files(folder, 40) == files(tmp_path / "straight", 40)
