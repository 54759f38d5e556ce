"""The registry of metrics: what each is called, and how its values are written."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from dscampaign.orchestrator.report.compare.conditions import conditions_of
from dscampaign.orchestrator.report.compare.statistics import Estimate
from dscampaign.orchestrator.report.measure.metrics import METRICS, OverRepeats
from dscampaign.orchestrator.report.measure.run import MeasuredRun
from dscampaign.tests.support.planted import Plant, Planted, flags_of


@pytest.mark.parametrize(
    ("name", "value", "text", "number"),
    [
        ("step_s", 0.10104, "101 ms", "101"),
        ("held_out", 3.0, "3.0000 nats", "3.0000"),
        ("held_out", 0.0, "0.0000 nats", "0.0000"),
        ("held_out", 2.4e-5, "2.4e-05 nats", "2.4e-05"),
        ("held_out", 3.2e12, "3.2e+12 nats", "3.2e+12"),
        ("held_out", math.nan, "NaN", "NaN"),
        ("loss_reduction", 0.25, "25.0%", "25.0%"),
        ("mem_reserved_gb", 10.04, "10.0 GB", "10.0"),
        ("mem_share", 0.125, "12%", "12%"),
        ("energy_j", 5200.0, "5.2 kJ", "5.2"),
        ("tokens_per_s", 48_231.0, "48.2k tokens/s", "48.2k"),
        ("steps_timed", 1240.0, "1,240", "1,240"),
        ("mem_host_gb", None, "", ""),
    ],
)
def test_a_value_is_written_with_its_unit_or_without(name: str, value: float | None, text: str, number: str) -> None:
    assert (METRICS[name].text(value), METRICS[name].number(value)) == (text, number)


def test_repeats_make_one_value_of_every_metric(planted: Plant) -> None:
    (condition,) = conditions_of(planted(Planted("one", (0.1, 0.2, 0.3), reserved_gb=20.0, gpu="NVIDIA H100")))
    assert condition.value("step_s") == pytest.approx(0.2, rel=0.01)
    assert condition.value("steps_timed") == 240
    assert condition.value("mem_reserved_gb") == 20.0
    for name, metric in METRICS.items():
        found = condition.summary(name)
        assert isinstance(found, Estimate | None) or metric.over in (OverRepeats.HIGHEST, OverRepeats.SUM)


def one(planted: Plant) -> MeasuredRun:
    return planted(Planted("a", (0.1,), (3.0,)))[0]


def test_mean_and_deviation_of_a_step_stand_beside_the_median(planted: Plant) -> None:
    run = one(planted)
    assert run.timing is not None
    assert run.timing.mean_s == pytest.approx(0.1, rel=0.05)
    assert 0 < run.timing.std_s < 0.05
    assert METRICS["step_mean_s"].of(run) == run.timing.mean_s


def test_more_than_the_peak_is_impossible(planted: Plant) -> None:
    run = one(planted)
    assert run.timing is not None
    assert not any("impossible" in flag for flag in flags_of(replace(run, timing=replace(run.timing, mfu=1.0))))
    flagged = flags_of(replace(run, timing=replace(run.timing, mfu=1.31)))
    assert any(flag.startswith("an MFU of 131% is impossible: the peak of the device") for flag in flagged)
