"""From what the driver shows of a node's GPUs to verdicts. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from ...jobs.probe.node_report import Device, Gpus
from .check import At, Check
from .requirements import Requirements

BUSY_GB: Final = 2.0
"""Memory in use on an idle GPU that the driver itself does not account for."""


def gpu_checks(gpus: Gpus, required: Requirements, at: At) -> Iterator[Check]:
    """Verdicts on the GPUs that a job was promised."""
    yield _count(gpus, required, at)
    if not gpus.devices:
        return
    yield at.ok("gpu.driver", f"driver {gpus.driver}, serves up to CUDA {gpus.cuda}")
    yield from _memory(gpus.devices, required, at)
    yield _ecc(gpus.devices, at)
    if busy := _those(gpus.devices, lambda gpu: (gpu.used_gb or 0.0) > BUSY_GB):
        seen = f"{busy}: {max(gpu.used_gb or 0.0 for gpu in gpus.devices):,.0f} GB are in use by somebody else"
        yield at.warning("gpu.busy", seen, "`nvidia-smi` on the node shows the processes")
    if gpus.links:
        yield _links(gpus, at)


def _count(gpus: Gpus, required: Requirements, at: At) -> Check:
    found = len(gpus.devices)
    if found < required.gpus:
        promised = "Slurm promises {} GPUs" if required.config.executor == "slurm" else "{} GPUs are asked for"
        reason = f" ({'; '.join(gpus.troubles)})" if gpus.troubles else ""
        seen = f"{promised.format(required.gpus)}, NVML sees {found or 'none'}{reason}"
        return at.problem("gpu.count", seen, "`nvidia-smi` on the node; `exclude` it and tell the administrators")
    names = Counter(device.name for device in gpus.devices)
    seen = ", ".join(f"{number} × {name}" for name, number in names.items())
    if len(names) > 1:
        return at.warning("gpu.count", f"different GPUs: {seen}", "all ranks wait for the slowest: ask for one type")
    return at.ok("gpu.count", seen)


def _memory(devices: Sequence[Device], required: Requirements, at: At) -> Iterator[Check]:
    least = min((device.total_gb for device in devices if device.total_gb), default=None)
    if least and required.on_gpus and required.gpu_gb > least:
        seen = f"{least:,.0f} GB, the model's states alone take {required.gpu_gb:,.0f} GB ({required.named})"
        yield at.problem("gpu.memory", seen, "`campaign plan` says which ZeRO stage fits")
    elif least:
        yield at.ok("gpu.memory", f"{least:,.0f} GB each")


def _ecc(devices: Sequence[Device], at: At) -> Check:
    if failed := _those(devices, lambda gpu: gpu.remap == "failed"):
        hint = "`exclude` the node and tell the administrators: the GPU has to be replaced"
        return at.problem("gpu.ecc", f"{failed}: broken rows of memory could not be replaced", hint)
    if errors := _those(devices, lambda gpu: bool(gpu.ecc_errors)):
        seen = f"{errors}: {sum(gpu.ecc_errors or 0 for gpu in devices)} uncorrected memory errors"
        return at.warning("gpu.ecc", seen, "tell the administrators: the GPU wants a reset")
    if pending := _those(devices, lambda gpu: gpu.remap == "pending"):
        return at.warning("gpu.ecc", f"{pending}: rows of memory wait to be replaced", "the GPU wants a reset")
    return at.ok("gpu.ecc", "no uncorrected memory errors")


def _links(gpus: Gpus, at: At) -> Check:
    ways = Counter(way or "an unknown way" for way in gpus.links.values())
    seen = ", ".join(f"{number} of {len(gpus.links)} pairs: {way}" for way, number in ways.items())
    if len(ways) == 1:
        seen = f"all pairs: {next(iter(ways))}"
    links = {device.nvlinks for device in gpus.devices if device.nvlinks is not None}
    if len(links) > 1:
        seen += f" (GPUs have {min(links)} to {max(links)} active links)"
        return at.warning("gpu.links", seen, "a link is down: `nvidia-smi nvlink -s`, and tell the administrators")
    if "NVLink" in ways and links:
        seen += f" ({links.pop()} links each)"
    if "NVLink" in ways and len(ways) > 1:
        return at.note("gpu.links", seen, "collectives go as fast as the slowest way")
    return at.ok("gpu.links", seen)


def _those(devices: Sequence[Device], which: Callable[[Device], bool]) -> str:
    """`GPU 1, 3`: those of which something is so; "" for none."""
    numbers = [str(device.number) for device in devices if which(device)]
    return f"GPU {', '.join(numbers)}" if numbers else ""
