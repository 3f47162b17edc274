"""The strict loader: every promise of the configuration, one bad input at a time."""

import re
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from lstlm.config import Config, TrainConfig, dump_config, load_config, parse_config, to_dict
from lstlm.errors import ConfigError


def problems(text: str, *overrides: str) -> list[str]:
    """Return the lines of the ConfigError that ``text`` gives."""
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "f.yaml", overrides)
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "f.yaml: is empty; give at least one section of: data, model, output, optim, train"),
        ("# only a remark\n", "f.yaml: is empty; .*"),
        ("- 1\n- 2\n", "f.yaml:1: holds a list of 2; expected sections: data, .*"),
        ("just words\n", "f.yaml:1: holds just words; expected sections: .*"),
        ("train:\n\tbatch_size: 3\n", "f.yaml:2: not valid YAML: a tab; indent with spaces"),
        ("train: {seed: \x00}", r"f.yaml: character '\\x00' at position 14 is not text; give a YAML file"),
        ("train:\n  seed: 1\n  seed: 2\n", r"f.yaml:3: train.seed: the key is given twice \(also on line 2\); .*"),
        ("train: {}\ndata: {}\ntrain: {}\n", r"f.yaml:3: train: the key is given twice \(also on line 1\); .*"),
        ("train: 3", "f.yaml:1: train: 3 where a section is expected; its keys: batch_size, .*"),
        ("train:", "f.yaml:1: train: an empty value where a section is expected; its keys: .*"),
        ("train: [1]", "f.yaml:1: train: a list of 1 where a section is expected; .*"),
        ("optim: {output_lr: yes}", "f.yaml:1: optim.output_lr: yes is not a finite number, above 0, or null"),
        ("optim: {output_lr: '0.1'}", "f.yaml:1: optim.output_lr: '0.1' is not a finite number, above 0, or null"),
        ("optim: {output_lr: -1e-3}", "f.yaml:1: optim.output_lr: -1e-3 is out of range; allowed: .* above 0, or null"),
        ("optim: {output_lr: 0}", "f.yaml:1: optim.output_lr: 0 is out of range; .*"),
        ("optim: {output_lr: .nan}", "f.yaml:1: optim.output_lr: .nan is not a finite number.*"),
        ("optim: {output_lr: .inf}", "f.yaml:1: optim.output_lr: .inf is not a finite number.*"),
        ("optim: {output_lr: 1e999}", "f.yaml:1: optim.output_lr: 1e999 is out of range; .*"),
        ("optim: {momentum: 1.0}", "f.yaml:1: optim.momentum: 1.0 is out of range; .*at least 0 and below 1"),
        ("data: {dir: no}", r"f.yaml:1: data.dir: no is not a string .*\(YAML reads it as bool\); put it in quotes"),
        ("data: {dir: 1e-3}", r"f.yaml:1: data.dir: .*\(YAML reads it as float\); put it in quotes"),
        ("data: {dir: 2024-01-01}", r"f.yaml:1: data.dir: .*\(YAML reads it as timestamp\); put it in quotes"),
        ("data: {dir: null}", r"f.yaml:1: data.dir: null is not a string .*"),
        ("data: {dir: ''}", "f.yaml:1: data.dir: '' is not a string of printable text"),
        ('data: {dir: "a\\nb"}', r"f.yaml:1: data.dir: 'a\\nb' is not a string of printable text"),
        ("model: {activation: no}", "f.yaml:1: model.activation: no is not one of tanh, relu, identity"),
        ("output: {loss: sqared}", "f.yaml:1: output.loss: sqared is not one of .*; did you mean squared[?]"),
        ("output: {bias: yes}", "f.yaml:1: output.bias: yes is not true or false"),
        ("output: {bias: 'true'}", "f.yaml:1: output.bias: 'true' is not true or false"),
        ("output: {bias: True}", "f.yaml:1: output.bias: True is not true or false"),
        ("train: {seed: 1.5}", "f.yaml:1: train.seed: 1.5 is not an integer, at least 0"),
        ("train: {seed: 1e3}", "f.yaml:1: train.seed: 1e3 is not an integer.*"),
        ("train: {seed: 0x10}", "f.yaml:1: train.seed: 0x10 is not an integer.*"),
        ("train: {seed: true}", "f.yaml:1: train.seed: true is not an integer.*"),
        ("train: {seed: 9999999999999999999}", "f.yaml:1: train.seed: 9999999999999999999 is out of range; .*"),
        ("train: {seed: %s}" % ("9" * 5000), "f.yaml:1: train.seed: 9{57}... is not an integer.*"),
        ("train: {max_steps: 1:30}", "f.yaml:1: train.max_steps: 1:30 is not an integer, at least 1, or null"),
        ("train: {max_steps: none}", "f.yaml:1: train.max_steps: none is not an integer, at least 1, or null"),
        ("train: {batch_size: 0}", "f.yaml:1: train.batch_size: 0 is out of range; allowed: an integer, at least 1 .*"),
        ("train: {batch_size: null}", "f.yaml:1: train.batch_size: null is not an integer.*"),
        ("model: {hidden: 300}", "f.yaml:1: model.hidden: 300 is not a list, each an integer.*"),
        ("model: {hidden: [300, 0]}", "f.yaml:1: model.hidden: 0 is out of range; .*"),
        ("model: {hidden: [[300]]}", "f.yaml:1: model.hidden: a list of 1 is not an integer.*"),
        ("output: {stabilise_range: [1]}", "f.yaml:1: output.stabilise_range: a list of 1 is not a list of 2, .*"),
        ("train: {seed: {a: 1}}", "f.yaml:1: train.seed: a mapping is not an integer.*"),
        ("train: {batchsize: 3}", "f.yaml:1: train.batchsize: unknown key; did you mean train.batch_size[?]"),
        ("train: {output_lr: 3}", "f.yaml:1: train.output_lr: unknown key; did you mean optim.output_lr[?]"),
        ("train: {lr: 3}", "f.yaml:1: train.lr: unknown key; did you mean optim.output_lr[?]"),
        ("train: {zebra: 3}", "f.yaml:1: train.zebra: unknown key; known: train.batch_size, .*"),
        ("trian: {}", "f.yaml:1: trian: unknown section; did you mean train[?]"),
        ("seed: 3", "f.yaml:1: seed: unknown section; did you mean train.seed[?]"),
        ("zebra: 3", "f.yaml:1: zebra: unknown section; known: data, model, output, optim, train"),
        ("train: {<<: 3}", "f.yaml:1: train.<<: unknown key; .*"),
        ("? [a]\n: b\n", "f.yaml:1: a key must be a word"),
        ("train: &a [*a, *a]", r"f.yaml:1: not valid YAML: an alias \(\*name\); write the value out"),
        ("--- {}\n--- {}\n", "f.yaml:2: not valid YAML: a second document starts here; .*"),
        ("train: {seed: [1", "f.yaml:1: not valid YAML: while parsing a flow sequence: .*"),
        ("[" * 5000, "f.yaml: nested too deeply; .*"),
    ],
)
def test_a_bad_file_gives_one_clear_line(text: str, line: str) -> None:
    found = problems(text)
    assert len(found) == 1, found
    assert re.fullmatch(line, found[0]), found[0]


