"""The window over which speed is measured."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from dscampaign.db.warm_up import WARM_UP_STEPS
from dscampaign.jobs.trainer.speed import End, Speed, Work, peak_flops, quartiles_of

WORK = Work(tokens=8192, ranks=2, flops_per_token=1e9, peak_flops=1e15)

END = End(0.0, 0.0, waited=True)


def test_nothing_is_said_before_the_warm_up_is_over() -> None:
    speed = Speed(WORK, WARM_UP_STEPS)
    for _ in range(WARM_UP_STEPS):
        speed.add(1.0, 0.0, END)
    assert speed.summary() is None


def test_the_warm_up_is_left_out_and_reported() -> None:
    speed = Speed(WORK, WARM_UP_STEPS)
    for step in range(WARM_UP_STEPS):
        speed.add(10.0 if step == 0 else 1.0, 0.5, END)
    for time_s in (0.1, 0.2, 0.1, 0.2):
        speed.add(time_s, 0.03, END)
    summary = speed.summary()
    assert summary is not None
    assert (summary["steps"], summary["warm_up_steps"], summary["first_step_s"]) == (4, WARM_UP_STEPS, 10.0)
    assert summary["warm_up_s"] == pytest.approx(10.0 + WARM_UP_STEPS - 1)
    assert summary["tokens_per_s"] == pytest.approx(4 * 8192 / 0.6)
    assert summary["tokens_per_s_per_gpu"] == pytest.approx(2 * 8192 / 0.6)
    assert summary["mfu"] == pytest.approx(2 * 8192 / 0.6 * 1e9 / 1e15)
    assert summary["step_time_median_s"] == pytest.approx(0.15)
    assert summary["data_wait_share"] == pytest.approx(0.2)


@dataclass
class Machine:
    """A host that queues steps and a device that makes them, as ``Meter`` uses them; all times in seconds.

    Attributes:
        queue_s, step_s: what the host takes to queue a step, and the device to make it.
        host_s, device_s: where both are.
    """

    queue_s: float
    step_s: float
    host_s: float = 100.0
    device_s: float = 100.0
    pending: tuple[float, float, float] | None = None
    begin_s: float = 100.0

    def step(self, speed: Speed) -> None:
        """Queues a step, then looks at the one before."""
        self.host_s += self.queue_s
        self.device_s = max(self.device_s + self.step_s, self.host_s + self.step_s / 4)  # its last operations
        before, self.pending = self.pending, (self.begin_s, self.device_s, self.host_s)
        self.begin_s = self.device_s
        self.look(speed, before)

    def look(self, speed: Speed, pending: tuple[float, float, float] | None) -> None:
        if pending is not None:
            begin_s, end_s, queued_s = pending
            waited, self.host_s = self.host_s < end_s, max(self.host_s, end_s)
            speed.add(end_s - begin_s, 0.0, End(queued_s, self.host_s, waited))

    def interruption(self, speed: Speed, seconds: float) -> None:
        """Looks at the last step now, does something else for so long, and begins anew."""
        before, self.pending = self.pending, None
        self.look(speed, before)
        self.host_s += seconds
        self.begin_s = self.device_s = self.host_s
        speed.interrupted()


@pytest.mark.parametrize("queue_s", [0.01, 0.09, 0.11, 0.3], ids=["device", "nearly device", "nearly host", "host"])
@pytest.mark.parametrize("stops", [(), (30,), (20,), (10, 25, 35)])
def test_two_clocks_that_are_right_agree(
    monkeypatch: pytest.MonkeyPatch, queue_s: float, stops: tuple[int, ...]
) -> None:
    machine, speed = Machine(queue_s, 0.1), Speed(WORK, WARM_UP_STEPS)
    monkeypatch.setattr("dscampaign.jobs.trainer.speed.time.perf_counter", lambda: machine.host_s)
    for step in range(1, 41):
        machine.step(speed)
        if step in stops:
            machine.interruption(speed, 7.0)
    machine.interruption(speed, 0.0)
    summary = speed.summary()
    assert summary is not None
    assert summary["steps"] == 20
    assert summary["clock_ratio"] == pytest.approx(1.0, abs=0.01)


def test_a_device_whose_clock_is_wrong_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, speed = Machine(0.01, 0.1), Speed(WORK, WARM_UP_STEPS)
    monkeypatch.setattr(machine, "look", lambda to, pending: pending and to.add(0.05, 0.0, End(0.0, pending[1], True)))
    for _ in range(40):
        machine.step(speed)
    machine.interruption(speed, 0.0)
    summary = speed.summary()
    assert summary is not None
    assert summary["clock_ratio"] == pytest.approx(2.0)


def test_quartiles_are_interpolated() -> None:
    assert quartiles_of([4.0, 1.0, 2.0, 3.0]) == (1.75, 2.5, 3.25)
    assert quartiles_of([3.0]) == (3.0, 3.0, 3.0)


def test_an_unknown_device_has_no_utilisation() -> None:
    assert Work(8192, 1, 1e9, None).mfu(0.1) is None


@pytest.mark.parametrize(
    ("device", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 NVL", 835e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA H200 NVL", 835e12),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA RTX A1000", None),
        ("cpu", None),
    ],
)
def test_the_peak_follows_from_the_device_s_name(device: str, peak: float | None) -> None:
    assert peak_flops(device) == peak
