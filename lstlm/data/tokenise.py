"""How text becomes words, and a simple tokeniser for raw English text, in the style of the One Billion Word files.

Words and signs are separated by spaces, and clitics stand alone: `it 's`, and `don 't` as those files have it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_QUOTES = str.maketrans({"‘": "'", "’": "'", "‛": "'", "“": '"', "”": '"', "„": '"', "«": '"', "»": '"', "…": " ... "})
_TOKEN = re.compile(
    r"""
      https?://\S+                           # addresses stay whole
    | (?:[^\W\d_]\.){2,}                     # U.S. e.g.
    | (?:Mr|Mrs|Ms|Dr|St|Jr|Sr|vs|etc|No)\.  # the commonest abbreviations
    | \d+(?:[.,:/]\d+)*(?:st|nd|rd|th|s|%)?(?!\w)  # 1,200.50 10:30 1990s 21st
    | '(?:s|re|ve|ll|d|m|t|S)\b              # clitics
    | \w+(?:[-&]\w+)*                        # words, hyphenated words, R&B
    | \.{2,} | -{2,}                         # ellipsis, dash
    | [^\w\s]                                # any other sign, one at a time
    """,
    re.VERBOSE,
)
_CLOSING = frozenset(("'", ")", "]"))
_WORD = re.compile(r"[^\x00-\x20]+")  # the blanks of a prepared text: every control character separates words


@dataclass(frozen=True)
class TextOptions:
    """How text becomes words: the same for a corpus and for every text that its models are asked about.

    `tokenise`: none, a line is a sentence and words stand between blanks; or simple, as `tokenise_text` cuts it.
    `strict` refuses invalid UTF-8 when a corpus is made; it changes no words.
    """

    lowercase: bool = False
    tokenise: str = "none"
    strict: bool = False

    def apply(self, text: str) -> str:
        """Return the text as one sentence a line, words between blanks."""
        if self.tokenise == "simple":
            text = tokenise_text(text)
        # lowered last: capitals tell where sentences begin
        return text.lower() if self.lowercase else text

    def sentences(self, text: str) -> Iterator[list[str]]:
        """Yield the words of each sentence that has any."""
        for line in self.apply(text).split("\n"):
            if words := _WORD.findall(line):
                yield words


def tokenise_line(line: str) -> list[str]:
    """Return the words and signs of a line."""
    return _TOKEN.findall(line.translate(_QUOTES))


def split_sentences(tokens: list[str]) -> list[str]:
    """Return the sentences of a tokenised paragraph: cut after . ! ? and what it closes, before a capital or a digit.

    Straight double quotes look alike; of each pair in a paragraph the second one closes.
    """
    sentences, start, quoted = [], 0, False
    ended = False  # whether a . ! or ? came, and since then only closing signs
    for at, token in enumerate(tokens):
        closes = token in _CLOSING or (token == '"' and quoted)
        if ended and not closes:
            if token[0].isupper() or token[0].isdigit() or token in ('"', "'", "(", "["):
                sentences.append(" ".join(tokens[start:at]))
                start = at
            ended = False
        if token == '"':
            quoted = not quoted
        ended = token in (".", "!", "?") or (ended and closes)
    if start < len(tokens):
        sentences.append(" ".join(tokens[start:]))
    return sentences


def tokenise_text(text: str) -> str:
    """Return raw text as one tokenised sentence a line; a line end of the text always ends a sentence."""
    lines = (sentence for line in text.split("\n") for sentence in split_sentences(tokenise_line(line)))
    return "".join(f"{line}\n" for line in lines)
