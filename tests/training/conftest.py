"""Fixtures of the trainer's tests."""

from pathlib import Path

import pytest

from tests.training.harness import Cli, make_corpus


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared corpus of about 200 words."""
    return make_corpus(tmp_path_factory.mktemp("corpus") / "tiny")


@pytest.fixture
def lstlm(corpus: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    """The command line, on the tiny corpus."""
    return Cli(corpus, capsys)