def test_an_object_tag_is_refused_and_nothing_is_constructed() -> None:
    found = problems("train: {seed: !!python/object/apply:os.system ['exit 1']}")
    assert "tag 'tag:yaml.org,2002:python/object/apply:os.system' is not allowed" in found[0]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("train: {max_epochs: null}", "f.yaml: train.max_steps: null, and so are .* set one of them"),
        (
            "optim: {warmup_steps: 9}\ntrain: {max_steps: 9}",
            r"f.yaml: optim.warmup_steps: 9 must be .* \(9\); .*",
        ),
        ("output: {stabilise_range: [3, 2.5]}", r"f.yaml: output.stabilise_range: \[3.0, 2.5\] must be .* low < high"),
        (
            "data: {context_kind: window, context: 3}",
            "f.yaml: data.context: 3 must be even for context_kind window.*",
        ),
        ("data: {context_kind: bag, unknown: 0.5}", "f.yaml: data.unknown: 0.5 must be 0 for context_kind bag"),
        ("data: {context_kind: bag, context: 5}", "f.yaml: data.context: 5 must be even for context_kind bag: .*"),
        (
            "model: {start: identity, embedding: 300, hidden: [300]}",
            "f.yaml: model.start: identity needs hidden layers as wide as their input, 1200; .*",
        ),
        (
            "output: {weight_decay: 2}\noptim: {output_lr: 1}",
            "f.yaml: output.weight_decay: 2.0 × optim.output_lr 1.0 must stay below 1, .*",
        ),
    ],
)
def test_keys_are_checked_together(text: str, line: str) -> None:
    found = problems(text)
    assert len(found) == 1, found
    assert re.fullmatch(line, found[0]), found[0]


def test_a_rule_is_silent_about_a_key_that_is_bad_anyway() -> None:
    assert problems("data: {context_kind: windw, context: 3}") == [
        "f.yaml:1: data.context_kind: windw is not one of previous, window, bag, cooccurrence; did you mean window?"
    ]


def test_all_problems_of_a_file_and_of_the_overrides_are_listed_together() -> None:
    text = "train:\n  batch_size: 0\n  sead: 1\ndata: {dir: no}\noutput: {stabilise_range: [3, 2]}\nzebra: 1\n"
    found = problems(text, "train.seed=x", "nonsense")
    assert [line.split(": ")[:2] for line in found] == [
        ["f.yaml:2", "train.batch_size"],
        ["f.yaml:3", "train.sead"],
        ["f.yaml:4", "data.dir"],
        ["f.yaml:6", "zebra"],
        ["--set train.seed=x", "train.seed"],
        ["--set nonsense", "no '='; write --set section.key=value, for example --set train.batch_size=64"],
        ["f.yaml", "output.stabilise_range"],
    ]


