"""The GPUs of a node for `campaign doctor`: what they are, how they are linked, and whether one is unwell, by NVML."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, Final

from dscampaign.jobs.shared.nvml import ecc_errors, gpu_handle, gpu_names, memory_bytes, started, text

from .node_report import Device, Gpus

GB: Final = 1e9
_WAYS: Final = (
    (0, "on one board"),
    (10, "one PCIe switch"),
    (20, "several PCIe switches"),
    (30, "a PCIe host bridge"),
    (40, "one socket"),
    (50, "between sockets"),
)
"""NVML's levels of the topology: where the ways from two GPUs meet."""


def census(nvml: Any, visible: Sequence[str], asked: int) -> Gpus:
    """Looks at the GPUs of a job.

    Args:
        nvml: the module pynvml, or what stands in for it.
        visible: entries of CUDA_VISIBLE_DEVICES; all GPUs of the node where there are none.
        asked: how many the job was promised.

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
            links={f"{a}-{b}": _link(nvml, handles[a], handles[b]) for a, b in combinations(handles, 2)},
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
    """`12.8` for NVML's 12080."""
    version = int(nvml.nvmlSystemGetCudaDriverVersion())
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
    """Whether each link is active. The first that the GPU does not have ends the list, with none for one without."""
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            yield nvml.nvmlDeviceGetNvLinkState(handle, link) == nvml.NVML_FEATURE_ENABLED
        except nvml.NVMLError:
            return


def _link(nvml: Any, first: Any, second: Any) -> str:
    """The way between two GPUs in words, "" where it is not told."""
    try:
        if nvml.nvmlDeviceGetP2PStatus(first, second, nvml.NVML_P2P_CAPS_INDEX_NVLINK) == nvml.NVML_P2P_STATUS_OK:
            return "NVLink"
    except (nvml.NVMLError, AttributeError):
        pass
    try:
        level = int(nvml.nvmlDeviceGetTopologyCommonAncestor(first, second))
    except (nvml.NVMLError, AttributeError):
        return ""
    return next((words for most, words in _WAYS if level <= most), "")


_FIGURES: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "name": lambda nvml, gpu: text(nvml.nvmlDeviceGetName(gpu)),
    "total_gb": lambda nvml, gpu: memory_bytes(nvml, gpu)[1] / GB,
    "used_gb": lambda nvml, gpu: memory_bytes(nvml, gpu)[0] / GB,
    "ecc_errors": ecc_errors,
    "remap": _remap,
    "nvlinks": lambda nvml, gpu: sum(_active(nvml, gpu)),
}
"""How each figure of a `Device` is read."""
