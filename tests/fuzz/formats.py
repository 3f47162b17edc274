"""Every kind of file that is read: a sound example, how it is read, and what must hold of whatever is accepted."""

import gzip
import io
import json
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from lstlm.cli.info import command as info
from lstlm.config import dump_config, load_config
from lstlm.data import Corpus, Vocabulary
from lstlm.data.inputs import FileSource
from lstlm.data.onebillion import NAME, ArchiveSource
from lstlm.evaluation.analogy import read_questions
from lstlm.evaluation.datasets import read_pairs
from lstlm.training.run.checkpoint import Checkpoint, begin_folder, finish_folder, open_checkpoint, write_files
from lstlm.training.run.origin import read_origin
from lstlm.vectors import Vectors, load_vectors
from lstlm.vectors.writers import WRITERS
from tests.helpers import tiny_text, write_tiny_corpus

MOST_BYTES = 1 << 26


@dataclass(frozen=True)
class Format:
    """`make` writes a sound file in an empty folder and returns it; `read` reads it and insists on its sense."""

    make: Callable[[Path], Path]
    read: Callable[[Path], object]


class Accepted(AssertionError):
    """A damaged file of a format that carries hashes was taken for whole."""


def must_refuse(read: Callable[[Path], object]) -> Callable[[Path], None]:
    """Wrap a reader of a format in which any change is found."""

    def refuse(path: Path) -> None:
        read(path)
        raise Accepted(path.name)

    return refuse


def yaml_file(folder: Path) -> Path:
    path = folder / "config.yaml"
    path.write_text(
        "data: {dir: data/demo, context: 4}\nmodel:\n  hidden: [300, 300]\n  activation: tanh\n"
        "optim: {output_lr: 0.5, schedule: linear}\ntrain:\n  batch_size: 128  # words\n  max_minutes: 1.5\n"
    )
    return path


def check_config(path: Path) -> None:
    config = load_config(path)
    again = path.with_name("again.yaml")
    again.write_text(dump_config(config))
    assert load_config(again) == config


