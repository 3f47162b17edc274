"""Many words in little memory."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import overload


class Words(Sequence[str]):
    """A list of words that only grows, kept as one run of UTF-8: Python strings would take three times as much.

    A slice is an ordinary list.
    """

    def __init__(self, words: Iterable[str] = ()) -> None:
        self._text = bytearray()
        self._bounds = array("q", [0])  # word number i is text[bounds[i]:bounds[i + 1]]
        for word in words:
            self.append(word)

    def append(self, word: str) -> None:
        """Add a word at the end."""
        self._text += word.encode()
        self._bounds.append(len(self._text))

    def __len__(self) -> int:
        return len(self._bounds) - 1

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> list[str]: ...
    def __getitem__(self, at: int | slice) -> str | list[str]:
        if isinstance(at, slice):
            return [self[number] for number in range(*at.indices(len(self)))]
        number = range(len(self))[at]  # as a list takes it: from the end below 0, IndexError beyond
        return self._text[self._bounds[number] : self._bounds[number + 1]].decode()

    def __iter__(self) -> Iterator[str]:
        for start, end in pairwise(self._bounds):
            yield self._text[start:end].decode()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Words):
            return self._bounds == other._bounds and self._text == other._text
        return isinstance(other, list) and len(other) == len(self) and all(map(str.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]  # it can grow

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self[:3]))
        return f"<{len(self):,} words: {shown}{', …' if len(self) > 3 else ''}>"
