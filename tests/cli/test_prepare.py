"""``lstlm prepare`` as a person types it: output, exit codes, and what is on disk afterwards."""

import gzip
import io
import json
import os
import signal
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import lstlm.cli.prepare
from lstlm.cli import cli
from lstlm.data import Corpus, prepare
from lstlm.data.blocks import BLOCK_BYTES
from lstlm.data.prepare import _blocks_at_most
from lstlm.data.tokenise import TextOptions
from lstlm.data.workers import WorkerPool
from tests.helpers import PATIENCE_S, tiny_text, wait_until
from tests.warm import run_lstlm, start_lstlm


def run(*arguments: object, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(cli, ["prepare", *map(str, arguments)], input=stdin)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("the cat sat\nthe dog sat\nthe end\n" * 10)
    return path


def test_a_summary_on_stdout(tmp_path: Path, text: Path) -> None:
    result = run("--source", text, "--out", tmp_path / "out", "--valid-fraction", "0.1")
    assert result.exit_code == 0, result.stderr
    assert "vocabulary  8: 5 of 5 types, and 3 specials" in result.stdout
    assert "train       7" in result.stdout
    assert "M words/s" in result.stdout
    assert result.stderr == ""
    assert Corpus.open(tmp_path / "out").vocabulary.words[3:5] == ["the", "sat"]


def pack(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def test_the_benchmark_by_the_path_of_its_archive(tmp_path: Path) -> None:
    train = "training-monolingual.tokenized.shuffled/news.en-00001-of-00100"
    held_out = "heldout-monolingual.tokenized.shuffled/news.en.heldout-0000%d-of-00050"
    shards = {train: b"a a a b b\n" * 3 + b"rare\n", held_out % 0: b"a test\n", held_out % 1: b"a b\n"}
    result = run("--source", pack(tmp_path / "any-name.tar.gz", shards), "--out", tmp_path / "out")
    assert result.exit_code == 0, result.stderr
    assert "vocabulary  5: 2 of 3 types (seen at least 3 times), and 3 specials" in result.stdout
    corpus = Corpus.open(tmp_path / "out")
    assert (corpus.train.words, corpus.valid.words, corpus.test.words) == (16, 2, 2)  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["-", "unlike.gz", "novel.tar.gz"])
def test_another_archive_is_no_text(tmp_path: Path, text: Path, name: str) -> None:
    path = pack(tmp_path / "novel.tar.gz", {"novel.txt": b"it was a dark and stormy night\n"})
    raw = gzip.decompress(path.read_bytes())
    (tmp_path / "unlike.gz").write_bytes(path.read_bytes())
    given = name if name == "-" else tmp_path / name
    result = run(text, given, "--out", tmp_path / "out", stdin=raw)
    assert result.exit_code == 3
    assert result.stderr.endswith(f"{given}: an archive (tar), not text; unpack it first and name the folder: tar xf\n")
    assert not (tmp_path / "out").exists()


def test_json_is_one_document_with_counts_rates_and_hashes(tmp_path: Path, text: Path) -> None:
    result = run("--source", text, "--out", tmp_path / "out", "--min-count", 2, "--max-vocab", 5, "--json")
    assert result.exit_code == 0, result.stderr
    summary = json.loads(result.stdout)
    assert summary["vocabulary"]["size"] == 5
    assert summary["settings"]["min_count"] == 2
    assert summary["words_per_s"] > 0
    assert set(summary["seconds"]) == {"read", "merge", "encode", "all"}
    assert len(summary["source"]["files"][0]["sha256"]) == 64
    assert 0 < summary["splits"]["train"]["oov_rate"] < 1


def test_the_standard_input_and_several_sources(tmp_path: Path, text: Path) -> None:
    result = run("--source", "-", text, "--out", tmp_path / "out", "--valid-fraction", 0, stdin=b"piped words\n")
    assert result.exit_code == 0, result.stderr
    assert "no validation text" in result.stdout
    assert "piped" in Corpus.open(tmp_path / "out").vocabulary.index


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--source", "{text}", "--max-vocab", "2"], 2, "--max-vocab: 2 leaves no room"),
        (["--source", "{text}", "--min-count", "0"], 2, "--min-count"),
        (["--source", "{text}", "--valid-fraction", "1.5"], 2, "--valid-fraction: 1.5 is outside"),
        (["--source", "{text}", "--valid", "{text}", "--valid-fraction", "0.1"], 2, "one or the other"),
        (["--source", "{text}", "--tokenise", "bpe"], 2, "bpe"),
        (["--source", "{text}", "--min-count", "99"], 3, "lower --min-count"),
        (["--source", "{folder}/none.txt"], 3, "none.txt: no such file"),
        (["--source", "{folder}/empty.txt"], 3, "no words for training"),
        (["--source", "{folder}/bad.txt", "--strict"], 3, "invalid UTF-8 at byte 2"),
        (["--source", "{folder}/cut.gz"], 3, "cut.gz: truncated"),
        (["--source", "1b", "--data-folder", "{folder}"], 3, "--download"),
        ([], 2, "no text: name files or folders"),
        (["--source", ""], 2, "'': an empty name"),
        ([""], 2, "an empty name"),
    ],
)
def test_what_is_wrong_is_one_line_with_the_right_code_and_nothing_is_written(
    tmp_path: Path, text: Path, arguments: list[str], code: int, message: str
) -> None:
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "bad.txt").write_bytes(b"a \xff\n")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(os.urandom(4000))[:2000])
    before = sorted(tmp_path.iterdir())
    filled = [argument.format(text=text, folder=tmp_path) for argument in arguments]
    result = run(*filled, "--out", tmp_path / "out")
    assert result.exit_code == code, result.output
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stdout == ""
    assert sorted(tmp_path.iterdir()) == before


