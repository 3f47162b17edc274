"""Published lists of judgements in their many forms, and where they are looked for."""

import http.server
import io
import os
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lstlm.errors import DataError
from lstlm.evaluation import datasets
from lstlm.evaluation.datasets import Pair, find_dataset, read_pairs

OFFICIAL = (
    "word1\tword2\tPOS\tSimLex999\tconc(w1)\tconc(w2)\tconcQ\tAssoc(USF)\tSimAssoc333\tSD(SimLex)\n"
    "old\tnew\tA\t1.58\t2.72\t2.81\t2\t7.25\t1\t0.41\n"
    "wife\thusband\tN\t2.3\t2.72\t2.81\t2\t7.25\t1\t0.41\n"
    "go\tcome\tV\t2.42\t2.72\t2.81\t2\t7.25\t1\t0.41\n"
)
FORMS = {
    "tabs": ("cat\tdog\t5.5\nsun\tmoon\t2\n", [Pair("cat", "dog", 5.5), Pair("sun", "moon", 2.0)]),
    "blanks": ("cat dog 5.5\n", [Pair("cat", "dog", 5.5)]),
    "commas, header": ("Word 1,Word 2,Human (mean)\ncat,dog,5.5\n", [Pair("cat", "dog", 5.5)]),
    "comments, CRLF": ("# about\r\n\r\ncat\tdog\t5.5\r\n", [Pair("cat", "dog", 5.5)]),
    "byte-order mark": ("\ufeffcat\tdog\t5.5\n", [Pair("cat", "dog", 5.5)]),
    "SimVerb": ("take\tremove\tV\t6.81\tSYNONYMS\n", [Pair("take", "remove", 6.81, "verbs")]),
    "MEN lemmas": ("sun-n light-n 50.0\nrun-v fast-j 9\n", [Pair("sun", "light", 50.0), Pair("run", "fast", 9.0)]),
    "no last line feed": ("cat dog 5.5", [Pair("cat", "dog", 5.5)]),
    "official": (OFFICIAL, [Pair("old", "new", 1.58, "adjectives"), Pair("wife", "husband", 2.3, "nouns"),
                            Pair("go", "come", 2.42, "verbs")]),
}  # fmt: skip


@pytest.mark.parametrize(("text", "pairs"), FORMS.values(), ids=FORMS)
def test_forms(tmp_path: Path, text: str, pairs: list[Pair]) -> None:
    path = tmp_path / "pairs.txt"
    path.write_bytes(text.encode())
    assert read_pairs(path) == pairs


def test_official_columns_are_found_by_name_in_any_order(tmp_path: Path) -> None:
    rows = [line.split("\t") for line in OFFICIAL.strip().split("\n")]
    path = tmp_path / "pairs.txt"
    path.write_text("\n".join("\t".join([*row[:2], *reversed(row[2:])]) for row in rows))
    assert read_pairs(path)[0] == Pair("old", "new", 1.58, "adjectives")


