"""The thread that samples a node's GPUs: what it writes, and that nobody ever waits for it."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dscampaign.jobs.agent import telemetry
from dscampaign.jobs.agent.telemetry import Telemetry
from dscampaign.tests.support.fake_gpus import FakeGpus
from dscampaign.tests.support.waiting import HANGS_S, wait_until

Make = Callable[..., Telemetry]


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpus]:
    fake = FakeGpus()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr(telemetry, "WAIT_S", HANGS_S)
    yield fake
    fake.never.set()


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "gpus-0.jsonl"


@pytest.fixture
def make(spool: Path) -> Iterator[Make]:
    """Makes telemetry, and ends it after the test."""
    made: list[Telemetry] = []

    def new(gpus: int = 2, visible: str = "", interval_s: float = 0.005) -> Telemetry:
        made.append(Telemetry(gpus, visible, "n1", spool, interval_s))
        return made[-1]

    yield new
    for one in made:
        one.stop()
        one.wait()


def lines(spool: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in spool.read_text().splitlines()] if spool.exists() else []


def sampled(spool: Path) -> list[dict[str, Any]]:
    return [line for line in lines(spool) if "span_s" in line]


def test_each_gpu_is_sampled_until_it_is_stopped(nvml: FakeGpus, make: Make, spool: Path) -> None:
    made = make()
    made.start()
    wait_until(lambda: len(sampled(spool)) >= 3, "three samples")
    nvml.gpus[1]["energy_mj"] = 9_000_000
    made.stop()
    made.wait()
    first, *_, last = lines(spool)
    assert (first["node"], [gpu["name"] for gpu in first["devices"]]) == ("n1", ["NVIDIA H200"] * 2)
    assert (last["gpu"], last["energy_j"], last["power_w"]) == ([0, 1], [1234.567, 9000.0], [529.4, 529.4])
    assert abs(last["ts"] - time.time()) < 60
    assert not made._thread.is_alive()


@pytest.mark.parametrize(
    ("gpus", "visible", "uuids"),
    [(1, "", ["GPU-0"]), (1, "1", ["GPU-1"]), (2, "GPU-1, GPU-0", ["GPU-1", "GPU-0"]), (2, "1,7", ["GPU-1", None])],
)
def test_the_gpus_of_the_attempt_are_numbered_as_its_ranks_count_them(
    nvml: FakeGpus, make: Make, spool: Path, gpus: int, visible: str, uuids: list[str | None]
) -> None:
    make(gpus, visible).start()
    wait_until(lambda: bool(sampled(spool)), "a sample")
    devices = lines(spool)[0]["devices"]
    assert [(gpu["gpu"], gpu.get("uuid")) for gpu in devices] == list(enumerate(uuids))
    assert sampled(spool)[0]["gpu"] == [number for number, uuid in enumerate(uuids) if uuid]


def test_a_gpu_that_is_lost_is_left_out_and_the_others_go_on(nvml: FakeGpus, make: Make, spool: Path) -> None:
    make().start()
    wait_until(lambda: bool(sampled(spool)), "a sample")
    for name in [*nvml.calls]:
        nvml.fail(name, 0, nvml.NVML_ERROR_GPU_IS_LOST)
    wait_until(lambda: sampled(spool)[-1]["gpu"] == [1], "a sample of the other one")


def test_a_full_disk_leaves_a_gap_and_no_broken_line(
    nvml: FakeGpus, make: Make, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, left = os.write, [10]

    def short(descriptor: int, data: bytes) -> int:
        if not data.startswith(b'{"ts"') or not left:
            return write(descriptor, data)
        return write(descriptor, data[: left.pop()])

    monkeypatch.setattr(os, "write", short)
    make().start()
    wait_until(lambda: spool.exists() and spool.read_bytes().count(b"\n") > 4, "lines after the broken one")
    texts = spool.read_bytes().split(b"\n")[:-1]
    assert len(texts[1]) == 10
    assert all(json.loads(text) for text in [texts[0], *texts[2:]])
