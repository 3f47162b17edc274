"""What a head makes of its arguments before it computes with them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from lstlm.errors import ConfigError
from lstlm.kernels.ops import outside

P = ParamSpec("P")
R = TypeVar("R")


def checked_ids(target_ids: Tensor, m: int, vocab: int) -> Tensor:
    """Return target_ids (m,) or (m,K) as int64 (m,K): a copy, so that what was checked is what is used."""
    if not isinstance(target_ids, Tensor):
        raise ConfigError(f"target_ids is a {type(target_ids).__name__}; expected a tensor of integers (m,) or (m,K)")
    if target_ids.dtype not in (torch.int64, torch.int32) or target_ids.dim() not in (1, 2):
        raise ConfigError(f"target_ids: expected integers (m,) or (m,K), got {target_ids.dtype}, {target_ids.dim()}-d")
    if target_ids.shape[0] != m or target_ids.numel() == 0:
        raise ConfigError(f"target_ids has shape {tuple(target_ids.shape)} for {m} examples; need m ≥ 1, K ≥ 1")
    ids = target_ids.reshape(m, -1).to(torch.int64).clone(memory_format=torch.contiguous_format)
    if (wrong := outside(ids, vocab)) is not None:
        raise ConfigError(f"target id {wrong} is outside the vocabulary of {vocab}")
    return ids


def checked_values(target_values: Tensor, target_ids: Tensor, ids: Tensor) -> Tensor:
    """Return target_values, of the shape of target_ids, as float64 (m,K)."""
    if not isinstance(target_values, Tensor):
        raise ConfigError(f"target_values is a {type(target_values).__name__}; expected a tensor like target_ids")
    if target_values.shape != target_ids.shape:
        raise ConfigError(f"target_values {tuple(target_values.shape)} differs from ids {tuple(target_ids.shape)}")
    values = target_values.detach().reshape(ids.shape).to(torch.float64, copy=True)
    if values.is_cpu and not bool(torch.isfinite(values).all()):  # elsewhere the update is refused
        raise ConfigError("target_values: every value must be finite")
    return values


def merge_repeated(ids: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Where an example names one id several times, give their sum to the first and 0 to the others; (m,K) each."""
    if ids.shape[1] == 1:
        return ids, values
    ordered, order = ids.sort(dim=1, stable=True)
    first = torch.ones_like(ordered, dtype=torch.bool)
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    if ids.is_cpu and bool(first.all()):
        return ids, values
    sums = torch.zeros_like(values).scatter_add_(1, first.cumsum(1) - 1, values.gather(1, order))
    return ordered, torch.where(first, sums.gather(1, first.cumsum(1) - 1), 0.0)


def without_autocast(method: Callable[P, R]) -> Callable[P, R]:
    """Let a method compute in the dtype of its tensors, also within torch.autocast, which would round its products."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                with torch.autocast(device, enabled=False):
                    return call(*args, **kwargs)
        return method(*args, **kwargs)

    return call
