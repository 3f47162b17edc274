"""One layer, two threads, and arguments that are no tensors: refused in one line, before anything is changed."""

import threading
from typing import Any

import pytest
import torch

from lstlm import SphericalOutput, make_loss
from lstlm.errors import ConfigError
from tests.helpers import PATIENCE_S

LINE = "two threads learn with one output layer at once"


def layer() -> tuple[SphericalOutput, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    head = SphericalOutput(6, 30, loss=make_loss("taylor"), dtype=torch.float64)
    return head, torch.randn(4, 6, dtype=torch.float64), torch.tensor([3, 1, 29, 3])


def test_a_second_thread_is_refused_while_one_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    head, h, ids = layer()
    head.learn(h, ids, 0.1)
    head.value_and_grad(h, ids)
    inside, leave = threading.Event(), threading.Event()
    after = SphericalOutput._after_update

    def held(self: SphericalOutput, *arguments: Any) -> None:
        inside.set()
        assert leave.wait(PATIENCE_S)
        after(self, *arguments)

    monkeypatch.setattr(SphericalOutput, "_after_update", held)
    thread = threading.Thread(target=head.update, args=(0.1,))
    thread.start()
    try:
        assert inside.wait(PATIENCE_S)
        for call in (lambda: head(h, ids), lambda: head.value_and_grad(h, ids), lambda: head.update(0.1)):
            with pytest.raises(ConfigError, match=LINE):
                call()
        with torch.no_grad():
            head(h, ids)  # reading is free
    finally:
        leave.set()
        thread.join(PATIENCE_S)
    head(h, ids).mean().backward()
    head.update(0.1)


def test_it_learned_what_one_thread_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusals above have left no trace, and a layer that was refused can be copied and saved."""
    head, h, ids = layer()
    other, _, _ = layer()
    other.load_state_dict(head.state_dict())
    for one in (head, other):
        one.learn(h, ids, 0.1)
    vars(head)["_learning"] = -1  # somebody else is inside
    with pytest.raises(ConfigError, match=LINE):
        head.learn(h, ids, 0.1)
    del vars(head)["_learning"]
    for one in (head, other):
        one.learn(h, ids, 0.1)
    assert torch.equal(head.weight(), other.weight())


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (lambda h, ids: (h, ids.tolist()), "target_ids is a list; expected a tensor"),
        (lambda h, ids: (h, 3), "target_ids is a int; expected a tensor"),
        (lambda h, ids: (h.tolist(), ids), "h is a list; expected a tensor"),
        (lambda h, ids: (h, ids, [1.0] * 4), "target_values is a list; expected a tensor"),
        (lambda h, ids: (h, ids, None, 0.5), "weight is a float; expected a tensor"),
    ],
)
def test_what_is_no_tensor_is_refused(arguments: Any, line: str) -> None:
    head, h, ids = layer()
    for call in (head, head.value_and_grad):
        with pytest.raises(ConfigError, match=line):
            call(*arguments(h, ids))
