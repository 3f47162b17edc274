"""Vector files of other tools: read to the bit where they are sound, refused with a place where they are not."""

import gzip
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lstlm.errors import ConfigError, DataError
from lstlm.vectors import Vectors, load_vectors
from lstlm.vectors.writers import WRITERS

WORDS = ["the", "King", "naïve", "日本", "x"]


def sample(count: int = 5, dim: int = 7, seed: int = 0) -> Vectors:
    matrix = np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32)
    return Vectors(WORDS[:count], matrix)


def assert_same_bits(left: Vectors, right: Vectors) -> None:
    assert list(left.words) == list(right.words)
    assert np.asarray(left.matrix).tobytes() == np.asarray(right.matrix).tobytes()


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("form", ["word2vec", "word2vec-bin", "npy"])
def test_what_is_written_is_read_back_bit_for_bit(tmp_path: Path, form: str, packed: bool) -> None:
    original = sample()
    path = WRITERS[form](original, tmp_path / "v")[0]
    if packed:
        data = path.read_bytes()
        path = path.with_name(path.name + ".gz")
        path.write_bytes(gzip.compress(data))
    assert_same_bits(load_vectors(path), original)


@settings(max_examples=60)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=40))
def test_every_float32_survives_the_text_form(tmp_path_factory: pytest.TempPathFactory, values: list[float]) -> None:
    path = tmp_path_factory.mktemp("floats") / "v.txt"
    original = Vectors(["w"], np.array([values], dtype=np.float32))
    WRITERS["word2vec"](original, path)
    assert_same_bits(load_vectors(path), original)


def test_extreme_float32_survive_and_are_written_short(tmp_path: Path) -> None:
    info = np.finfo(np.float32)
    values = [info.max, info.min, info.tiny, info.smallest_subnormal, -0.0, 0.1, 1 / 3, 16777217, 5e-45]
    original = Vectors(["w"], np.array([values], dtype=np.float32))
    path = WRITERS["word2vec"](original, tmp_path / "v.txt")[0]
    assert_same_bits(load_vectors(path), original)
    assert path.read_text().split("\n")[1].split(" ")[6] == "0.1"


def test_glove_without_header_and_with_blanks_inside_a_word(tmp_path: Path) -> None:
    path = tmp_path / "glove.txt"
    path.write_text("the 1 2 3\n. . . 4 5 6\nat name@domain.com 7 8 9\n", encoding="utf-8")
    vectors = load_vectors(path)
    assert vectors.words == ["the", ". . .", "at name@domain.com"]
    assert vectors.matrix.tolist() == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]


def test_fasttext_vec_with_trailing_blanks(tmp_path: Path) -> None:
    path = tmp_path / "wiki.vec"
    path.write_bytes("2 3\nthe 1 2 3 \n\u00a0x -1 0 1e-3 \n".encode())
    vectors = load_vectors(path)
    assert vectors.words == ["the", "\u00a0x"]
    np.testing.assert_array_equal(vectors.matrix, np.array([[1, 2, 3], [-1, 0, 1e-3]], dtype=np.float32))


def test_binary_with_and_without_line_feeds(tmp_path: Path) -> None:
    original = sample(3, 4)
    for feed in (b"", b"\n"):
        path = tmp_path / "v.bin"
        rows = zip(original.words, original.matrix, strict=True)
        path.write_bytes(b"3 4\n" + b"".join(w.encode() + b" " + r.tobytes() + feed for w, r in rows))
        assert_same_bits(load_vectors(path), original)


def test_binary_larger_than_one_read(tmp_path: Path) -> None:
    matrix = np.random.default_rng(1).standard_normal((9000, 64)).astype(np.float32)
    original = Vectors([f"w{n}" for n in range(9000)], matrix)
    path = WRITERS["word2vec-bin"](original, tmp_path / "v.bin")[0]
    assert path.stat().st_size > 2 << 20
    assert_same_bits(load_vectors(path), original)


@pytest.mark.parametrize("form", ["word2vec", "word2vec-bin", "npy"])
def test_only_the_wanted_rows_are_kept(tmp_path: Path, form: str) -> None:
    original = sample()
    path = WRITERS[form](original, tmp_path / "v")[0]
    exact = load_vectors(path, {"the", "king", "absent"})
    assert exact.words == ["the"]
    folded = load_vectors(path, {"the", "king", "absent"}, case="fold")
    assert folded.words == ["the", "King"]
    np.testing.assert_array_equal(folded.matrix, original.matrix[:2])