def corpus_file(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        write_tiny_corpus(folder / "corpus", sentences=30, words=20)
        return folder / "corpus" / name

    return make


def check_vocabulary(path: Path) -> None:
    vocabulary = Vocabulary.read(path)
    assert len(set(vocabulary.words)) == len(vocabulary.words) and all(vocabulary.words)
    assert (vocabulary.counts >= 0).all()
    vocabulary.write(path.with_name("again.tsv"))
    assert Vocabulary.read(path.with_name("again.tsv")) == vocabulary


def vectors_file(form: str, *, packed: bool = False) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        matrix = np.random.default_rng(0).standard_normal((12, 7)).astype(np.float32)
        path = WRITERS[form](Vectors([f"wörd{n}" for n in range(12)], matrix), folder / "vectors")[0]
        return pack(path) if packed else path

    return make


def pack(path: Path) -> Path:
    packed = path.with_name(path.name + ".gz")
    packed.write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    path.unlink()
    return packed


def glove_file(folder: Path) -> Path:
    path = folder / "glove.txt"
    path.write_text("".join(f"word{n} " + " ".join(f"{n + k / 8}" for k in range(6)) + "\n" for n in range(12)))
    return path


def check_vectors(path: Path) -> None:
    vectors = load_vectors(path)
    matrix = np.asarray(vectors.matrix)
    assert matrix.ndim == 2 and len(vectors.words) == len(matrix) == len(set(vectors.words)) > 0
    assert all(vectors.words) and matrix.dtype.kind == "f"
    load_vectors(path, words=["wörd3", "word3"])


def pairs_file(folder: Path) -> Path:
    path = folder / "pairs.txt"
    header = "word1\tword2\tPOS\tSimLex999\tconc(w1)\n"
    path.write_text(header + "".join(f"old{n}\tnew{n}\tA\t{n}.58\t2.72\n" for n in range(9)))
    return path


def check_pairs(path: Path) -> None:
    assert all(pair.first and pair.second and np.isfinite(pair.score) for pair in read_pairs(path))


def questions_file(folder: Path) -> Path:
    path = folder / "questions.txt"
    path.write_text(": capitals\nAthens Greece Paris France\nRome Italy Oslo Norway\n: verbs\ngo went see saw\n")
    return path


def check_questions(path: Path) -> None:
    for section in read_questions(path):
        assert section.name and all(len(question) == 4 and all(question) for question in section.questions)


def packed_text(folder: Path) -> Path:
    path = folder / "text.txt"
    path.write_text(tiny_text(sentences=50))
    return pack(path)


def read_text(path: Path) -> None:
    source = FileSource(name="text", files=[(str(path), "train")], max_bytes=MOST_BYTES)
    for text in source.inputs(lambda _: None):
        while text.stream.read(1 << 16):
            pass


def archive(folder: Path) -> Path:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name in ("training-monolingual.tokenized.shuffled/news.en-00001-of-00100",):
            content = tiny_text(sentences=50).encode()
            member = tarfile.TarInfo(f"{NAME}/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    path = folder / "archive.tar"
    path.write_bytes(data.getvalue())
    return path


def packed_archive(folder: Path) -> Path:
    return pack(archive(folder))


def read_archive(path: Path) -> None:
    for text in ArchiveSource(path, MOST_BYTES).inputs(lambda _: None):
        while text.stream.read(1 << 16):
            pass


def checkpoint_file(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        contents = {"network.pt": {"V": torch.arange(60.0), "n": [1, {"a": None}]}, "counters.json": '{"a": [1, 2]}'}
        temporary = begin_folder(folder, 3)
        final = finish_folder(temporary, 3, write_files(temporary, contents), {"vocabulary_sha256": "v"})
        return final / name

    return make


def read_tensors(path: Path) -> None:
    """The file as if its hash were right: a stranger can make one."""
    assert isinstance(Checkpoint(path.parent, {"step": 3}).tensors(path.name), dict)


def read_counters(path: Path) -> None:
    assert isinstance(Checkpoint(path.parent, {"step": 3}).json(path.name), dict)


def described_run(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        status = {"state": "finished", "step": 3, "words": 96, "elapsed_s": 2.5, "evaluation": {"eval/loss": 3.5}}
        made = {"lstlm": "1", "packages": {"torch": "2"}, "threads": 2, "device": "cpu", "command": ["lstlm", "train"]}
        yaml_file(folder)
        (folder / "status.json").write_text(json.dumps({**status, "started": 1.5e9}))
        (folder / "environment.json").write_text(json.dumps(made))
        return folder / name

    return make


def tell(path: Path) -> None:
    info(["--json", str(path.parent)], standalone_mode=False)
    info([str(path.parent)], standalone_mode=False)


def origin_file(folder: Path) -> Path:
    path = folder / "corpus.json"
    path.write_text(json.dumps({"folder": "/x", "lowercase": True, "tokenise": "none", "unknown_share": 0.1}))
    return path


FORMATS = {
    "config.yaml": Format(yaml_file, check_config),
    "corpus manifest": Format(corpus_file("manifest.json"), must_refuse(lambda path: Corpus.open(path.parent))),
    "corpus ids": Format(corpus_file("train.ids"), must_refuse(lambda path: Corpus.open(path.parent))),
    "vocab.tsv": Format(corpus_file("vocab.tsv"), check_vocabulary),
    "word2vec": Format(vectors_file("word2vec"), check_vectors),
    "word2vec-bin": Format(vectors_file("word2vec-bin"), check_vectors),
    "word2vec.gz": Format(vectors_file("word2vec", packed=True), check_vectors),
    "glove": Format(glove_file, check_vectors),
    "npy": Format(vectors_file("npy"), check_vectors),
    "npy.gz": Format(vectors_file("npy", packed=True), check_vectors),
    "pairs": Format(pairs_file, check_pairs),
    "analogies": Format(questions_file, check_questions),
    "text.gz": Format(packed_text, read_text),
    "tar": Format(archive, read_archive),
    "tar.gz": Format(packed_archive, read_archive),
    "checkpoint manifest": Format(
        checkpoint_file("manifest.json"), must_refuse(lambda path: open_checkpoint(path.parent))
    ),
    "checkpoint tensors, hash ignored": Format(checkpoint_file("network.pt"), read_tensors),
    "checkpoint counters, hash ignored": Format(checkpoint_file("counters.json"), read_counters),
    "corpus.json of a run": Format(origin_file, lambda path: read_origin(path.parent)),
    "status.json of a run": Format(described_run("status.json"), tell),
    "environment.json of a run": Format(described_run("environment.json"), tell),
}
