"""`lstlm bench learning`: scores against training time, for configurations and for gensim, on one prepared corpus."""

import json
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch

from lstlm.bench import reach
from lstlm.bench.records import Column, Record, table
from lstlm.config import Config, load_config
from lstlm.data import Corpus
from lstlm.errors import ConfigError
from lstlm.nn.network import Network
from lstlm.sealed import finite_or_none, read_document
from lstlm.training.loop.dryrun import dry_run
from lstlm.training.loop.validate import WordPairs
from lstlm.training.run.session import Options, train

METRICS = "metrics.jsonl"
PEERS = ("gensim-sg", "gensim-cbow")
SCORES = ("simlex", "simlex_output", "wordsim", "wordsim_output", "top10", "perplexity", "loss_value")


@dataclass(frozen=True)
class Plan:
    """What to train: configurations and peers, each `seeds` times, for `seconds` or `steps` (peers: `epochs`)."""

    data: Path
    configs: Sequence[Path]
    overrides: Sequence[str] = ()
    peers: Sequence[str] = ()
    seconds: float = 60.0
    seeds: int = 1
    points: int = 8
    epochs: int = 5
    dimension: int = 300
    simlex: Path | None = None
    wordsim: Path | None = None
    cpu_time: bool = False
    steps: int | None = None
    first_seed: int = 1
    runs: Path | None = None  # where run folders stay, so that the same plan goes on where it was stopped

    @property
    def now(self) -> Callable[[], float]:
        """The clock: on the wall, or that of the process, which stands still while others have the processor."""
        return process_time if self.cpu_time else perf_counter


class WordScores(WordPairs):
    """SimLex-999 and WordSim-353; a file that is not there is not scored."""

    def of_words(self, index: Mapping[str, int], matrix: np.ndarray[Any, np.dtype[Any]]) -> dict[str, float]:
        """Return the scores of vectors (D,size) whose rows `index` names; words that it lacks are left out."""
        known = [word for word in self.words if word in index]
        found = self.score(known, torch.as_tensor(matrix[[index[word] for word in known]]))
        return {kind: result.spearman for kind, result in found.items()}

    def __call__(self, network: Network) -> dict[str, float]:
        """Return the scores of input and output vectors, as figures of an evaluation."""
        figures: dict[str, float] = {}
        for suffix, vectors in (("", network.input_vectors), ("_output", network.output_vectors)):
            for kind, result in self.score(self.words, vectors()[self.rows]).items():
                figures[f"bench/{kind}{suffix}"] = result.spearman
        return figures


def run(plan: Plan, say: Callable[[str], None]) -> list[Record]:
    """Train everything, seed by seed, so that noise of the machine hits all alike."""
    if not plan.configs and not plan.peers:
        raise ConfigError("nothing to train: give --config FILE, or --methods gensim-sg,gensim-cbow")
    configs = {path.stem: _configuration(plan, path) for path in plan.configs}
    if plan.peers:
        _need_gensim()
    corpus = Corpus.open(plan.data)
    scores = WordScores(corpus.vocabulary, {"simlex": plan.simlex, "wordsim": plan.wordsim})
    jobs = {label: partial(_train, plan, config, corpus, scores) for label, config in configs.items()}
    jobs |= {peer: partial(_train_peer, plan, corpus, scores) for peer in plan.peers}
    turns = list(product(range(plan.first_seed, plan.first_seed + plan.seeds), jobs))
    facts = {"corpus": corpus.folder.name, "D": len(corpus.vocabulary), "words": corpus.train.words}
    facts |= {"threads": torch.get_num_threads(), "clock": "cpu" if plan.cpu_time else "wall"}
    records: list[Record] = []
    for number, (seed, label) in enumerate(turns, 1):
        records += [{"label": label, "seed": seed, **facts, **point} for point in jobs[label](label, seed)]
        say(f"[{number}/{len(turns)}] {label}, seed {seed}: {_last(records)}")
    return [dict(finite_or_none(record)) for record in records]


def _configuration(plan: Plan, path: Path) -> Config:
    """Return a configuration that ends with the budget; one that is solved in passes keeps their number, too."""
    config = load_config(path, [*plan.overrides, f"data.dir={plan.data}"])
    passes = config.train.max_epochs if _in_passes(config) else None
    minutes = plan.seconds / 60 if plan.steps is None else None
    budget: dict[str, Any] = {"max_steps": plan.steps, "max_epochs": passes, "max_minutes": minutes}
    return replace(config, train=replace(config.train, **budget))


def _in_passes(config: Config) -> bool:
    return config.data.context_kind == "cooccurrence"


def _need_gensim() -> None:
    try:
        import gensim  # noqa: F401
    except ImportError:
        raise ConfigError(
            "--methods gensim-…: gensim is not installed; `pip install gensim`, or leave it out"
        ) from None


def _train_peer(plan: Plan, corpus: Corpus, scores: WordScores, peer: str, seed: int) -> list[Record]:
    """Train a model of gensim's and return a record for each epoch."""
    from lstlm.bench.peers import Peer, train_peer

    return train_peer(Peer(peer, plan.epochs, plan.dimension, seed, plan.now), corpus, scores.of_words)


