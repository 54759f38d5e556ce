"""What a node saw of itself, and the verdict that follows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dscampaign.jobs.probe.node_report import Collective, Device, Disk, Gpus, Host, NodeReport, Software
from dscampaign.orchestrator.doctor.check import Check, Severity
from dscampaign.orchestrator.doctor.check_node import node_checks
from dscampaign.orchestrator.doctor.requirements import Requirements
from dscampaign.orchestrator.spec.model import RunConfig

CONFIG = RunConfig.model_validate({"slurm": {"gpus_per_node": "h100:2"}})
OFFLOADED = RunConfig.model_validate(
    {"slurm": {"gpus_per_node": "h100:2"}, "train": {"offload": "nvme", "nvme_path": "/nvme", "zero_stage": 3}}
)
REQUIRED = Requirements(("run",), CONFIG, ranks=2, gpus=2, on_gpus=True)
NVME = replace(REQUIRED, config=OFFLOADED, disk_gb=900.0)

H100 = Device(0, "NVIDIA H100 80GB HBM3", 85.5, 0.6, 0, 18)
GPUS = Gpus("570.124.06", "12.8", (H100, replace(H100, number=1)))
HOST = Host(52, 442.0, None, 200.0)
DISK = Disk("/nvme", "xfs", 900.0)
SOFTWARE = Software("3.12.3", "2.8.0+cu128", "12.8", 2, "", "0.19.8", "", "cuda", {"async_io": True})
SUM = Collective("nccl", 2, True, 130.0)
REPORT = NodeReport("gpu7", "", {}, GPUS, HOST, (), True, DISK, SOFTWARE, SUM)


def verdicts(required: Requirements = REQUIRED, **changed: Any) -> dict[str, Check]:
    return {check.id: check for check in node_checks(replace(REPORT, **changed), required)}


def failed(required: Requirements = REQUIRED, **troubles: str) -> dict[str, Check]:
    """What is said where those looks failed."""
    return verdicts(required, troubles=troubles, **dict.fromkeys(troubles))


def device(**changed: Any) -> Gpus:
    return replace(GPUS, devices=(H100, replace(H100, number=1, **changed)))


def test_a_fit_node_has_nothing_to_do() -> None:
    found = verdicts()
    assert {check.verdict for check in found.values()} == {Severity.OK}
    assert {check.where for check in found.values()} == {"node gpu7"}
    assert found["gpu.count"].seen == "2 × NVIDIA H100 80GB HBM3"
    assert "bus bandwidth 130 GB/s" in found["node.all_reduce"].seen


def test_gpus_that_slurm_promises_and_the_driver_does_not_show() -> None:
    found = failed(gpus="NVML Shared Library Not Found")["gpu.count"]
    assert found.verdict is Severity.PROBLEM
    assert found.seen == "Slurm allocated 2 GPUs, NVML sees none (NVML Shared Library Not Found)"
    one = replace(GPUS, devices=(H100,), troubles=("GPU 1: GPU is lost",))
    assert verdicts(gpus=one)["gpu.count"].seen == "Slurm allocated 2 GPUs, NVML sees 1 (GPU 1: GPU is lost)"
    assert "allocated 1 GPU, " in failed(replace(REQUIRED, gpus=1), gpus="lost")["gpu.count"].seen


@pytest.mark.parametrize(
    ("driver", "cuda", "torch_cuda", "verdict"),
    [
        ("470.57.02", "11.4", "12.8", "problem"),
        ("525.60.13", "12.0", "12.8", "ok"),  # newer minor versions run on it
        ("570.124.06", "12.8", "13.0", "problem"),
        ("580.65.06", "13.0", "12.8", "ok"),
    ],
)
def test_a_driver_that_is_too_old_for_torch(driver: str, cuda: str, torch_cuda: str, verdict: str) -> None:
    software = replace(SOFTWARE, torch_cuda=torch_cuda)
    found = verdicts(gpus=replace(GPUS, driver=driver, cuda=cuda), software=software)["software.torch"]
    assert found.verdict == verdict
    if verdict == "problem":
        assert driver in found.seen
        assert "newer driver" in found.next


@pytest.mark.parametrize(
    ("changed", "about", "verdict", "words"),
    [
        ({"name": "NVIDIA A100"}, "gpu.count", "warning", "different GPUs"),
        ({"total_gb": 42.0}, "gpu.memory", "ok", "42 GB each"),
        ({"ecc_errors": 3}, "gpu.ecc", "warning", "GPU 1: 3 uncorrected memory errors"),
        ({"used_gb": 20.0}, "gpu.busy", "warning", "GPU 1: 20 GB in use"),
    ],
)
def test_a_gpu_that_is_unwell(changed: dict[str, Any], about: str, verdict: str, words: str) -> None:
    found = verdicts(gpus=device(**changed))[about]
    assert (found.verdict, words in found.seen) == (verdict, True), found.seen


def test_too_little_memory_for_the_offload() -> None:
    found = verdicts(replace(REQUIRED, host_gb=500.0))["node.memory"]
    assert found.verdict is Severity.PROBLEM
    assert found.seen == "the model needs 500 GB of a node's memory (run), the job may use 442 GB"
    assert "use more nodes" in found.next
    limited = verdicts(replace(REQUIRED, host_gb=300.0), host=replace(HOST, limit_gb=100.0))["node.memory"]
    assert limited.seen.endswith("the job may use 100 GB of the node's 442 GB")
    assert limited.next == "raise slurm.mem"
    assert verdicts(replace(REQUIRED, host_gb=300.0))["node.memory"].verdict is Severity.OK


@pytest.mark.parametrize(
    ("changed", "about", "words"),
    [({"cpus": 1}, "node.cores", "1 cores for 2 ranks"), ({"shm_gb": 0.067}, "node.shm", "/dev/shm has 0.07 GB")],
)
def test_limits_of_the_host(changed: dict[str, Any], about: str, words: str) -> None:
    found = verdicts(host=replace(HOST, **changed))[about]
    assert (found.verdict, words in found.seen) == (Severity.WARNING, True), found.seen


@pytest.mark.parametrize(
    ("changed", "about", "words"),
    [
        ({"torch": "", "device_trouble": "ModuleNotFoundError: torch"}, "software.torch", "torch does not load"),
        ({"torch_cuda": ""}, "software.torch", "built for CPUs; it sees no GPU"),
        ({"devices": 1}, "software.torch", "sees 1 of 2 GPUs"),
        ({"device_trouble": "RuntimeError: no kernel image"}, "software.torch", "no kernel image"),
        ({"deepspeed_trouble": "ImportError: x"}, "software.deepspeed", "does not load: ImportError: x"),
        ({"deepspeed": "0.18.1"}, "software.deepspeed", "computes wrong ZeRO-2 gradients"),
        ({"missing": ("transformers",)}, "software.packages", "needs transformers"),
    ],
)
def test_software_that_is_missing_or_wrong(changed: dict[str, Any], about: str, words: str) -> None:
    found = verdicts(software=replace(SOFTWARE, **changed))[about]
    assert (found.verdict, words in found.seen) == (Severity.PROBLEM, True), found.seen


def test_an_operator_that_a_run_needs_and_cannot_have() -> None:
    found = verdicts(software=replace(SOFTWARE, ops={"async_io": False, "fused_lamb": True}))["software.ops"]
    assert found.verdict is Severity.PROBLEM
    assert "cannot use async_io, which" in found.seen
    assert "software.ops" not in verdicts(software=replace(SOFTWARE, ops={}))


@pytest.mark.parametrize(
    ("changed", "verdict", "words"),
    [
        ({}, "ok", "/nvme: xfs, 900 GB free"),
        ({"file_system": "nfs4"}, "warning", "not a local disk"),
        ({"file_system": "tmpfs"}, "warning", "not a local disk"),
        ({"free_gb": 300.0}, "problem", "states need 900 GB of each node"),
    ],
)
def test_the_disk_that_states_are_offloaded_to(changed: dict[str, Any], verdict: str, words: str) -> None:
    found = verdicts(NVME, nvme=replace(DISK, **changed))["node.nvme"]
    assert (found.verdict, words in found.seen) == (verdict, True), found.seen


@pytest.mark.parametrize(
    ("changed", "nvlinks", "verdict", "words"),
    [
        ({"correct": False}, 18, "problem", "wrong sum"),
        ({"bus_gb_s": 12.0}, 18, "warning", "slow for NVLink"),
        ({"bus_gb_s": 12.0}, 0, "ok", ""),
        ({"bus_gb_s": 1.0}, 0, "warning", "slow for PCIe"),
        ({"ranks": 1, "bus_gb_s": None}, 18, "ok", "launcher works"),
        ({"backend": "gloo", "bus_gb_s": 0.5}, 18, "ok", "gloo, 2 ranks: right sum"),
    ],
)
def test_the_all_reduce(changed: dict[str, Any], nvlinks: int, verdict: str, words: str) -> None:
    found = verdicts(gpus=device(nvlinks=nvlinks), collective=replace(SUM, **changed))["node.all_reduce"]
    assert (found.verdict, words in found.seen) == (verdict, True), found.seen


def test_a_look_that_failed_or_was_not_reached_is_a_problem_with_its_reason_and_hides_no_other() -> None:
    found = verdicts(software=None, troubles={"software": "did not end within 240 s"}, collective=None)
    assert found["software.torch"].seen == "did not end within 240 s"
    assert "not checked" in found["node.all_reduce"].seen
    assert found["node.memory"].verdict is Severity.OK


def test_files_and_the_store() -> None:
    assert verdicts(missing_files=("/data/text",))["node.files"].seen == "cannot see /data/text"
    away = failed(store_reached="no route")["node.store"]
    assert away.verdict is Severity.WARNING  # metrics wait in files
    assert away.seen == "does not reach the database: no route"
    assert "node.store" not in verdicts(store_reached=None)
