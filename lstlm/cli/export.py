"""``lstlm export``: word vectors as files that other tools open."""

from pathlib import Path

import click

from lstlm.cli.bars import Bars
from lstlm.cli.common import FROM_1, PATH, check_out, json_option, option, print_json, say
from lstlm.cli.loading import open_vectors, source_argument, vocab_option, which_option
from lstlm.errors import DataError

EPILOGUE = """\b
Example:
  lstlm export runs/demo --format word2vec --out demo.txt
  lstlm export runs/demo --format projector --out projector/ --limit 10000
  lstlm export glove.6B.300d.txt --format npy --out glove.npy

\b
Then:
  gensim.models.KeyedVectors.load_word2vec_format("demo.txt")  # -bin: binary=True
  tensorboard --logdir projector/
"""


@click.command("export", epilog=EPILOGUE)
@source_argument(metavar="RUN")
@option(
    "--format",
    "form",
    required=True,
    type=click.Choice(["word2vec", "word2vec-bin", "npy", "projector", "safetensors"]),
    help="npy and safetensors put the words beside, in NAME.vocab.tsv; projector makes a folder.",
)
@option("--out", "target", required=True, type=PATH, help="The file or folder to write.")
@which_option
@option("--limit", type=FROM_1, help="Only the first, most frequent, so many words.")
@option("--oov", type=PATH, metavar="FILE",
        help="Words, one a line: those without a vector get one by their spelling, after all others.")  # fmt: skip
@option("--force", is_flag=True, help="Write over what is there.")
@vocab_option
@json_option
def command(
    source: Path,
    form: str,
    target: Path,
    which: str | None,
    limit: int | None,
    oov: Path | None,
    force: bool,
    vocabulary: Path | None,
    as_json: bool,
) -> None:
    """Write the word vectors of RUN (a run, a checkpoint or any vector file) in another format.

    Numbers read back as the very same float32, bit for bit. Words whose vector is all zeros are left out: there is
    nothing to compare them by. word2vec files whose name ends with .gz are compressed.
    """
    from lstlm.vectors import Vectors
    from lstlm.vectors.writers import WRITERS, outputs

    for path in outputs(form, target):
        check_out(path, force)
    everything = open_vectors(source, which, vocabulary=vocabulary)
    vectors = everything.without_empty()
    left_out = len(everything) - len(vectors)
    if not len(vectors):
        raise DataError(f"{source}: all {left_out} vectors are zero; nothing to write")
    if limit is not None:
        counts = None if vectors.counts is None else vectors.counts[:limit]
        vectors = Vectors(vectors.words[:limit], vectors.matrix[:limit], counts)
    if oov is not None:
        known, vectors = vectors, vectors.with_words(_read_words(oov), "exact")
        say(f"{len(vectors) - len(known)} words of {oov} have no vector and get one by their spelling")
    with Bars({"write": (" words", "writing")}) as bars:
        written = WRITERS[form](vectors, target, lambda rows: bars("write", rows, len(vectors)))
    if as_json:
        files = [str(path) for path in written]
        print_json({"format": form, "words": len(vectors), "dim": vectors.dim, "left_out": left_out, "files": files})
        return
    for path in written:
        click.echo(str(path))
    empty = f"; {left_out} words without a vector left out" if left_out else ""
    say(f"{len(vectors)} vectors of length {vectors.dim}{empty}")


def _read_words(path: Path) -> list[str]:
    """Return the words of a list, one a line; what follows a tab or a blank (a count) is ignored."""
    from lstlm.vectors.readers import decode_word, open_bytes

    with open_bytes(path) as stream:
        lines = [(number, line.split()) for number, line in enumerate(stream, 1)]
    return [decode_word(fields[0], path, f"line {number}") for number, fields in lines if fields]