def _train(plan: Plan, config: Config, corpus: Corpus, scores: WordScores, label: str, seed: int) -> list[Record]:
    """Train one configuration, or go on with it, and return a record for each evaluation."""
    with _folder(plan, f"{label}-{seed}") as folder:
        if not _is_done(plan, folder):
            paced = _paced(plan, config, corpus, folder)
            paced = replace(paced, train=replace(paced.train, seed=seed))
            how = Options(
                device=torch.device("cpu"),
                resume=None if plan.runs is None else "auto",
                quiet=True,
                scorer=scores,
                now=plan.now,
                aside_counts=False,
            )
            summary = train(paced, folder, how)
            if summary.signal is not None:
                raise SystemExit(128 + summary.signal)  # the others are not to be trained either
        points = curve((folder / METRICS).read_text(encoding="utf-8").splitlines())
    return [{"method": config.output.kind, "loss": config.output.loss, **point} for point in points]


@contextmanager
def _folder(plan: Plan, name: str) -> Iterator[Path]:
    """Yield the run's folder: one that stays, or one that does not."""
    if plan.runs is not None:
        yield plan.runs / name
        return
    with tempfile.TemporaryDirectory(prefix="lstlm-bench-") as folder:
        yield Path(folder) / "run"


def _is_done(plan: Plan, folder: Path) -> bool:
    """Say whether a run that was kept has trained as long as the plan wants."""
    if not (folder / "status.json").is_file() or read_document(folder / "status.json")["state"] != "finished":
        return False
    train = load_config(folder / "config.yaml").train
    if plan.steps is not None:
        return train.max_steps is not None and train.max_steps >= plan.steps
    return train.max_minutes is not None and 60 * train.max_minutes >= plan.seconds


def _paced(plan: Plan, config: Config, corpus: Corpus, folder: Path) -> Config:
    """Return the configuration with evaluations at the points of the plan; a run that goes on keeps its points."""
    pace: dict[str, Any] = {"log_every": 1, "eval_every": 1}  # every pass: they are few, and long
    if plan.steps is not None:
        log_every = max(1, plan.steps // plan.points // 4)
        pace = {"log_every": log_every, "eval_every": 4 * log_every}
    elif not _in_passes(config):
        step_ms = dry_run(config, corpus, torch.device("cpu"), plan.now).step_ms
        log_every = max(1, round(1e3 * plan.seconds / step_ms / plan.points / 4))
        pace = {"log_every": log_every, "eval_every": 4 * log_every}
    if (folder / "config.yaml").is_file():
        before = load_config(folder / "config.yaml").train
        pace |= {"log_every": before.log_every, "eval_every": before.eval_every}
    # Checkpoints are not what is measured: the best and the last, and where a run may go on, one an evaluation.
    pace |= {"checkpoint_every": 10**9 if plan.runs is None else pace["eval_every"], "keep_checkpoints": 1}
    return replace(config, train=replace(config.train, simlex=False, **pace))


def curve(lines: Iterable[str]) -> list[Record]:
    """Return one record for each evaluation in a run's metrics: scores, step, and the seconds of training before it.

    Time spent on evaluations and checkpoints does not count as training; between two log lines it is interpolated.
    """
    entries = [json.loads(line) for line in lines]
    clock = [(entry["step"], entry["progress/train_s"]) for entry in entries if "progress/train_s" in entry]
    steps, seconds = zip((0, 0.0), *clock, strict=True)
    names = {"eval/loss": "loss_value", "eval/top10": "top10", "eval/perplexity": "perplexity"}
    points = []
    for entry in entries:
        if "eval/loss" not in entry:
            continue
        found = {name: entry[key] for key, name in names.items() if key in entry}
        found |= {key.removeprefix("bench/"): value for key, value in entry.items() if key.startswith("bench/")}
        train_s = float(np.interp(entry["step"], steps, seconds))
        points.append({"step": entry["step"], "train_s": train_s, **found, "final": False})
    if points:
        points[-1]["final"] = True
    return points


def _last(records: Sequence[Record]) -> str:
    last = records[-1]
    shown = [f"{name} {last[name]:.3f}" for name in SCORES if last.get(name) is not None]
    return f"{last['train_s']:.0f} s of training, " + ", ".join(shown)


def summarise(records: Sequence[Record]) -> list[Record]:
    """Return the end of each label's runs: means over the seeds and, from two seeds on, standard deviations."""
    out = []
    for label in dict.fromkeys(record["label"] for record in records):
        ends = [record for record in records if record["label"] == label and record["final"]]
        row: Record = {"label": label, "seeds": len(ends), "D": ends[0]["D"] if ends else None}
        for name in ("train_s", *SCORES):
            values = [end[name] for end in ends if end.get(name) is not None]
            row[name] = statistics.fmean(values) if values else None
            row[f"{name}_sd"] = statistics.stdev(values) if len(values) > 1 else None
        out.append(row)
    return out


def markdown(records: Sequence[Record]) -> str:
    """Return the final scores as a table, mean ± standard deviation over the seeds; and who reached whose, and when."""

    def shown(name: str) -> Callable[[Record], str | None]:
        def text(row: Record) -> str | None:
            mean, spread = row[name], row[f"{name}_sd"]
            if mean is None:
                return None
            digits = 1 if abs(mean) >= 10 else 3
            return f"{mean:.{digits}f}" + ("" if spread is None else f" ± {spread:.{digits}f}")

        return text

    titles = {"train_s": "training s", "simlex": "SimLex", "simlex_output": "SimLex (output)", "wordsim": "WordSim"}
    titles |= {"wordsim_output": "WordSim (output)", "top10": "top-10", "perplexity": "perplexity"}
    columns: list[Column] = [("model", "label"), ("seeds", "seeds")]
    columns += [(title, shown(name)) for name, title in titles.items()]
    reached = reach.markdown(records)
    return table(summarise(records), columns) + (f"\n\n{reached}" if reached else "")
