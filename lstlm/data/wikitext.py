"""Prose out of a MediaWiki dump: articles only, and of those only running text."""

import html
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from typing import IO

_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_DROPPED_TAGS = "ref|math|gallery|timeline|syntaxhighlight|source|code|pre|score|imagemap|table|hiero|chem"
_ELEMENT = re.compile(rf"<({_DROPPED_TAGS})\b[^<>]*?(?:/>|>.*?</\1\s*>)", re.DOTALL | re.IGNORECASE)
_TAG = re.compile(r"</?[a-zA-Z][^<>]*>")
_CONVERT = re.compile(
    r"\{\{\s*(?:convert|cvt)\s*\|([\d.,]+)\|([^|{}]+)[^{}]*\}\}", re.IGNORECASE
)  # measures are words too
_TEMPLATE = re.compile(r"\{\{[^{}]*\}\}")
_TABLE = re.compile(r"\{\|(?:(?!\{\||\|\}).)*\|\}", re.DOTALL)
_LINK = re.compile(r"\[\[([^\[\]]*)\]\]")
_ADDRESS = re.compile(r"\[(?:https?:|ftp:|//)[^\s\]]*(?:\s+([^\]]*))?\]")
_NAMESPACE = re.compile(r"\s*:?(?:file|image|category|media|wikt|[a-z]{2,3}(?:-[a-z]+)?)\s*:", re.IGNORECASE)
_QUOTES = re.compile(r"'{2,}")
_HEADING = re.compile(r"^=+\s*(.*?)\s*=+\s*$")
_EMPTY_BRACKETS = re.compile(r"\(\s*[;,:\s]*\)")
_LAST_SECTIONS = ("see also", "references", "notes", "external links", "further reading", "bibliography", "footnotes")
_MARKUP_STARTS = ("*", "#", ":", ";", "|", "!", "{", "}", "=")
_SHORTEST_PARAGRAPH = 40


def _until_stable(pattern: re.Pattern[str], text: str, by: str | Callable[[re.Match[str]], str] = "") -> str:
    """Replace matches from the inside out: templates and tables nest, and a picture's caption may hold links."""
    while True:
        text, count = pattern.subn(by, text)
        if not count:
            return text


def _link_text(match: re.Match[str]) -> str:
    """Return what a reader sees of [[target|label]]; of a picture or a category, nothing."""
    inside = match[1]
    return "" if _NAMESPACE.match(inside) else inside.rpartition("|")[2]


def clean_wikitext(source: str) -> str:
    """Return the paragraphs of an article as plain text, one a line: no headings, lists, tables, references."""
    text = _COMMENT.sub("", source)
    text = _ELEMENT.sub(" ", text)
    text = _until_stable(_TEMPLATE, _CONVERT.sub(r"\1 \2", text))
    text = _until_stable(_TABLE, text)
    text = _until_stable(_LINK, text, _link_text)
    text = _ADDRESS.sub(lambda match: match[1] or "", text)
    text = _QUOTES.sub("", text)
    text = html.unescape(_TAG.sub("", text)).replace("\xa0", " ")
    paragraphs = []
    for line in text.split("\n"):
        heading = _HEADING.match(line)
        if heading and heading[1].lower() in _LAST_SECTIONS:
            break
        line = " ".join(_EMPTY_BRACKETS.sub("", line).split())
        if len(line) >= _SHORTEST_PARAGRAPH and not line.startswith(_MARKUP_STARTS):
            paragraphs.append(line)
    return "\n".join(paragraphs)


def read_articles(file: IO[bytes]) -> Iterator[str]:
    """Yield the cleaned text of each article of an XML dump, in order; redirects and other namespaces are left out."""
    for _, element in ElementTree.iterparse(file):
        if element.tag.rpartition("}")[2] != "page":
            continue
        space = element.tag.removesuffix("page")
        source = element.findtext(f"{space}revision/{space}text") or ""
        if element.findtext(f"{space}ns") == "0" and element.find(f"{space}redirect") is None:
            text = clean_wikitext(source)
            if text:
                yield text
        element.clear()  # memory stays that of one page
