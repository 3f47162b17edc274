"""The arguments of an output layer: checked, and copied where a later change by the caller would do harm."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from lstlm.errors import ConfigError
from lstlm.kernels.choice import Impl
from lstlm.kernels.ops import outside
from lstlm.kernels.targets import Targets

P = ParamSpec("P")
R = TypeVar("R")


def checked_tensor(name: str, given: object) -> None:
    """Raise unless an argument is a tensor."""
    if not isinstance(given, Tensor):
        raise ConfigError(f"{name} is a {type(given).__name__}; expected a tensor")


def kept_share(lr: float, weight_decay: float) -> float:
    """Return what an update multiplies W by, 1 − lr·weight_decay; raise where the two make no sense."""
    if not (math.isfinite(lr) and lr > 0):
        raise ConfigError(f"lr = {lr}: must be finite and above 0")
    keep = 1 - lr * weight_decay
    if not 0 < keep <= 1:
        raise ConfigError(f"weight_decay = {weight_decay} with lr = {lr}: needs 0 ≤ lr·weight_decay < 1")
    return keep


def checked_targets(
    target_ids: Tensor, target_values: Tensor | None, offsets: Tensor | None, m: int, vocab: int, impl: Impl
) -> Targets:
    """Return what m examples are aimed at: ids, values (m,) or (m,K), or (n,) with offsets (m,) or (m+1,)."""
    ids = checked_ids(target_ids, m if offsets is None else None, vocab)
    bounds = None if offsets is None else checked_offsets(offsets, ids, m)
    values = None if target_values is None else checked_values(target_values, target_ids)
    return Targets(ids, values, m, bounds, impl=impl)


def checked_ids(target_ids: Tensor, m: int | None, vocab: int) -> Tensor:
    """Return ids (m,) or (m,K), or (n,) where m is None, as int64 (n,): a copy, so that what was checked is used."""
    expected = "integers (m,) or (m,K)" if m is not None else "integers (n,), as there are offsets"
    if not isinstance(target_ids, Tensor):
        raise ConfigError(f"target_ids is a {type(target_ids).__name__}; expected a tensor of {expected}")
    if target_ids.dtype not in (torch.int64, torch.int32) or not 1 <= target_ids.dim() <= (1 if m is None else 2):
        raise ConfigError(f"target_ids: expected {expected}, got {target_ids.dtype}, {target_ids.dim()}-d")
    if m is not None and (target_ids.shape[0] != m or target_ids.numel() == 0):
        raise ConfigError(f"target_ids has shape {tuple(target_ids.shape)} for {m} examples; need m ≥ 1, K ≥ 1")
    flat = target_ids if target_ids.dim() == 1 else target_ids.reshape(-1)
    ids = flat.to(torch.int64, copy=True, memory_format=torch.contiguous_format)
    if (wrong := outside(ids, vocab)) is not None:
        raise ConfigError(f"target id {wrong} is outside the vocabulary of {vocab}")
    return ids


def checked_values(target_values: Tensor, target_ids: Tensor) -> Tensor:
    """Return target_values, of the shape of target_ids, as float64 (n,)."""
    if not isinstance(target_values, Tensor):
        raise ConfigError(f"target_values is a {type(target_values).__name__}; expected a tensor like target_ids")
    if target_values.shape != target_ids.shape:
        raise ConfigError(f"target_values {tuple(target_values.shape)} differs from ids {tuple(target_ids.shape)}")
    values = target_values.detach().reshape(-1).to(torch.float64, copy=True)
    if values.is_cpu and not bool(torch.isfinite(values).all()):  # elsewhere the update is refused
        raise ConfigError("target_values: every value must be finite")
    return values


def checked_offsets(offsets: Tensor, ids: Tensor, m: int) -> Tensor:
    """Return offsets (m,), the starts of the examples among ids (n,), or (m+1,), with the end, as int64 (m+1,)."""
    n = len(ids)
    if not isinstance(offsets, Tensor) or offsets.dtype not in (torch.int64, torch.int32):
        raise ConfigError("offsets: expected a tensor of integers, where each example's targets start in target_ids")
    if m < 1 or offsets.shape not in ((m,), (m + 1,)) or offsets.device != ids.device:
        raise ConfigError(
            f"offsets has shape {tuple(offsets.shape)} on {offsets.device} for {m} examples; "
            f"expected ({m},), or ({m + 1},) with the end, on {ids.device}"
        )
    bounds = torch.cat([offsets[:m].to(torch.int64), ids.new_full((1,), n)])
    if not ids.is_cpu:  # reading them would make the host wait
        return bounds
    if int(bounds[0]) != 0 or bool((bounds.diff() < 0).any()) or offsets[m:].tolist() not in ([], [n]):
        raise ConfigError(f"offsets: expected to start at 0, never to go back, and to end with the {n} target_ids")
    return bounds


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