def test_npy_is_memory_mapped_and_takes_words_from_a_named_file(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.eye(2))
    (tmp_path / "names").write_text("one\ntwo\n")
    vectors = load_vectors(tmp_path / "a.npy", vocabulary=tmp_path / "names")
    assert isinstance(vectors.matrix, np.memmap)
    assert vectors.words == ["one", "two"]
    with pytest.raises(DataError, match=r"a\.npy: no words found beside it"):
        load_vectors(tmp_path / "a.npy")


TEXT_DAMAGE = {
    "more promised than held": (b"3 2\na 1 2\nb 3 4\n", "promises 3 vectors"),
    "fewer promised than held": (b"1 2\na 1 2\nb 3 4\n", "line 3 is beyond the 1 vectors"),
    "hostile header": (b"999999999 300", "promises 999999999 vectors"),
    "hostile length": (b"1 999999999\na 1\n", "length 999999999"),
    "negative count": (b"-1 2\na 1 2\n", "says -1 vectors"),
    "negative length": (b"2 -2\na 1 2\n", "length -2"),
    "no vectors": (b"0 2\n", "says 0 vectors"),
    "too few numbers": (b"2 2\na 1 2\nb 3\n", "line 3 has 1 numbers, expected 2"),
    "not a number": (b"2 2\na 1 2\nb 3 x4\n", "line 3 holds a field that is no number"),
    "nan": (b"2 2\na 1 2\nb nan 4\n", "line 3 holds a value that is not finite"),
    "infinite": (b"2 2\na 1 2\nb 3 -inf\n", "line 3 holds a value that is not finite"),
    "beyond float32": (b"2 2\na 1 2\nb 3 1e39\n", "line 3 holds a value that is not finite"),
    "duplicate": (b"3 2\na 1 2\nb 3 4\na 5 6\n", "line 4 repeats the word of line 2"),
    "over-long word": (b"2 2\na 1 2\n" + b"b" * 1025 + b" 3 4\n", "line 3 has a word of 1025 bytes"),
    "endless line": (b"2 2\na 1 2\n" + b"b" * 99999, "line 3 is longer than"),
    "endless first line": (b"b" * (1 << 21), "line 1 is longer than"),
    "not UTF-8": (b"2 2\na 1 2\nb\xff 3 4\n", "line 3 has a word that is not UTF-8"),
    "empty line inside": (b"3 2\na 1 2\n\nb 3 4\n", "line 3 has 0 numbers"),
    "empty file": (b"", "the first line is empty"),
    "prose": (b"this is not a vector file\n", "neither a 'count length' header nor"),
    "zip": (b"PK\x03\x04rest", "a zip archive: unpack it"),
    "pickle": (b"\x80\x04\x95rest\n", "never loaded"),
    "fastText model": (b"\xba\x16\x4f\x2f\x0c\x00\x00\x00", "use the .vec file"),
}


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize(("data", "message"), TEXT_DAMAGE.values(), ids=TEXT_DAMAGE)
def test_damaged_text_is_refused_with_its_place(tmp_path: Path, data: bytes, message: str, packed: bool) -> None:
    path = tmp_path / "bad.txt"
    path.write_bytes(gzip.compress(data) if packed else data)
    with pytest.raises(DataError, match=message) as caught:
        load_vectors(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


ROW = np.array([1.0, 2.0], dtype="<f4").tobytes()
BINARY_DAMAGE = {
    "more promised than held": (b"9 2\na " + ROW + b"b " + ROW, "promises 9 vectors"),
    "cut inside a row": (b"2 2\naaaa " + ROW + b"b " + ROW[:5], "ends inside row 2"),
    "over-long word": (b"2 2\na " + ROW + b"b" * 3000, "row 2 has a word longer than 1024 bytes"),
    "not UTF-8": (b"2 2\na " + ROW + b"\xff " + ROW, "row 2 has a word that is not UTF-8"),
    "duplicate": (b"2 2\na " + ROW + b"a " + ROW, "row 2 repeats the word of row 1"),
    "nan": (b"1 2\na " + np.array([np.nan, 1], dtype="<f4").tobytes(), "row 1 holds a value that is not finite"),
    "bytes after the end": (b"1 2\na " + ROW + b"\nb " + ROW, "bytes follow after the 1 vectors"),
    "empty word": (b"1 2\n " + ROW, "row 1 has a word of 0 bytes"),
}


@pytest.mark.parametrize(("data", "message"), BINARY_DAMAGE.values(), ids=BINARY_DAMAGE)
def test_damaged_binary_is_refused_with_its_place(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "bad.bin"
    path.write_bytes(data)
    with pytest.raises(DataError, match=message):
        load_vectors(path)


def test_damage_in_rows_that_are_not_wanted_is_still_seen(tmp_path: Path) -> None:
    path = tmp_path / "v.txt"
    path.write_text("3 2\na 1 2\nb 3\nc 5 6\n")
    with pytest.raises(DataError, match="line 3 has 1 numbers"):
        load_vectors(path, {"a"})
    path.write_text("3 2\na 1 2\nb 3 4\nb 5 6\n")
    with pytest.raises(DataError, match="line 4 repeats the word of line 3"):
        load_vectors(path, {"a"})


@pytest.mark.parametrize("cut", [5, 30, -4])
def test_cut_gzip_is_refused(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "v.gz"
    path.write_bytes(gzip.compress(b"2 2\na 1 2\nb 3 4\n")[:cut])
    with pytest.raises(DataError, match="gzip data is damaged or cut short"):
        load_vectors(path)


def test_bad_npy_is_refused(tmp_path: Path) -> None:
    path, words = tmp_path / "a.npy", tmp_path / "a.vocab.tsv"
    words.write_text("one\t5\ntwo\t3\n")
    for array, message in [
        (np.eye(3), "2 lines, but the matrix has 3 rows"),
        (np.arange(2), "needed: a non-empty float matrix"),
        (np.array([["a"], ["b"]]), "needed: a non-empty float matrix"),
    ]:
        np.save(path, array)
        with pytest.raises(DataError, match=message):
            load_vectors(path)
    np.save(path, np.array([[None], [1]], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"not a readable \.npy file"):
        load_vectors(path)
    good = tmp_path / "b.npy"
    np.save(good, np.eye(2, dtype=np.float32))
    path.write_bytes(good.read_bytes().replace(b"(2, 2)", b"(2, 9)"))
    with pytest.raises(DataError, match=r"not a readable \.npy file"):
        load_vectors(path)
    # a header of 128 bytes that promises terabytes, gzipped so that no file size gives it away
    hostile = good.read_bytes().replace(b"(2, 2), }" + b" " * 18, b"(99999999999, 300), }".ljust(27))
    assert b"99999999999" in hostile
    packed = tmp_path / "c.npy.gz"
    packed.write_bytes(gzip.compress(hostile))
    with pytest.raises(DataError, match="more than the file can hold"):
        load_vectors(packed, vocabulary=words)


def test_bad_vocabulary_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.eye(2))
    for data, message in [
        (b"one\none\n", "line 2 repeats the word 'one' of line 1"),
        (b"one\n\n", "line 2 has a word of 0 bytes"),
        (b"one\n\xff\n", "line 2 has a word that is not UTF-8"),
    ]:
        (tmp_path / "a.vocab.tsv").write_bytes(data)
        with pytest.raises(DataError, match=message):
            load_vectors(tmp_path / "a.npy")


def test_vocabulary_for_a_file_with_words_is_a_usage_error(tmp_path: Path) -> None:
    path = WRITERS["word2vec"](sample(), tmp_path / "v.txt")[0]
    with pytest.raises(ConfigError, match=r"only a \.npy file needs it"):
        load_vectors(path, vocabulary=path)


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_a_hostile_header_costs_no_memory(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / "hostile"
    path.write_bytes(gzip.compress(b"99999999 9999") if packed else b"99999999 9999")
    script = (
        "import resource, sys\nfrom lstlm.vectors import load_vectors\nfrom lstlm.errors import DataError\n"
        "load_vectors(sys.argv[2]); before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n    load_vectors(sys.argv[1])\nexcept DataError:\n"
        "    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    good = WRITERS["word2vec"](sample(), tmp_path / "good.txt")[0]
    command = [sys.executable, "-c", script, str(path), str(good)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 10 * 1024  # ru_maxrss is in KiB


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        load_vectors(tmp_path / "absent.txt")
    with pytest.raises(DataError, match="neither a run nor a vector file"):
        load_vectors(tmp_path)


@pytest.mark.parametrize(
    "header",
    [
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (5, 7), ",  # a dictionary without an end
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (5, [7]), }",
        b"{'descr': [], 'fortran_order': False, 'shape': (5, 7), }",
        b"{'descr': {'a': 3}, 'fortran_order': False, 'shape': (5, 7), }",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': 'x', }",
        b"\xff\xfe\x00",
        b"(" * 1000,
        b"",
    ],
)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_a_header_that_python_cannot_read_is_one_line(tmp_path: Path, header: bytes, packed: bool) -> None:
    data = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(140)
    path = tmp_path / ("v.npy.gz" if packed else "v.npy")
    path.write_bytes(gzip.compress(data) if packed else data)
    (tmp_path / "v.vocab.tsv").write_text("\n".join(WORDS) + "\n")
    with pytest.raises(DataError, match=r"v\.npy.*: (not a readable|the header promises|holds)"):
        load_vectors(path)
