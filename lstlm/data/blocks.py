"""Cuts a byte stream into blocks that end with a line, so that blocks can be encoded apart from each other."""

import tarfile
from collections.abc import Iterator
from typing import Protocol

from lstlm.errors import DataError

BLOCK_BYTES = 1 << 20
"""About 200,000 words: the arrays of one block stay near the cache; measured best of 128 KiB … 4 MiB."""


class Reader(Protocol):
    """What `read_blocks` needs of a file."""

    def read(self, size: int, /) -> bytes: ...


def _cut(data: bytes) -> int:
    """Return where to cut a block: after the last line end, else the last gap, else between two characters."""
    at = data.rfind(b"\n") + 1
    if at:
        return at
    gap = max(data.rfind(b" "), data.rfind(b"\t"))
    if gap >= 0:
        return gap + 1
    at = len(data)
    while at > len(data) - 4 and data[at - 1] & 0xC0 == 0x80:  # back over the continuation bytes of a character
        at -= 1
    return at - 1 if data[at - 1] >= 0xC0 else len(data)


def _is_tar(data: bytes) -> bool:
    """Whether data starts as a tar archive does: a header whose checksum is right."""
    try:
        tarfile.TarInfo.frombuf(data[: tarfile.BLOCKSIZE], "utf-8", "surrogateescape")
    except (tarfile.TarError, OverflowError, ValueError):
        return False
    return True


def read_blocks(file: Reader, name: str, size: int = BLOCK_BYTES) -> Iterator[bytes]:
    """Yield blocks of about `size` bytes that end with a newline.

    A line longer than a block is cut at a space into several sentences (at a character, if it has no space), so that
    memory does not depend on the longest line. A byte order mark is dropped; UTF-16 and archives are refused.
    """
    carry = file.read(size)
    if carry[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(f"{name}: looks like UTF-16 text; convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)")
    if _is_tar(carry):
        raise DataError(f"{name}: an archive (tar), not text; unpack it first and name the folder: tar xf")
    carry = carry.removeprefix(b"\xef\xbb\xbf")
    while carry:
        more = file.read(size)
        if len(carry) < size and more:
            carry += more
            continue
        if not more:
            yield carry if carry.endswith(b"\n") else carry + b"\n"
            return
        at = _cut(carry)
        yield carry[:at] if carry[at - 1] == 0x0A else carry[:at] + b"\n"
        carry = carry[at:] + more
