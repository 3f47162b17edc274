"""A simple word tokeniser for raw English text, in the style of the One Billion Word files.

Words and signs are separated by spaces, and clitics stand alone: `it 's`, and `don 't` as those files have it.
"""

from __future__ import annotations

import re

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
_SENTENCE_END = re.compile(r"(?<=[.!?])(?P<close> [\"')\]]+)? (?=[\"'(\[]? ?[A-Z0-9\"])")


def tokenise_line(line: str) -> str:
    """Return the line with its words and signs separated by single spaces."""
    return " ".join(_TOKEN.findall(line.translate(_QUOTES)))


def split_sentences(tokenised: str) -> list[str]:
    """Return the sentences of a tokenised paragraph: cut after . ! ? and closing quotes, before a capital."""
    marked = _SENTENCE_END.sub(lambda match: (match["close"] or "") + "\n", tokenised)
    return [sentence.strip() for sentence in marked.split("\n") if sentence.strip()]


def tokenise_text(text: str) -> str:
    """Return raw text as one tokenised sentence a line; a line end of the text always ends a sentence."""
    lines = (sentence for line in text.split("\n") for sentence in split_sentences(tokenise_line(line)))
    return "".join(f"{line}\n" for line in lines)
