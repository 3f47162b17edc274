"""Repairs that no row hears of until it is read: any order of events ends with the W of dense autograd."""

from __future__ import annotations

import io

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lstlm.errors import CheckpointError, ConfigError
from lstlm.spherical import SphericalOutput
from lstlm.spherical.stabilise.lazy import bring_next_rows
from lstlm.spherical.state import Sizes
from tests.spherical.oracle import (
    EXACT,
    Dense,
    Layer,
    assert_same_step,
    assert_same_weights,
    loss_of,
    make_batch,
    random_weight,
    scaled,
)

pytestmark = pytest.mark.usefixtures("both_ways")

D, d = 29, 6
TIGHT = {"stabilise": "lazy", "stabilise_range": (0.8, 1.25)}


def strong_step(layer: Layer, dense: Dense, seed: int, ids: Tensor | None = None) -> None:
    """One step whose H is strong in one direction after the other, at a rate that U feels."""
    m = 9 if seed % 3 == 0 else 3
    batch = scaled(make_batch(seed, len(dense.W), d, m, 1 if ids is None else ids.shape[1], ids=ids), 0.5)
    batch.H[:, seed % (d - 1)] *= 4
    rate = {"squared": 0.02, "taylor": 2.0}[dense.loss]
    assert_same_step(layer.step(batch, rate), dense.step(batch, rate))


class Run:
    """A lazy layer and dense autograd, through the same events."""

    def __init__(self, loss: str, repairs: int = 128) -> None:
        """With few repairs a segment closes so soon that a short test sees many."""
        W, self.settings = random_weight(D, d), {**TIGHT, "sizes": Sizes(repairs=repairs, most_rows=5)}
        self.layer, self.dense, self.clock = Layer(W, loss, **self.settings), Dense(W, loss), 0

    def touch(self, times: int) -> None:
        for _ in range(times):
            self.clock += 1
            strong_step(self.layer, self.dense, self.clock)

    def sweep(self, rows: int) -> None:
        state = self.layer.head.state
        before = state.history.moved
        bring_next_rows(state, rows)
        assert state.history.moved == before + rows

    def expect(self, ids: int) -> None:
        """Hear of some targets, one of them twice."""
        random = torch.Generator().manual_seed(ids)
        coming = torch.randint(len(self.dense.W), (ids + 1, 2), generator=random)
        self.layer.head.expect(torch.cat([coming, coming[:1]]))

    def resize(self, pick: int) -> None:
        D = len(self.dense.W)
        keep = torch.randperm(D, generator=torch.Generator().manual_seed(pick))[: D - pick % 3]
        new = random_weight(pick % 4 + 1, d, seed=pick)
        self.layer.head.resize_vocabulary(keep, new)
        self.dense.W = torch.cat([self.dense.W[keep], new])

    def reload(self, _: int) -> None:
        """Save, build a new layer, load: the new one goes on."""
        file = io.BytesIO()
        torch.save(self.layer.head.state_dict(), file)
        file.seek(0)
        old = self.layer.head
        new = SphericalOutput(old.hidden, old.vocab, loss_of(self.dense.loss), dtype=torch.float64, **self.settings)
        new.load_state_dict(torch.load(file, weights_only=True))
        self.layer.head = new

    def decay(self, _: int) -> None:
        batch = make_batch(77, len(self.dense.W), d, 2)
        assert_same_step(self.layer.step(batch, 0.01, 5.0), self.dense.step(batch, 0.01, 5.0))

    def restore(self, _: int) -> None:
        self.layer.head.restore()

    def check(self, _: int) -> None:
        assert_same_weights(self.layer, self.dense.W)


EVENTS = st.one_of(
    st.tuples(st.just("touch"), st.integers(1, 8)),
    st.tuples(st.just("sweep"), st.integers(0, 40)),
    st.tuples(st.just("expect"), st.integers(0, 20)),
    st.tuples(st.just("resize"), st.integers(0, 20)),
    st.tuples(st.sampled_from(["reload", "decay", "restore", "check"]), st.just(0)),
)


@settings(max_examples=25)
@given(st.lists(EVENTS, min_size=4, max_size=10), st.sampled_from([2, 4, 7]), st.sampled_from(["squared", "taylor"]))
def test_any_order_of_events(events: list[tuple[str, int]], repairs: int, loss: str) -> None:
    run = Run(loss, repairs)
    for name, argument in [("touch", 6), *events, ("touch", 2), ("check", 0)]:
        getattr(run, name)(argument)


