"""What must hold between keys; each rule names the keys it reads, so that it is skipped when one of them is bad."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lstlm.config.schema import Config
from lstlm.registry import LOSSES, OUTPUTS


@dataclass(frozen=True)
class Rule:
    """``broken(config)`` returns what is wrong, or None; the message is reported at the first key."""

    keys: tuple[str, ...]
    broken: Callable[[Config], str | None]


def _has_an_end(config: Config) -> str | None:
    train = config.train
    if train.max_steps is None and train.max_epochs is None and train.max_minutes is None:
        return "null, and so are train.max_epochs and train.max_minutes: training would never end; set one of them"
    return None


def _warmup_ends(config: Config) -> str | None:
    warmup, steps = config.optim.warmup_steps, config.train.max_steps
    if steps is not None and warmup >= steps:
        return f"{warmup} must be below train.max_steps ({steps}); lower it"
    return None


def _range_is_ordered(config: Config) -> str | None:
    limits = config.output.stabilise_range
    if limits is not None and not limits[0] < limits[1]:
        return f"[{limits[0]}, {limits[1]}] must be [low, high] with low < high"
    return None


def _window_is_even(config: Config) -> str | None:
    data = config.data
    if data.context_kind != "previous" and data.context % 2:
        return f"{data.context} must be even for context_kind {data.context_kind}: half of it lies on each side"
    return None


def _unknown_words_are_shown(config: Config) -> str | None:
    data = config.data
    if data.unknown and data.context_kind not in ("previous", "window"):
        return f"{data.unknown} must be 0 for context_kind {data.context_kind}"
    return None


def _identity_is_square(config: Config) -> str | None:
    model, width = config.model, config.combined
    if model.start == "random" or set(model.hidden) <= {width}:
        return None
    return f"identity needs hidden layers as wide as their input, {width}; set model.hidden so, or start to random"


def _decay_shrinks(config: Config) -> str | None:
    decay, lr = config.output.weight_decay, config.optim.output_lr
    if lr is not None and decay * lr >= 1:
        return f"{decay} × optim.output_lr {lr} must stay below 1, or a step flips the weights; lower one of them"
    return None


def _rows_are_refitted(config: Config) -> str | None:
    if config.data.context_kind != "cooccurrence":
        return None
    if config.model.hidden or config.output.loss != "squared" or not OUTPUTS[config.output.kind].spherical:
        return "cooccurrence is solved in closed form: set model.hidden [], output.loss squared, output.kind factored"
    return None


def _prior_tilts_a_softmax(config: Config) -> str | None:
    output = config.output
    if output.prior == "none" or (OUTPUTS[output.kind].spherical and LOSSES[output.loss].normalised):
        return None
    kinds = " or ".join(kind.name for kind in OUTPUTS if kind.spherical)
    losses = " or ".join(loss.name for loss in LOSSES if loss.normalised)
    return f"{output.prior} needs output.kind {kinds} with output.loss {losses}; set it to none"


def _rows_have_rates(config: Config) -> str | None:
    chosen, kind = config.optim.output, OUTPUTS[config.output.kind]
    if chosen != "adagrad" or kind.adagrad_rate is not None:
        return None
    return (
        f"adagrad gives every row a rate of its own, which output.kind {kind.name} cannot have: a factored step "
        "multiplies all rows by one matrix; set it to null, or use output.kind shortlist"
    )


def _tail_is_a_softmax(config: Config) -> str | None:
    if config.output.kind != "shortlist" or LOSSES[config.output.loss].normalised:
        return None
    losses = " or ".join(loss.name for loss in LOSSES if loss.normalised)
    return f"{config.output.loss} defines no probability, which output.kind shortlist needs; use {losses}"


RULES = (
    Rule(("train.max_steps", "train.max_epochs", "train.max_minutes"), _has_an_end),
    Rule(("optim.warmup_steps", "train.max_steps"), _warmup_ends),
    Rule(("output.stabilise_range",), _range_is_ordered),
    Rule(("data.context", "data.context_kind"), _window_is_even),
    Rule(("data.unknown", "data.context_kind"), _unknown_words_are_shown),
    Rule(
        ("model.start", "model.hidden", "model.embedding", "model.combine", "data.context", "data.context_kind"),
        _identity_is_square,
    ),
    Rule(("output.weight_decay", "optim.output_lr"), _decay_shrinks),
    Rule(("data.context_kind", "model.hidden", "output.loss", "output.kind"), _rows_are_refitted),
    Rule(("optim.output", "output.kind"), _rows_have_rates),
    Rule(("output.loss", "output.kind"), _tail_is_a_softmax),
    Rule(("output.prior", "output.kind", "output.loss"), _prior_tilts_a_softmax),
)


def broken_rules(config: Config, bad_keys: set[str]) -> Iterator[tuple[str, str]]:
    """Yield (key, what is wrong) for each rule that fails and whose keys were all readable."""
    for rule in RULES:
        if bad_keys.isdisjoint(rule.keys) and (message := rule.broken(config)) is not None:
            yield rule.keys[0], message
