"""Which of several conditions is better: verdicts that need no samples are those that samples give."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dscampaign.orchestrator.report.compare.baseline import compare_to_baseline
from dscampaign.orchestrator.report.compare.conditions import conditions_of
from dscampaign.orchestrator.report.compare.ranking import lowest_loss_sentence
from dscampaign.tests.support.planted import Plant, Planted


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