@pytest.mark.parametrize("repairs", [3, 5])
def test_the_events_above_do_close_segments(repairs: int) -> None:
    """The property test would prove nothing if the history stayed empty; here the ring turns several times."""
    run = Run("squared", repairs)
    history = run.layer.head.state.history
    run.touch(100)
    assert history.open > 3 * (history.segments + 1), "the ring of closed segments has not turned three times"
    assert len(history.stamp.unique()) > 2, "rows of several ages"
    run.check(0)


def aged() -> SphericalOutput:
    """Return a layer whose ring of closed segments has turned."""
    run = Run("squared", repairs=3)
    run.touch(60)
    head = run.layer.head
    assert head.state.history.open > head.state.history.segments
    return head


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("stamp", slice(None), 10**6),
        ("stamp", slice(None), -5),
        ("stamp", 0, -1),
        ("clock", 0, 10**6),  # segments without number to multiply by
        ("clock", 0, 2**62),
        ("clock", 1, 100_000),
        ("clock", 2, -1),
        ("reached", slice(None), 10**6),
    ],
)
def test_a_history_that_does_not_fit_together_is_refused(name: str, place: int | slice, value: int) -> None:
    head = aged()
    state = {key: tensor.clone() for key, tensor in head.state_dict().items()}
    head.load_state_dict(state)
    state[f"state.history.{name}"][place] = value
    with pytest.raises(CheckpointError, match="does not fit together"):
        head.load_state_dict(state)


@pytest.mark.parametrize("name", ["clock", "moved_at"])
def test_a_history_may_ask_for_all_rows_but_no_more(name: str) -> None:
    """Counters of somebody else's may be far apart; nobody waits for them to meet."""
    head = aged()
    history = head.state.history
    state = {key: tensor.clone() for key, tensor in head.state_dict().items()}
    if name == "moved_at":
        state["state.history.moved_at"].fill_(2**62)
    else:
        state["state.history.clock"][0] += 10**6
        state["state.history.reached"].fill_(history.open + 10**6)
    head.load_state_dict(state)
    assert max(history.rows_due(), history.rows_to_move()) == history.D


def test_expected_rows_are_brought_out_of_closed_segments() -> None:
    run = Run("squared", 3)
    run.touch(60)
    head = run.layer.head
    history, ids = head.state.history, torch.arange(D)
    assert int(history.stamp.min()) < history.start, "some row is in a closed segment"
    before, old = head.weight(), int((history.stamp < history.start).sum())
    head.expect(ids[:16])
    assert int((history.stamp < history.start).sum()) == old - 5, "the five oldest were brought forward"
    head.expect(ids.repeat(2))
    assert int((history.stamp < history.start).sum()) == max(0, old - 5 - 2 * D // 4), "and a quarter of many"
    for _ in range(D // 5):
        head.expect(ids)
    assert int(history.stamp.min()) >= history.start
    torch.testing.assert_close(head.weight(), before, **EXACT)
    run.touch(5)
    run.check(0)


def test_expecting_what_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="target id 29 is outside the vocabulary of 29"):
        Run("squared").layer.head.expect(torch.tensor([0, D]))


@pytest.mark.parametrize("loss", ["squared", "taylor"])
def test_words_that_sleep_through_many_segments(loss: str) -> None:
    """Rows that are touched again after all the segments that the history may keep alive."""
    run = Run(loss, 4)
    for step in range(80):
        ids = torch.tensor([[step % 3]] * (9 if step % 3 == 0 else 3))  # words 0, 1 and 2 alone
        strong_step(run.layer, run.dense, step, ids)
    assert run.layer.head.state.history.open > 2
    for step in range(80, 90):
        strong_step(run.layer, run.dense, step)
    run.check(0)


def test_one_word_a_thousand_times() -> None:
    run = Run("taylor", 8)
    for step in range(300):
        strong_step(run.layer, run.dense, step, torch.full((9 if step % 3 == 0 else 3, 1), 5))
    run.check(0)


def test_reading_does_not_disturb_the_history() -> None:
    run = Run("taylor", 4)
    run.touch(25)
    head = run.layer.head
    before = {name: tensor.clone() for name, tensor in head.state_dict().items()}
    H = make_batch(5, D, d, 4).H
    outputs = H @ run.dense.W.T
    torch.testing.assert_close(run.layer.weight(), run.dense.W, **EXACT)
    P = 1 + outputs + outputs**2 / 2
    expected = (P / P.sum(1, keepdim=True)).log()
    torch.testing.assert_close(head.log_prob(H[:, :-1], torch.arange(D).expand(4, D)), expected, **EXACT)
    torch.testing.assert_close(head.topk(H[:, :-1], 5)[0], expected.topk(5)[0], **EXACT)
    assert all(torch.equal(before[name], tensor) for name, tensor in head.state_dict().items())
