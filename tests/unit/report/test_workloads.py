"""Workloads, though not everything is known of every run; and axes that a user's script does not read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dscampaign.db.states import RunState
from dscampaign.orchestrator.report.compare.answer import answer
from dscampaign.orchestrator.report.compare.baseline import compare_to_baseline
from dscampaign.orchestrator.report.compare.conditions import conditions_of
from dscampaign.orchestrator.report.compare.statistics import LOSS_MARGIN_NATS, Standing
from dscampaign.orchestrator.report.compare.workloads import ignored, workloads_of
from dscampaign.orchestrator.report.measure.run import MeasuredRun
from dscampaign.tests.support.planted import Plant, Planted, beside_first


def workloads(runs: Sequence[MeasuredRun]) -> list[list[str]]:
    """Names of the conditions of each."""
    return [[one.name for one in workload.conditions] for workload in workloads_of(conditions_of(runs))]


def test_what_has_yet_to_begin_is_on_the_ranks_that_it_asks_for(planted: Plant) -> None:
    waits = Planted("waits", (0.1,), (3.0,), tries=(), state=RunState.PENDING)
    runs = planted(Planted("base"), Planted("fast", (0.05,) * 3), waits)
    assert workloads(runs) == [["base", "fast", "waits"]]
    (workload,) = workloads_of(conditions_of(runs))
    found = answer(compare_to_baseline(workload.conditions, workload.baseline))
    assert not found.proven
    assert found.doubts[0].text == "provisional: waits not finished"
    two = [one for one in workload.conditions if one.name != "fast"]
    alone = answer(compare_to_baseline(two, workload.baseline))
    assert alone.sentence == "No order yet: base is the first to finish; others are not finished."


def test_losses_of_a_condition_under_way_are_provisional(planted: Plant) -> None:
    *others, last = planted(Planted("base"), Planted("c"))
    compared = beside_first([*others, replace(last, state=RunState.RUNNING)])[1]
    assert compared.loss.reason == "provisional: c not finished"


@pytest.mark.parametrize(("field", "one", "other"), [("global_batch", 8, 64), ("steps", 100, 1000), ("seq_len", 9, 99)])
def test_what_the_spec_says_of_a_script_s_work_counts(planted: Plant, field: str, one: int, other: int) -> None:
    of_script = Planted("less", held_out=(None,) * 3, printed=True, train={field: one})
    more = replace(of_script, name="more", train={field: other})
    silent = replace(more, name="silent", tries=(), step_s=(0.1,), state=RunState.PENDING)
    other_way = replace(of_script, name="otherwise", params={"depth": 2})
    assert workloads(planted(of_script, more, silent, other_way)) == [["less", "otherwise"], ["more", "silent"]]


@pytest.mark.parametrize(("margin", "verdict"), [(None, Standing.WORSE), (0.4, Standing.EQUAL)])
def test_the_margin_is_fixed_or_the_spec_s_however_much_repeats_differ(
    planted: Plant, margin: float | None, verdict: Standing
) -> None:
    base = Planted("base", held_out=(2.8, 3.0, 3.2))
    runs = planted(base, Planted("worse", held_out=(3.1, 3.3, 3.5)))
    (workload,) = workloads_of(conditions_of(runs))
    judged = compare_to_baseline(workload.conditions, workload.baseline, margin)
    assert judged[0].loss.margin == judged[1].loss.margin == (margin or LOSS_MARGIN_NATS)
    assert judged[1].loss.verdict == verdict


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


HOW = ["zero_stage", "zero", "strategy", "micro_batch", "compile", "num_workers", "attn_implementation", "python"]


@pytest.mark.parametrize("axis", [*HOW, "hidden_nodes", "attention_heads"])
def test_an_axis_that_changes_only_how_a_step_is_computed_is_not_named(planted: Plant, axis: str) -> None:
    points: list[dict[str, Any]] = [{axis: 1}, {axis: 2}]
    runs = measured(planted, *(point(FIRST, **params) for params in points))
    assert list(ignored(runs)) == ([] if axis in HOW else [axis])


def test_the_built_in_training_reads_everything(planted: Plant) -> None:
    assert not list(ignored(measured(planted, point(FIRST, {}, lr=0.1), point(FIRST, {}, lr=0.2))))
