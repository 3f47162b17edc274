"""How many processor cores this process may use."""

import math
import os
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def usable_cores(cgroups: Path = _CGROUPS) -> int:
    """Return the cores that affinity (`taskset`) and the container's share of processor time leave to this process."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(cores, _cgroup_cores(cgroups))))


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