def test_invalid_utf8_is_reported(tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_bytes(b"a \xff b\n" * 3)
    result = run("--source", tmp_path / "bad.txt", "--out", tmp_path / "out", "--valid-fraction", 0)
    assert result.exit_code == 0
    assert "3 invalid UTF-8 sequences, replaced" in result.stdout


def test_a_full_folder_is_refused_without_force(tmp_path: Path, text: Path) -> None:
    assert run("--source", text, "--out", tmp_path / "out").exit_code == 0
    again = run("--source", text, "--out", tmp_path / "out")
    assert again.exit_code == 2
    assert "not empty; choose another or add --force" in again.stderr
    assert run("--source", text, "--out", tmp_path / "out", "--lowercase", "--force").exit_code == 0
    assert Corpus.open(tmp_path / "out").manifest["settings"]["lowercase"] is True


def test_a_full_disk_is_one_line_and_code_1(tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(prepare, "write_part", no_space)
    result = run("--source", text, "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert "No space left on device" in result.stderr
    assert not (tmp_path / "out").exists()


def two_cores() -> None:
    """Whatever the machine has: no more workers are started than there are cores."""
    lstlm.cli.prepare.usable_cores = lambda: 2


def test_workers_in_processes_of_their_own_and_an_interrupt(tmp_path: Path) -> None:
    """One real process tree: SIGTERM in the middle leaves nothing; a second run is whole."""
    big, fifo, place = tmp_path / "big.txt", tmp_path / "fifo", tmp_path / "place"
    big.write_text(tiny_text(sentences=500) * 400)
    os.mkfifo(fifo)
    command = ["prepare", "--out", place / "out", "--workers", "2", "--source"]
    process = start_lstlm([*command, fifo], tmp_path, two_cores)
    with fifo.open("wb") as pipe:  # held open: the run waits for more text
        pipe.write(big.read_bytes())
        pipe.flush()
        wait_until(lambda: any(place.glob(".out.tmp-*/worker-1.*")), "no worker is at work", process.is_alive)
        os.kill(process.pid or 0, signal.SIGTERM)
        process.join(PATIENCE_S)
    assert process.exitcode == 143
    assert not place.exists()
    done = run_lstlm([*command, big, "--json"], tmp_path, two_cores)
    assert json.loads(done.out)["splits"]["train"]["sentences"] > 190_000
    Corpus.open(place / "out")


@pytest.mark.skipif("LSTLM_TEST_DATA" not in os.environ, reason="LSTLM_TEST_DATA names a folder with real text")
def test_real_held_out_shards(tmp_path: Path) -> None:
    files = sorted((Path(os.environ["LSTLM_TEST_DATA"]) / "onebillion-heldout").glob("*.tokens"))
    result = run("--source", files[0], "--valid", files[1], "--out", tmp_path / "out", "--json")
    assert result.exit_code == 0, result.stderr
    counts = [len(file.read_bytes().split()) for file in files]
    splits = json.loads(result.stdout)["splits"]
    assert [splits["train"]["words"], splits["valid"]["words"]] == counts


def test_text_needs_no_flag(text: Path, tmp_path: Path) -> None:
    named, given = (
        run("--source", text, "--out", tmp_path / "a", "--json"),
        run(text, "--out", tmp_path / "b", "--json"),
    )
    assert given.exit_code == 0
    assert json.loads(given.stdout)["vocabulary"] == json.loads(named.stdout)["vocabulary"]


def test_a_vocabulary_of_words_seen_once_gets_a_hint(tmp_path: Path) -> None:
    rare = tmp_path / "rare.txt"
    rare.write_text("one two three four\nand and and so so\n")  # four of nine: <unk> <s> </s> are words as well
    assert run(rare, "--out", tmp_path / "a", "--valid-fraction", 0).stderr == ""
    rare.write_text("one two three four five six\nand and and so so\n")
    hint = "note: 6 of 11 words were seen once, and nothing is learnt of them: try --min-count 5\n"
    assert run(rare, "--out", tmp_path / "b", "--valid-fraction", 0).stderr == hint
    assert run(rare, "--out", tmp_path / "c", "--valid-fraction", 0, "--min-count", 1).stderr == ""


def test_what_is_not_text_is_said_on_stderr(tmp_path: Path) -> None:
    plain, binary, latin = tmp_path / "plain.txt", tmp_path / "binary.bin", tmp_path / "latin.txt"
    plain.write_text("plain plain text text\n")
    binary.write_bytes(b"\x00\x01binary\x00\n")
    latin.write_bytes("été été été\n".encode("latin-1"))
    result = run(plain, binary, latin, "--out", tmp_path / "out", "--valid-fraction", 0, "--json")
    assert result.exit_code == 0
    assert result.stderr.splitlines() == [
        f"note: {binary} holds NUL bytes: is that text?",
        f"note: {latin} holds invalid UTF-8, replaced by U+FFFD: is that text, and UTF-8?",
    ]


def test_more_workers_than_cores_or_text_are_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    class Counted(WorkerPool):
        def __init__(self, folder: Path, workers: int, options: TextOptions) -> None:
            started.append(workers)
            super().__init__(folder, workers, options)

    monkeypatch.setattr("lstlm.data.prepare.WorkerPool", Counted)
    monkeypatch.setattr("lstlm.cli.prepare.usable_cores", lambda: 3)
    large = tmp_path / "large.txt"
    large.write_text("so many words on a line\n" * 250_000)
    assert run(large, "--out", tmp_path / "out", "--workers", 200).exit_code == 0
    assert started == [3]
    assert _blocks_at_most(None) > 1 << 30
    assert _blocks_at_most(50_000) == 1
    assert _blocks_at_most(3 * BLOCK_BYTES) == 31
