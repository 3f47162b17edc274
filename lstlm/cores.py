"""How many processor cores this process may use, and how many threads are worth their while.  No torch here."""

import math
import os
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_WORK_OF_A_THREAD = 1 << 26  # multiply-adds, about a millisecond; with less, threads wait for each other more than work


def usable_cores(cgroups: Path = _CGROUPS) -> int:
    """Return the cores that affinity (`taskset`) and the container's share of processor time leave to this process."""
    return max(1, math.ceil(min(_affinity(), _cgroup_cores(cgroups))))


def worthwhile_threads(multiply_adds: int, most: int) -> int:
    """Return how many threads, `most` at most, a step of so many multiply-adds keeps busy."""
    return max(1, min(most, multiply_adds // _WORK_OF_A_THREAD))


def openmp_settings(cgroups: Path = _CGROUPS) -> dict[str, str]:
    """Return environment variables that OpenMP reads when torch is first imported.

    Threads that wait sleep: by default they spin, and on a machine with other work they take the core from the very
    thread they wait for, which made a step ten to forty times slower.  OpenMP sees affinity, not a container's share.
    """
    settings = {"OMP_WAIT_POLICY": "passive"}
    if (cores := usable_cores(cgroups)) < _affinity():
        settings["OMP_NUM_THREADS"] = str(cores)
    return settings


def _affinity() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cgroup_cores(root: Path) -> float:
    """Return quota over period of the control group, of version 2 or 1; infinity where there is no limit."""
    for files in ((root / "cpu.max",), (root / "cpu/cpu.cfs_quota_us", root / "cpu/cpu.cfs_period_us")):
        try:
            quota, period = " ".join(file.read_text(encoding="ascii") for file in files).split()
            if int(quota) > 0 and int(period) > 0:  # "max" or -1: no limit
                return int(quota) / int(period)
        except (OSError, ValueError):
            continue
    return math.inf
