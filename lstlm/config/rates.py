"""The learning rate of the output layer where the configuration leaves it open (`optim.output_lr` null)."""

from dataclasses import replace

from lstlm.config.rules import broken_rules
from lstlm.config.schema import Config, OutputConfig
from lstlm.errors import ConfigError

# An update shrinks W by I − 2η Hᵀdiag(dq)H, and of these losses dq goes as 1/D: the largest stable rate grows with the
# vocabulary. The rate a word, and the most that was of use; docs/quality.md has the trials.
_PER_WORD = {"z": (1 / 200, 100.0), "taylor": (1 / 200, 100.0), "spherical": (1 / 200, 1.0)}
_FIXED = {"squared": 0.01}
_BASELINES = {"softmax": 1.0, "hierarchical": 1.0, "adaptive": 1.0, "sampled": 1.0}


def output_rate(output: OutputConfig, vocab: int) -> float:
    """Return a rate that suits the kind, the loss and a vocabulary of `vocab` words."""
    if output.kind in _BASELINES:
        return _BASELINES[output.kind]
    if output.loss in _FIXED:
        return _FIXED[output.loss]
    per_word, most = _PER_WORD[output.loss]
    return min(per_word * vocab, most)


def with_rates(config: Config, vocab: int) -> Config:
    """Return the configuration with every rate a number, for a vocabulary of `vocab` words."""
    if config.optim.output_lr is not None:
        return config
    chosen = replace(config, optim=replace(config.optim, output_lr=output_rate(config.output, vocab)))
    if wrong := [f"{key}: {message}" for key, message in broken_rules(chosen, set())]:
        raise ConfigError("\n".join(wrong))
    return chosen
