"""Which text: the One Billion Word benchmark, the demo, or files and folders of one's own."""

import glob
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, cast

from lstlm.data.demo import DemoSource
from lstlm.data.inputs import MAX_BYTES, FileSource, HashingReader, OnBytes, TextInput, TextReader, TextSource
from lstlm.data.onebillion import open_one_billion, recognise
from lstlm.errors import ConfigError, DataError


@dataclass
class SentenceSource(TextSource):
    """Sentences of a Python program, read once: each a text, or a sequence of words."""

    sentences: Iterable[str | Sequence[str]]
    name: str = field(default="sentences", kw_only=True)

    def inputs(self, on_bytes: OnBytes) -> Iterator[TextInput]:
        raw = HashingReader(cast(IO[bytes], TextReader(self._lines())), on_bytes)
        yield TextInput(self.name, "train", raw)
        self.records.append({"name": self.name, "part": "train", "bytes": raw.size, "sha256": raw.sha256})

    def _lines(self) -> Iterator[str]:
        for number, sentence in enumerate(self.sentences, 1):
            words = [sentence] if isinstance(sentence, str) else sentence
            if not (isinstance(words, Sequence) and all(isinstance(word, str) for word in words)):
                raise DataError(f"sentence {number}: a text or a sequence of words is needed, not {sentence!r:.60}")
            yield " ".join(words).replace("\n", " ") + "\n"  # one line a sentence


def open_source(
    sources: Sequence[str],
    *,
    valid: Sequence[str] = (),
    archive: Path | None = None,
    download: bool = False,
    data_folder: Path = Path("data"),
    max_bytes: int = MAX_BYTES,
) -> TextSource:
    """Return the text source that `--source` names: `1b`, `demo`, or paths (files, folders, globs, `-`)."""
    special = [name for name in sources if name in ("1b", "demo")]
    if not sources:
        raise ConfigError("--source: name one of 1b, demo, or a file or folder of text")
    if special and len(sources) > 1:
        raise ConfigError(f"--source {special[0]}: cannot be mixed with other sources")
    if sources[0] != "1b" and (archive is not None or download):
        raise ConfigError("--archive and --download belong to --source 1b")
    if special and valid:
        raise ConfigError(f"--valid: --source {special[0]} has validation text of its own")
    if sources[0] == "1b":
        return open_one_billion(archive, download=download, data_folder=data_folder, max_bytes=max_bytes)
    if sources[0] == "demo":
        return DemoSource()
    if len(sources) == 1 and (benchmark := recognise(sources[0], max_bytes)):
        if valid:
            raise ConfigError(f"--valid: {sources[0]} is the One Billion Word benchmark and has validation text")
        return benchmark
    train = expand_paths(sources)
    held_out = expand_paths(valid, "--valid ")
    if train.count("-") + held_out.count("-") > 1:
        raise ConfigError("--source -: the standard input can be read once only")
    both = {Path(path).resolve() for path in train} & {Path(path).resolve() for path in held_out}
    if both:
        raise ConfigError(f"--valid {min(both)}: is training text too; name other files, or use --valid-fraction")
    files = [(path, "train") for path in train] + [(path, "valid") for path in held_out]
    return FileSource(name=" ".join(sources), files=files, max_bytes=max_bytes)


def expand_paths(names: Sequence[str], option: str = "") -> list[str]:
    """Return the files that paths, folders (all below, but hidden ones) and globs stand for, each sorted."""
    files: list[str] = []
    for name in names:
        if not name:
            raise ConfigError(f"{option}'': an empty name; name a file, a folder or a glob")
        path = Path(name)
        if name == "-" or path.is_file() or path.is_fifo():
            found = [name]
        elif path.is_dir():
            found = [str(file) for file in sorted(path.rglob("*")) if file.is_file() and not _hidden(file, path)]
        else:
            found = sorted(match for match in glob.glob(name, recursive=True) if Path(match).is_file())
        if not found:
            what = "the folder holds no files" if path.is_dir() else "no such file, folder or match"
            raise DataError(f"{option}{name}: {what}; name text files (plain, .gz, .bz2, .xz), a folder or a glob")
        files += found
    if repeated := [file for file, times in Counter(files).items() if times > 1 and file != "-"]:
        raise ConfigError(f"{option}{min(repeated)}: named twice")
    return files


def _hidden(file: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(root).parts)
