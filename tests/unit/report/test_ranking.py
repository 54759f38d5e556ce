"""Which of several conditions is better: verdicts that need no samples are those that samples give."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dscampaign.orchestrator.report.compare import ranking
from dscampaign.orchestrator.report.compare.baseline import compare_to_baseline
from dscampaign.orchestrator.report.compare.conditions import conditions_of
from dscampaign.orchestrator.report.compare.ranking import faster, lowest_loss_sentence, ties
from dscampaign.orchestrator.report.compare.statistics import (
    _SEED,
    DRAWS,
    LEAST_REPEATS,
    TIE,
    Order,
    _medians,
    _middles,
    estimate,
    order,
    ratio,
)
from dscampaign.tests.support.planted import Plant, Planted


def of_speeds(*speeds: float) -> Any:
    return SimpleNamespace(speeds=speeds, speed=estimate(speeds))


def slowly(one: Any, other: Any) -> bool:
    """`faster` by samples alone."""
    if ranking.pace(one) <= ranking.pace(other):
        return False
    found = order(one.speeds, other.speeds)
    if found == Order.INCONCLUSIVE:
        return ranking.pace(one) * (1.0 - TIE) >= ranking.pace(other)
    return found == Order.FASTER


@pytest.mark.parametrize("scatter", [0.002, 0.01, 0.03, 0.1])
def test_what_needs_no_samples_is_what_samples_show(scatter: float) -> None:
    noise = random.Random(f"{scatter}")
    several = [
        of_speeds(*(mean * noise.uniform(1 - scatter, 1 + scatter) for _ in range(noise.choice((0, 1, 2, 3, 3, 4, 5)))))
        for mean in (noise.choice((0.9, 0.98, 1.0, 1.02, 1.05)) for _ in range(40))
    ]
    for one in several:
        assert [faster(one, other) for other in several] == [slowly(one, other) for other in several]


def test_no_samples_are_drawn_where_repeats_lie_apart_or_medians_together(monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(ranking, "order", drawn)
    quick, slow, like = of_speeds(1.2, 1.1, 1.3), of_speeds(1.0, 0.9, 1.05), of_speeds(1.21, 1.0, 1.4)
    assert faster(quick, slow)
    assert not faster(slow, quick)
    assert ties(quick, like)


@pytest.mark.parametrize("repeats", [3, 4, 5, 10])
def test_medians_are_those_of_samples_drawn_with_replacement(repeats: int) -> None:
    draw = np.random.default_rng(repeats)
    for values in (draw.normal(size=repeats), draw.integers(1, 3, repeats).astype(float)):
        chosen = np.random.default_rng((_SEED, 1)).integers(0, repeats, (DRAWS, repeats))
        assert np.array_equal(_medians(values, 1), np.median(values[chosen], axis=1))


def test_many_pairs_of_three_repeats_share_their_samples() -> None:
    _middles.cache_clear()
    draw = np.random.default_rng(0)
    for _ in range(50):
        assert ratio(*draw.normal(100, 1, (2, LEAST_REPEATS)).tolist())
    assert _middles.cache_info().misses <= 2 * 6


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ((3.00, 3.00, 3.30), (3.05, 3.05, 3.05), "a came to the lowest held-out loss, 3.0000; "),
        ((3.00, 3.00, 3.30), (3.00, 3.00, 3.00), "all conditions came to the same held-out loss, 3.0000."),
        ((3.00, 3.00, float("nan")), (3.05, 3.05, 3.05), ""),
    ],
)
def test_the_lowest_loss_is_the_median_over_repeats(
    planted: Plant, first: Sequence[float], second: Sequence[float], said: str
) -> None:
    """As in the table, and as `--by loss` has it."""
    conditions = conditions_of(planted(Planted("a", held_out=first), Planted("b", held_out=second)))
    found = lowest_loss_sentence("", compare_to_baseline(conditions, conditions[0]))
    assert found.startswith(said)
    assert bool(found) is bool(said)
