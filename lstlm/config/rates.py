"""The learning rate of the output layer where the configuration leaves it open (`optim.output_lr` null)."""

from dataclasses import replace

from lstlm.config.rules import broken_rules
from lstlm.config.schema import Config
from lstlm.errors import ConfigError
from lstlm.registry import LOSSES, OUTPUTS


def output_rate(config: Config, vocab: int) -> float:
    """Return a rate that suits the output layer, its loss, its inputs and a vocabulary of `vocab` words."""
    kind, loss = OUTPUTS[config.output.kind], LOSSES[config.output.loss]
    if (config.optim.output or kind.optimiser) == "adagrad" and kind.adagrad_rate is not None:
        return kind.adagrad_rate
    if kind.spherical and config.output.prior != "none" and loss.prior_rate is not None:
        return loss.prior_rate
    return (kind.rate or loss.rate)(vocab, config.width)


def with_rates(config: Config, vocab: int) -> Config:
    """Return the configuration with every rate a number, for a vocabulary of `vocab` words."""
    if config.optim.output_lr is not None:
        return config
    chosen = replace(config, optim=replace(config.optim, output_lr=output_rate(config, vocab)))
    if wrong := [f"{key}: {message}" for key, message in broken_rules(chosen, set())]:
        raise ConfigError("\n".join(wrong))
    return chosen
