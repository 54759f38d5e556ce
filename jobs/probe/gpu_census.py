"""The GPUs of a node and their health for `campaign doctor`, by NVML."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dscampaign.jobs.shared.nvml import GpuMeter, gpu_handle, gpu_names, session, text

from .node_report import Device, Gpus


def census(visible: Sequence[str], asked: int) -> Gpus:
    """Return the GPUs of a job.

    Args:
        visible: entries of CUDA_VISIBLE_DEVICES; if empty, all GPUs of the node.

    Raises:
        Unavailable: there is no library, or the driver does not answer.
    """
    with session() as nvml:
        names = gpu_names(nvml, visible)
        devices, troubles = list[Device](), list[str]()
        for number, name in enumerate(names if visible else names[: asked or None]):
            try:
                devices.append(_device(nvml, number, gpu_handle(nvml, name)))
            except nvml.NVMLError as exc:
                troubles.append(f"GPU {name}: {exc}")
        version = int(nvml.nvmlSystemGetCudaDriverVersion())  # 12080 is 12.8
        cuda = f"{version // 1000}.{version % 1000 // 10}"
        return Gpus(text(nvml.nvmlSystemGetDriverVersion()), cuda, tuple(devices), tuple(troubles))


def _device(nvml: Any, number: int, handle: Any) -> Device:
    meter = GpuMeter(nvml, handle, number)
    facts = meter.device() | meter.read()
    memory = facts.get("mem_total_gb"), facts.get("mem_used_gb"), facts.get("ecc_errors")
    return Device(number, facts.get("name", ""), *memory, sum(_active(nvml, handle)))


def _active(nvml: Any, handle: Any) -> Iterator[bool]:
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            yield nvml.nvmlDeviceGetNvLinkState(handle, link) == nvml.NVML_FEATURE_ENABLED
        except nvml.NVMLError:  # it has no more links
            return
