"""Words of a byte block as 64-bit keys, and a table from key to type id: all of it vectorised.

A Python dictionary costs about 300 ns a token, twice (count, then encode). Here a block of text becomes, with some
thirty numpy operations, one key a word, and a table turns keys into type ids. Nothing in the loop is a Python object,
except the first sight of a new type.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_WORD_BYTES = 255
"""A longer "word" is none (a base64 blob, a line without spaces): it is encoded as <unk>, counted and reported."""

_SPACE = 0x20  # every byte up to the space (tab, CR, NUL, control characters) separates words
_MULTIPLIER_1 = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIER_2 = np.uint64(0xD6E8FEB86659FD93)
_LOW_BYTES = np.array([(1 << (8 * k)) - 1 for k in range(9)], dtype=np.uint64)  # keeps the first k bytes of a word
_PADDING = bytes(16)

U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]
U32 = NDArray[np.uint32]


def _mix(keys: U64) -> U64:
    """Return a bijective scramble of 64-bit keys (so that two different keys never become one)."""
    keys = keys ^ (keys >> np.uint64(32))
    keys *= _MULTIPLIER_1
    keys ^= keys >> np.uint64(29)
    keys *= _MULTIPLIER_2
    keys ^= keys >> np.uint64(32)
    return keys


def grown(array: NDArray[Any], size: int) -> NDArray[Any]:
    """Return an array of `size` or more, zeros at its end; it at least doubles where it is too short."""
    missing = size - len(array)
    return np.concatenate((array, np.zeros(max(missing, len(array)), array.dtype))) if missing > 0 else array


class Words:
    """Where the words of one block are: `starts` (w,), `lengths` (w,), and `sentence_ends` (s,) as word counts.

    `block` ends with a newline. A line without a word is no sentence. Cost: linear in the bytes.
    """

    def __init__(self, block: bytes) -> None:
        self.block = block
        padded = block + _PADDING[: 16 - len(block) % 8]  # load8 reads the 64-bit word after the last byte
        self._quads = np.frombuffer(padded, dtype="<u8")
        data = np.frombuffer(block, dtype=np.uint8)
        gaps = np.flatnonzero(data <= _SPACE)  # each ends a word, which may be empty
        lengths = np.empty_like(gaps)
        lengths[0] = gaps[0]
        np.subtract(gaps[1:], gaps[:-1], out=lengths[1:])
        lengths[1:] -= 1
        ends: I64 = np.flatnonzero(data[gaps] == 0x0A) + 1  # in words, if none is empty
        if not lengths.all():
            real = lengths > 0
            ends = np.cumsum(real, dtype=np.int64)[ends - 1]
            ends = ends[np.diff(ends, prepend=0) > 0]
            gaps, lengths = gaps[real], lengths[real]
        self.starts: I64 = gaps - lengths
        self.lengths: I64 = lengths
        self.sentence_ends: I64 = ends

    def __len__(self) -> int:
        return len(self.starts)

    def _load8(self, at: I64) -> U64:
        """Return the 8 bytes from each position on as one little-endian number: two aligned loads and shifts."""
        quad = at >> 3
        shift = ((at & 7) << 3).view(np.uint64)
        low: U64 = self._quads[quad] >> shift
        high: U64 = (self._quads[quad + 1] << (np.uint64(63) - shift)) << np.uint64(1)
        return low | high

    def keys(self) -> U64:
        """Return one key a word (w,). Up to 8 bytes the key is one-to-one; longer words are hashed to 64 bits.

        With 3 million types the chance that any two share a key is about 2e-7; the merge of tables checks for it.
        """
        keys = _mix(self._load8(self.starts) & _LOW_BYTES[np.minimum(self.lengths, 8)])
        rest = np.flatnonzero(self.lengths > 8)
        done = 8
        while rest.size and done < MAX_WORD_BYTES:
            left = self.lengths[rest] - done
            piece = self._load8(self.starts[rest] + done) & _LOW_BYTES[np.minimum(left, 8)]
            keys[rest] = _mix((keys[rest] * _MULTIPLIER_2) ^ piece)
            done += 8
            rest = rest[left > 8]
        return keys

    def word(self, number: int) -> bytes:
        start = int(self.starts[number])
        return self.block[start : start + int(self.lengths[number])]


class TypeTable:
    """Open addressing over numpy arrays: key → id in order of first sight; ids start at `first_id`.

    About 25 bytes a type plus its spelling. Lookups are vectorised: the first probe answers nearly all of them, because
    frequent types are inserted early and so sit in their home slot, and their keys lie together, so in the cache.
    """

    def __init__(self, first_id: int = 0, bits: int = 16) -> None:
        self.first_id = first_id
        self.size = 0
        self.spellings = bytearray()  # concatenated; a Python object a type would cost five times the memory
        self._lengths = np.zeros(1 << (bits - 1), dtype=np.uint8)
        self._type_keys = np.zeros(1 << (bits - 1), dtype=np.uint64)
        self._allocate(bits)

    def _allocate(self, bits: int) -> None:
        self._bits = bits
        self._slot_ids = np.full(1 << bits, -1, dtype=np.int32)

    @property
    def keys(self) -> U64:
        """The keys in id order (size,)."""
        return self._type_keys[: self.size]

    @property
    def lengths(self) -> NDArray[np.uint8]:
        """The byte lengths of the spellings in id order (size,)."""
        return self._lengths[: self.size]

    def _home(self, keys: U64) -> I64:
        return (keys >> np.uint64(64 - self._bits)).view(np.int64)

    def find(self, keys: U64) -> NDArray[np.int32]:
        """Return the number of each key in order of first sight (id − first_id), −1 where it is unknown."""
        slots = self._home(keys)
        ids = self._slot_ids[slots]
        # an empty slot (−1) reads the last key; that key's home is not empty, so it is never taken for it
        pending = np.flatnonzero(self._type_keys[ids] != keys)
        slots, wanted, here = slots[pending], keys[pending], ids[pending]
        while pending.size:
            alive = here >= 0  # an empty slot ends the search
            ids[pending[~alive]] = -1
            pending, wanted = pending[alive], wanted[alive]
            slots = (slots[alive] + 1) & ((1 << self._bits) - 1)
            here = self._slot_ids[slots]
            hit = (self._type_keys[here] == wanted) & (here >= 0)
            ids[pending[hit]] = here[hit]
            pending, wanted, slots, here = pending[~hit], wanted[~hit], slots[~hit], here[~hit]
        return ids

    def encode(self, words: Words, too_long: int) -> NDArray[np.int32]:
        """Return the id of every word (w,), giving new ids to new types in order of first sight.

        Words of more than MAX_WORD_BYTES get the id `too_long`.
        """
        keys = words.keys()
        ids = self.find(keys)
        long = np.flatnonzero(words.lengths > MAX_WORD_BYTES)
        ids[long] = 0  # not unknown: they must not become types
        unknown = np.flatnonzero(ids < 0)
        if unknown.size:
            fresh, first, inverse = np.unique(keys[unknown], return_index=True, return_inverse=True)
            order = np.argsort(first)
            rank = np.empty_like(order)
            rank[order] = np.arange(len(order))
            ids[unknown] = self.size + rank[inverse]
            self._add(fresh[order], [words.word(n) for n in unknown[first[order]].tolist()])
        ids += self.first_id
        ids[long] = too_long
        return ids

    def _add(self, keys: U64, spellings: list[bytes]) -> None:
        old, self.size = self.size, self.size + len(keys)
        self._type_keys, self._lengths = grown(self._type_keys, self.size), grown(self._lengths, self.size)
        self._type_keys[old : self.size] = keys
        self._lengths[old : self.size] = np.fromiter(map(len, spellings), dtype=np.uint8, count=len(keys))
        self.spellings += b"".join(spellings)
        if 2 * self.size > len(self._slot_ids):  # at most half full: probes stay short
            bits = self._bits
            while 2 * self.size > (1 << bits):
                bits += 1
            self._allocate(bits + 1)  # a quarter full at first: measured twice as fast as a half
            self._insert(self.keys, np.arange(self.size, dtype=np.int32))
        else:
            self._insert(keys, np.arange(old, self.size, dtype=np.int32))

    def _insert(self, keys: U64, ids: NDArray[np.int32]) -> None:
        slots = self._home(keys)
        while keys.size:
            free = self._slot_ids[slots] < 0
            # several keys may want one free slot: the last write wins, the others see it and move on
            self._slot_ids[slots[free]] = ids[free]
            won = self._slot_ids[slots] == ids
            keys, ids = keys[~won], ids[~won]
            slots = (slots[~won] + 1) & ((1 << self._bits) - 1)
