"""The GPUs of a node and their health for `campaign doctor`, by NVML."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from dscampaign.jobs.shared.nvml import ecc_errors, gpu_handle, gpu_names, memory_bytes, started, text

from .node_report import Device, Gpus

GB: Final = 1e9


def census(nvml: Any, visible: Sequence[str], asked: int) -> Gpus:
    """Return the GPUs of a job.

    Args:
        nvml: the module pynvml, or its stand-in.
        visible: entries of CUDA_VISIBLE_DEVICES; if empty, all GPUs of the node.
        asked: number of GPUs that the job was promised.

    Raises:
        nvml.NVMLError: the driver does not answer at all.
    """
    with started(nvml):
        names = gpu_names(nvml, visible)
        handles, troubles = _handles(nvml, names if visible else names[: asked or None])
        return Gpus(
            driver=text(nvml.nvmlSystemGetDriverVersion()),
            cuda=_cuda(nvml),
            devices=tuple(_device(nvml, number, handle) for number, handle in handles.items()),
            troubles=tuple(troubles),
        )


def _handles(nvml: Any, names: Sequence[str]) -> tuple[dict[int, Any], list[str]]:
    handles, troubles = {}, []
    for number, name in enumerate(names):
        try:
            handles[number] = gpu_handle(nvml, name)
        except nvml.NVMLError as exc:
            troubles.append(f"GPU {name}: {exc}")
    return handles, troubles


def _cuda(nvml: Any) -> str:
    version = int(nvml.nvmlSystemGetCudaDriverVersion())  # 12080 is 12.8
    return f"{version // 1000}.{version % 1000 // 10}"


def _device(nvml: Any, number: int, handle: Any) -> Device:
    given: dict[str, Any] = {}
    for name, figure in _FIGURES.items():
        try:
            given[name] = figure(nvml, handle)
        except (nvml.NVMLError, AttributeError):  # not supported, or the library is older than the question
            continue
    return Device(number, **given)


def _remap(nvml: Any, handle: Any) -> str:
    _, _, pending, failed = nvml.nvmlDeviceGetRemappedRows(handle)
    return "failed" if failed else "pending" if pending else ""


def _active(nvml: Any, handle: Any) -> Iterator[bool]:
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            yield nvml.nvmlDeviceGetNvLinkState(handle, link) == nvml.NVML_FEATURE_ENABLED
        except nvml.NVMLError:  # it has no more links
            return


_FIGURES: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "name": lambda nvml, gpu: text(nvml.nvmlDeviceGetName(gpu)),
    "total_gb": lambda nvml, gpu: memory_bytes(nvml, gpu)[1] / GB,
    "used_gb": lambda nvml, gpu: memory_bytes(nvml, gpu)[0] / GB,
    "ecc_errors": ecc_errors,
    "remap": _remap,
    "nvlinks": lambda nvml, gpu: sum(_active(nvml, gpu)),
}
"""How each figure of a `Device` is read."""
