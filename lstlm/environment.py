"""What a result depends on besides the code: versions, processor, threads, BLAS, devices."""

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from lstlm import __version__
from lstlm.cores import usable_cores

REQUIRED = ("torch", "numpy", "click", "tqdm", "PyYAML", "tensorboard")
OPTIONAL = ("matplotlib", "gensim", "scipy", "safetensors")
VARIABLES = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "CUDA_VISIBLE_DEVICES")


def describe() -> dict[str, Any]:
    """Return the environment as plain JSON values.  Imports torch."""
    return {
        "lstlm": __version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in (*REQUIRED, *OPTIONAL)},
        "processor": _processor(),
        "cores": os.cpu_count(),
        "cores_usable": usable_cores(),
        "memory_bytes": _memory(),
        **_torch(),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    """Return the processor's marketing name where the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def peak_memory() -> int:
    """Return the most bytes that this process has had resident; 0 where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _torch() -> dict[str, Any]:
    import torch

    from lstlm.kernels import choice

    build = torch.__config__.show()
    if torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        blas = next((line.strip(" -") for line in build.splitlines() if "Math Kernel Library" in line), "MKL")
    else:
        blas = next((part.split("=")[1] for part in build.split(", ") if part.startswith("BLAS_INFO=")), "unknown")
    devices = ["cpu"]
    devices += [f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())]
    devices += ["mps"] if torch.backends.mps.is_available() else []
    return {
        "threads": torch.get_num_threads(),
        "threads_interop": torch.get_num_interop_threads(),
        "blas": blas,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        **choice.describe(),
        "cuda": torch.version.cuda,
        "distributed": torch.distributed.is_available(),
        "devices": devices,
    }
