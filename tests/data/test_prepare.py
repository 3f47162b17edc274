"""From files to a corpus: the same for any number of workers, equal to the plain way, whole or absent."""

import errno
import hashlib
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lstlm.data import Corpus, blocks, merge, prepare
from lstlm.data.encoder import Block, BlockEncoder, TextOptions
from lstlm.data.inputs import FileSource
from lstlm.data.prepare import PrepareOptions
from lstlm.data.workers import WorkerPool
from lstlm.errors import ConfigError, DataError, LstlmError
from tests.helpers import tiny_text


def run(folder: Path, *texts: bytes | str, valid: str | None = None, **options: Any) -> Corpus:
    """Prepare texts and open the result."""
    files = []
    for number, text in enumerate((*texts, *([valid] if valid is not None else []))):
        path = folder / f"text-{number}.txt"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        files.append((str(path), "train" if number < len(texts) else "valid"))
    out = folder / "out"
    prepare.prepare(FileSource("test", files), out, PrepareOptions(**{"valid_fraction": 0.0, **options}), force=True)
    return Corpus.open(out)


def decode(corpus: Corpus, part: str = "train") -> list[list[str]]:
    words = corpus.vocabulary.decode(getattr(corpus, part).ids.tolist())
    text = " ".join(words).split("</s>")
    assert not text.pop().strip()
    return [sentence.split() for sentence in text]


word = st.sampled_from(["a", "b", "the", "é", "extraordinarily", "extraordinary", "<s>", "<UNK>", "中文"])


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.lists(word, max_size=6), min_size=1, max_size=30),
    st.integers(1, 3),
    st.sampled_from(["\n", "\r\n", "\n\n"]),
)
def test_encode_then_decode_is_the_identity_but_for_oov(
    tmp_path: Path, corpus: list[list[str]], min_count: int, line_end: str
) -> None:
    counts = Counter(word for line in corpus for word in line)
    known = {word for word, count in counts.items() if count >= min_count and word not in ("<s>", "<UNK>")}
    text = line_end.join(" ".join(line) for line in corpus)
    if not known:
        with pytest.raises(DataError):
            run(tmp_path, text, min_count=min_count)
        return
    prepared = run(tmp_path, text, min_count=min_count)
    assert decode(prepared) == [[word if word in known else "<unk>" for word in line] for line in corpus if line]
    assert dict(zip(prepared.vocabulary.words[3:], prepared.vocabulary.counts[3:].tolist(), strict=True)) == {
        word: counts[word] for word in known
    }
    oov = sum(count for word, count in counts.items() if word not in known)
    assert prepared.vocabulary.counts[0] == oov == prepared.manifest["splits"]["train"]["unknown"]
    assert prepared.manifest["found"]["reserved_words"] == sum(
        counts[word] for word in ("<s>", "<UNK>") if counts[word] >= min_count
    )


