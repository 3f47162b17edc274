"""`lstlm predict`: probabilities where they exist, scores where not, text read as the training data was."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lstlm.training.run.saved import load_run

Call = Callable[..., object]


def test_probabilities_are_those_of_the_whole_vocabulary(lstlm: Call, run_spherical: Path) -> None:
    run = load_run(run_spherical)
    size = len(run.vocabulary)
    (answer,) = lstlm("predict", run_spherical, "the old", "-k", size, "--json").json()["queries"]
    entries = answer["predictions"]
    assert [entry["word"] for entry in entries] != [] and "<s>" not in {entry["word"] for entry in entries}
    h = run.network.encode(torch.tensor([[1, 1, *run.vocabulary.encode(["the", "old"])]]))
    exact = run.network.output.log_prob(h.expand(size, -1), torch.arange(size)).exp()
    assert float(exact.sum()) == pytest.approx(1.0, abs=1e-4)
    for entry in entries:
        assert entry["probability"] == pytest.approx(float(exact[run.vocabulary.index[entry["word"]]]), rel=1e-4)
    chances = [entry["probability"] for entry in entries]
    assert chances == sorted(chances, reverse=True)
    assert math.fsum(chances) == pytest.approx(1.0 - float(exact[run.vocabulary.bos_id]), abs=1e-4)
    assert answer["context"] == ["<s>", "<s>", "the", "old"]


def test_scores_where_the_loss_has_no_probabilities(lstlm: Call, run_z: Path) -> None:
    done = lstlm("predict", run_z, "the old", "-k", 3)
    assert (done.code, len(done.out.splitlines())) == (0, 3)
    assert "defines no probabilities" in done.err
    (answer,) = lstlm("predict", run_z, "the old", "--json").json()["queries"]
    assert {entry["probability"] for entry in answer["predictions"]} == {None}


def test_only_the_last_words_count_and_text_is_lowered(lstlm: Call, run_spherical: Path) -> None:
    long = lstlm("predict", run_spherical, "new new new The OLD wife go", "--json").json()["queries"][0]
    short = lstlm("predict", run_spherical, "the old wife go", "--json").json()["queries"][0]
    assert long["predictions"] == short["predictions"]


def test_unknown_words_are_said_with_near_spellings(lstlm: Call, run_spherical: Path) -> None:
    done = lstlm("predict", run_spherical, "the hsband")
    assert done.code == 0
    assert "'hsband' is not in the vocabulary, read as <unk>; near spellings: husband" in done.err


def test_queries_from_stdin(lstlm: Call, run_spherical: Path) -> None:
    done = lstlm("predict", run_spherical, "-k", 2, stdin=b"the old\n\nthe wife\n")
    assert [line.split("  ")[0] for line in done.out.splitlines()] == ["the old"] * 2 + ["the wife"] * 2
    assert len(lstlm("predict", run_spherical, "-", "--json", stdin=b"the old\nthe\n").json()["queries"]) == 2
    assert lstlm("predict", run_spherical, "--json", stdin=b"").json() == {"queries": []}


def test_a_window_model_fills_the_gap(lstlm: Call, run_window: Path) -> None:
    (answer,) = lstlm("predict", run_window, "the old _ and wife go", "--json").json()["queries"]
    assert answer["context"] == ["the", "old", "and", "wife"]
    (answer,) = lstlm("predict", run_window, "old", "--json").json()["queries"]
    assert answer["context"] == ["<s>", "old", "</s>", "</s>"]


@pytest.mark.parametrize(("arguments", "code"), [(["RUN", ""], 2), (["absent", "x"], 3), (["FILE", "x"], 2)])
def test_refusals(lstlm: Call, run_z: Path, tmp_path: Path, arguments: list[str], code: int) -> None:
    file = tmp_path / "v.txt"
    file.write_text("1 1\na 1\n")
    named = {"RUN": str(run_z), "FILE": str(file)}
    done = lstlm("predict", *[named.get(argument, argument) for argument in arguments])
    assert (done.code, done.out, done.err.count("\n")) == (code, "", 1)


def test_generate_goes_on_as_the_library_does(lstlm: Call, run_spherical: Path) -> None:
    import lstlm as library

    done = lstlm("predict", run_spherical, "the old", "--generate", 6, "--seed", 3)
    assert (done.code, done.err) == (0, "")
    assert done.out == library.load(run_spherical).generate("the old", words=6, seed=3) + "\n"
    (answer,) = lstlm("predict", run_spherical, "the old", "--generate", 6, "--seed", 3, "--json").json()["queries"]
    assert " ".join(["the old", *answer["generated"]]) + "\n" == done.out
    best = lstlm("predict", run_spherical, "the old", "--generate", 3, "--temperature", 0)
    assert best.out == library.load(run_spherical).generate("the old", words=3, temperature=0) + "\n"
    assert lstlm("predict", run_spherical, "", "--generate", 3, "--seed", 1).code == 0
    several = lstlm("predict", run_spherical, "--generate", 2, "--seed", 1, stdin=b"the\nan hsband\n")
    assert [line.split()[0] for line in several.out.splitlines()] == ["the", "an"]
    assert "'hsband' is not in the vocabulary" in several.err


@pytest.mark.parametrize(
    ("run", "arguments", "message"),
    [
        ("run_z", ["--generate", 3], "use temperature 0"),
        ("run_window", ["--generate", 3], "does not predict the next word"),
        ("run_z", ["--seed", 3], "go with --generate"),
        ("run_z", ["--temperature", 3], "go with --generate"),
        ("run_z", ["--generate", 3, "--temperature", "-1"], "temperature"),
        ("run_z", ["--generate", 3, "--temperature", "nan"], "temperature"),
        ("run_z", ["--generate", 0], "--generate"),
    ],
)
def test_generate_refuses(
    lstlm: Call, request: pytest.FixtureRequest, run: str, arguments: list[object], message: str
) -> None:
    done = lstlm("predict", request.getfixturevalue(run), "the old", *arguments)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert message in done.err
