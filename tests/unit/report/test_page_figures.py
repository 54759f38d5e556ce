"""Which conditions lie on the front, and where their names go."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from dscampaign.orchestrator.report.page.drawing import labels_of
from dscampaign.orchestrator.report.page.figures import coinciding, front_of, spread
from dscampaign.orchestrator.report.page.loss_plots import draw_loss
from dscampaign.orchestrator.report.page.plots import looks_of
from dscampaign.tests.support.planted import Planted, PlantStore, results_at


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


def test_curves_that_cover_each_other_are_found_together() -> None:
    base = np.linspace(3.0, 2.0, 100)
    near, far, cut = base + 0.0005, base + 0.1, base.copy()
    cut[50:] = math.nan
    noisy = base.copy()
    noisy[:5] += 1.0
    assert coinciding([base, far, near, cut, noisy, far], 0.001) == [[0, 2, 3, 4], [1, 5]]


def test_what_shares_no_step_with_another_covers_nothing() -> None:
    first, second = np.array([1.0, 1.0, math.nan, math.nan]), np.array([math.nan, math.nan, 1.0, 1.0])
    assert coinciding([first, second], 0.1) == [[0], [1]]


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (["a", "b"], ["a", "b"]),
        (["x" * 30 + "_strategy-ddp", "x" * 30 + "_strategy-zero1"], ["…ddp", "…zero1"]),
        (["x" * 60], ["x" * 20 + "…" + "x" * 19]),
        (["a" + "x" * 60 + "b", "a" + "x" * 61 + "b"], [f"{n} a{'x' * 19}…{'x' * 18}b" for n in (1, 2)]),
    ],
)
def test_long_names_are_told_apart_by_what_differs(names: list[str], labels: list[str]) -> None:
    found = labels_of(names)
    assert found == labels
    assert len(set(found)) == len(names)
    assert max(map(len, found)) <= 44


def test_a_run_that_came_only_to_step_0_is_drawn_beside_others(planted_url: PlantStore) -> None:
    """Of many scripts the first line is of step 0."""
    results = results_at(planted_url(Planted("base", (0.1,)), Planted("begun", (0.1,))))
    (one,), (base, begun) = results.workloads, results.comparisons
    (run,) = begun.condition.runs
    first = {name: values[:1] for name, values in vars(run.curve).items()}
    curve = replace(run.curve, **{**first, "step": [0.0], "tokens": [0.0], "eval_step": [], "held_out": []})
    begun = replace(begun, condition=replace(begun.condition, runs=(replace(run, curve=curve),)))
    figure = draw_loss(replace(one, comparisons=(base, begun)), looks_of(results))
    above = [scale for axis in figure.axes for scale in axis.child_axes]
    assert [scale.get_xlabel() for scale in above] == ["million tokens"]  # the other's, to whose steps these are
