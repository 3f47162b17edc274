"""The rules that move the hidden layers, in both forms, against torch.optim; and what they leave alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from lstlm.errors import CheckpointError
from lstlm.kernels import choice
from lstlm.nn.optimisers import Adagrad, Adam, HiddenOptimiser, Sgd

RULES: dict[str, tuple[Callable[..., HiddenOptimiser], Callable[..., torch.optim.Optimizer]]] = {
    "adagrad": (Adagrad, torch.optim.Adagrad),
    "adam": (Adam, torch.optim.Adam),
    "sgd": (partial(Sgd, momentum=0.7), partial(torch.optim.SGD, momentum=0.7)),
    "sgd, no momentum": (partial(Sgd, momentum=0.0), torch.optim.SGD),
}
FORMS = ["torch", pytest.param("native", marks=pytest.mark.skipif(choice.native is None, reason="not compiled"))]


def parameters(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    g = torch.Generator().manual_seed(3)
    return [nn.Parameter(torch.randn(*shape, generator=g, dtype=dtype)) for shape in ((5, 33), (7,), (1, 1))]


def gradient(p: Tensor, step: int) -> Tensor:
    g = torch.Generator().manual_seed(100 * step + p.numel())
    return torch.randn(p.shape, generator=g, dtype=p.dtype) * (step + 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", RULES)
def test_a_rule_is_that_of_torch_also_after_a_reload(
    name: str, form: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    if form == "torch":
        monkeypatch.setattr(choice, "native", None)
    make, make_theirs = RULES[name]
    mine, theirs, tolerance = parameters(dtype), parameters(dtype), 1e-6 if dtype == torch.float32 else 1e-12
    rule, reference = make(mine), make_theirs(theirs, lr=0.1)
    for step in range(6):
        for p, q in zip(mine, theirs, strict=True):
            p.grad, q.grad = gradient(p, step), gradient(q, step)
        versions = [p._version for p in mine]
        rule.step(0.1)
        reference.step()
        assert all(p._version > old for p, old in zip(mine, versions, strict=True))  # autograd is told
        if step == 2:
            saved, rule = rule.state_dict(), make(mine)
            rule.load_state_dict(saved)
    for number, (p, q) in enumerate(zip(mine, theirs, strict=True)):
        torch.testing.assert_close(p, q, rtol=tolerance, atol=tolerance)
        for key, value in reference.state[q].items():
            if value is not None:
                torch.testing.assert_close(rule.state[key][number], value, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", RULES)
def test_gradients_that_lie_otherwise_in_memory_count_alike(name: str) -> None:
    found = []
    for turn in (lambda g: g, lambda g: g.T.contiguous().T):
        p = nn.Parameter(torch.ones(4, 6))
        rule = RULES[name][0]([p])
        p.grad = turn(gradient(p, 1))
        rule.step(0.1)
        found.append(p.detach())
    assert torch.equal(*found)


def test_a_parameter_without_a_gradient_stays_where_it_is() -> None:
    still, moved = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    moved.grad = torch.ones(3)
    Adam([still, moved]).step(0.1)
    assert still.tolist() == [1.0] * 3
    assert max(moved.tolist()) < 1.0


@pytest.mark.parametrize("state", [{}, {"step": torch.zeros(())}, {"step": torch.zeros(()), "sum": torch.zeros(2)}])
def test_a_state_that_is_none_of_this_rule_is_refused(state: dict[str, Tensor]) -> None:
    with pytest.raises(CheckpointError, match=r"optim\.hidden"):
        Adagrad([nn.Parameter(torch.zeros(3))]).load_state_dict({"state": {0: state}})


def test_training_does_not_import_the_compiler_of_torch() -> None:
    program = (
        "import sys, torch; from lstlm.config import Config; from lstlm.nn.network import Network\n"
        "from lstlm.nn.optimisers import Optimisers\n"
        "network = Network(Config(), torch.arange(9, 0, -1)); optimisers = Optimisers(network, Config().optim)\n"
        "words = network.config.data.context_words; ids = torch.arange(4)\n"
        "network(ids[:, None].repeat(1, words), ids).mean().backward(); optimisers.step()\n"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