BAD = {
    "score": ("a b 1\nc d x\n", "line 2: the score 'x' is not a finite number"),
    "nan": ("a b 1\nc d nan\n", "line 2: the score 'nan'"),
    "missing field": ("a b 1\n# note\nc d\n", "line 3 has 2 fields, expected 3"),
    "extra field": ("a\tb\t1\nc\td\t2\t3\n", "line 2 has 4 fields, expected 3"),
    "missing word": ("a\tb\t1\n\td\t2\n", "line 2 has 2 fields"),
    "empty word": ("a\tb\t1\nc\t\t2\n", "line 2 lacks a word"),
    "part of speech": (OFFICIAL + "x\ty\tQ\t1\t1\t1\t1\t1\t1\t1\n", "line 5: part of speech 'Q'"),
    "empty": ("\n# nothing\n", "holds no word pairs"),
    "header only": ("word1\tword2\tscore\n", "a header but no word pairs"),
    "prose": ("this is a text about nothing\n", "line 1: neither"),
}


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD)
def test_a_malformed_line_is_an_error_with_its_number(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "pairs.txt"
    path.write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        read_pairs(path)
    assert str(caught.value).startswith(str(path))


def test_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "pairs.txt"
    path.write_bytes(b"a b 1\n\xff c 2\n")
    with pytest.raises(DataError, match="byte 6 is not UTF-8"):
        read_pairs(path)


def test_gensims_copy_is_whole_and_its_parts_of_speech_are_known() -> None:
    pytest.importorskip("gensim")
    pairs = read_pairs(find_dataset("simlex", None, Path("nowhere")))
    assert len(pairs) == 999
    assert [sum(p.pos == name for p in pairs) for name in ("adjectives", "nouns", "verbs")] == [111, 666, 222]


def test_search_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    explicit, data = tmp_path / "mine.txt", tmp_path / "data"
    explicit.touch()
    (data / "SimLex-999").mkdir(parents=True)
    assert find_dataset("simlex", explicit, data) == explicit
    with pytest.raises(DataError, match=r"--pairs .*absent: no such file"):
        find_dataset("simlex", tmp_path / "absent", data)
    kept = data / "SimLex-999" / "SimLex-999.txt"
    kept.touch()
    assert find_dataset("simlex", None, data) == kept
    kept.unlink()
    monkeypatch.setattr(datasets.importlib.util, "find_spec", lambda name: None)
    for kind, remedy in [("simlex", "--download"), ("wordsim", "--pairs"), ("analogy", "--pairs")]:
        with pytest.raises(DataError, match=remedy):
            find_dataset(kind, None, data)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    root = tmp_path / "www"
    root.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: object) -> None:
            super().__init__(*args, directory=str(root))

        def log_message(self, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_address[1]}", root
        running.shutdown()


def archive(text: bytes, name: str = "SimLex-999/SimLex-999.txt") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        packed.writestr(name, text)
    return buffer.getvalue()


def test_download(tmp_path: Path, server: tuple[str, Path]) -> None:
    url, root = server
    body = OFFICIAL.split("\n")[0] + "\n" + "".join(f"a{n}\tb{n}\tN\t{n % 10}" + "\t1" * 6 + "\n" for n in range(999))
    (root / "good.zip").write_bytes(archive(body.encode()))
    path = datasets.download_simlex(tmp_path / "data", f"{url}/good.zip")
    assert path == find_dataset("simlex", None, tmp_path / "data")
    assert len(read_pairs(path)) == 999


def test_failed_downloads_say_so_and_leave_nothing(tmp_path: Path, server: tuple[str, Path]) -> None:
    url, root = server
    (root / "page.zip").write_bytes(b"<html>moved</html>")
    (root / "other.zip").write_bytes(archive(b"x", "readme.txt"))
    (root / "short.zip").write_bytes(archive(OFFICIAL.encode()))
    for name, message in [
        ("absent.zip", "the download failed .*--pairs"),
        ("page.zip", "not the SimLex-999 archive"),
        ("other.zip", "not the SimLex-999 archive"),
        ("short.zip", "holds 3 pairs, expected 999"),
    ]:
        with pytest.raises(DataError, match=message):
            datasets.download_simlex(tmp_path / "data", f"{url}/{name}")
    assert [path for path in (tmp_path / "data").rglob("*") if path.is_file()] == []
    with pytest.raises(DataError, match="the download failed"):
        datasets.download_simlex(tmp_path / "data", "http://127.0.0.1:9/x.zip", timeout=2)


PUBLISHED = {
    "SimLex-999_full10col.txt": 999,
    "EN-SIMLEX-999.txt": 999,
    "EN-WS-353-ALL.txt": 353,
    "EN-MEN-TR-3k.txt": 3000,
    "EN-RG-65.txt": 65,
    "EN-MTurk-771.txt": 771,
}


@pytest.mark.parametrize(("name", "count"), PUBLISHED.items())
def test_published_lists(name: str, count: int) -> None:
    folder = os.environ.get("LSTLM_TEST_DATA")
    if not folder:
        pytest.skip("LSTLM_TEST_DATA is not set")
    assert len(read_pairs(Path(folder) / "similarity" / name)) == count
