"""What ``dump_config`` writes, ``parse_config`` reads back: for every key and any value that is allowed."""

from dataclasses import fields
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from lstlm.config import Config, dump_config, parse_config, to_dict
from lstlm.config.reader import type_of


def values(kind: Any, limits: dict[str, float]) -> st.SearchStrategy[Any]:
    """Return a strategy for the values that a field of this type and these limits takes."""
    low, high = limits.get("at_least", limits.get("above")), limits.get("at_most", limits.get("below"))
    if kind is NoneType:
        return st.none()
    if kind is bool:
        return st.booleans()
    if kind is int:
        return st.integers(int(low or 0), int(high or 2**63 - 1))
    if kind is float:
        edges = {"exclude_min": "above" in limits, "exclude_max": "below" in limits}
        return st.floats(low, high, allow_nan=False, allow_infinity=False, **edges)
    if kind is str:
        text = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1)
        return text | st.sampled_from(
            ["no", "1e-3", "0x1f", "null", "~", "a: b", "#", "'", '"', "1:30", "-", "{}", "*a"]
        )
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    if get_origin(kind) is tuple:
        inner = values(get_args(kind)[0], limits)
        if get_args(kind)[-1] is Ellipsis:
            return st.lists(inner, max_size=4).map(tuple)
        return st.tuples(inner, inner)
    return st.one_of([values(arm, limits) for arm in get_args(kind)])


# Keys that are checked together, drawn so that the rules between them hold.
TOGETHER = {
    "data.context": st.integers(1, 512).map(lambda half: 2 * half),
    "data.context_kind": st.sampled_from(("previous", "window")),  # of a bag, data.unknown is 0
    "model.start": st.just("random"),
    "output.prior": st.just("none"),
    "output.loss": st.sampled_from(("taylor", "spherical")),
    "optim.output": st.none() | st.just("sgd"),
    "output.stabilise_range": st.none() | st.floats(1e-9, 1.0).map(lambda low: (low, 2 * low)),
    "output.weight_decay": st.floats(0, 0.5),
    "optim.output_lr": st.floats(0, 1, exclude_min=True),
    "optim.warmup_steps": st.just(0),
    "train.max_epochs": st.integers(1, 2**63 - 1),
}


def configs() -> st.SearchStrategy[Config]:
    """Return a strategy for whole configurations."""
    sections: dict[str, Any] = {}
    for section in fields(Config):
        kind: Any = section.default_factory
        keys = {field.name: values(type_of(kind, field), field.metadata["limits"]) for field in fields(kind)}
        keys |= {key.partition(".")[2]: drawn for key, drawn in TOGETHER.items() if key.startswith(f"{section.name}.")}
        sections[section.name] = st.builds(kind, **keys)
    return st.builds(Config, **sections)


@settings(max_examples=100)
@given(configs())
def test_any_configuration_survives_being_written_and_read(config: Config) -> None:
    assert parse_config(dump_config(config)) == config
    assert parse_config(dump_config(config, explain=True)) == config


def test_other_yaml_readers_agree_on_what_is_written() -> None:
    config = parse_config("optim: {output_lr: 1e-5, hidden_lr: 1e22}\ndata: {dir: 'no'}\nmodel: {hidden: [1]}")
    assert yaml.safe_load(dump_config(config)) == to_dict(config)
