"""Speeds on devices that differ by chance say nothing of the conditions; those that were asked for are part of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from dscampaign.orchestrator.report.compare.answer import answer
from dscampaign.orchestrator.report.compare.conditions import conditions_of
from dscampaign.orchestrator.report.compare.difference import compare, verdict
from dscampaign.orchestrator.report.compare.sensitivity import sensitivities
from dscampaign.orchestrator.report.compare.statistics import Standing
from dscampaign.orchestrator.report.measure.load import _neighbours as neighbours
from dscampaign.orchestrator.report.measure.run import MeasuredRun
from dscampaign.tests.support.planted import Plant, Planted, beside_first
from dscampaign.tests.support.policy_world import attempt_row

A100, H100 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"
ASKED = {"partition": "gpu", "gpus_per_node": 2}


def on(gpu: str, name: str, step_s: float, zero_stage: int, **slurm: Any) -> Planted:
    varied = {"zero_stage": zero_stage}
    config = {"slurm": {**ASKED, **slurm}}
    return Planted(name, (step_s,) * 3, gpu=gpu, device=gpu, params=varied, train=varied, config=config)


def named(runs: Sequence[MeasuredRun], devices: Mapping[str, tuple[str, ...]]) -> list[MeasuredRun]:
    """The same, of which these ran on other devices; on none where nobody knows."""
    return [
        replace(run, start={}, gpus=replace(run.gpus, names=devices[run.name])) if run.name in devices else run
        for run in runs
    ]


def test_other_gpus_for_the_same_request_are_no_pair_and_establish_nothing(planted: Plant) -> None:
    runs = planted(on(A100, "a", 0.1, 1), on(H100, "b", 0.05, 2))
    found = beside_first(runs)
    assert sensitivities(found) == []
    assert found[1].order == Standing.NOT_PROVEN
    advised = answer(found)
    assert not advised.proven
    (doubt,) = advised.doubts
    assert doubt.text == f"jobs that ask for the same ran on different devices: b: {H100}, a: {A100}"
    assert advised.rows[1].verdict is Standing.NOT_PROVEN
    said = verdict(compare(*conditions_of(runs)))
    assert f"Jobs that ask for the same ran on different devices: a: {A100}, b: {H100}." in said


def test_nodes_with_other_gpus_in_one_job_are_other_devices(planted: Plant) -> None:
    runs = planted(on(H100, "a", 0.1, 1), on(H100, "b", 0.05, 2))
    both = (A100, H100)
    mixed = [replace(run, gpus=replace(run.gpus, names=both)) if run.name.startswith("b") else run for run in runs]
    assert not answer(beside_first(mixed)).proven
    (said,) = (each for each in verdict(compare(*conditions_of(mixed))) if "different devices" in each)
    assert said.endswith(f": a: {H100}, b: {A100} and {H100}.")


def test_repeats_on_other_gpus_establish_nothing(planted: Plant) -> None:
    runs = planted(on(H100, "a", 0.1, 1), on(H100, "b", 0.05, 2))
    found = beside_first(named(runs, {"b-r2": (A100,)}))
    assert sensitivities(found) == []
    assert found[1].order == Standing.NOT_PROVEN
    advised = answer(found)
    assert not advised.proven
    assert advised.doubts[0].text.endswith(f": b: {H100} or {A100}, a: {H100}")


@pytest.mark.parametrize(
    ("beside", "doubts"),
    [
        ({"a": 3.0, "b": 1.0}, ["beside unequally many others on their nodes (b: 1.0, a: 3.0)"]),
        ({"a": 3.0, "b": 2.8}, []),
    ],
)
def test_other_runs_on_the_node_may_take_time(planted: Plant, beside: dict[str, float], doubts: list[str]) -> None:
    runs = planted(on(A100, "a", 0.1, 1), on(A100, "b", 0.05, 2))
    found = beside_first([replace(run, neighbours=beside[run.name[0]]) for run in runs])
    advised = answer(found)
    assert [part in doubt.text for doubt, part in zip(advised.doubts, doubts, strict=True)] == [True] * len(doubts)
    assert advised.proven == (not doubts)


def test_neighbours_are_runs_of_one_job_at_one_time() -> None:
    row = attempt_row()
    spans = {1: (10.0, 20.0), 2: (10.0, 30.0), 3: (25.0, 35.0), 4: (35.0, 40.0)}
    rows = [
        replace(row, run_id=run, task=0, job_id="7_0", started_s=start, ended_s=end)
        for run, (start, end) in spans.items()
    ]
    assert neighbours([*rows, replace(rows[0], run_id=5, job_id="7_1")]) == {1: 1.0, 2: 0.75, 3: 0.5}
