"""``lstlm env``."""

import json
import os
from importlib.metadata import version

import torch
from click.testing import CliRunner

from lstlm import __version__
from lstlm.cli import cli


def test_json_has_what_a_benchmark_record_needs() -> None:
    result = CliRunner().invoke(cli, ["env", "--json"])
    facts = json.loads(result.stdout)
    assert facts["lstlm"] == __version__
    assert facts["packages"]["torch"] == version("torch")
    assert facts["threads"] == torch.get_num_threads()
    assert facts["cores"] == os.cpu_count()
    assert facts["devices"][0] == "cpu"
    assert facts["blas"] not in ("", "unknown")
    assert facts["memory_bytes"] > 0


def test_text_names_every_fact_once() -> None:
    result = CliRunner().invoke(cli, ["env"])
    names = [line.split("  ")[0] for line in result.stdout.splitlines()]
    assert result.exit_code == 0
    assert len(names) == len(set(names))
    assert {"lstlm", "python", "torch", "numpy", "threads", "blas", "devices"} <= set(names)


def test_a_missing_optional_package_is_said_plainly(monkeypatch: object) -> None:
    from lstlm import environment

    assert environment._version("no-such-package-at-all") is None
