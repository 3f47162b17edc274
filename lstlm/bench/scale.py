"""`lstlm bench scale`: the size of the One Billion Word benchmark, rehearsed on text that is made up.

Text → `prepare` → minutes of `train` for each configuration → `train --resume`, each in a process of its own, as a
person would start it. What it makes is removed at the end.
"""

import json
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from lstlm.bench.made_up import text_blocks
from lstlm.bench.records import Column, Record, table, value_of
from lstlm.bench.watched import Watched, watch
from lstlm.config import load_config
from lstlm.data.vocabulary import SPECIALS
from lstlm.errors import ConfigError, LstlmError
from lstlm.training.run.checkpoint import open_checkpoint
from lstlm.training.run.folders import CHECKPOINTS

WORDS, TYPES = 768_648_884, 793_471  # of the benchmark's training part; the vocabulary counts <unk>, <s> and </s>
CONFIGS = ("paper-z", "lm-shortlist")
HELD_OUT = 0.005
_BYTES_A_WORD = 13.5  # of text, of ids and of ids that are not final yet
_STEPS_RESUMED = 20
_FINISHED = "time/checkpoint_finished_s"
_TRAINING, _CPU = "progress/train_s", "progress/cpu_s"
_GIB = 2**30


@dataclass(frozen=True)
class Plan:
    """How much text, and for how long each configuration trains on it; `folder` None is a temporary one."""

    configs: Sequence[str] = CONFIGS
    overrides: Sequence[str] = ()
    words: int = WORDS
    types: int = TYPES
    minutes: float = 10.0
    threads: int = 1
    folder: Path | None = None
    keep: bool = False


def run(plan: Plan, say: Callable[[str], None]) -> list[Record]:
    """Make the text, prepare it, train and resume; a corpus that `keep` left in `folder` is taken as it is."""
    records: list[Record] = []
    for config in plan.configs:
        load_config(config, plan.overrides)  # now, and not when there is a text to train on
    with _room(plan) as folder:
        corpus = folder / "corpus"
        if corpus.is_dir():
            say(f"corpus from an earlier run: {corpus}")
        else:
            records.append(_prepare(plan, folder, corpus, say))
        failures = []
        for config in plan.configs:
            try:
                records.append(_train(plan, config, corpus, folder / "run", say))
            except LstlmError as error:  # what the others took minutes to measure is not lost with it
                failures.append(error)
                say(f"{config}: {error}")
        if len(failures) == len(plan.configs):
            raise failures[-1]
        if plan.keep:
            say(f"kept: {corpus}")
    return records


@contextmanager
def _room(plan: Plan) -> Iterator[Path]:
    """Yield a folder with room enough, and remove at the end what was made in it."""
    folder = Path(tempfile.mkdtemp(prefix="lstlm-scale-")) if plan.folder is None else plan.folder
    existed = folder.is_dir() and plan.folder is not None
    found = {path.name for path in folder.iterdir()} if existed else set()
    if found - {"corpus"}:
        raise ConfigError(f"--dir {folder}: holds {min(found)!r}; name a new folder, or one that --keep left")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--dir {folder}: cannot be made ({error.strerror}); choose another folder") from None
    try:
        needed = 0 if found else plan.words * _BYTES_A_WORD
        if (free := shutil.disk_usage(folder).free) < needed:
            raise LstlmError(
                f"{folder}: {free / _GIB:.1f} GiB free, {needed / _GIB:.1f} are needed for {plan.words:,} words; "
                "name another folder with --dir, or fewer --words"
            )
        yield folder
    finally:
        made = {"train.txt", "valid.txt", "run"} | (set() if plan.keep else {"corpus"} - found)
        for path in [folder / name for name in made]:
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        if not existed and not plan.keep:
            folder.rmdir()