def test_the_result_does_not_depend_on_the_workers(tmp_path: Path) -> None:
    texts = [tiny_text(seed=seed) for seed in (1, 2)]
    texts = [text * (1 + prepare.SERIAL_BLOCKS * blocks.BLOCK_BYTES // len(text)) for text in texts]
    found = [
        run(tmp_path, *texts, min_count=2, max_vocab=100, valid_fraction=0.1, workers=workers).manifest
        for workers in (1, 3)
    ]
    assert found[0] == found[1]


def test_sentences_for_validation_are_a_share_and_are_taken_out_of_training(tmp_path: Path) -> None:
    lines = [f"a{n} b{n}" for n in range(1000)]
    corpus = run(tmp_path, "\n".join(lines), valid_fraction=0.1)
    assert corpus.valid.sentences == 100
    assert len(decode(corpus)) == 900
    assert all(word.startswith(("a", "b")) for line in decode(corpus) for word in line)
    assert {word for line in decode(corpus, "valid") for word in line} == {"<unk>"}  # seen in validation only


def test_validation_text_of_its_own_adds_nothing_to_the_vocabulary(tmp_path: Path) -> None:
    corpus = run(tmp_path, "a b a\n", valid="a c\n", valid_fraction=0.5)
    assert corpus.vocabulary.words[3:] == ["a", "b"]
    assert decode(corpus, "valid") == [["a", "<unk>"]]
    assert decode(corpus) == [["a", "b", "a"]]
    assert corpus.manifest["vocabulary"]["types"] == 2


def test_max_vocab_counts_the_specials_and_breaks_ties_by_spelling(tmp_path: Path) -> None:
    corpus = run(tmp_path, "d c b a a\n", max_vocab=5)
    assert corpus.vocabulary.words[3:] == ["a", "b"]
    for wrong in (2, 3):
        with pytest.raises(ConfigError, match=f"--max-vocab: {wrong} leaves no room"):
            PrepareOptions(max_vocab=wrong)


def test_the_manifest_names_files_settings_and_hashes(tmp_path: Path) -> None:
    corpus = run(tmp_path, "a b\nc\n")
    (record,) = corpus.manifest["source"]["files"]
    assert record["bytes"] == 6
    assert record["sha256"] == hashlib.sha256(b"a b\nc\n").hexdigest()
    assert corpus.manifest["settings"]["min_count"] == 1
    assert corpus.manifest["splits"]["train"] == {
        "tokens": 5,
        "words": 3,
        "sentences": 2,
        "single_word_sentences": 1,
        "unknown": 0,
        "oov_rate": 0.0,
    }
    assert sorted(path.name for path in corpus.folder.iterdir()) == [
        "manifest.json",
        "train.ids",
        "valid.ids",
        "vocab.tsv",
    ]


def test_lower_casing_and_the_simple_tokeniser(tmp_path: Path) -> None:
    corpus = run(tmp_path, "It's ÉTÉ, isn't it?\n", text=TextOptions(lowercase=True, tokenise="simple"))
    assert decode(corpus) == [["it", "'s", "été", ",", "isn", "'t", "it", "?"]]


# ---- bad input


def test_invalid_utf8_is_counted_and_replaced_or_refused(tmp_path: Path) -> None:
    text = "ok \ufffd ".encode() + b"caf\xe9 x\xff\xfe\nok\n"
    corpus = run(tmp_path, text)
    assert corpus.manifest["found"]["invalid_utf8"] == 3
    assert decode(corpus)[0] == ["ok", "\ufffd", "caf\ufffd", "x\ufffd\ufffd"]
    with pytest.raises(DataError, match=r"text-0\.txt: invalid UTF-8 at byte 10; fix it or drop --strict"):
        run(tmp_path, text, text=TextOptions(strict=True))


def test_nul_bytes_and_carriage_returns_separate_words(tmp_path: Path) -> None:
    corpus = run(tmp_path, b"a\x00b\r\nc\x00\x00\r\n\r\n")
    assert decode(corpus) == [["a", "b"], ["c"]]
    assert corpus.manifest["found"]["nul_bytes"] == 3


def test_words_over_the_limit_are_unknown_and_counted(tmp_path: Path) -> None:
    corpus = run(tmp_path, "a " + "x" * 256 + " " + "y" * 255 + "\n")
    assert decode(corpus) == [["a", "<unk>", "y" * 255]]
    assert corpus.manifest["found"]["too_long_words"] == 1
    assert corpus.vocabulary.counts[0] == 1


def test_a_line_of_many_blocks_is_cut_into_sentences(tmp_path: Path) -> None:
    words = ["abcd"] * (3 * blocks.BLOCK_BYTES // 5)
    corpus = run(tmp_path, " ".join(words))
    assert corpus.train.words == len(words)
    assert corpus.train.sentences == 3


@pytest.mark.parametrize("text", ["", "\n\n \n"])
def test_an_empty_corpus_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(DataError, match="no words for training"):
        run(tmp_path, text)
    assert not (tmp_path / "out").exists()


def test_an_empty_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match="none of 2 types appears 5 times, so the vocabulary is empty; lower --min-count"
    ):
        run(tmp_path, "a b\n", min_count=5)


# ---- whole or absent


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("text-"))


def no_space(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    "place", [(BlockEncoder, "_write"), (BlockEncoder, "finish"), (prepare, "write_part"), (prepare, "seal")]
)
def test_a_full_disk_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: tuple[object, str]
) -> None:
    monkeypatch.setattr(*place, no_space)
    with pytest.raises(LstlmError, match="cannot be written: No space left"):
        run(tmp_path, "a b\n")
    assert leftovers(tmp_path) == []


def test_a_failed_replacement_keeps_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = run(tmp_path, "old text\n").manifest
    with monkeypatch.context() as patch:
        patch.setattr(prepare, "write_part", no_space)
        with pytest.raises(LstlmError, match="cannot be written: No space left"):
            run(tmp_path, "new text\n")
    assert Corpus.open(tmp_path / "out").manifest == before
    assert run(tmp_path, "new text\n").vocabulary.words[3:] == ["new", "text"]
    assert leftovers(tmp_path) == ["out"]


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(prepare, "merge_types", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, "a b\n")
    assert leftovers(tmp_path) == []


