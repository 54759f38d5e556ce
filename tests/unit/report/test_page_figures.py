"""Which conditions lie on the front, and where their names go."""

from __future__ import annotations

import itertools

import pytest

from dscampaign.orchestrator.report.page.figures import front_of, spread


def test_the_front_is_what_none_with_as_little_memory_beats() -> None:
    points = [(8.0, 100.0), (4.0, 60.0), (6.0, 50.0), (8.0, 90.0), (12.0, 100.0), (3.0, 10.0)]
    assert front_of(points) == [5, 1, 0]


def test_names_of_points_that_lie_together_do_not_cover_each_other() -> None:
    wanted = [0.5, 0.5, 0.52, 0.9, 0.1]
    found = spread(wanted, 0.1)
    ordered = sorted(found)
    assert min(after - before for before, after in itertools.pairwise(ordered)) >= 0.1 - 1e-9
    assert (found[3], found[4]) == (0.9, 0.1)
    assert sum(found[:3]) == pytest.approx(sum(wanted[:3]))
    assert found[0] < found[2]
