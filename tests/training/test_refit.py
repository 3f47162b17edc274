"""The closed-form recipe: each refit is the exact minimum, passes reach the truncated SVD, a run is a normal run."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lstlm.data.cooccurrence import SparseRows
from lstlm.errors import NumericsError
from lstlm.training.loop.refit import TargetRows, gram, principal_axes, refit, solve_gram
from lstlm.training.run.saved import load_run
from tests.training.harness import Cli, figures, fingerprint, make_corpus, status

ROWS = {
    "data.context_kind": "cooccurrence",
    "model.embedding": "8",
    "model.hidden": "[]",
    "output.kind": "factored",
    "output.loss": "squared",
    "output.bias": "false",
    "train.max_epochs": "4",
    "train.max_steps": "null",
    "train.log_every": "1",
    "train.eval_every": "1",
    "train.checkpoint_every": "1",
    "train.keep_checkpoints": "9",
}
SETTINGS: dict[str, Any] = {key.replace(".", "__"): value for key, value in ROWS.items()}


def matrix(n: int = 30, columns: int = 44, seed: int = 0) -> tuple[torch.Tensor, SparseRows]:
    """Return a sparse matrix with a few strong directions, dense and by rows."""
    rng = np.random.default_rng(seed)
    full = (rng.normal(size=(n, 5)) * [9, 7, 5, 4, 3]) @ rng.normal(size=(5, columns)) + rng.normal(size=(n, columns))
    full[rng.random(full.shape) < 0.3] = 0
    full[3] = 0  # a word without any neighbour
    where = [np.flatnonzero(row) for row in full]
    starts = np.concatenate(([0], np.cumsum([len(w) for w in where])))
    values = np.concatenate([row[w] for row, w in zip(full, where, strict=True)]).astype(np.float32)
    rows = SparseRows(starts, np.concatenate(where).astype(np.int32), values, columns)
    return torch.tensor(full.astype(np.float32)).double(), rows


def small(rows: SparseRows) -> TargetRows:
    return TargetRows(rows, torch.float64, torch.device("cpu"), block=100)


def test_products_are_those_of_the_dense_matrix() -> None:
    Y, rows = matrix()
    targets = small(rows)
    W, H = torch.randn(44, 6).double(), torch.randn(30, 6).double()
    torch.testing.assert_close(targets.times(W), Y @ W)
    torch.testing.assert_close(targets.transposed_times(H), Y.T @ H)
    assert targets.norm2 == pytest.approx(float(Y.square().sum()))


@pytest.mark.parametrize("ridge", [0.0, 0.3])
def test_a_refit_is_where_autograd_finds_no_slope(ridge: float) -> None:
    Y, rows = matrix()
    H = torch.randn(30, 6).double()
    W = solve_gram(small(rows).transposed_times(H), H, ridge).requires_grad_()
    penalty = max(ridge, 1e-7) * H.square().sum(0).mean()
    ((Y - H @ W.T).square().sum() + penalty * W.square().sum()).backward()
    assert W.grad is not None and float(W.grad.abs().max()) < 1e-8


def test_passes_reach_the_truncated_svd() -> None:
    Y, rows = matrix()
    targets = small(rows)
    H = torch.randn(30, 5, generator=torch.Generator().manual_seed(1)).double()
    losses = []
    for _ in range(60):
        fit = refit(targets, H, 0.0, 0.25)
        H = fit.H
        losses.append(fit.unexplained)
        error = (Y - fit.H @ fit.W.T).square().sum() / Y.square().sum()
        assert fit.unexplained == pytest.approx(float(error), abs=1e-6)
    assert losses == sorted(losses, reverse=True) or max(np.diff(losses)) < 1e-9
    left, singular, right = torch.linalg.svd(Y, full_matrices=False)
    torch.testing.assert_close(fit.H @ fit.W.T, (left[:, :5] * singular[:5]) @ right[:5], atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(fit.singular, singular[:5], atol=1e-4, rtol=1e-4)


def test_vectors_are_principal_axes_times_a_power_of_the_singular_values() -> None:
    H, W = torch.randn(30, 5).double(), torch.randn(44, 5).double()
    A, B, S = principal_axes(gram(H), gram(W), 0.3)
    torch.testing.assert_close((H @ A) @ (W @ B).T, H @ W.T)
    torch.testing.assert_close(gram(H @ A), torch.diag(S**0.6))
    torch.testing.assert_close(gram(W @ B), torch.diag(S**1.4))


def test_more_directions_than_the_scores_have_are_an_error_with_advice() -> None:
    rounded = torch.diag(torch.tensor([1.0, 1.0, 1.0, -1e-7, 1.0]).double())  # a zero, as float32 leaves it
    with pytest.raises(NumericsError, match="fewer independent directions than model.embedding, 5: about 3; lower"):
        principal_axes(torch.eye(5).double(), rounded, 0.3)
    _, rows = matrix()
    targets = TargetRows(rows, torch.float32, torch.device("cpu"), block=100)
    with pytest.raises(NumericsError, match="the pass is not finite"):
        refit(targets, torch.full((30, 4), float("nan")), 0.0, 0.25)


def test_a_refit_that_fails_ends_the_run_without_talk_of_rates(
    lstlm: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise NumericsError("refit: lower model.embedding")

    monkeypatch.setattr("lstlm.training.loop.cooccurrence.refit", fail)
    outcome = lstlm(tmp_path / "run", **SETTINGS)
    assert outcome.code == 4 and outcome.err.strip().endswith("lstlm: error: refit: lower model.embedding")


@pytest.mark.parametrize("extra", [(), ("--dry-run",)])
def test_more_directions_than_words_are_refused_before_anything_is_made(
    lstlm: Cli, tmp_path: Path, extra: tuple[str, ...]
) -> None:
    outcome = lstlm(tmp_path / "run", *extra, **{**SETTINGS, "model__embedding": 201})
    line = outcome.err.strip().splitlines()[-1]
    assert outcome.code == 2 and "model.embedding: 201 is above the 193 words of" in line
    assert not (tmp_path / "run").exists()


def test_a_run_of_passes_is_a_normal_run(lstlm: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    lstlm.ok(run, **SETTINGS)
    loss = figures(run, "eval/loss")
    assert list(loss) == [1, 2, 3, 4] and all(loss[k] > loss[k + 1] for k in (1, 2, 3))
    assert status(run)["state"] == "finished" and list(run.glob("events.out.tfevents.*"))
    loaded = load_run(run)
    words = len(loaded.vocabulary)
    assert loaded.network.input_vectors().shape == loaded.network.output_vectors().shape == (words, 8)
    assert loaded.network.output.vocab == 2 * words and float(loaded.network.unexplained) == loss[4]
    out = lstlm.run("nn", str(run), "w1", "-k", "3")
    assert out.code == 0 and len(out.out.splitlines()) == 3
    assert lstlm.run("export", str(run), "--format", "word2vec", "--out", str(tmp_path / "v.txt")).code == 0


def test_a_resumed_run_ends_bit_for_bit_like_one_that_was_not_stopped(lstlm: Cli, tmp_path: Path) -> None:
    lstlm.ok(tmp_path / "whole", **SETTINGS)
    lstlm.ok(tmp_path / "parts", **{**SETTINGS, "train__max_epochs": 2})
    lstlm.ok(tmp_path / "parts", "--resume", "auto", **SETTINGS)
    whole, parts = fingerprint(tmp_path / "whole", 4), fingerprint(tmp_path / "parts", 4)
    assert whole["network"] == parts["network"] and whole["examples"] == parts["examples"] == {"epoch": 4}


def test_the_naive_layer_takes_the_same_fit(lstlm: Cli, tmp_path: Path) -> None:
    lstlm.ok(tmp_path / "factored", **SETTINGS)
    lstlm.ok(tmp_path / "naive", **{**SETTINGS, "output__kind": "naive"})
    a, b = load_run(tmp_path / "factored").network, load_run(tmp_path / "naive").network
    torch.testing.assert_close(a.output_vectors(), b.output_vectors())


def test_the_price_of_rows_is_in_the_time_of_every_run(tmp_path: Path, lstlm: Cli) -> None:
    corpus = make_corpus(tmp_path / "corpus")
    cli = Cli(corpus, lstlm._capsys)
    first = cli.ok(tmp_path / "first", **SETTINGS)
    assert "association scores, made in" in first.err
    assert "from an earlier run" in cli.ok(tmp_path / "second", **SETTINGS).err
    facts = json.loads(next(corpus.glob("cooccurrence-*/facts.json")).read_text())
    entries = [json.loads(line) for line in (tmp_path / "second" / "metrics.jsonl").read_text().splitlines()]
    entry = next(entry for entry in entries if "progress/train_s" in entry)
    assert entry["progress/train_s"] >= facts["seconds"]


def test_a_dry_run_estimates_passes(lstlm: Cli, tmp_path: Path) -> None:
    outcome = lstlm.ok(tmp_path / "run", "--dry-run", "--json", **SETTINGS)
    estimate = json.loads(outcome.out)
    assert estimate["steps"] == 4 and estimate["parameters"]["output"] == 2 * estimate["parameters"]["embedding"]


@pytest.mark.parametrize(
    ("key", "value"), [("model__hidden", "[8]"), ("output__loss", "z"), ("output__kind", "softmax")]
)
def test_what_has_no_closed_form_is_refused(lstlm: Cli, tmp_path: Path, key: str, value: str) -> None:
    outcome = lstlm(tmp_path / "run", **{**SETTINGS, key: value})
    assert outcome.code == 2 and "data.context_kind: cooccurrence is solved in closed form" in outcome.err


def test_perplexity_of_rows_is_refused_with_a_reason(lstlm: Cli, tmp_path: Path) -> None:
    lstlm.ok(tmp_path / "run", **SETTINGS)
    outcome = lstlm.run("eval", "perplexity", str(tmp_path / "run"))
    assert outcome.code == 2 and "scores pairs, not words of a text" in outcome.err
    assert "ask `lstlm eval simlex`" in outcome.err and len(outcome.err.splitlines()) == 1


def test_predicting_the_next_word_is_refused_with_a_reason(lstlm: Cli, tmp_path: Path) -> None:
    lstlm.ok(tmp_path / "run", **{**SETTINGS, "train__max_epochs": 1})
    outcome = lstlm.run("predict", str(tmp_path / "run"), "w1 w2")
    assert outcome.code == 2 and "scores pairs, not the next word; ask `lstlm nn`" in outcome.err
