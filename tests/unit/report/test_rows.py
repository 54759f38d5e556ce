"""Rows of the report with known answers: what it says of steps, epochs, memory, lines and the best loss."""

from __future__ import annotations

from dataclasses import replace

import pytest

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


def test_more_than_the_peak_is_impossible(planted: Plant) -> None:
    run = one(planted)
    assert run.timing is not None
    assert not any("impossible" in flag for flag in flags_of(replace(run, timing=replace(run.timing, mfu=1.0))))
    flagged = flags_of(replace(run, timing=replace(run.timing, mfu=1.31)))
    assert any(flag.startswith("an MFU of 131% is impossible: the peak of the device") for flag in flagged)
