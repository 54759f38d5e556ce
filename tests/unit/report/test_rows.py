"""Rows of the report with known answers: what it says of steps, epochs, memory, lines and the best loss."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from dscampaign.orchestrator.report.compare.baseline import compare_to_baseline
from dscampaign.orchestrator.report.compare.conditions import conditions_of
from dscampaign.orchestrator.report.compare.ranking import lowest_loss_sentence
from dscampaign.orchestrator.report.measure.flags import flags_of
from dscampaign.orchestrator.report.measure.metrics import METRICS
from dscampaign.orchestrator.report.measure.run import MeasuredRun
from dscampaign.tests.support.planted import Plant, Planted


def one(planted: Plant) -> MeasuredRun:
    return planted(Planted("a", (0.1,), (3.0,)))[0]


def test_mean_and_deviation_of_a_step_stand_beside_the_median(planted: Plant) -> None:
    run = one(planted)
    assert run.timing is not None
    assert run.timing.mean_s == pytest.approx(0.1, rel=0.05)
    assert 0 < run.timing.std_s < 0.05
    assert METRICS["step_mean_s"].of(run) == run.timing.mean_s


def test_an_epoch_takes_the_mean_step_as_often_as_it_has_steps(planted: Plant) -> None:
    run = one(planted)
    assert run.timing is not None
    assert run.epoch_s is None
    told = replace(run, start={**run.start, "steps_per_epoch": 12.5})
    assert told.epoch_s == pytest.approx(12.5 * run.timing.mean_s)


def test_speed_for_memory(planted: Plant) -> None:
    run = one(planted)
    assert run.timing is not None
    assert run.timing.tokens_per_s is not None
    assert run.tokens_per_s_per_gb == pytest.approx(run.timing.tokens_per_s / 10.0)
    assert replace(run, start={"device": "cpu"}, gpus=replace(run.gpus, names=())).tokens_per_s_per_gb is None


def test_memory_at_the_end_is_what_the_trainer_says_and_no_peak(planted: Plant) -> None:
    [run] = planted(Planted("a", (0.1,), (3.0,), speed={"mem_end_gb": 7.5}))
    assert run.memory.end == 7.5
    assert METRICS["mem_end_gb"].of(replace(run, memory=replace(run.memory, end=None))) is None


def test_lines_are_counted_by_what_they_have(planted: Plant) -> None:
    [run] = planted(Planted("a", (0.1,), (3.0,), nan_from=91))
    assert (run.quality.losses, run.quality.times, run.quality.memories) == (90, 100, 100)


def test_persistent_parameters_are_told_by_the_trainer(planted: Plant) -> None:
    run = one(planted)
    assert run.persistent is None
    told = replace(run, start={"persistent_parameters": 290, "persistent_elements": 601_600})
    assert told.persistent == (290, 601_600)


def test_more_than_the_peak_is_impossible(planted: Plant) -> None:
    run = one(planted)
    assert run.timing is not None
    assert not any("impossible" in flag for flag in flags_of(replace(run, timing=replace(run.timing, mfu=1.0))))
    flagged = flags_of(replace(run, timing=replace(run.timing, mfu=1.31)))
    assert any(flag.startswith("an MFU of 131% is impossible: the peak of the device") for flag in flagged)


def said(runs: list[MeasuredRun]) -> str:
    conditions = conditions_of(runs)
    return lowest_loss_sentence("", compare_to_baseline(conditions, conditions[0]))


@pytest.mark.parametrize(
    ("losses", "sentence"),
    [
        ({"a": 3.0, "b": 2.5}, "b came to the lowest held-out loss, 2.5000; all others are established as worse."),
        ({"a": 3.0, "b": 3.0}, "all conditions came to the same held-out loss, 3.0000."),
        (
            {"a": 3.0, "b": 2.5, "c": 2.5},
            "b came to the lowest held-out loss, 2.5000; not established as worse: c.",
        ),
        ({"a": 3.0}, ""),
    ],
)
def test_who_learned_best(planted: Plant, losses: dict[str, float], sentence: str) -> None:
    found = said(planted(*(Planted(name, held_out=(loss, loss, loss)) for name, loss in losses.items())))
    assert found == sentence


def test_who_learned_nothing_did_not_come_to_the_same_loss(planted: Plant) -> None:
    losses = {"a": 2.5, "b": 2.5, "c": math.nan}
    found = said(planted(*(Planted(name, held_out=(loss, loss, loss)) for name, loss in losses.items())))
    assert found == "all 2 conditions that have one came to the same held-out loss, 2.5000."
