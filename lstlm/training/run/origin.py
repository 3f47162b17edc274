"""What a run remembers of its corpus, in RUN/corpus.json: where it was, how its text was prepared.  No torch here."""

from dataclasses import dataclass, field
from pathlib import Path

from lstlm.data.corpus import Corpus
from lstlm.data.tokenise import TextOptions
from lstlm.errors import CheckpointError
from lstlm.files import write_json
from lstlm.sealed import read_document

ORIGIN = "corpus.json"


@dataclass(frozen=True)
class Origin:
    """`folder` is absolute, None in runs of before; `unknown_share` the larger one of training and validation."""

    folder: Path | None = None
    text: TextOptions = field(default_factory=TextOptions)
    unknown_share: float = 0.0


def write_origin(run: Path, corpus: Corpus) -> None:
    """Write down the corpus that a run is trained on."""
    facts = {
        "folder": str(corpus.folder.resolve()),
        "source": corpus.manifest["source"]["name"],
        "tokenise": corpus.text.tokenise,
        "lowercase": corpus.text.lowercase,
        "unknown_share": max(corpus.train.unknown_share, corpus.valid.unknown_share),
    }
    write_json(run / ORIGIN, facts)


def read_origin(run: Path) -> Origin:
    """Return what `write_origin` wrote; nothing is known of the corpus of a run without the file."""
    path = run / ORIGIN
    try:
        facts = read_document(path)
        text = TextOptions(lowercase=bool(facts["lowercase"]), tokenise=str(facts["tokenise"]))
        return Origin(Path(facts["folder"]), text, float(facts["unknown_share"]))
    except FileNotFoundError:
        return Origin()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error!r}); remove it to go on without") from None


def find_corpus(data_dir: str, run: Path) -> Path:
    """Return the folder of a run's corpus: data.dir, else where it was when the run was trained."""
    folder, remembered = Path(data_dir), read_origin(run).folder
    return remembered if not folder.is_dir() and remembered is not None and remembered.is_dir() else folder