def test_numbers_are_read_as_people_write_them() -> None:
    config = parse_config(
        "train: {seed: 010, eval_examples: 1_000, max_minutes: 2}\n"
        "optim: {output_lr: 1e-3, hidden_lr: .5, embedding_lr: 1.}\n"
        "output: {b: -3, epsilon: 1E+2}\n"
    )
    assert (config.train.seed, config.train.eval_examples, config.train.max_minutes) == (10, 1000, 2.0)
    assert (config.optim.output_lr, config.optim.hidden_lr, config.optim.embedding_lr) == (1e-3, 0.5, 1.0)
    assert (config.output.b, config.output.epsilon) == (-3.0, 100.0)
    assert isinstance(config.train.max_minutes, float)
    assert isinstance(config.output.b, float)


def test_a_quoted_word_is_a_string_and_null_is_none() -> None:
    config = parse_config('data: {dir: "no"}\ntrain: {max_epochs: ~, max_steps: 5}\nmodel: {hidden: []}')
    assert config.data.dir == "no"
    assert config.train.max_epochs is None
    assert config.model.hidden == ()


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("train.seed", "--set train.seed: no '='; write --set section.key=value, .*"),
        ("train.seed=", "--set train.seed=: train.seed: no value after '='; write null for none"),
        ("=3", "--set =3: unknown key; `lstlm config show --explain` lists them all"),
        ("seed=3", "--set seed=3: seed: unknown key; did you mean train.seed[?]"),
        ("train=3", "--set train=3: train: unknown key; `lstlm config show --explain` lists them all"),
        ("train.sed=3", "--set train.sed=3: train.sed: unknown key; did you mean train.seed[?]"),
        ("trian.seed=3", "--set trian.seed=3: trian.seed: unknown key; did you mean train.seed[?]"),
        ("train.seed=-1", "--set train.seed=-1: train.seed: -1 is out of range; allowed: an integer, at least 0"),
        ("data.dir=no", "--set data.dir=no: data.dir: no is not a string .*put it in quotes"),
        ("model.hidden=[1", r"--set model.hidden=\[1: not valid YAML: .*"),
        ("data.dir=a: b", "--set data.dir=a: b: data.dir: a mapping is not a string .*"),
    ],
)
def test_set_goes_through_the_same_checks(override: str, line: str) -> None:
    found = problems("train: {seed: 1}", override)
    assert len(found) == 1, found
    assert re.fullmatch(line, found[0]), found[0]


def test_set_overrides_the_file_and_the_last_one_wins() -> None:
    overrides = ["train.seed=2", "train.seed=3", "model.hidden=[8, 4]", "train.max_epochs=null", "train.max_steps=1"]
    config = parse_config("train: {seed: 1, batch_size: 7}", overrides=overrides)
    assert (config.train.seed, config.train.batch_size, config.model.hidden) == (3, 7, (8, 4))
    assert config.train.max_epochs is None


def test_set_repairs_a_file_only_where_the_file_was_readable() -> None:
    """A bad value stays an error even when an override replaces it: the file is wrong and should be mended."""
    assert problems("train: {seed: x}", "train.seed=3") == ["f.yaml:1: train.seed: x is not an integer, at least 0"]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    good = tmp_path / "good.yaml"
    good.write_text("\ufefftrain: {seed: 5}\r\n", encoding="utf-8")
    assert load_config(good).train.seed == 5
    (tmp_path / "config.yaml").write_text("")
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\x93NUMPY\xff\xfe")
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * 1_000_001)
    cases = {
        tmp_path: f"{tmp_path}: is a folder, not a file; did you mean {tmp_path}/config.yaml?",
        tmp_path / "god.yaml": f"{tmp_path}/god.yaml: no such file; did you mean {good}?",
        tmp_path / "a" / "b.yaml": f"{tmp_path}/a/b.yaml: no such file; give the path of a YAML file, "
        "or the name of a recipe (`lstlm config list`)",
        good / "x": f"{good}/x: cannot be read: Not a directory",
        binary: f"{binary}: not UTF-8 text (byte 0); give a YAML configuration file",
        large: f"{large}: larger than 1000000 bytes; give a YAML configuration file",
        Path("a\x00b"): "a\x00b: cannot be read: embedded null byte",
    }
    for path, message in cases.items():
        with pytest.raises(ConfigError) as caught:
            load_config(path)
        assert str(caught.value) == message


def test_the_objects_are_frozen_and_keyword_only() -> None:
    with pytest.raises(FrozenInstanceError):
        Config().train.seed = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        TrainConfig(128)  # type: ignore[misc]


def test_every_key_is_explained_and_its_default_obeys_its_own_limits() -> None:
    text = dump_config(Config(), explain=True)
    for section in fields(Config):
        for field in fields(getattr(Config(), section.name)):
            assert field.metadata["doc"].split()[0] in text
    assert parse_config(text) == Config()


def test_to_dict_is_plain_json_data() -> None:
    values = to_dict(Config())
    assert list(values) == ["data", "model", "output", "optim", "train"]
    assert values["model"]["hidden"] == [300, 300]
    assert values["train"]["max_steps"] is None
