"""How soon one model is as good as another at its end."""

import pytest

from lstlm.bench import learning, reach
from lstlm.bench.records import Record
from lstlm.errors import ConfigError


def points(label: str, key: str, seed: int, curve: dict[float, float]) -> list[Record]:
    last = max(curve)
    return [{"label": label, "seed": seed, "D": 10, "train_s": t, key: y, "final": t == last} for t, y in curve.items()]


def test_the_mean_curve_compares_seeds_at_equal_times() -> None:
    """One seed was evaluated twice as often: its scores half-way count, not those of its second evaluation."""
    often = {1.0: 0.0, 2.0: 0.1, 3.0: 0.2, 4.0: 0.3}
    records = points("a", "simlex", 1, often) + points("a", "simlex", 2, {2.0: 0.5, 4.0: 0.7})
    times, scores = reach.mean_curve(reach.seed_curves(records, "a", "simlex"))
    assert times == [2.0, 4.0]
    assert [round(score, 9) for score in scores] == [0.3, 0.5]


def test_the_mean_curve_ends_with_the_mean_of_the_ends() -> None:
    records = points("a", "simlex", 1, {1.0: 0.1, 3.0: 0.3}) + points("a", "simlex", 2, {2.5: 0.3, 5.0: 0.4})
    times, scores = reach.mean_curve(reach.seed_curves(records, "a", "simlex"))
    assert times[-1] == 4.0 and round(scores[-1], 9) == 0.35


def test_the_first_evaluation_that_is_as_good_counts() -> None:
    fast = {2.0: 0.1, 4.0: 0.2, 8.0: 0.3}
    records = points("fast", "simlex", 1, fast) + points("slow", "simlex", 1, {10.0: 0.1, 40.0: 0.2})
    found = {(row["label"], row["goal"]): row for row in reach.reach(records)}
    assert found["fast", "slow"] == {
        "label": "fast", "score": "simlex", "goal": "slow", "end": 0.2, "after_s": 4.0, "share": 0.1,
    }  # fmt: skip
    assert found["slow", "fast"]["after_s"] is None and found["slow", "fast"]["share"] is None
    text = learning.markdown(records)
    assert "10.0 %" in text and "not" in text


def test_a_lower_perplexity_is_the_better_one() -> None:
    records = points("a", "perplexity", 1, {1.0: 900.0, 2.0: 100.0})
    records += points("b", "perplexity", 1, {5.0: 300.0})
    after = {row["label"]: row["after_s"] for row in reach.reach(records)}
    assert after == {"a": 2.0, "b": None}


def test_one_model_has_nobody_to_reach() -> None:
    assert reach.markdown(points("a", "simlex", 1, {1.0: 0.1})) == ""


def test_a_slow_model_is_shown_at_its_own_time_with_the_scores_of_another() -> None:
    seen = [record | {"step": 3} for record in points("slow", "simlex", 1, {6.0: 0.01})]
    seen += [r | {"step": 10 * n} for n, r in enumerate(points("fast", "simlex", 1, {1.0: 0.1, 2.0: 0.2}), 1)]
    (early, late) = reach.extrapolated(seen, "slow", "fast")
    assert (early["train_s"], early["simlex"], late["train_s"], late["simlex"]) == (20.0, 0.1, 40.0, 0.2)
    assert early["label"] == "slow (extrapolated)" and late["extrapolated"] and late["final"]
    assert reach.reach([*seen, early, late]) == reach.reach(seen)  # it has reached nothing


def test_only_what_was_seen_is_extrapolated() -> None:
    with pytest.raises(ConfigError, match=r"--extrapolate slow=fast: needs steps of both; the records are of fast"):
        reach.extrapolated([r | {"step": 1} for r in points("fast", "simlex", 1, {1.0: 0.1})], "slow", "fast")


def test_only_the_scores_that_are_wanted_are_left() -> None:
    (record,) = points("one", "simlex", 1, {1.0: 0.1})
    record |= {"simlex_output": 0.2, "wordsim": 0.3, "wordsim_output": 0.4, "top10": 0.5}
    (left,) = reach.only([record], ["simlex", "perplexity"])
    assert set(record) - set(left) == {"wordsim", "wordsim_output", "top10"}
    assert left["simlex_output"] == 0.2