def _prepare(plan: Plan, folder: Path, corpus: Path, say: Callable[[str], None]) -> Record:
    """Make the text and prepare it; the text is removed as soon as it has become ids."""
    say(f"making {plan.words:,} words of {plan.types:,} types in {folder}")
    began, types = perf_counter(), plan.types - len(SPECIALS)
    size = 0
    for name, words, every in (("train", plan.words, True), ("valid", max(1000, int(HELD_OUT * plan.words)), False)):
        with (folder / f"{name}.txt").open("wb") as file:
            for block in text_blocks(words, types, seed=len(name) + every, every_type=every):
                size += file.write(block)
    made = perf_counter() - began
    say(f"made {size / 1e9:.2f} GB in {made:.0f} s; preparing")
    text = ["--source", str(folder / "train.txt"), "--valid", str(folder / "valid.txt")]
    watched = watch(["prepare", *text, "--out", str(corpus), "--workers", str(plan.threads), "--json"])
    for name in ("train", "valid"):
        (folder / f"{name}.txt").unlink()
    summary = json.loads(watched.stdout)
    record = {
        "what": "prepare",
        "words": sum(part["words"] for part in summary["splits"].values()),
        "D": summary["vocabulary"]["size"],
        "text_bytes": size,
        "made_s": made,
        "workers": plan.threads,
        "seconds": watched.seconds,
        "words_per_s": summary["words_per_s"],
        **_peak(watched),
    }
    say(f"prepared {record['words']:,} words, D = {record['D']:,}, in {watched.seconds:.0f} s")
    return record


def _peak(watched: Watched) -> dict[str, int | None]:
    """Return the bytes in memory when they were most."""
    own, mapped = (None, None) if watched.peak is None else watched.peak
    return {"own_bytes": own, "mapped_bytes": mapped}


def _train(plan: Plan, config: str, corpus: Path, folder: Path, say: Callable[[str], None]) -> Record:
    """Train for the minutes of the plan, resume for some steps, and return what was seen."""
    shutil.rmtree(folder, ignore_errors=True)
    say(f"training {config} for {plan.minutes:g} minutes on {plan.threads} thread(s)")
    log = folder / "metrics.jsonl"
    budget = {"max_minutes": plan.minutes, "max_epochs": "null", "keep_checkpoints": 1}
    command = _command(plan, config, corpus, folder, budget)
    trained = watch(command, lambda: _steps_logged(log) > 0)
    entries = _entries(log)
    last = open_checkpoint((folder / CHECKPOINTS / "last").resolve())
    size = sum(record["bytes"] for record in last.manifest["files"].values())
    few = {"max_minutes": "null", "max_steps": last.step + _STEPS_RESUMED, "log_every": 1, "eval_every": 10**9}
    resumed = watch(
        [*_command(plan, config, corpus, folder, {**budget, **few}), "--resume", "auto"],
        lambda: _steps_logged(log) > last.step,
    )
    record = {
        "what": "train",
        "label": Path(config).stem,
        "threads": plan.threads,
        **figures(entries),
        **_peak(trained),
        "checkpoint_bytes": size,
        "start_s": trained.until_s,
        "resume_s": resumed.until_s,
        "resume_cpu_s": next((e[_CPU] for e in _entries(log) if e["step"] > last.step and _CPU in e), None),
    }
    say(f"{config}: {record['words_per_s']:,.0f} words/s, an epoch in {record['epoch_hours']:.1f} hours")
    return record


def _command(plan: Plan, config: str, corpus: Path, folder: Path, settings: dict[str, Any]) -> list[str]:
    given = [
        f"data.dir={corpus}",
        "train.max_steps=null",
        *plan.overrides,
    ]  # minutes end it, or steps if they are given
    given += [f"train.{key}={value}" for key, value in settings.items()]
    sets = [part for setting in given for part in ("--set", setting)]
    return ["train", "--config", config, "--run", str(folder), "--threads", str(plan.threads), *sets]


