"""The configuration: frozen dataclasses (``schema``), read from strict YAML (``reader``), written back (``writer``)."""

from lstlm.config.by_size import vector_config
from lstlm.config.rates import output_rate, with_rates
from lstlm.config.reader import load_config, parse_config
from lstlm.config.recipe_files import recipes
from lstlm.config.schema import Config, DataConfig, ModelConfig, OptimConfig, OutputConfig, TrainConfig
from lstlm.config.writer import dump_config, to_dict

__all__ = [
    "Config",
    "DataConfig",
    "ModelConfig",
    "OptimConfig",
    "OutputConfig",
    "TrainConfig",
    "dump_config",
    "load_config",
    "output_rate",
    "parse_config",
    "recipes",
    "to_dict",
    "vector_config",
    "with_rates",
]
