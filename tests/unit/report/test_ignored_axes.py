"""Axes that a script of one's own does not read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dscampaign.orchestrator.report.compare.workloads import ignored
from dscampaign.orchestrator.report.measure.run import MeasuredRun
from dscampaign.tests.support.planted import Plant, Planted

SCRIPT = {"command": ["train.py"]}


def point(losses: list[float], config: dict[str, Any] = SCRIPT, **params: Any) -> tuple[Planted, list[float]]:
    name = "_".join(f"{axis}-{value}" for axis, value in params.items())
    return Planted(name, (0.1,), (None,), params={"label": "", **params}, config=config), losses


def measured(planted: Plant, *points: tuple[Planted, list[float]]) -> list[MeasuredRun]:
    runs = planted(*(condition for condition, _ in points))
    steps = [float(step) for step in range(1, 9)]
    curves = [replace(run.curve, step=steps, raw=losses) for run, (_, losses) in zip(runs, points, strict=True)]
    return [replace(run, curve=curve) for run, curve in zip(runs, curves, strict=True)]


FIRST = [3.0, 2.9, 2.8, 2.7, 2.6, 2.5, 2.4, float("nan")]
SECOND = [*FIRST[:6], 2.4000001, 2.3]


def test_an_axis_that_changes_no_digit_is_named(planted: Plant) -> None:
    found = ignored(
        measured(
            planted,
            point(FIRST, depth=1, lr=0.1),
            point(FIRST, depth=2, lr=0.1),
            point(SECOND, depth=1, lr=0.2),
            point(SECOND, depth=2, lr=0.2),
        )
    )
    assert found == ["depth"]


@pytest.mark.parametrize("axis", ["zero_stage", "zero", "strategy", "micro_batch", "compile", "num_workers"])
def test_an_axis_that_changes_only_how_a_step_is_computed_is_not_named(planted: Plant, axis: str) -> None:
    points: list[dict[str, Any]] = [{axis: 1}, {axis: 2}]
    assert not list(ignored(measured(planted, *(point(FIRST, **params) for params in points))))


def test_the_built_in_training_reads_everything(planted: Plant) -> None:
    assert not list(ignored(measured(planted, point(FIRST, {}, lr=0.1), point(FIRST, {}, lr=0.2))))
