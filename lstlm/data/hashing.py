"""Words of a byte block as 64-bit keys, and a table from key to type id: all of it vectorised.

A Python dictionary costs about 300 ns a token, twice (count, then encode). Here a block of text becomes, with some
thirty numpy operations, one key a word, and a table turns keys into type ids. Nothing in the loop is a Python object,
except the first sight of a new type.
"""

from __future__ import annotations

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


class Words:
    """Where the words of one block are: `starts` (w,), `lengths` (w,), and `sentence_ends` (s,) as word counts.

    `block` ends with a newline. A line without a word is no sentence. Cost: linear in the bytes.
    """

    def __init__(self, block: bytes) -> None:
        self.block = block
        padded = block + _PADDING[: 16 - len(block) % 8]  # load8 reads the 64-bit word after the last byte
        data = np.frombuffer(block, dtype=np.uint8)
        self._quads = np.frombuffer(padded, dtype="<u8")
        gap = data <= _SPACE
        edges = np.flatnonzero(gap[1:] != gap[:-1]) + 1
        if not gap[0]:
            edges = np.concatenate((np.zeros(1, dtype=edges.dtype), edges))
        self.starts: I64 = edges[0::2]
        self.lengths: I64 = edges[1::2] - self.starts
        newlines = np.flatnonzero(data == 0x0A)
        ends = np.searchsorted(self.starts, newlines)
        self.sentence_ends: I64 = ends[np.diff(ends, prepend=0) > 0]

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

    24 to 48 bytes a type plus its spelling. Lookups are vectorised: the first probe answers nearly all of them, because
    frequent types are inserted early and so sit in their home slot.
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
        self._slot_keys = np.zeros(1 << bits, dtype=np.uint64)
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
        """Return the id of each key, −1 where it is unknown."""
        slots = self._home(keys)
        ids = self._slot_ids[slots]
        pending = np.flatnonzero(self._slot_keys[slots] != keys)
        slots, wanted, ids_here = slots[pending], keys[pending], ids[pending]
        while pending.size:
            alive = ids_here >= 0  # an empty slot ends the search
            ids[pending[~alive]] = -1
            pending, wanted = pending[alive], wanted[alive]
            slots = (slots[alive] + 1) & ((1 << self._bits) - 1)
            ids_here = self._slot_ids[slots]
            hit = self._slot_keys[slots] == wanted
            hit &= ids_here >= 0
            ids[pending[hit]] = ids_here[hit]
            pending, wanted, slots, ids_here = pending[~hit], wanted[~hit], slots[~hit], ids_here[~hit]
        return ids

    def encode(self, words: Words, too_long: int) -> NDArray[np.int32]:
        """Return the id of every word (w,), giving new ids to new types in order of first sight.

        Words of more than MAX_WORD_BYTES get the id `too_long`.
        """
        keys = words.keys()
        ids = self.find(keys)
        ids[words.lengths > MAX_WORD_BYTES] = too_long
        unknown = np.flatnonzero(ids < 0)
        if unknown.size:
            fresh, first, inverse = np.unique(keys[unknown], return_index=True, return_inverse=True)
            order = np.argsort(first)
            rank = np.empty_like(order)
            rank[order] = np.arange(len(order))
            ids[unknown] = self.first_id + self.size + rank[inverse]
            self._add(fresh[order], [words.word(n) for n in unknown[first[order]].tolist()])
        return ids

    def _add(self, keys: U64, spellings: list[bytes]) -> None:
        old, self.size = self.size, self.size + len(keys)
        while self.size > len(self._type_keys):
            self._type_keys = np.concatenate((self._type_keys, np.zeros_like(self._type_keys)))
            self._lengths = np.concatenate((self._lengths, np.zeros_like(self._lengths)))
        self._type_keys[old : self.size] = keys
        self._lengths[old : self.size] = np.fromiter(map(len, spellings), dtype=np.uint8, count=len(keys))
        self.spellings += b"".join(spellings)
        if 2 * self.size > len(self._slot_keys):  # at most half full: probes stay short
            bits = self._bits
            while 2 * self.size > (1 << bits):
                bits += 1
            self._allocate(bits + 1)
            self._insert(self.keys, np.arange(self.size, dtype=np.int32) + self.first_id)
        else:
            self._insert(keys, np.arange(old, self.size, dtype=np.int32) + self.first_id)

    def _insert(self, keys: U64, ids: NDArray[np.int32]) -> None:
        slots = self._home(keys)
        while keys.size:
            free = self._slot_ids[slots] < 0
            # several keys may want one free slot: the last write wins, the others see it and move on
            self._slot_ids[slots[free]] = ids[free]
            won = self._slot_ids[slots] == ids
            self._slot_keys[slots[won]] = keys[won]
            keys, ids = keys[~won], ids[~won]
            slots = (slots[~won] + 1) & ((1 << self._bits) - 1)
