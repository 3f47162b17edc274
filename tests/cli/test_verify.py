"""``lstlm verify``: the contract of its JSON, its verdict, and that it can say no."""

import json

import pytest
from click.testing import CliRunner, Result

from lstlm.cli import cli
from lstlm.spherical import SphericalOutput

QUANTITIES = ["W", "Q", "w_bar", "U_inv_T", "grad_H", "loss"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["verify", *arguments])


@pytest.mark.parametrize(("dtype", "bound"), [("float64", 1e-9), ("float32", 1e-3)])
def test_json(dtype: str, bound: float) -> None:
    result = run("--steps", "12", "--dtype", dtype, "--json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert list(document["losses"]) == ["z", "squared", "spherical", "taylor"]
    assert (document["dtype"], document["steps"], document["bound"]) == (dtype, 12, bound)
    assert document["agree"] is True
    for errors in document["losses"].values():
        assert list(errors) == QUANTITIES
        assert all(0 <= error < bound for error in errors.values())
        assert errors["W"] > 0, "two layers that were computed differently are never equal to the last bit"


def test_table_and_verdict() -> None:
    result = run("--steps", "3", "--loss", "z", "--loss", "squared")
    header, *rows, blank, verdict = result.stdout.splitlines()
    assert header.split() == ["loss", *QUANTITIES]
    assert [row.split()[0] for row in rows] == ["z", "squared"]
    assert blank == ""
    assert verdict.startswith("the same layer: largest error ") and verdict.endswith("bound 1e-09 (float64, 3 steps)")


def test_a_layer_that_is_a_little_wrong_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    update = SphericalOutput.update
    monkeypatch.setattr(SphericalOutput, "update", lambda self, lr: update(self, lr * (1 + 1e-6)))
    result = run("--steps", "3", "--loss", "taylor")
    assert result.exit_code == 1
    assert "NOT the same layer" in result.stdout
    assert json.loads(run("--steps", "3", "--loss", "taylor", "--json").stdout)["agree"] is False


def test_nan_is_no_agreement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lstlm.bench.verification.Total.relative", lambda total: float("nan"))
    result = run("--steps", "2", "--loss", "taylor", "--json")
    assert result.exit_code == 1
    assert set(json.loads(result.stdout)["losses"]["taylor"].values()) == {None}


@pytest.mark.parametrize("arguments", [["--steps", "0"], ["--dtype", "float16"], ["--loss", "hinge"], ["extra"]])
def test_wrong_arguments(arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
