"""`lstlm bench distributed`: numbers of ranks are checked, what was sent stays below the model of it."""

import json

import pytest
from click.testing import CliRunner

from lstlm.cli import cli

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("worlds", ["0", "1,x", "1,,2"])
def test_numbers_of_ranks_are_whole_and_positive(worlds: str) -> None:
    outcome = CliRunner().invoke(cli, ["bench", "distributed", "--worlds", worlds])
    assert outcome.exit_code == 2 and "is not a whole number from 1 on" in outcome.output


def test_two_ranks_are_measured_beside_one() -> None:
    arguments = [
        "bench",
        "distributed",
        "--quick",
        "--budget",
        "0.05",
        "--hidden",
        "16",
        "--batch-sizes",
        "64",
        "--json",
        "-",
    ]
    outcome = CliRunner().invoke(cli, arguments)
    assert outcome.exit_code == 0, outcome.output
    one, two = json.loads(outcome.stdout)["records"]
    assert (one["world"], two["world"]) == (1, 2) and one["bytes"] == 0 and one["speedup"] == 1
    assert 0 < two["bytes"] <= two["bytes_bound"] * 1.02  # sizes and flags are not in the model
    assert two["latency_us"] > 0 and two["of_independent"] > 0
