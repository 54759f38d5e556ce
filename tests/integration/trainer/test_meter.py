"""Lines of metrics that stand for several steps, and the window over which speed is measured."""

from __future__ import annotations

import time
from array import array
from typing import Any

import numpy as np
import pytest
import torch

from dscampaign.db.records import WARM_UP_STEPS
from dscampaign.db.series import Series
from dscampaign.jobs import report
from dscampaign.jobs.trainer import memory
from dscampaign.jobs.trainer.memory import Peak
from dscampaign.jobs.trainer.meter import Meter, Speed, peak_flops
from dscampaign.orchestrator.report.measure.timing import lines_of, timing
from dscampaign.tests.integration.trainer.attempts import train_config
from dscampaign.tests.integration.trainer.conftest import in_lanes

pytestmark = pytest.mark.training

UNTIMED = 7


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("log_every", in_lanes([1, 4, 10, 25, 1000], {1, 10}))
@pytest.mark.parametrize("first", [1, 13])
@pytest.mark.parametrize("pause_every", [None, 7])
@pytest.mark.parametrize("profile_at", [None, 31])
def test_lines_hold_the_time_of_all_their_steps(
    log_every: int, first: int, pause_every: int | None, profile_at: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also around evaluations, checkpoints, the warm-up, a profile and a resumed attempt's first line."""
    lines: dict[int, dict[str, Any]] = {}
    events: dict[str, Any] = {}
    now_s = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now_s[0])
    monkeypatch.setattr(report, "report", lambda step, **values: lines.update({step: values}))
    monkeypatch.setattr(report, "event", lambda name, **values: events.update({name: values}))
    last = 83
    config = train_config(log_every=log_every, steps=last, world_size=1, untimed_steps=UNTIMED, profile_at=profile_at)
    profiled = set() if profile_at is None else set(range(profile_at, profile_at + 3))
    meter = Meter(config, torch.device("cpu"), range(first, last + 1), 1.0)
    took_s = {step: float(s) for step, s in enumerate(np.random.default_rng(log_every).uniform(0.01, 0.3, last + 1))}

    def pause() -> None:
        meter.flush()
        now_s[0] += 5.0
        meter.restart_clock()

    for step in range(first, last + 1):
        if step == profile_at:
            pause()
        now_s[0] += took_s[step] + (step < first + UNTIMED)
        meter.close(step, 1e-3, None, {})
        if step == max(profiled, default=0) or (pause_every and step % pause_every == 0):
            pause()
    meter.flush()
    meter.finish()

    steps = sorted(lines)
    assert {step for step in range(first, last + 1) if step % log_every == 0} <= set(steps)
    figures = {name: [lines[step].get(name, np.nan) for step in steps] for name in ("step_time", "tokens_per_s", "mfu")}
    columns = {name.replace("step_time", "step_time_s"): array("d", figure) for name, figure in figures.items()}
    columns["ts_s"] = array("d", [lines[step]["ts"] for step in steps])
    series = Series(array("q", steps), array("q", [1] * len(steps)), columns, {})
    found = timing(series, lines_of(series, {1: first - 1}, log_every, untimed=UNTIMED))
    counted_s = [took_s[step] for step in range(first + UNTIMED, last + 1) if step not in profiled]
    assert found
    assert found.steps == len(counted_s) == events["speed"]["steps"]
    assert found.window_s == pytest.approx(sum(counted_s))
    tokens = config.global_batch * config.seq_len
    assert found.tokens_per_s == pytest.approx(tokens * len(counted_s) / sum(counted_s))
    assert found.tokens_per_s == pytest.approx(events["speed"]["tokens_per_s"])
    assert found.warm_up_s == pytest.approx(sum(took_s[step] + 1 for step in range(first, first + UNTIMED)))


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("restarts", [True, False])
def test_the_peak_of_the_warm_up_is_in_the_lines_alone(restarts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU a process has a single peak."""
    lines: dict[int, dict[str, Any]] = {}
    events: dict[str, Any] = {}
    peaks = iter([Peak(9.0, 10.0), Peak(9.0, 11.0), Peak(4.0, 5.0), Peak(6.0, 7.0, retries=1)])
    monkeypatch.setattr(report, "report", lambda step, **values: lines.update({step: values}))
    monkeypatch.setattr(report, "event", lambda name, **values: events.update({name: values}))
    monkeypatch.setattr(memory, "peak", lambda _device: next(peaks))
    monkeypatch.setattr(memory, "restart_peak", lambda _device: restarts)
    meter = Meter(train_config(steps=4, world_size=1, untimed_steps=2), torch.device("cpu"), range(1, 5), 1.0)
    for step in range(1, 5):
        meter.close(step, 1e-3, None, {})
    meter.flush()
    meter.finish()
    assert [line["mem_allocated"] for line in lines.values()] == [9.0] * 4
    assert [line["mem_reserved"] for line in lines.values()] == [10.0, 11.0, 11.0, 11.0]
    assert (events["memory"]["peak_allocated_gb"], events["memory"]["peak_reserved_gb"]) == (9.0, 11.0)
    timed = (events["speed"].get("mem_allocated_gb"), events["speed"].get("mem_reserved_gb"))
    assert timed == ((6.0, 7.0) if restarts else (None, None))
    assert events["speed"]["alloc_retries"] == 1


WORK: dict[str, Any] = {"tokens": 8192, "ranks": 2, "flops_per_token": 1e9, "peak_flops": 1e15}


def test_nothing_is_said_before_the_warm_up_is_over() -> None:
    speed = Speed(**WORK, warm_up=WARM_UP_STEPS)
    for _ in range(WARM_UP_STEPS):
        speed.add(1.0, 0.0)
    assert speed.summary() is None


def test_the_warm_up_is_left_out_and_reported() -> None:
    speed = Speed(**WORK, warm_up=WARM_UP_STEPS)
    for step in range(WARM_UP_STEPS):
        speed.add(10.0 if step == 0 else 1.0, 0.5)
    for time_s in (0.1, 0.2, 0.1, 0.2):
        speed.add(time_s, 0.03)
    summary = speed.summary()
    assert summary is not None
    assert (summary["steps"], summary["warm_up_steps"]) == (4, WARM_UP_STEPS)
    assert summary["warm_up_s"] == pytest.approx(10.0 + WARM_UP_STEPS - 1)
    assert summary["tokens_per_s"] == pytest.approx(4 * 8192 / 0.6)
    assert summary["tokens_per_s_per_gpu"] == pytest.approx(2 * 8192 / 0.6)
    assert summary["mfu"] == pytest.approx(2 * 8192 / 0.6 * 1e9 / 1e15)
    assert summary["step_time_median_s"] == pytest.approx(0.15)
    assert summary["data_wait_share"] == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("device", "peak"),
    [
        ("NVIDIA H100 NVL", 835e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA RTX A1000", None),
        ("cpu", None),
    ],
)
def test_the_peak_follows_from_the_device_s_name(device: str, peak: float | None) -> None:
    assert peak_flops(device) == peak
