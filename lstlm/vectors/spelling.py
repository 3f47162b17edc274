"""Near spellings of an unknown word, found in the number of possible slips and not in the size of the vocabulary."""

from collections.abc import Iterable, Iterator, Mapping

_LETTERS = "abcdefghijklmnopqrstuvwxyz'-"
_MAX_TWO_SLIPS = 16  # letters; two slips in a longer word give too many candidates to try


def near_spellings(word: str, index: Mapping[str, int], limit: int = 3) -> list[str]:
    """Return up to `limit` words of `index` within two slips of `word`, nearest first, then frequent words first.

    A slip is a letter lost, added, changed or swapped with its neighbour. Case variants come before all.
    About 60·n candidates for one slip and (60·n)²/2 for two, each one dictionary look-up: free of the vocabulary size.
    """

    def known(words: Iterable[str]) -> list[str]:
        return [candidate for candidate in words if candidate in index and candidate != word]

    plain = word.lower()
    found = known(dict.fromkeys([plain, word.upper(), word.capitalize()]))
    once = set(_slips(plain)) if len(plain) > 1 else set()  # every letter is a slip away from every other
    near = sorted(known(_with_case(once)), key=index.__getitem__)
    found += near
    if not near and len(found) < limit and len(plain) <= _MAX_TWO_SLIPS:
        twice = {candidate for middle in once for candidate in _slips(middle)}
        found += sorted(known(_with_case(twice)), key=index.__getitem__)
    return list(dict.fromkeys(found))[:limit]


def _slips(word: str) -> Iterator[str]:
    for at in range(len(word) + 1):
        head, tail = word[:at], word[at:]
        if tail:
            yield head + tail[1:]
        if len(tail) > 1:
            yield head + tail[1] + tail[0] + tail[2:]
        for letter in _LETTERS:
            yield head + letter + tail
            if tail:
                yield head + letter + tail[1:]


def _with_case(words: set[str]) -> Iterator[str]:
    for word in words:
        yield word
        yield word.capitalize()
