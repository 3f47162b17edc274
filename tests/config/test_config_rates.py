"""The rate of the output layer that is chosen where the configuration leaves it open."""

from pathlib import Path

import pytest

from lstlm.config import Config, load_config, output_rate, parse_config, with_rates
from lstlm.errors import ConfigError
from tests.training.harness import Cli, figures, fingerprint, make_corpus


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_corpus(tmp_path_factory.mktemp("corpus") / "tiny")


@pytest.fixture
def lstlm(corpus: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(corpus, capsys)


def test_it_grows_with_the_vocabulary_where_the_stable_rate_does() -> None:
    rates = [output_rate(Config(), vocab) for vocab in (200, 10_000, 40_000, 800_000)]
    assert rates == [1.0, 50.0, 100.0, 100.0]


def test_squared_error_is_bounded_by_the_inputs_alone() -> None:
    """|h| ≤ 1 after tanh, so λmax(2HᵀH/m) ≤ 2·301, whatever the minibatch and the vocabulary."""
    squared = parse_config("output: {loss: squared}")
    assert output_rate(squared, 200) == output_rate(squared, 800_000) < 1 / (2 * 301)
    wide = parse_config("output: {loss: squared}\nmodel: {embedding: 50, hidden: []}\ndata: {context: 3}")
    assert output_rate(wide, 200) < 1 / (2 * 151)


def test_kinds_of_one_loss_have_one_rate() -> None:
    for loss in ("z", "squared", "spherical", "taylor"):
        factored, naive = (parse_config(f"output: {{kind: {kind}, loss: {loss}}}") for kind in ("factored", "naive"))
        assert output_rate(factored, 5000) == output_rate(naive, 5000)


def test_a_given_rate_stays() -> None:
    config = parse_config("optim: {output_lr: 0.3}")
    assert with_rates(config, 100) is config
    assert with_rates(parse_config("optim: {output_lr: null}"), 1000).optim.output_lr == 5.0


def test_rules_hold_for_the_chosen_rate_too() -> None:
    with pytest.raises(ConfigError, match="output.weight_decay: 0.5 × optim.output_lr 100.0 must stay below 1"):
        with_rates(parse_config("output: {weight_decay: 0.5}"), 100_000)


@pytest.mark.parametrize("loss", ["z", "squared", "spherical", "taylor"])
@pytest.mark.parametrize("hidden", ["[]", "[32, 32]"])
def test_it_is_stable_with_few_words(lstlm: Cli, tmp_path: Path, loss: str, hidden: str) -> None:
    """150 steps of the default rates on 200 words: no roll-back, and the loss falls."""
    run, combine = tmp_path / "run", "mean" if hidden == "[]" else "concat"
    settings = {"output__loss": loss, "model__hidden": hidden, "model__combine": combine, "train__max_steps": 150}
    outcome = lstlm.ok(run, output__kind="factored", train__log_every=50, train__eval_every=100, **settings)
    assert "back to step" not in outcome.err
    losses = list(figures(run, "loss/train").values())
    assert losses[-1] < losses[0]


def test_it_is_written_down_and_a_resumed_run_goes_on_with_it(lstlm: Cli, tmp_path: Path) -> None:
    settings = {"output__kind": "factored", "train__batch_size": 16}
    lstlm.ok(tmp_path / "whole", **settings, train__max_steps=40)
    lstlm.ok(tmp_path / "run", **settings, train__max_steps=20)
    saved = load_config(tmp_path / "run" / "config.yaml").optim.output_lr
    assert saved is not None and saved == pytest.approx(1.0, abs=0.1)
    resumed = lstlm.ok(tmp_path / "run", "--resume", "auto", **settings, train__max_steps=40)
    assert "optim.output_lr" not in resumed.err
    assert fingerprint(tmp_path / "run", 40) == fingerprint(tmp_path / "whole", 40)


def test_a_corpus_alone_is_enough(lstlm: Cli, corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    small = ["--set", "train.max_steps=3", "--set", "model.embedding=8", "--set", "model.hidden=[8]"]
    outcome = lstlm.run("train", "--set", f"data.dir={corpus}", "--run", str(run), *small)
    assert outcome.code == 0, outcome.err
    config = load_config(run / "config.yaml")
    assert (config.output.kind, config.train.batch_size) == ("shortlist", 512)
    missing = lstlm.run("train", "--run", str(tmp_path / "other"))
    assert missing.code == 2 and "or a corpus alone: --set data.dir=data/demo" in missing.err
