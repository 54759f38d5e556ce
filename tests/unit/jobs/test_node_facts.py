"""What the node itself shows: GPUs through a library that may be absent or stuck, memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dscampaign.jobs.agent import gpus, node_facts
from dscampaign.jobs.agent.gpus import Gpu, GpuWatch
from dscampaign.tests.support.fake_gpus import FakeGpus
from dscampaign.tests.support.waiting import HANGS_S, wait_until

TOTAL = 150_754_820_096


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeGpus:
    fake = FakeGpus()
    fake.gpus[0]["used"], fake.gpus[1]["used"] = 10, 20
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr(gpus, "END_TIMEOUT_S", HANGS_S)
    return fake


def test_the_gpus_are_seen_before_and_after(nvml: FakeGpus) -> None:
    watch = GpuWatch(2, "")
    watch.wait()
    nvml.gpus[0]["used"] = 70
    nvml.fail("nvmlDeviceGetHandleByIndex", 1, nvml.NVML_ERROR_GPU_IS_LOST)
    facts = watch.facts()
    assert facts is not None
    assert facts.before == (Gpu("0", 10, TOTAL), Gpu("1", 20, TOTAL))
    assert facts.after == (Gpu("0", 70, TOTAL),)
    assert (facts.missing, facts.lost) == (False, True)


@pytest.mark.parametrize(
    ("visible", "asked", "seen"),
    [("1", 1, ["1"]), ("GPU-1, GPU-0", 2, ["GPU-1", "GPU-0"]), ("0,1,2", 3, ["0", "1"]), ("", 2, ["0", "1"])],
)
def test_only_the_gpus_that_are_visible_count(nvml: FakeGpus, visible: str, asked: int, seen: list[str]) -> None:
    facts = GpuWatch(asked, visible).facts()
    assert facts is not None
    assert facts.before is not None
    assert [gpu.device for gpu in facts.before] == seen
    assert facts.missing is (len(seen) < asked)


def test_a_gpu_that_was_lost_before_the_attempt_is_missing(nvml: FakeGpus) -> None:
    nvml.fail("nvmlDeviceGetHandleByIndex", 1, nvml.NVML_ERROR_GPU_IS_LOST)
    facts = GpuWatch(2, "GPU-0,GPU-1").facts()
    assert facts is not None
    assert (facts.before, facts.missing) == ((Gpu("GPU-0", 10, TOTAL),), True)


def test_a_driver_that_is_broken_gives_its_word(nvml: FakeGpus) -> None:
    nvml.fail("nvmlInit", -1, 18)
    facts = GpuWatch(2, "").facts()
    assert facts is not None
    assert (facts.before, facts.after, facts.trouble) == (None, None, "error 18")
    assert not facts.missing


def test_the_facts_of_this_machine_are_the_outcome_s_fields() -> None:
    facts = node_facts.NodeFacts(0, "").end()
    names = {"oom_kills", "gpus", "memory_peak_bytes", "memory_peak_of", "memory_limit_bytes", "machine"}
    assert set(facts) == names
    assert facts["oom_kills"] >= 0
    assert (facts["memory_peak_bytes"], facts["memory_peak_of"]) == (None, "")  # no rank has begun


Group = Callable[..., None]


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Group:
    """Puts this process into a control group with these files."""

    def make(table: str, folder: str, **files: str) -> None:
        (tmp_path / folder).mkdir(parents=True)
        for name, text in files.items():
            (tmp_path / folder / name.replace("__", ".")).write_text(text)
        monkeypatch.setattr(node_facts, "CGROUPS", tmp_path)
        real = node_facts.read
        monkeypatch.setattr(node_facts, "read", lambda path: table if path.name == "cgroup" else real(path))

    monkeypatch.setenv("SLURM_JOB_ID", "1")
    return make


STEP = "slurm/job_1/step_0/task_0"


@pytest.mark.parametrize(
    ("table", "folder", "events", "peak"),
    [
        (f"0::/{STEP}\n", STEP, "memory__events", "memory__peak"),
        (f"4:memory:/{STEP}\n0::/\n", f"memory/{STEP}", "memory__oom_control", "memory__max_usage_in_bytes"),
    ],
)
def test_both_versions_of_control_groups_are_read(
    group: Group, table: str, folder: str, events: str, peak: str
) -> None:
    group(table, folder, **{events: "low 0\noom_kill 3\n", peak: "4096\n", "cgroup__procs": f"{os.getpid()}\n"})
    assert node_facts.oom_kill_count() == 3
    facts = node_facts.NodeFacts(0, "").end()
    assert (facts["memory_peak_bytes"], facts["memory_peak_of"]) == (4096, "cgroup")
    assert facts["memory_limit_bytes"] is None


@pytest.mark.parametrize(
    ("folder", "pids"),
    [
        ("docker/3f2a", ""),  # a container: its mark is of everything that ever ran there
        ("slurm/job_1", ""),  # all steps of the job
        ("slurm/job_2/step_0", ""),
        (STEP, f"{os.getppid()}\n"),  # somebody works in the job by hand, and starts one attempt after another
    ],
)
def test_the_mark_of_a_group_that_is_not_the_attempt_s_own_is_not_its_peak(
    group: Group, folder: str, pids: str
) -> None:
    group(f"0::/{folder}\n", folder, memory__peak=f"{10**15}\n", cgroup__procs=f"{pids}{os.getpid()}\n")
    facts = node_facts.NodeFacts(0, "")
    facts.ready()
    found = wait_for_peak(facts)
    assert found["memory_peak_of"] == "processes"
    assert found["memory_peak_bytes"] < 10**12


def wait_for_peak(facts: node_facts.NodeFacts) -> dict[str, Any]:
    wait_until(lambda: facts._processes._peak is not None, "the first look at the processes")
    return facts.end()
