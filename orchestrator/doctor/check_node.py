"""Verdicts on a node's report: GPUs, memory, files, disks, torch, DeepSpeed, the all-reduce, store. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from dscampaign.files.file_systems import LOCAL
from dscampaign.jobs.probe.node_report import Collective, Device, Disk, Gpus, Host, NodeReport, Software
from dscampaign.jobs.shared.layout import SHARED_MEMORY

from .check import At, Check
from .requirements import Requirements

LEAST_SHM_GB: Final = 1.0
SLOW_NVLINK_GB_S: Final = 50.0
"""Of a node's all-reduce where all GPUs have NVLink: the slowest generation comes to more."""
SLOW_PCIE_GB_S: Final = 3.0
BUSY_GB: Final = 2.0
"""Memory in use on an idle GPU that the driver itself does not account for."""


def node_checks(report: NodeReport, required: Requirements, left: str = "") -> Iterator[Check]:
    """Return verdicts on a node; `left` is the place of its logs."""
    at = At(f"node {report.node}")

    def of(section: str, about: str, hint: str, verdicts: Callable[[Any], Iterable[Check]]) -> Iterable[Check]:
        if (content := getattr(report, section)) is not None:
            return verdicts(content)
        reason = report.troubles.get(section, "not checked: the job ended first")
        return [at.problem(about, reason, "; ".join(filter(None, (hint, left))))]

    gpus = report.gpus
    if required.gpus:
        if gpus is None and (trouble := report.troubles.get("gpus")):
            gpus = Gpus("", "", (), troubles=(trouble,))
        yield from _gpus(gpus, required, at) if gpus else of("gpus", "gpu.count", "try again", list)
    yield from of("host", "node.memory", "try another node", lambda host: _host(host, required, at))
    yield from of("missing_files", "node.files", "try again", lambda missing: [files_check("node.files", missing, at)])
    if report.store_reached:
        yield at.ok("node.store", "reaches the database")
    elif trouble := report.troubles.get("store_reached"):  # no problem: metrics wait in files
        hint = "metrics arrive when the reconciler passes; let nodes reach it: firewall, ~/.pgpass, roles"
        yield at.warning("node.store", f"does not reach the database: {trouble}", hint)
    if required.nvme_path:
        hint = "train.nvme_path must exist on every node, and you must be able to write to it"
        yield from of("nvme", "node.nvme", hint, lambda disk: [_nvme(disk, required, at)])
    devices = gpus if gpus and gpus.devices else None
    hint = "run that Python on the node; `setup` may have to load its modules"
    yield from of("software", "software.torch", hint, lambda software: software_checks(software, devices, required, at))
    hint = "for details, set `NCCL_DEBUG: INFO` in env"
    yield from of("collective", "node.all_reduce", hint, lambda result: [_collective(result, devices, at)])


def _host(host: Host, required: Requirements, at: At) -> Iterator[Check]:
    yield _memory(host, required, at)
    if required.config.nodes > 1 and not host.address:
        hint = "`ip address` on the node shows its networks; notify the administrators"
        yield at.problem("node.address", "no address under which other nodes reach it", hint)
    if host.cpus < required.ranks:
        hint = f"set `cpus_per_task: {8 * required.ranks}`, or as many as a node has"
        yield at.warning("node.cores", f"{host.cpus} cores for {required.ranks} ranks", hint)
    if host.shm_gb < LEAST_SHM_GB:
        hint = "NCCL and data loaders need it: `--shm-size` of a container, or ask the site's administrators"
        yield at.warning("node.shm", f"{SHARED_MEMORY} has {host.shm_gb:.2f} GB", hint)


def _memory(host: Host, required: Requirements, at: At) -> Check:
    limited = host.limit_gb is not None and host.limit_gb < host.memory_gb
    usable_gb = min(host.memory_gb, host.limit_gb or host.memory_gb)
    text = f"{usable_gb:,.0f} GB" + (f" of the node's {host.memory_gb:,.0f} GB" if limited else "")
    if usable_gb < required.host_gb:
        takes = f"the model needs {required.host_gb:,.0f} GB of a node's memory ({required.named})"
        enough = limited and host.memory_gb >= required.host_gb
        hint = "raise slurm.mem" if enough else "use more nodes or fewer ranks on each, or offload less"
        return at.problem("node.memory", f"{takes}, the job may use {text}", hint)
    need = f", the model needs {required.host_gb:,.0f} GB" if required.host_gb >= 1 else ""
    return at.ok("node.memory", f"{text} of memory{need}")


