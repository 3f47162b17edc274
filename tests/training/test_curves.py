"""The factored layer through the whole command: the same learning curve as the naive one, and figures about itself."""

import json
from pathlib import Path

import pytest

from tests.training.harness import Cli, figures

LOSSES = {"z": 1.0, "spherical": 0.5, "taylor": 0.5, "squared": 0.01}


@pytest.mark.parametrize(("loss", "rate"), LOSSES.items())
def test_factored_and_naive_learn_alike(lstlm: Cli, tmp_path: Path, loss: str, rate: float) -> None:
    """200 steps in float64 from one seed: every logged and every validation loss agrees to 1e-6."""
    settings = {
        "output__loss": loss,
        "optim__output_lr": rate,
        "train__dtype": "float64",
        "train__max_steps": 200,
        "train__log_every": 1,
        "train__eval_every": 50,
        "train__checkpoint_every": 1000,
    }
    for kind in ("factored", "naive"):
        lstlm.ok(tmp_path / kind, **settings, output__kind=kind)
    for tag, count in (("loss/train", 200), ("eval/loss", 4)):
        factored, naive = figures(tmp_path / "factored", tag), figures(tmp_path / "naive", tag)
        assert len(factored) == count
        assert factored == pytest.approx(naive, rel=1e-6, abs=1e-6)
    losses = figures(tmp_path / "factored", "loss/train")
    assert sum(losses[step] for step in range(181, 201)) < sum(losses[step] for step in range(1, 21))


def test_figures_about_the_factors(lstlm: Cli, tmp_path: Path) -> None:
    lstlm.ok(tmp_path / "run", output__kind="factored")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    logged = [line for line in lines if "loss/train" in line]
    evaluated = [line for line in lines if "eval/loss" in line]
    names = {"lst/sigma_min", "lst/sigma_max", "lst/inverse_error", "lst/stabilisations", "lst/weight_norm"}
    assert all(line.keys() >= names for line in logged if line["step"] in (10, 20, 40))
    assert all(line["lst/weight_norm"] > 0 and line["lst/grad_norm"] > 0 for line in logged)
    assert all("eval/perplexity" not in line for line in evaluated)  # the Z-loss defines no probability


def test_a_rate_beyond_the_stable_one_ends_with_advice(lstlm: Cli, tmp_path: Path) -> None:
    outcome = lstlm(tmp_path / "run", output__kind="factored", output__loss="squared", optim__output_lr=1e6)
    assert outcome.code == 4
    assert "above the largest stable" in outcome.err
    assert "gave up after 3 roll-backs with the rates at ×0.125; lower optim.output_lr (1e+06)" in outcome.err


def test_simlex_where_its_file_is_found(lstlm: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = tmp_path / "pairs.txt"
    pairs.write_text("".join(f"W{n}\tw{n + 1}\t{n % 7}\n" for n in range(30)) + "absent\tw1\t2\n")
    monkeypatch.setattr("lstlm.evaluation.datasets.find_dataset", lambda kind, explicit: pairs)
    lstlm.ok(tmp_path / "run", train__simlex="true")
    assert len(figures(tmp_path / "run", "eval/simlex_spearman")) == 2
    assert set(figures(tmp_path / "run", "eval/simlex_pairs").values()) <= set(range(20, 31))


def test_a_single_pair_of_words_has_no_score(lstlm: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = tmp_path / "pairs.txt"
    pairs.write_text("w1\tw2\t3\nabsent\tw1\t2\n")
    monkeypatch.setattr("lstlm.evaluation.datasets.find_dataset", lambda kind, explicit: pairs)
    outcome = lstlm.ok(tmp_path / "run", train__simlex="true")
    assert "SimLex" not in outcome.err and "simlex" not in outcome.out and "loss" in outcome.out
