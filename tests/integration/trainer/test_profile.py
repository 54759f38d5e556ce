"""A profile beside the measurement of speed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dscampaign.jobs import report
from dscampaign.jobs.trainer.meter import Meter
from dscampaign.jobs.trainer.profile import Profile
from dscampaign.jobs.trainer.speed import profiled_steps
from dscampaign.tests.integration.trainer.attempts import train_config

STEPS = 60
STEP_S, PROFILED_S, PROFILER_S = 0.005, 0.1, 3.0

pytestmark = pytest.mark.training


class HostClock:
    """The host's clock, which only the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now_s)
        for slow in ("start", "stop", "export_chrome_trace"):
            monkeypatch.setattr(torch.profiler.profile, slow, self._taking(getattr(torch.profiler.profile, slow)))

    def _taking(self, function: Callable[..., None]) -> Callable[..., None]:
        def slow(*arguments: Any) -> None:
            function(*arguments)
            self.now_s += PROFILER_S

        return slow


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("first", [1, 40, STEPS - 1])
def test_what_a_profile_takes_is_in_no_figure_of_speed(
    first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, Any] = {}
    monkeypatch.setattr(report, "event", lambda name, **values: told.update({name: values}))
    monkeypatch.setattr(report, "report", lambda *_, **__: None)
    clock = HostClock(monkeypatch)
    config = train_config(profile_at=first, steps=STEPS, world_size=1)
    profile = Profile(profiled_steps(first), tmp_path, torch.device("cpu"))
    meter = Meter(config, torch.device("cpu"), range(1, STEPS + 1), 1.0)
    meter.restart_clock()  # as after an evaluation: then steps are timed by the host
    for step in range(1, STEPS + 1):
        profile.before(step, meter)
        with meter.own_share(step):
            clock.now_s += PROFILED_S if step in profiled_steps(first) else STEP_S
        meter.add(torch.tensor(1.0))
        meter.close(step, 1e-3, None, {})
        profile.after(step, meter)
    meter.flush()
    profile.write()
    meter.finish()
    assert (tmp_path / "profile" / "operators.txt").exists()
    assert told["speed"]["window_s"] == pytest.approx(told["speed"]["steps"] * STEP_S)
