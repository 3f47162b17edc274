"""`lstlm nn`: neighbours from runs and files, queries from stdin, help with spelling."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lstlm.training.run.saved import load_run

Call = Callable[..., object]


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    path = tmp_path / "v.txt"
    path.write_text("4 2\nking 1 0\nqueen 0.9 0.1\nwater 0 1\nParis -1 0\n")
    return path


def test_neighbours_of_a_file(lstlm: Call, vectors: Path) -> None:
    done = lstlm("nn", vectors, "king", "-k", 2)
    assert (done.code, done.err) == (0, "")
    assert done.out == "queen  0.9939\nwater  0.0000\n"


def test_words_cannot_steer_the_terminal(lstlm: Call, tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("2 2\nking 1 0\nque\x1b]0;mine\x07en 1 1\n")
    assert lstlm("nn", tmp_path / "v.txt", "king").out == "que\\x1b]0;mine\\x07en  0.7071\n"


def test_json_of_a_run_agrees_with_its_table(lstlm: Call, run_z: Path) -> None:
    done = lstlm("nn", run_z, "old", "-k", 3, "--json")
    (answer,) = done.json()["queries"]
    run = load_run(run_z)
    table = run.network.input_vectors().double().numpy()
    units = table / np.linalg.norm(table, axis=1, keepdims=True)
    cosines = units @ units[run.vocabulary.index["old"]]
    order = [at for at in np.argsort(-cosines) if run.vocabulary.words[at] != "old"][:3]
    assert [entry["word"] for entry in answer["neighbours"]] == [run.vocabulary.words[at] for at in order]
    assert [entry["cosine"] for entry in answer["neighbours"]] == pytest.approx(cosines[order].tolist(), abs=1e-6)


def test_output_and_sum_vectors_differ(lstlm: Call, run_z: Path) -> None:
    found = [lstlm("nn", run_z, "old", "--which", which, "--json").json() for which in ("input", "output", "sum")]
    assert found[0] != found[1] != found[2] != found[0]


def test_a_checkpoint_folder_is_taken_too(lstlm: Call, run_z: Path) -> None:
    checkpoint = next(path for path in (run_z / "checkpoints").iterdir() if path.name != "last")
    assert lstlm("nn", checkpoint, "old", "--json").json() == lstlm("nn", run_z, "old", "--json").json()


def test_unknown_words_suggest_near_spellings(lstlm: Call, vectors: Path) -> None:
    done = lstlm("nn", vectors, "kng")
    assert (done.code, done.out) == (2, "")
    assert done.err == "lstlm: error: 'kng' has no vector; near spellings: king\n"


def test_another_case_is_found_and_said(lstlm: Call, vectors: Path) -> None:
    done = lstlm("nn", vectors, "PARIS", "-k", 1)
    assert (done.code, done.out, done.err) == (0, "water  0.0000\n", "'PARIS' has no vector; using 'Paris'\n")


def test_sums_and_differences_are_those_of_unit_vectors(lstlm: Call, vectors: Path) -> None:
    done = lstlm("nn", vectors, "king", "-", "queen", "+", "water", "-k", 1, "--json")
    (answer,) = done.json()["queries"]
    assert (answer["query"], answer["positive"], answer["negative"]) == (
        "king - queen + water",
        ["king", "water"],
        ["queen"],
    )
    queen = np.array([0.9, 0.1]) / np.hypot(0.9, 0.1)
    sought = np.array([1.0, 1.0]) - queen
    cosine = float(sought @ [-1.0, 0.0] / np.linalg.norm(sought))
    assert answer["neighbours"] == [{"word": "Paris", "cosine": pytest.approx(cosine, abs=1e-6)}]


def test_several_words_are_several_queries(lstlm: Call, vectors: Path) -> None:
    done = lstlm("nn", vectors, "king", "water", "+", "queen", "-k", 1)
    assert (done.code, done.out) == (0, "king  queen  0.9939\nwater + queen  king  0.6669\n")
    done = lstlm("nn", vectors, "xyzzy", "water", "-k", 1)
    assert (done.code, done.out, done.err.count("\n")) == (2, "water  queen  0.1104\n", 1)
    done = lstlm("nn", vectors, "-k", 1, stdin=b"king - queen + water\nking water\n")
    assert [line.split("  ")[0] for line in done.out.splitlines()] == ["king - queen + water", "king", "water"]


def test_signs_are_words_where_a_word_is_expected(lstlm: Call, tmp_path: Path) -> None:
    path = tmp_path / "signs.txt"
    path.write_text("3 2\n+ 1 0\n- 0.9 0.1\nking 0 1\n")
    assert lstlm("nn", path, "+", "-k", 1).out == "-  0.9939\n"
    assert lstlm("nn", path, "king", "+", "-", "-k", 1).out == "+  0.6669\n"
    done = lstlm("nn", path, "king", "-")
    assert (done.code, done.err) == (2, "lstlm: error: 'king -' ends with -; a word must follow\n")


def test_a_word_with_a_blank_inside_is_found_from_stdin(lstlm: Call, tmp_path: Path) -> None:
    path = tmp_path / "glove.txt"
    path.write_text("king 1 0\nnew york 0 1\n")
    assert lstlm("nn", path, stdin=b"new york\n").out == "new york  king  0.0000\n"


@pytest.mark.parametrize("dash", [[], ["-"]])
def test_queries_from_stdin(lstlm: Call, vectors: Path, dash: list[str]) -> None:
    done = lstlm("nn", vectors, *dash, "-k", 1, stdin=b"king\n\n  water \nxyzzy\xff\nqueen")
    assert done.out == "king  queen  0.9939\nwater  queen  0.1104\nqueen  king  0.9939\n"
    assert (done.code, done.err.count("\n")) == (2, 1)
    document = lstlm("nn", vectors, *dash, "--json", stdin=b"king\nxyzzy\n").json()
    assert [("error" in answer, answer["query"]) for answer in document["queries"]] == [
        (False, "king"),
        (True, "xyzzy"),
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["absent", "king"], 3, "absent: no such run folder or file"),
        (["FILE", "king", "-k", "0"], 2, "Invalid value for '-k'"),
        (["FILE", "king", "--which", "output"], 2, "--which output: .* is a file"),
        (["FILE", "king", "--vocab", "x"], 2, r"only a \.npy file needs it"),
        (["FOLDER", "king"], 3, "a folder without config.yaml is no run"),
    ],
)
def test_refusals(lstlm: Call, vectors: Path, arguments: list[str], code: int, message: str) -> None:
    import re

    named = {"FILE": str(vectors), "FOLDER": str(vectors.parent)}
    done = lstlm("nn", *[named.get(argument, argument) for argument in arguments])
    assert (done.code, done.out, done.err.count("\n")) == (code, "", 1)
    assert re.search(message, done.err)


def test_damaged_files_leave_with_3_and_one_line(lstlm: Call, tmp_path: Path) -> None:
    path = tmp_path / "hostile"
    path.write_bytes(b"999999999 300")
    done = lstlm("nn", path, "king")
    assert (done.code, done.out, done.err.count("\n")) == (3, "", 1)
    assert "Traceback" not in done.err


def test_oov_answers_by_spelling(lstlm: Call, vectors: Path) -> None:
    vectors.write_text("3 2\nking 1 0\nqueen -0.5 0.9\nwater -0.5 -0.9\n")
    done = lstlm("nn", vectors, "kingly", "-k", 1, "--oov")
    assert (done.code, done.out.split()[0]) == (0, "king")
    assert done.err == "'kingly' has no vector; using its spelling\n"
    done = lstlm("nn", vectors, "kingly", "-", "king", "+", "water", "--oov", "--json")
    assert done.json()["queries"][0]["positive"] == ["kingly", "water"]
    assert lstlm("nn", vectors, "kingly").code == 2
    done = lstlm("nn", vectors, "xyzzy", "--oov")
    assert (done.code, "no part of it is in any word" in done.err) == (2, True)


def test_signs_around_a_word_are_taken_off_where_it_has_no_vector_with_them(lstlm: Call, run_z: Path) -> None:
    plain, signs = lstlm("nn", run_z, "old", "--json"), lstlm("nn", run_z, "“Old,”", "--json")
    assert signs.json()["queries"][0]["neighbours"] == plain.json()["queries"][0]["neighbours"]
    assert signs.err == "'“Old,”' has no vector; using 'old'\n"
    assert lstlm("nn", run_z, "neither-nor").code == 2