def files_check(about: str, missing: Sequence[str], at: At) -> Check:
    """Return the verdict on the paths that a spec names."""
    if missing:
        hint = "put them where every node sees them, under the same path"
        return at.problem(about, f"cannot see {', '.join(missing)}", hint)
    return at.ok(about, "sees every path in the spec")


def _nvme(disk: Disk, required: Requirements, at: At) -> Check:
    kind = disk.file_system or "unknown file system"
    text = f"{disk.path}: {kind}, {disk.free_gb:,.0f} GB free"
    if disk.free_gb < required.disk_gb:
        hint = "use more nodes, or another nvme_path"
        return at.problem("node.nvme", f"{text}, the model's states need {required.disk_gb:,.0f} GB of each node", hint)
    if disk.file_system not in LOCAL or disk.file_system in ("tmpfs", "ramfs"):
        return at.warning("node.nvme", f"{text}; not a local disk", "set train.nvme_path to a disk of the node's own")
    return at.ok("node.nvme", text)


def _collective(result: Collective, gpus: Gpus | None, at: At) -> Check:
    text = f"{result.backend}, {result.ranks} ranks"
    if not result.correct:
        hint = "a GPU, a link or NCCL is broken: `exclude` the node; NCCL_P2P_DISABLE=1 shows whether it is a link"
        return at.problem("node.all_reduce", f"{text}: wrong sum", hint)
    if result.bus_gb_s is None:
        return at.ok("node.all_reduce", f"{result.backend}, one rank: the launcher works")
    text += f": right sum, bus bandwidth {result.bus_gb_s:.3g} GB/s"
    nvlink = gpus is not None and all(device.nvlinks for device in gpus.devices)
    if result.backend == "nccl" and result.bus_gb_s < (SLOW_NVLINK_GB_S if nvlink else SLOW_PCIE_GB_S):
        hint = "`NCCL_DEBUG=INFO` in env shows which path it takes; look for NCCL_P2P_DISABLE, and for ACS on PCIe"
        return at.warning("node.all_reduce", f"{text}, slow for {'NVLink' if nvlink else 'PCIe'}", hint)
    return at.ok("node.all_reduce", text)


def _gpus(gpus: Gpus, required: Requirements, at: At) -> Iterator[Check]:
    yield _count(gpus, required, at)
    if not gpus.devices:
        return
    yield at.ok("gpu.driver", f"driver {gpus.driver}, supports up to CUDA {gpus.cuda}")
    least = min((device.total_gb for device in gpus.devices if device.total_gb), default=None)
    if least and required.on_gpus and required.gpu_gb > least:
        text = f"{least:,.0f} GB, the model's states alone take {required.gpu_gb:,.0f} GB ({required.named})"
        yield at.problem("gpu.memory", text, "raise train.zero_stage, offload, or use more GPUs")
    elif least:
        yield at.ok("gpu.memory", f"{least:,.0f} GB each")
    if errors := _numbers(gpus.devices, lambda gpu: bool(gpu.ecc_errors)):
        text = f"{errors}: {sum(gpu.ecc_errors or 0 for gpu in gpus.devices)} uncorrected memory errors"
        yield at.warning("gpu.ecc", text, "notify the administrators: the GPU needs a reset")
    if busy := _numbers(gpus.devices, lambda gpu: (gpu.used_gb or 0.0) > BUSY_GB):
        text = f"{busy}: {max(gpu.used_gb or 0.0 for gpu in gpus.devices):,.0f} GB in use by other processes"
        yield at.warning("gpu.busy", text, "`nvidia-smi` on the node shows the processes")


