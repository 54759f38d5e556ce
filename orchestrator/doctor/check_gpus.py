"""From what the driver shows of a node's GPUs to verdicts. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from ...db.gpu_records import SLOWED, THROTTLE_REASONS
from ...jobs.probe.node_report import Device, Gpus
from ..memory.zero_memory import gpu_memory_gb
from .check import At, Check
from .requirements import Wants

BUSY_GB: Final = 2.0
"""Memory in use on an idle GPU that the driver itself does not account for."""
_SMALLER: Final = 0.9
"""A GPU shows a little less memory than its name says."""
_EXCLUSIVE: Final = (1, 3)
_PROHIBITED: Final = 2


def gpu_checks(gpus: Gpus, want: Wants, at: At) -> Iterator[Check]:
    """Verdicts on the GPUs that a job was promised.

    Args:
        gpus: What NVML showed.
        want: What the runs ask for.
        at: The node.
    """
    found = len(gpus.devices)
    yield _count(gpus, want, at)
    if not found:
        return
    yield at.ok("gpu.driver", f"driver {gpus.driver}, serves up to CUDA {gpus.cuda}")
    yield _memory(gpus.devices, want, at)
    yield from _compute_mode(gpus.devices, at)
    yield from _health(gpus.devices, at)
    yield from _busy(gpus.devices, at)
    if found > 1:
        yield _links(gpus, at)
    narrow = [d for d in gpus.devices if d.pcie_width and d.pcie_width_max and d.pcie_width < d.pcie_width_max]
    if narrow:
        seen = f"{_these(narrow)} on {narrow[0].pcie_width} of {narrow[0].pcie_width_max} PCIe lanes"
        yield at.warning("gpu.pcie", seen, "ask the site's administrators: reseating the card or the riser helps")


def _count(gpus: Gpus, want: Wants, at: At) -> Check:
    found = len(gpus.devices)
    promised = (
        f"Slurm promises {want.gpus} GPUs" if want.config.executor == "slurm" else f"{want.gpus} GPUs are asked for"
    )
    if found < want.gpus:
        reason = f" ({'; '.join(gpus.troubles)})" if gpus.troubles else ""
        seen = f"{promised}, NVML sees {found or 'none'}{reason}"
        return at.problem("gpu.count", seen, "`nvidia-smi` on the node; `exclude` it and tell the administrators")
    names = Counter(device.name for device in gpus.devices)
    seen = ", ".join(f"{number} × {name}" for name, number in names.items())
    if len(names) > 1:
        return at.warning("gpu.count", f"different GPUs: {seen}", "all ranks wait for the slowest: ask for one type")
    return at.ok("gpu.count", seen)


def _memory(devices: Sequence[Device], want: Wants, at: At) -> Check:
    sizes = [device.total_gb for device in devices if device.total_gb]
    if not sizes:
        return at.note("gpu.memory", "the driver does not tell")
    least = min(sizes)
    named = gpu_memory_gb(want.config.slurm) if want.config.executor == "slurm" else None
    if want.on_gpus and want.gpu_gb > least:
        seen = f"{least:,.0f} GB, the model's states alone take {want.gpu_gb:,.0f} GB ({want.named})"
        return at.problem("gpu.memory", seen, "`campaign plan` says which ZeRO stage fits")
    if named and least < _SMALLER * named:
        seen = f"{least:,.0f} GB, a {want.config.slurm.gpu_type} has {named:,.0f} GB"
        return at.note("gpu.memory", seen, "`campaign plan` reckons with the larger one")
    return at.ok("gpu.memory", f"{least:,.0f} GB each")


def _compute_mode(devices: Sequence[Device], at: At) -> Iterator[Check]:
    closed = [device for device in devices if device.compute_mode == _PROHIBITED]
    single = [device for device in devices if device.compute_mode in _EXCLUSIVE]
    if closed:
        hint = "`nvidia-smi -c 0` as the administrator"
        yield at.problem("gpu.compute_mode", f"{_these(closed)}: compute mode prohibits every process", hint)
    elif single:
        hint = "one rank a GPU is fine; a second process on it, such as a notebook, fails"
        yield at.note("gpu.compute_mode", f"{_these(single)}: compute mode lets one process in", hint)


def _health(devices: Sequence[Device], at: At) -> Iterator[Check]:
    failed = [device for device in devices if device.remap == "failed"]
    pending = [device for device in devices if device.remap == "pending"]
    errors = [device for device in devices if device.ecc_errors]
    slowed = [device for device in devices if device.throttle and device.throttle & SLOWED]
    plain = [device for device in devices if device.ecc is False]
    if failed:
        hint = "`exclude` the node and tell the administrators: the GPU has to be replaced"
        yield at.problem("gpu.ecc", f"{_these(failed)}: broken rows of memory could not be replaced", hint)
    elif errors:
        count = sum(device.ecc_errors or 0 for device in errors)
        seen = f"{_these(errors)}: {count} uncorrected memory errors since the driver was loaded"
        yield at.warning("gpu.ecc", seen, "tell the administrators: the GPU wants a reset")
    elif pending:
        yield at.warning("gpu.ecc", f"{_these(pending)}: rows of memory wait to be replaced", "the GPU wants a reset")
    elif plain:
        yield at.note("gpu.ecc", f"{_these(plain)}: ECC is off", "an error of memory stays unseen")
    else:
        yield at.ok("gpu.ecc", "no uncorrected memory errors")
    if slowed:
        bits = {bit for device in slowed for bit in THROTTLE_REASONS if (device.throttle or 0) & bit}
        why = ", ".join(THROTTLE_REASONS[bit] for bit in sorted(bits))
        yield at.warning("gpu.throttle", f"{_these(slowed)}: slowed down, {why}", "look at cooling and power supply")
    else:
        yield at.ok("gpu.throttle", "not slowed down")


def _busy(devices: Sequence[Device], at: At) -> Iterator[Check]:
    busy = [device for device in devices if (device.used_gb or 0.0) > BUSY_GB]
    if busy:
        most = max(device.used_gb or 0.0 for device in busy)
        seen = f"{_these(busy)}: {most:,.0f} GB are in use by somebody else"
        yield at.warning("gpu.busy", seen, "`nvidia-smi` on the node shows the processes")


def _links(gpus: Gpus, at: At) -> Check:
    ways = Counter(way or "an unknown way" for way in gpus.links.values())
    seen = ", ".join(f"{number} of {len(gpus.links)} pairs: {way}" for way, number in ways.items())
    if len(ways) == 1:
        seen = f"all pairs: {next(iter(ways))}"
    links = {device.nvlinks for device in gpus.devices if device.nvlinks is not None}
    if "NVLink" in ways and len(links) == 1:
        seen += f" ({links.pop()} links each)"
    elif len(links) > 1:
        seen += f" (GPUs have {min(links)} to {max(links)} active links)"
        return at.warning("gpu.links", seen, "a link is down: `nvidia-smi nvlink -s`, and tell the administrators")
    if "NVLink" in ways and len(ways) > 1:
        return at.note("gpu.links", seen, "collectives go as fast as the slowest way")
    return at.ok("gpu.links", seen)


def _these(devices: Sequence[Device]) -> str:
    return f"GPU {', '.join(str(device.number) for device in devices)}"
