"""Cleaning, tokenising, and the demo corpus that is made with them."""

import io
from pathlib import Path

import pytest

from lstlm.data.demo import PIECES, DemoSource, Piece, _joint_hash
from lstlm.data.tokenise import TextOptions, tokenise_line, tokenise_text
from lstlm.data.wikitext import clean_wikitext, read_articles
from lstlm.errors import DataError


@pytest.mark.parametrize(
    ("raw", "tokens"),
    [
        ("It's John's, isn't it?", "It 's John 's , isn 't it ?"),
        ("“Well,” he said—‘no’…", "\" Well , \" he said — ' no ' ..."),
        ("The U.S. spent $1,200.50 (10%) in the 1990s.", "The U.S. spent $ 1,200.50 ( 10% ) in the 1990s ."),
        ("Mr. Smith's well-known R&B -- at 10:30", "Mr. Smith 's well-known R&B -- at 10:30"),
        ("see https://example.org/a?b=c now", "see https://example.org/a?b=c now"),
        ("naïve café 中文", "naïve café 中文"),
        ("", ""),
    ],
)
def test_words_and_signs_are_separated(raw: str, tokens: str) -> None:
    assert " ".join(tokenise_line(raw)) == tokens
    assert " ".join(tokenise_line(tokens)) == tokens  # tokenised text stays as it is


def test_a_sentence_a_line() -> None:
    text = 'He came. "Did he?" She knew 3.5 things, e.g. this. Mr. Brown did not!\nNew line'
    assert tokenise_text(text).splitlines() == [
        "He came .",
        '" Did he ? "',
        "She knew 3.5 things , e.g. this .",
        "Mr. Brown did not !",
        "New line",
    ]


ARTICLE = """{{Infobox|name={{nested|x}}}}
'''Cats''' are [[felid|small carnivores]] and [[pet]]s.<ref name="a">Not text.</ref> They weigh
{{convert|4|kg|lb}} and are known in all countries &amp; purr<ref/>.
[[File:Cat.jpg|thumb|A [[cat]] on a [[mat]]]]
{| class="wikitable"
| cell || {| nested |}
|}
<!-- a comment
over lines -->
* a list item that is long enough to be a paragraph of its own
== History ==
In [http://example.org ancient Egypt] cats ({{lang|grc|x}}) were sacred animals of the house.
[[Category:Cats]]
== References ==
This line stands in a section that is never read, however long it may be.
"""


def test_of_an_article_only_prose_is_left() -> None:
    assert clean_wikitext(ARTICLE).split("\n") == [
        "Cats are small carnivores and pets. They weigh",
        "4 kg and are known in all countries & purr .",
        "In ancient Egypt cats were sacred animals of the house.",
    ]


def test_redirects_and_other_namespaces_are_no_articles() -> None:
    def page(space: int, text: str, extra: str = "") -> str:
        return f"<page><ns>{space}</ns>{extra}<revision><text>{text}</text></revision></page>"

    prose = "This is one long enough paragraph of an article, about {}."
    pages = [
        page(0, prose.format("cats")),
        page(0, prose.format("dogs"), '<redirect title="x"/>'),
        page(1, prose.format("talk")),
        page(0, ""),
    ]
    for header in ("<mediawiki>", '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/">'):
        dump = header + "".join(pages) + "</mediawiki>"
        assert list(read_articles(io.BytesIO(dump.encode()))) == [prose.format("cats")]


def read(source: DemoSource) -> str:
    content = b""
    for text in source.inputs(lambda count: None):
        while data := text.stream.read(1 << 16):
            content += data
    return content.decode()


def test_the_demo_reads_gensims_sample_as_clean_lower_case_sentences() -> None:
    pytest.importorskip("gensim")
    source = DemoSource(pieces=PIECES[:1])
    lines = read(source).splitlines()
    words = [word for line in lines for word in line.split()]
    assert source.notes == []  # the pinned file
    assert 400_000 < len(words) < 500_000
    assert lines[0].startswith("anarchism is a political philosophy that advocates")
    marks = sum(any(mark in word for mark in ("[[", "]]", "{{", "}}", "==", "<ref", "''", "|")) for word in words)
    assert marks < len(words) / 10_000
    assert not any(character.isupper() for line in lines for character in line)


def test_the_demo_uses_what_is_installed_and_says_what_is_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def lines(path: Path) -> list[str]:
        return [path.read_text()]

    (tmp_path / "a.txt").write_text("Some Text.")
    digest = _joint_hash([tmp_path / "a.txt"])[0]
    here = Piece("here", "1.0", "a.txt", digest, lines)  # type: ignore[arg-type]
    other = Piece("other", "1.0", "a.txt", "0" * 64, lines)  # type: ignore[arg-type]
    gone = Piece("no-such-package-anywhere", "2.0", "b.txt", "0" * 64, lines)  # type: ignore[arg-type]
    assert gone.files() == []
    found = {"here": [tmp_path / "a.txt"], "other": [tmp_path / "a.txt"]}
    monkeypatch.setattr(Piece, "files", lambda self: found.get(self.package, []))
    source = DemoSource(pieces=(here, gone, other))
    assert read(source) == "some text .\n" * 2
    assert TextOptions(**source.prepared).apply("Some Text.") == "some text .\n"  # what the manifest will say
    assert source.notes == [
        "the demo text of no-such-package-anywhere==2.0 is not installed: less text",
        "the text of other is not that of 1.0: figures will differ",
    ]
    with pytest.raises(
        DataError, match="none of its packages is installed; run: pip install no-such-package-anywhere==2.0"
    ):
        read(DemoSource(pieces=(gone,)))