def _count(gpus: Gpus, required: Requirements, at: At) -> Check:
    gpu_count = len(gpus.devices)
    if gpu_count < required.gpus:
        number = f"{required.gpus} GPU{'s' * (required.gpus > 1)}"
        promised = f"Slurm allocated {number}" if required.config.executor == "slurm" else f"{number} requested"
        reason = f" ({'; '.join(gpus.troubles)})" if gpus.troubles else ""
        text = f"{promised}, NVML sees {gpu_count or 'none'}{reason}"
        return at.problem("gpu.count", text, "`nvidia-smi` on the node; `exclude` it and notify the administrators")
    names = Counter(device.name for device in gpus.devices)
    text = ", ".join(f"{number} × {name}" for name, number in names.items())
    if len(names) > 1:
        return at.warning("gpu.count", f"different GPUs: {text}", "all ranks wait for the slowest: request equal GPUs")
    return at.ok("gpu.count", text)


def _numbers(devices: Sequence[Device], matches: Callable[[Device], bool]) -> str:
    numbers = [str(device.number) for device in devices if matches(device)]
    return f"GPU {', '.join(numbers)}" if numbers else ""


_TRAIN: Final = "`pip install -c constraints.txt '.[train]'` for that Python"


def software_checks(software: Software, gpus: Gpus | None, required: Requirements, at: At) -> Iterator[Check]:
    """Return verdicts on the training's Python; `gpus` is None if the driver showed none."""
    image = required.config.container
    place = f"{software.path} in {image.image}" if image else software.path
    yield at.ok("software.python", f"Python {software.python} ({place})")
    yield _torch(software, gpus, required, at)
    if not software.torch:
        return
    if not software.deepspeed_trouble or required.config.launcher in (None, "deepspeed"):
        yield _deepspeed(software, at)
    if missing := [name for name, usable in software.ops.items() if not usable]:
        need = (
            "a C++ compiler, ninja, and libaio's headers for async_io or CUDA's compiler (nvcc, CUDA_HOME) for fused_*"
        )
        text = f"DeepSpeed cannot use {', '.join(missing)}, which the spec needs"
        yield at.problem("software.ops", text, f"install {need}; for details, run `ds_report` on the node")
    if required.config.command is None and software.missing:
        yield at.problem("software.packages", f"the built-in training needs {', '.join(software.missing)}", _TRAIN)


def _torch(software: Software, gpus: Gpus | None, required: Requirements, at: At) -> Check:
    if not software.torch:
        return at.problem("software.torch", f"torch does not load: {software.device_trouble}", _TRAIN)
    built = f"torch {software.torch}, built for {f'CUDA {software.torch_cuda}' if software.torch_cuda else 'CPUs'}"
    if not required.on_gpus:
        return at.ok("software.torch", f"{built}; the training runs on CPUs")
    trouble, hint = _no_gpus(software, gpus, required)
    if trouble:
        return at.problem("software.torch", f"{built}; {trouble}", hint)
    return at.ok("software.torch", f"{built}; sees {software.devices} GPUs")


def _no_gpus(software: Software, gpus: Gpus | None, required: Requirements) -> tuple[str, str]:
    if not software.torch_cuda:
        return "it sees no GPU", "install a build of torch for CUDA"
    # a driver serves newer minor versions of its CUDA than its own, but no newer major one
    if gpus and _version(software.torch_cuda)[:1] > _version(gpus.cuda)[:1]:
        hint = f"install a newer driver, or torch built for CUDA {_version(gpus.cuda)[0]}"
        return f"driver {gpus.driver} supports only up to CUDA {gpus.cuda}", hint
    if software.device_trouble:
        return f"CUDA does not start: {software.device_trouble}", "`nvidia-smi` on the node"
    if software.devices < required.gpus:
        return f"sees {software.devices} of {required.gpus} GPUs", "check CUDA_VISIBLE_DEVICES and the driver"
    return "", ""


def _deepspeed(software: Software, at: At) -> Check:
    version = _version(software.deepspeed)
    if software.deepspeed_trouble:
        return at.problem("software.deepspeed", f"DeepSpeed does not load: {software.deepspeed_trouble}", _TRAIN)
    text = f"DeepSpeed {software.deepspeed} on {software.accelerator}"
    if (0, 17, 6) <= version <= (0, 18, 2):
        return at.problem("software.deepspeed", f"{text} computes wrong ZeRO-2 gradients", _TRAIN)
    if version < (0, 19, 1):
        return at.warning("software.deepspeed", f"{text} is older than 0.19.1, the oldest that was tested", _TRAIN)
    return at.ok("software.deepspeed", text)


def _version(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()