def test_the_leftovers_of_a_killed_run_are_removed(tmp_path: Path) -> None:
    for kind in ("tmp", "old"):
        (tmp_path / f".out.{kind}-99999999").mkdir()
    run(tmp_path, "a b\n")
    assert leftovers(tmp_path) == ["out"]
    (tmp_path / "out").rename(tmp_path / ".out.old-99999999")  # killed between two names
    with pytest.raises(ConfigError, match="not empty"):
        prepare.prepare(FileSource("test", []), tmp_path / "out", PrepareOptions())
    assert leftovers(tmp_path) == ["out"]


def test_of_two_at_once_the_second_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigError, match="not empty"), prepare.replacing_folder(tmp_path / "out", False):
        (tmp_path / "out" / "manifest.json").touch()
    assert leftovers(tmp_path) == ["out"]


def test_a_link_to_another_disk_stays_one(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to("disk")
    run(tmp_path, "a b\n")
    run(tmp_path, "a b c\n")
    assert (tmp_path / "out").is_symlink() and Corpus.open(tmp_path / "disk").train.words == 3
    assert leftovers(tmp_path) == ["disk", "out"]


def test_a_folder_with_content_is_not_replaced_unasked(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    source = FileSource("test", [(os.devnull, "train")])
    with pytest.raises(ConfigError, match="not empty; choose another or add --force"):
        prepare.prepare(source, tmp_path / "out", PrepareOptions())
    with pytest.raises(ConfigError, match="replaces prepared corpora only, and it holds 'thesis.tex'"):
        prepare.prepare(source, tmp_path / "out", PrepareOptions(), force=True)
    assert (tmp_path / "out" / "thesis.tex").exists()
    with pytest.raises(ConfigError, match="is a file; name a folder"):
        prepare.prepare(source, tmp_path / "out" / "thesis.tex", PrepareOptions(), force=True)
    for below in ("x", "x/y"):
        with pytest.raises(ConfigError, match="lies inside a file; name another folder"):
            prepare.prepare(source, tmp_path / "out" / "thesis.tex" / below, PrepareOptions())


def test_scores_made_from_a_corpus_are_replaced_with_it(tmp_path: Path) -> None:
    out = run(tmp_path, "a b\n").folder
    for name in ("cooccurrence-0123456789ab", ".cooccurrence-0123456789ab-4711"):
        (out / name).mkdir()
        (out / name / "rows.values").write_bytes(b"1234")
    run(tmp_path, "a b c\n")
    assert not list(out.glob("*cooccurrence-*"))
    (out / "cooccurrence-notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="it holds 'cooccurrence-notes.txt'"):
        run(tmp_path, "a b\n")


def test_a_killed_worker_is_an_error_not_a_hang(tmp_path: Path) -> None:
    pool = WorkerPool(tmp_path, 2, TextOptions())

    def endless() -> Any:
        for number in range(1_000_000):
            if number == 4:
                os.kill(pool._processes[1].pid or 0, signal.SIGKILL)
            yield Block(number, "train", 0.0, b"a b c\n" * 100)

    try:
        with pytest.raises(
            LstlmError, match=r"worker 2 of 2 \(process \d+\) was killed by signal 9; nothing was written"
        ):
            for _ in pool.run(endless()):
                pass
    finally:
        pool.close()


def test_a_full_disk_in_a_worker_reaches_the_caller(tmp_path: Path) -> None:
    folder = tmp_path / "gone"  # a folder that is not there stands for a disk that cannot be written
    pool = WorkerPool(folder, 1, TextOptions())
    try:
        with pytest.raises(OSError, match="No such file"):
            list(pool.run(Block(n, "train", 0.0, b"a\n") for n in range(100)))
    finally:
        pool.close()


def test_two_words_with_one_key_are_refused_rather_than_confused(tmp_path: Path) -> None:
    for worker, spelling in enumerate((b"first", b"second")):
        encoder = BlockEncoder(tmp_path, worker, TextOptions())
        encoder.encode(Block(worker, "train", 0.0, spelling + b"\n"))
        encoder._table._type_keys[0] = np.uint64(12345)
        encoder.finish()
    with pytest.raises(LstlmError, match="'first' and 'second' have one 64-bit hash"):
        merge.merge_types(tmp_path, 2, 1, None)
