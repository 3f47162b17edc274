"""TensorBoard: scalars, settings and the projector of one run, all in the run's own folder."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.summary_pb2 import Summary
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

_HPARAM_METRICS = ("eval/loss", "eval/perplexity", "eval/top1", "eval/top10", "eval/simlex_spearman")
_PHASES = ("data", "hidden_forward", "output", "backward", "update", "stabilise", "trainer")
# Runs with other minibatches compare by the words that they have seen: these figures are logged against words, too.
_BY_WORDS = {
    "loss/train": "by_words/loss_train",
    "eval/loss": "by_words/loss",
    "eval/perplexity": "by_words/perplexity",
    "eval/top10": "by_words/top10",
    "eval/simlex_spearman": "by_words/simlex",
}
_WORDS = ("progress/words", "eval/words")  # the words seen, in lines of training and of evaluation
_NO_CARD = ("eval/simlex_pairs", "eval/words")  # for metrics.jsonl: one number for the whole run, and an axis
_LAYOUT = {
    "Learning": {
        "Loss": ["Multiline", ["loss/train", "eval/loss"]],
        "Perplexity": ["Multiline", ["eval/perplexity"]],
        "Hits": ["Multiline", ["eval/top1", "eval/top10"]],
        "SimLex-999": ["Multiline", ["eval/simlex_spearman"]],
    },
    "Against words seen": {
        "Loss": ["Multiline", ["by_words/loss_train", "by_words/loss"]],
        "Perplexity": ["Multiline", ["by_words/perplexity"]],
        "Hits among ten": ["Multiline", ["by_words/top10"]],
        "SimLex-999": ["Multiline", ["by_words/simlex"]],
    },
    "Time": {
        "Milliseconds a step": ["Multiline", [f"time/{phase}" for phase in _PHASES]],
        "Words a second": ["Multiline", ["throughput/words_per_s"]],
    },
    "Output layer": {
        "Singular values of U": ["Multiline", ["lst/sigma_min", "lst/sigma_max"]],
        "Errors": ["Multiline", ["lst/inverse_error", "lst/q_error_sampled"]],
        "Norms": ["Multiline", ["lst/weight_norm", "lst/grad_norm"]],
    },
}


def _hparams(settings: dict[str, Any], metrics: dict[str, float]) -> tuple[Any, Any, Any]:
    """Return the summaries (experiment, session start, session end) of the hparams plugin."""
    summaries: tuple[Any, Any, Any] = hparams(settings, metrics)  # type: ignore[no-untyped-call]
    return summaries


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Turn nested settings into {"model.hidden": "[300, 300]", "train.seed": 1, …}, leaving out what is None."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        elif value is not None:
            flat[f"{prefix}{key}"] = value if isinstance(value, bool | int | float | str) else str(value)
    return flat


def _wait_for_a_later_name(folder: Path) -> None:
    """Wait, for a second at most, until the name of a new event file comes after those that are there.

    TensorBoard reads files in the order of their names. These begin with the second, and go on with host, process and
    number, so of two begun in one second either may come first: what is purged would then be the later one.
    """
    seconds = [name.split(".")[3] for name in (path.name for path in folder.glob("events.out.tfevents.*"))]
    ahead = max((int(second) + 1 - time.time() for second in seconds if second.isdecimal()), default=0.0)
    if 0 < ahead <= 1:  # more: the clock was put back
        time.sleep(ahead)


class Board:
    """One event file. On resume `purge_step` hides what an earlier process logged beyond the step resumed from."""

    def __init__(self, folder: Path, *, purge_step: int) -> None:
        _wait_for_a_later_name(folder)
        self._writer = SummaryWriter(str(folder), purge_step=purge_step, max_queue=1000, flush_secs=15)

    def scalars(self, step: int, values: Mapping[str, Any]) -> None:
        """Write all numbers as one event: one record to encode and queue, not twenty; some against words as well."""
        self._numbers(step, {tag: value for tag, value in values.items() if tag not in _NO_CARD})
        self.by_words(values)

    def by_words(self, values: Mapping[str, Any]) -> None:
        """Write the figures that compare runs with the words seen in the place of the step."""
        found = {tag: values[name] for name, tag in _BY_WORDS.items() if name in values}
        words = next((values[name] for name in _WORDS if name in values), None)
        if found and words is not None:
            self._numbers(int(words), found)

    def _numbers(self, step: int, values: Mapping[str, Any]) -> None:
        pairs = [(tag, value) for tag, value in values.items() if isinstance(value, int | float)]
        self._add(Summary(value=[Summary.Value(tag=tag, simple_value=float(value)) for tag, value in pairs]), step)

    def settings(self, settings: Mapping[str, Any], text: str) -> None:
        """Write the hyper-parameters, the configuration as text, and the layout of the custom scalars.

        The three summaries of the hparams plugin go into this writer. `add_hparams` would open a writer in a
        sub-folder, and TensorBoard would show that as a second run.
        """
        experiment, start, _ = _hparams(flatten(settings), dict.fromkeys(_HPARAM_METRICS, 0.0))
        self._add(experiment, 0)
        self._add(start, 0)
        self._writer.add_text("config", "```yaml\n" + text + "\n```", 0)
        self._writer.add_custom_scalars(_LAYOUT)
        self.flush()

    def finish(self, step: int) -> None:
        """Mark the session as done for the hparams plugin."""
        self._add(_hparams({}, {})[2], step)

    def flush(self) -> None:
        """Hand all queued events to the system."""
        self._writer.flush()

    def close(self) -> None:
        """Flush and close."""
        self._writer.close()

    def _add(self, summary: Any, step: int) -> None:
        self._writer._get_file_writer().add_summary(summary, step)  # type: ignore[no-untyped-call]
