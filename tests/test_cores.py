"""Cores that this process may use."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lstlm.cores import openmp_settings, usable_cores, worthwhile_threads


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu.max": "200000 100000\n"}, 2),
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "20000 100000\n"}, 1),
        ({"cpu.max": "9900000 100000\n"}, 8),
        ({"cpu.max": "damaged"}, 8),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
    ],
)
def test_affinity_and_the_containers_quota_count(
    files: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    assert usable_cores(tmp_path) == cores


def test_where_there_is_no_affinity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert usable_cores(tmp_path) == 5


@pytest.mark.parametrize(
    ("million", "most", "threads"), [(0, 8, 1), (60, 8, 1), (140, 8, 2), (10**6, 8, 8), (140, 1, 1)]
)
def test_a_thread_needs_a_millisecond_of_work(million: int, most: int, threads: int) -> None:
    assert worthwhile_threads(million * 1_000_000, most) == threads


def test_openmp_sleeps_and_keeps_to_the_containers_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    assert openmp_settings(tmp_path) == {"OMP_WAIT_POLICY": "passive"}
    (tmp_path / "cpu.max").write_text("300000 100000")
    assert openmp_settings(tmp_path) == {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "3"}


@pytest.mark.parametrize(("given", "policy"), [({}, "passive"), ({"OMP_WAIT_POLICY": "active"}, "active")])
def test_the_command_line_sets_the_policy_unless_the_user_has(given: dict[str, str], policy: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")} | given
    command = [sys.executable, "-m", "lstlm", "env", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["variables"]["OMP_WAIT_POLICY"] == policy


@pytest.mark.parametrize(
    ("program", "policy"),
    [("import lstlm", "passive"), ("import torch, lstlm", "none")],
)
def test_so_does_an_import_that_comes_before_torch(program: str, policy: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
    program += "; import os; print(os.environ.get('OMP_WAIT_POLICY', 'none'))"
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == policy
