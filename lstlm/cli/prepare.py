"""``lstlm prepare``: text to vocabulary, ids and manifest."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from lstlm.cli.bars import Bars
from lstlm.cli.common import FROM_1, PATH, json_option, option, print_json, print_table, say
from lstlm.cores import usable_cores

EPILOGUE = """\b
Example:
  lstlm prepare demo --out data/demo
  lstlm prepare mine.txt --tokenise simple --lowercase --min-count 5 --out data/mine
  lstlm prepare news.txt.gz 'more/*.txt' --valid held-out.txt --out data/news
  lstlm prepare 1b --download --out data/1b     # a vocabulary of 793,471 words
  zcat dump.gz | lstlm prepare - --min-count 5 --out data/dump
"""
PHASES = {"read": ("B", "reading and counting"), "encode": (" ids", "encoding")}


@click.command("prepare", epilog=EPILOGUE)
@option("--source", "sources", multiple=True, metavar="1b|demo|PATH",
        help="The same as TEXT, for scripts; repeatable.")  # fmt: skip
@click.argument("more_sources", nargs=-1, metavar="[TEXT]...")
@option("--out", type=PATH, required=True, help="Folder to write; must be new or empty.")
@option("--min-count", type=FROM_1, help="Leave out rarer words.  [1b: 3, demo: 5, else 1]")
@option("--max-vocab", type=int, help="Keep the commonest; counts the specials <unk> <s> </s> too.")
@option("--lowercase", is_flag=True, help="Lower-case the text (the demo always is).")
@option("--tokenise", type=click.Choice(["none", "simple"]), default="none",
        help="simple: cut raw English text; none: words stand between blanks.")  # fmt: skip
@option("--workers", type=FROM_1, help="Processes that encode; at most one a core.  [all cores]")
@option("--valid", multiple=True, metavar="PATH", help="Validation text: a file, folder or glob; repeatable.")
@option("--valid-fraction", type=float, help="Share of sentences kept for validation, if no --valid.  [0.01]")
@option("--archive", type=PATH, help="The One Billion Word .tar.gz or its extracted folder.")
@option("--download", is_flag=True, help="Fetch the One Billion Word archive into --data-folder if it is absent.")
@option("--data-folder", type=PATH, default="data", help="Where archives are kept.")
@option("--max-bytes", type=FROM_1, help="Refuse what unpacks to more.  [64 GiB]")
@option("--strict", is_flag=True, help="Refuse invalid UTF-8 instead of replacing it.")
@option("--force", is_flag=True, help="Replace --out if it is there.")
@json_option
def command(out: Path, sources: tuple[str, ...], more_sources: tuple[str, ...], as_json: bool, **given: Any) -> None:
    """Turn text into training data: a vocabulary, memory-mapped ids and a manifest with hashes.

    TEXT is a file (plain, .gz, .bz2, .xz), a folder, a glob, - for the standard input, demo, or 1b (the One Billion
    Word benchmark, which the path of its .tar.gz names too). It has one sentence a line, unless --tokenise simple cuts
    it. The folder appears under its name only when it is whole.
    """
    from lstlm.data.inputs import MAX_BYTES
    from lstlm.data.prepare import check_target, prepare
    from lstlm.data.sources import open_source
    from lstlm.errors import ConfigError

    if given["valid"] and given["valid_fraction"] is not None:
        raise ConfigError("--valid and --valid-fraction: give one or the other")
    names = (*sources, *more_sources)
    if not names:
        raise ConfigError(
            "no text: name files or folders of text, or demo, e.g. lstlm prepare mine.txt --out data/mine"
        )
    options = _options(given)
    check_target(out, given["force"])  # now, before a download of hours
    source = open_source(
        names,
        valid=given["valid"],
        archive=given["archive"],
        download=given["download"],
        data_folder=given["data_folder"],
        max_bytes=given["max_bytes"] or MAX_BYTES,
    )
    if options.min_count is None:
        options = replace(options, min_count={"1b": 3, "demo": 5}.get(source.name, 1))
    with Bars(PHASES) as bars:
        summary = prepare(source, out, options, force=given["force"], progress=bars)
    for note in (*summary["source"]["notes"], *_hints(summary, given["min_count"])):
        say(f"note: {note}")
    if as_json:
        print_json({"out": str(out), **summary})
    else:
        _print_summary(out, summary)


def _options(given: dict[str, Any]) -> Any:
    from lstlm.data.prepare import PrepareOptions
    from lstlm.data.tokenise import TextOptions

    return PrepareOptions(
        min_count=given["min_count"],
        max_vocab=given["max_vocab"],
        workers=min(given["workers"] or usable_cores(), usable_cores()),
        valid_fraction=0.01 if given["valid_fraction"] is None else given["valid_fraction"],
        text=TextOptions(given["lowercase"], given["tokenise"], given["strict"]),
    )


def _hints(summary: dict[str, Any], min_count: int | None) -> Iterator[str]:
    """Yield what would probably make a better corpus, where the person has not decided otherwise."""
    once, size = summary["vocabulary"]["seen_once"], summary["vocabulary"]["size"]
    if min_count is None and once > size / 2:
        yield f"{once:,} of {size:,} words were seen once, and nothing is learnt of them: try --min-count 5"


FOUND = {
    "invalid_utf8": "invalid UTF-8 sequences, replaced by U+FFFD",
    "nul_bytes": "NUL bytes, taken as spaces",
    "too_long_words": "words of more than 255 bytes, encoded as <unk>",
    "reserved_words": "words spelled like <unk>, <s> or </s>, encoded as <unk>",
}


def _print_summary(out: Path, summary: dict[str, Any]) -> None:
    from lstlm.data.vocabulary import SPECIALS

    vocabulary, train = summary["vocabulary"], summary["splits"]["train"]
    min_count = summary["settings"]["min_count"]
    often = f" (seen at least {min_count} times)" if min_count > 1 else ""
    words = vocabulary["size"] - len(SPECIALS)
    rows = [
        ("corpus", str(out)),
        ("vocabulary", f"{vocabulary['size']:,}: {words:,} of {vocabulary['types']:,} types{often}, and 3 specials"),
        ("coverage", f"{100 * (1 - train['oov_rate']):.2f} % of training words"),
    ]
    for name, part in summary["splits"].items():
        counts = f"{part['words']:,} words, {part['sentences']:,} sentences"
        rows.append((name, f"{counts}, {100 * part['oov_rate']:.2f} % outside the vocabulary"))
    seconds = summary["seconds"]
    steps = ", ".join(f"{name} {seconds[name]:.1f}" for name in ("read", "merge", "encode"))
    rows.append(("time", f"{seconds['all']:.1f} s ({steps}), {summary['words_per_s'] / 1e6:.2f} M words/s"))
    for key, count in summary["found"].items():
        if count:
            rows.append(("note", f"{count:,} {FOUND[key]}"))
    if not summary["splits"]["valid"]["words"]:
        rows.append(("note", "no validation text: give --valid or a larger --valid-fraction"))
    print_table(rows)