def _entries(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's metrics, those of them that are whole."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _steps_logged(path: Path) -> int:
    """Return the last step that a run has logged; 0 where there is none yet."""
    return next((int(entry["step"]) for entry in reversed(_entries(path)) if _TRAINING in entry), 0)


def figures(entries: Sequence[dict[str, Any]]) -> Record:
    """Return what a run's metrics tell: rates, seconds of evaluations, and how long checkpoints held training up.

    `words_per_s` counts everything, evaluations and checkpoints too; the rates of the first and the last minute
    (the first and last third of a shorter run) count the steps between. On a machine that others use too, those by the
    process's own CPU seconds, all its threads counted, say more.
    """
    logged = [entry for entry in entries if _TRAINING in entry]
    if len(logged) < 2:
        raise LstlmError("too few steps to measure: give more --minutes, or a smaller train.log_every with --set")
    begin, end = logged[0], logged[-1]
    window = min(60.0, end[_TRAINING] / 3)
    early = sum(e[_TRAINING] <= begin[_TRAINING] + window for e in logged)
    late = sum(e[_TRAINING] >= end[_TRAINING] - window for e in logged)
    first, last = logged[: max(2, early)], logged[-max(2, late) :]  # a slow machine may log one line a minute
    epoch_words = end["progress/words"] / end["progress/epoch"]
    words_per_s = end["progress/words"] / end["progress/elapsed_s"]
    halts = [entry["time/checkpoint_s"] for entry in entries if "time/checkpoint_s" in entry]
    return {
        "steps": end["step"],
        "minutes": end["progress/elapsed_s"] / 60,
        "words_per_s": words_per_s,
        "words_per_s_first": _rate(first),
        "words_per_s_last": _rate(last),
        "words_per_cpu_s_first": _rate(first, _CPU),
        "words_per_cpu_s_last": _rate(last, _CPU),
        "epoch_words": round(epoch_words),
        "epoch_hours": epoch_words / words_per_s / 3600,
        "epoch_cpu_hours": epoch_words / _rate(logged, _CPU) / 3600,
        "eval_s": _median([entry["time/eval_s"] for entry in entries if "time/eval_s" in entry]),
        "checkpoints": len(halts),
        "halt_first_s": halts[0],
        "halt_s": _median(halts[1:]),
        "halt_longest_s": max(halts[1:], default=None),
        "background_s": _median([e[_FINISHED] for e in entries if _FINISHED in e]),
    }


def _rate(logged: Sequence[dict[str, Any]], clock: str = _TRAINING) -> float:
    """Return the words a second between the first and the last line, by the clock of training or of the processor."""
    first, last = logged[0], logged[-1]
    seconds = last[clock] - first[clock]
    return float((last["progress/words"] - first["progress/words"]) / seconds)


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _gib(*names: str) -> Callable[[Record], str | None]:
    """Return the sum of counts of bytes as text in GiB."""

    def text(record: Record) -> str | None:
        found = [record[name] for name in names]
        return None if None in found else f"{sum(found) / _GIB:.2f}"

    return text


def markdown(records: Sequence[Record]) -> str:
    """Return two tables: of `prepare`, and of the models, one a column, since what is asked of each is long."""
    prepared: list[Column] = [
        ("words", "words"),
        ("D", "D"),
        ("text GB", lambda r: f"{r['text_bytes'] / 1e9:.2f}"),
        ("processes", "workers"),
        ("prepare s", "seconds"),
        ("words/s", "words_per_s"),
        ("peak GiB", _gib("own_bytes")),
    ]
    questions: list[Column] = [
        ("threads", "threads"),
        ("minutes", "minutes"),
        ("steps", "steps"),
        ("words/s, everything counted", "words_per_s"),
        ("words/s of steps, first minute", "words_per_s_first"),
        ("words/s of steps, last minute", "words_per_s_last"),
        ("words a CPU second, first minute", "words_per_cpu_s_first"),
        ("words a CPU second, last minute", "words_per_cpu_s_last"),
        ("hours an epoch", "epoch_hours"),
        ("CPU hours an epoch", "epoch_cpu_hours"),
        ("memory at its peak, GiB", _gib("own_bytes")),
        ("… with mapped files", _gib("own_bytes", "mapped_bytes")),
        ("checkpoint, GiB", _gib("checkpoint_bytes")),
        ("training stands still for one, s", "halt_s"),
        ("… for the longest", "halt_longest_s"),
        ("… for the first", "halt_first_s"),
        ("finished in the background, s", "background_s"),
        ("an evaluation, s", "eval_s"),
        ("start to first step, s", "start_s"),
        ("resume to first step, s", "resume_s"),
        ("… in CPU seconds", "resume_cpu_s"),
    ]
    parts = [table([record], prepared) for record in records if record["what"] == "prepare"]
    if trained := [record for record in records if record["what"] == "train"]:
        rows = [
            {"": column[0], **{str(n): value_of(record, column) for n, record in enumerate(trained)}}
            for column in questions
        ]
        names = {"": "", **{str(n): record["label"] for n, record in enumerate(trained)}}
        parts.append(table(rows, [(name, key) for key, name in names.items()]))
    return "\n\n".join(parts)
