"""Seeded damage to the bytes of a file: what disks, editors, other tools and strangers do to it."""

import random

NUMBERS = [b"0", b"-1", b"1e309", b"nan", b"inf", b"9" * 25, b"9" * 5000, b"1.5", b"0x10", b"", "٣".encode(), b"1_000"]
PIECES = [b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\n", b"\r\n", b"\t", b" ", b'"', b"'", b"\\", b"#", b":", b"- "]
PIECES += [b"[" * 3000, b"{" * 3000, b"(" * 500, b"x" * 70_000, b"&a ", b"*a", b"<<: ", b"!!python/object:os.system"]
PIECES += [b"null", b"true", "\u2028".encode(), b"\x1f\x8b"]


def mutate(data: bytes, chance: random.Random) -> bytes:
    """Return `data` with one to four changes."""
    changed = bytearray(data)
    for _ in range(chance.choice([1, 1, 1, 2, 4])):
        chance.choice([_flip, _cut, _end, _repeat, _insert, _noise, _number, _swap])(changed, chance)
    return bytes(changed)


def _place(data: bytearray, chance: random.Random) -> int:
    """Return a place, often near the beginning, where headers are."""
    return min(chance.randrange(64) if chance.random() < 0.3 else chance.randrange(len(data) + 1), len(data))


def _flip(data: bytearray, chance: random.Random) -> None:
    if data:
        data[min(_place(data, chance), len(data) - 1)] ^= 1 << chance.randrange(8)


def _cut(data: bytearray, chance: random.Random) -> None:
    place = _place(data, chance)
    del data[place : place + chance.choice([1, 2, 8, 100, 1000])]


def _end(data: bytearray, chance: random.Random) -> None:
    del data[_place(data, chance) :]


def _repeat(data: bytearray, chance: random.Random) -> None:
    start, place = _place(data, chance), _place(data, chance)
    data[place:place] = data[start : start + chance.choice([1, 10, 100, 2000])] * chance.choice([1, 2, 20])


def _insert(data: bytearray, chance: random.Random) -> None:
    place = _place(data, chance)
    data[place:place] = chance.choice(PIECES)


def _noise(data: bytearray, chance: random.Random) -> None:
    place, size = _place(data, chance), chance.choice([1, 4, 64])
    data[place : place + size] = chance.randbytes(size)


def _number(data: bytearray, chance: random.Random) -> None:
    """Replace a run of digits by another number."""
    start = _place(data, chance)
    while start < len(data) and not data[start : start + 1].isdigit():
        start += 1
    end = start
    while end < len(data) and data[end : end + 1].isdigit():
        end += 1
    data[start:end] = chance.choice(NUMBERS)


def _swap(data: bytearray, chance: random.Random) -> None:
    (a, b), size = sorted((_place(data, chance), _place(data, chance))), chance.choice([1, 8, 60])
    if a + size <= b:
        data[a : a + size], data[b : b + size] = data[b : b + size], data[a : a + size]
