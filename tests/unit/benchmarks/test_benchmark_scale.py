"""What a further run costs, from measurements of campaigns of several sizes."""

from __future__ import annotations

import pytest

from dscampaign.benchmarks.scale import Cost, growth


def test_each_further_run_costs_what_was_added_by_the_runs_that_were_added() -> None:
    found = {
        10_000: {"plan": Cost(9.0, 1.9, 118.0, 0, 0.0, 0)},
        1_000: {"plan": Cost(9.0, 1.0, 100.0, 0, 0.0, 0)},
        100_000: {"plan": Cost(9.0, 19.9, 298.0, 0, 0.0, 0)},
    }
    [(name, steps)] = growth(found).items()
    assert name == "plan"
    assert steps == [pytest.approx((0.1, 2.0)), pytest.approx((0.2, 2.0))]
