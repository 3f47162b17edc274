"""Files, folders, globs, packed files and archives, good and bad."""

import bz2
import gzip
import io
import lzma
import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lstlm.data.inputs import FileSource, TextSource
from lstlm.data.onebillion import ARCHIVE, HELD_OUT_SHARDS, NAME, TRAIN_SHARDS, part_of
from lstlm.data.sources import expand_paths, open_source
from lstlm.errors import ConfigError, DataError

TRAIN = f"{NAME}/training-monolingual.tokenized.shuffled/news.en-%05d-of-00100"
HELD_OUT = f"{NAME}/heldout-monolingual.tokenized.shuffled/news.en.heldout-%05d-of-00050"


def read(source: TextSource) -> list[tuple[str, str, bytes]]:
    """Walk through a source; return (last part of the name, part, content)."""
    found = []
    for text in source.inputs(lambda count: None):
        content = b""
        while data := text.stream.read(7):
            content += data
        found.append((Path(text.name).name, text.part, content))
    return found


# ---- files


@pytest.mark.parametrize(
    ("ending", "pack"), [("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
def test_packed_files_are_unpacked_and_hashed_as_they_are_on_disk(tmp_path: Path, ending: str, pack: object) -> None:
    path = tmp_path / f"text{ending}"
    path.write_bytes(pack(b"some words\n" * 50))  # type: ignore[operator]
    source = open_source([str(path)])
    assert read(source) == [(path.name, "train", b"some words\n" * 50)]
    assert source.records[0]["bytes"] == path.stat().st_size == source.total_bytes
    assert not source.has_validation


@pytest.mark.parametrize(("ending", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)])
def test_truncated_and_damaged_packed_files_are_named(tmp_path: Path, ending: str, pack: object) -> None:
    packed: bytes = pack(os.urandom(5000))  # type: ignore[operator]
    path = tmp_path / f"text{ending}"
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(DataError, match=rf"text\{ending}: truncated"):
        read(open_source([str(path)]))
    path.write_bytes(b"this is no packed file at all, whatever its name says")
    with pytest.raises(DataError, match=rf"text\{ending}: (damaged|cannot be read)"):
        read(open_source([str(path)]))


def test_a_bomb_is_stopped_at_the_cap_while_a_plain_file_is_not(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(bytes(1_000_000)))
    with pytest.raises(DataError, match=r"bomb\.gz: unpacks to more than 1000 bytes; raise --max-bytes"):
        read(open_source([str(path)], max_bytes=1000))
    (tmp_path / "plain").write_bytes(bytes(2000))
    read(open_source([str(tmp_path / "plain")], max_bytes=1000))


def test_the_cap_is_for_all_files_together(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(bytes(700)))
    with pytest.raises(DataError, match=r"b\.gz: unpacks to more than 300"):
        read(open_source([str(tmp_path)], max_bytes=1000))


def test_folders_and_globs_are_sorted_and_hidden_files_left_out(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "deep/c.txt", ".hidden", ".git/x"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    assert [Path(path).name for path in expand_paths([str(tmp_path)])] == ["a.txt", "b.txt", "c.txt"]
    assert [Path(path).name for path in expand_paths([str(tmp_path / "*.txt")])] == ["a.txt", "b.txt"]


@pytest.mark.parametrize("name", ["none.txt", "none*.txt", "empty"])
def test_what_is_not_there_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=rf".*{name.replace('*', '.')}: (no such file|the folder holds no)"):
        open_source([str(tmp_path / name)])


def test_sources_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("x")
    for names, more, message in (
        ([], {}, "name one of 1b, demo"),
        (["1b", str(text)], {}, "cannot be mixed"),
        (["demo"], {"valid": [str(text)]}, "has validation text of its own"),
        ([str(text)], {"download": True}, "belong to --source 1b"),
        ([str(text)], {"valid": [str(text)]}, "is training text too"),
        ([str(text), str(text)], {}, "named twice"),
        (["-", "-"], {}, "once only"),
    ):
        with pytest.raises(ConfigError, match=message):
            open_source(names, **more)  # type: ignore[arg-type]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_permission_denied_is_a_data_error(tmp_path: Path) -> None:
    path = tmp_path / "secret.txt"
    path.write_text("x")
    path.chmod(0)
    with pytest.raises(DataError, match=r"secret\.txt: cannot be read: Permission denied"):
        read(FileSource("x", [(str(path), "train")]))


def test_permission_denied_by_the_system_is_a_data_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(DataError, match=r"secret\.txt: cannot be read: Permission denied"):
        read(FileSource("x", [("secret.txt", "train")]))


# ---- the One Billion Word archive


def add(tar: tarfile.TarFile, name: str, content: bytes = b"a b\n", kind: bytes = tarfile.REGTYPE) -> None:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, "/etc/passwd" if kind != tarfile.REGTYPE else ""
    member.size = len(content) if kind == tarfile.REGTYPE else 0
    tar.addfile(member, io.BytesIO(content))


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[tarfile.TarFile]:
    with tarfile.open(tmp_path / ARCHIVE, "w:gz") as tar:
        yield tar


def test_shards_are_known_by_folder_and_name() -> None:
    assert part_of(TRAIN % 1) == part_of("./x/" + TRAIN % 99) == "train"
    assert part_of(HELD_OUT % 0) == "test"
    assert part_of(HELD_OUT % 49) == "valid"
    for other in (
        f"{NAME}/README",
        TRAIN % 1 + ".bak",
        "news.en-00001-of-00100",
        HELD_OUT.replace("heldout-m", "x-m") % 1,
    ):
        assert part_of(other) is None


def test_the_archive_is_read_by_name_and_its_oddities_are_left_out(tmp_path: Path, archive: tarfile.TarFile) -> None:
    add(archive, f"{NAME}/README", b"not text")
    add(archive, HELD_OUT % 0, b"test\n")
    add(archive, HELD_OUT % 1, b"valid\n")
    add(archive, TRAIN % 2, b"two\n")
    add(archive, TRAIN % 1, b"one\n")
    add(archive, f"../{TRAIN % 3}", b"outside\n")
    add(archive, f"/{TRAIN % 4}", b"outside\n")
    add(archive, TRAIN % 5, kind=tarfile.SYMTYPE)
    add(archive, TRAIN % 6, kind=tarfile.LNKTYPE)
    add(archive, TRAIN % 7, kind=tarfile.FIFOTYPE)
    archive.close()
    source = open_source(["1b"], archive=tmp_path / ARCHIVE)
    assert [(part, content) for _, part, content in read(source)] == [
        ("test", b"test\n"),
        ("valid", b"valid\n"),
        ("train", b"two\n"),
        ("train", b"one\n"),
    ]
    assert [note.split(":")[-1].strip() for note in source.notes[:-1]] == [
        "a name that leaves the archive",
        "a name that leaves the archive",
        "a link or device, not a file",
        "a link or device, not a file",
        "a link or device, not a file",
    ]
    assert source.notes[-1].startswith("not the full benchmark: 2 of 99 training and 2 of 50")
    assert source.records[0]["bytes"] == (tmp_path / ARCHIVE).stat().st_size
    assert list(tmp_path.iterdir()) == [tmp_path / ARCHIVE]  # nothing was extracted


def test_a_full_archive_needs_no_note_and_an_extracted_one_reads_the_same(
    tmp_path: Path, archive: tarfile.TarFile
) -> None:
    for number in range(HELD_OUT_SHARDS):
        add(archive, HELD_OUT % number)
    for number in range(1, TRAIN_SHARDS + 1):
        add(archive, TRAIN % number, f"{number}\n".encode())
    archive.close()
    packed = open_source(["1b"], data_folder=tmp_path)
    from_archive = read(packed)
    assert packed.notes == []
    shutil.unpack_archive(tmp_path / ARCHIVE, tmp_path)
    extracted = open_source(["1b"], data_folder=tmp_path)  # the extracted folder is preferred
    assert isinstance(extracted, FileSource)
    assert read(extracted) == from_archive
    assert extracted.notes == []
    assert extracted.has_validation


def test_an_archive_without_shards_truncated_or_false_is_refused(tmp_path: Path, archive: tarfile.TarFile) -> None:
    add(archive, "holiday.jpg")
    archive.close()
    with pytest.raises(DataError, match="holds no shard named like"):
        read(open_source(["1b"], archive=tmp_path / ARCHIVE))
    (tmp_path / "false.tar").write_bytes(b"no tar" * 1000)
    with pytest.raises(DataError, match=r"false\.tar: not a sound tar archive"):
        read(open_source(["1b"], archive=tmp_path / "false.tar"))
    with tarfile.open(tmp_path / "long.tar.gz", "w:gz") as tar:
        add(tar, TRAIN % 1, os.urandom(100_000))
    whole = (tmp_path / "long.tar.gz").read_bytes()
    (tmp_path / "long.tar.gz").write_bytes(whole[:50_000])
    with pytest.raises(DataError, match=r"long\.tar\.gz.*(truncated|cut short|not a sound tar)"):
        read(open_source(["1b"], archive=tmp_path / "long.tar.gz"))
    with pytest.raises(DataError, match="holds no shard"):
        open_source(["1b"], archive=tmp_path)


def test_an_archive_bomb_is_stopped_by_what_it_claims_and_by_what_it_holds(
    tmp_path: Path, archive: tarfile.TarFile
) -> None:
    add(archive, f"{NAME}/filler", bytes(500_000))
    add(archive, TRAIN % 1, bytes(200_000))
    archive.close()
    with pytest.raises(DataError, match=r"unpacks to more than 300000 bytes"):
        read(open_source(["1b"], archive=tmp_path / ARCHIVE, max_bytes=300_000))
    with tarfile.open(tmp_path / "claim.tar", "w") as tar:
        add(tar, TRAIN % 1, bytes(200_000))
    with pytest.raises(DataError, match=r"claims 200000 bytes, more than 1000; raise --max-bytes"):
        read(open_source(["1b"], archive=tmp_path / "claim.tar", max_bytes=1000))


def test_the_archive_or_its_folder_may_be_named_by_path(tmp_path: Path, archive: tarfile.TarFile) -> None:
    for name in (HELD_OUT % 0, HELD_OUT % 1, TRAIN % 1):
        add(archive, name, f"{name[-14:]}\n".encode())
    archive.close()
    wanted = read(open_source(["1b"], archive=tmp_path / ARCHIVE))
    assert [part for _, part, _ in wanted] == ["test", "valid", "train"]
    named = open_source([str(tmp_path / ARCHIVE)])
    assert read(named) == wanted
    assert (named.name, named.has_validation) == ("1b", True)
    with pytest.raises(ConfigError, match="is the One Billion Word benchmark and has validation text"):
        open_source([str(tmp_path / ARCHIVE)], valid=["x"])
    shutil.unpack_archive(tmp_path / ARCHIVE, tmp_path)
    assert read(open_source([str(tmp_path / NAME)])) == wanted
    shards = tmp_path / NAME / "training-monolingual.tokenized.shuffled"
    assert open_source([str(shards)]).name == str(shards)  # training text alone is text like any other


@pytest.mark.parametrize(("name", "packing"), [("a.tar", ""), ("a.tar.gz", "gz"), ("a.tbz2", "bz2"), ("a.txz", "xz")])
def test_another_archive_is_refused(tmp_path: Path, name: str, packing: str) -> None:
    with tarfile.open(tmp_path / name, f"w:{packing}") as tar:  # type: ignore[call-overload]
        add(tar, "novel.txt", b"It was a dark and stormy night .\n")
    with pytest.raises(DataError, match=rf"{name}: holds no shard .*other archives are to be unpacked first"):
        read(open_source([str(tmp_path / name)]))


def test_an_absent_archive_names_both_ways_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"--archive PATH, or add --download to fetch it \(1\.8 GB from https://"):
        open_source(["1b"], data_folder=tmp_path)
    with pytest.raises(DataError, match="--archive .*none: no such file"):
        open_source(["1b"], archive=tmp_path / "none")
