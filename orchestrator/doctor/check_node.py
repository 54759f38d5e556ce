"""From what a node saw of itself to verdicts: memory, files, disks, the all-reduce, the store, clocks. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from ...db.file_systems import LOCAL
from ...jobs.probe.node_report import Collective, Disk, Gpus, Host, NodeReport, StoreSeen, Trouble
from ...jobs.shared.layout import SHARED_MEMORY
from .check import At, Check
from .check_gpus import gpu_checks
from .check_host import clock_check
from .check_software import software_checks
from .requirements import Wants

LEAST_SHM_GB: Final = 1.0
LEAST_FILES: Final = 4096
SLOW_SHARED_GB_S: Final = 0.1
SLOW_NVME_GB_S: Final = 1.0
SLOW_NVLINK_GB_S: Final = 50.0
"""Of a node's all-reduce where all GPUs have NVLink: the slowest generation comes to more."""
SLOW_PCIE_GB_S: Final = 3.0

_AFTER_TROUBLE: Final = {
    "gpu.count": "`exclude` the node and tell the administrators",
    "node.memory": "try another node",
    "node.files": "try again",
    "node.store": "metrics arrive when the reconciler passes; let nodes reach it: firewall, ~/.pgpass, roles",
    "node.folder": "see folder.space",
    "node.nvme": "train.nvme_path must be a folder that is there on every node",
    "software.torch": "run that Python on the node; `setup` may have to load its modules",
    "node.all_reduce": "`NCCL_DEBUG: INFO` in env says more",
}
"""What to do where a look failed."""

T = TypeVar("T")


def node_checks(report: NodeReport, want: Wants, *, left: str = "", other: str = "this host's") -> Iterator[Check]:
    """Verdicts on a node.

    Args:
        report: What it saw.
        want: What the runs ask of it.
        left: Where to look for more, in words.
        other: Whose clock its own was compared with.
    """
    at = At(f"node {report.node}")

    def of(about: str, section: T | Trouble | None, verdicts: Callable[[T], Iterable[Check]]) -> Iterable[Check]:
        """The verdicts on a section, or why there are none."""
        return (
            _unseen(about, section, left, at) if section is None or isinstance(section, Trouble) else verdicts(section)
        )

    one_machine = want.config.executor == "local"
    gpus = report.gpus
    if isinstance(gpus, Trouble):  # a promise of GPUs that the driver knows nothing of is the point
        gpus = Gpus("", "", (), troubles=(gpus.reason,))
    if want.gpus:
        yield from of("gpu.count", gpus, lambda gpus: gpu_checks(gpus, want, at))
    elif one_machine and want.config.env.get("DS_ACCELERATOR") != "cpu":
        yield at.note("gpu.count", "no GPU: the training runs on CPUs", "`nvidia-smi` tells, if there should be one")
    yield from of("node.memory", report.host, lambda host: _host(host, want, at))
    yield from of("node.files", report.files, lambda files: [files_check(files.missing, at)])
    if not one_machine and report.clock_least_s is not None and report.clock_most_s is not None:
        yield clock_check("node.clock", report.clock_least_s, report.clock_most_s, "the node's clock", other, at)
    if report.store is not None:
        yield from of("node.store", report.store, lambda store: _store(store, at))
    yield from of("node.folder", report.disk, lambda disk: [_shared(disk, at)])
    if want.nvme_path:
        yield from of("node.nvme", report.nvme, lambda disk: [_nvme(disk, want, at)])
    seen = gpus if gpus and gpus.devices else None
    yield from of("software.torch", report.software, lambda software: software_checks(software, seen, want, at))
    yield from of("node.all_reduce", report.collective, lambda found: [_collective(found, seen, at)])


def _unseen(about: str, trouble: Trouble | None, left: str, at: At) -> Iterator[Check]:
    """A look that failed, or was not reached."""
    reason = trouble.reason if trouble else "not looked at: the job ended before"
    hint = "; ".join(filter(None, (_AFTER_TROUBLE[about], left)))
    if about == "node.store":  # the training needs no database, and the reconciler takes in what waits in files
        yield at.warning(about, f"does not reach the database: {reason}", hint)
    else:
        yield at.problem(about, reason, hint)


def _host(host: Host, want: Wants, at: At) -> Iterator[Check]:
    yield _memory(host, want, at)
    if host.cpus < want.ranks:
        seen = f"{host.cpus} cores for {want.ranks} ranks"
        yield at.warning("node.cores", seen, f"write `cpus_per_task: {8 * want.ranks}` or what a node has")
    if host.shm_gb < LEAST_SHM_GB:
        hint = "NCCL and data loaders need it: `--shm-size` of a container, or ask the site's administrators"
        yield at.warning("node.shm", f"{SHARED_MEMORY} has {host.shm_gb:.2f} GB", hint)
    else:
        yield at.ok("node.shm", f"{SHARED_MEMORY} has {host.shm_gb:,.0f} GB")
    if host.open_files < LEAST_FILES:
        hint = f"`ulimit -n {LEAST_FILES}` needs a higher hard limit: ask the site's administrators"
        yield at.warning("node.limits", f"a process may open {host.open_files:,} files", hint)
    elif host.infiniband and host.locked_gb is not None:
        seen = f"{len(host.infiniband)} InfiniBand devices, but a process may pin only {host.locked_gb:.3g} GB"
        hint = "RDMA needs `LimitMEMLOCK=infinity` for slurmd and PropagateResourceLimitsExcept=MEMLOCK"
        yield at.warning("node.limits", seen, hint)
    else:
        yield at.ok("node.limits", f"{host.open_files:,} open files")
    present = f"{', '.join(host.mpi)} present" if host.mpi else "absent"
    yield at.ok("node.mpi", f"MPI {present}, not needed: DeepSpeed's own launcher starts the ranks")


def _memory(host: Host, want: Wants, at: At) -> Check:
    limited = host.limit_gb is not None and host.limit_gb < host.memory_gb
    seen = f"{host.usable_gb:,.0f} GB" + (f" of the node's {host.memory_gb:,.0f} GB" if limited else "")
    if host.usable_gb < want.host_gb:
        message = f"the model takes {want.host_gb:,.0f} GB of a node's memory ({want.named}), the job may use {seen}"
        enough = limited and host.memory_gb >= want.host_gb
        hint = "raise slurm.mem" if enough else "use more nodes or fewer ranks on each, or offload less"
        return at.problem("node.memory", message, hint)
    needed = f", the model takes {want.host_gb:,.0f} GB" if want.host_gb >= 1 else ""
    return at.ok("node.memory", f"{seen} of memory{needed}")


def files_check(missing: Iterable[str], at: At) -> Check:
    """The verdict on what a spec names."""
    gone = list(missing)
    if gone:
        hint = "put them where every node sees them, under the same path"
        return at.problem("node.files", f"does not see {', '.join(gone)}", hint)
    return at.ok("node.files", "sees all that the spec names")


def _store(store: StoreSeen, at: At) -> Iterator[Check]:
    yield at.ok("node.store", "reaches the database")
    clock = ("the database's clock", "the node's")
    yield clock_check("node.store_clock", store.offset_s, store.offset_s, *clock, at)


def _shared(disk: Disk, at: At) -> Check:
    seen = _speed(disk)
    if min(disk.write_gb_s, disk.read_gb_s) < SLOW_SHARED_GB_S:
        hint = "checkpoints will take long: choose a faster folder, or set train.checkpoint_every higher"
        return at.warning("node.folder", seen, hint)
    return at.ok("node.folder", seen)


def _nvme(disk: Disk, want: Wants, at: At) -> Check:
    seen = f"{disk.path}: {_speed(disk)}, {disk.free_gb:,.0f} GB are free"
    if disk.free_gb < want.disk_gb:
        hint = "use more nodes, or another nvme_path"
        return at.problem("node.nvme", f"{seen}, the model's states take {want.disk_gb:,.0f} GB of each node", hint)
    if disk.file_system not in LOCAL:
        return at.warning(
            "node.nvme", f"{seen}; it is no local disk", "set train.nvme_path to a disk of the node's own"
        )
    if disk.file_system in ("tmpfs", "ramfs"):
        return at.warning("node.nvme", f"{seen}; it is memory", "set train.nvme_path to a disk")
    if min(disk.write_gb_s, disk.read_gb_s) < SLOW_NVME_GB_S:
        return at.warning("node.nvme", seen, "every step will wait for it: use a faster disk, or `offload: full`")
    return at.ok("node.nvme", seen)


def _speed(disk: Disk) -> str:
    cached = "" if disk.direct else ", through the page cache"
    kind = disk.file_system or "unknown file system"
    return f"{kind}, writes {disk.write_gb_s:.2g} GB/s, reads {disk.read_gb_s:.2g} GB/s{cached}"


def _collective(found: Collective, gpus: Gpus | None, at: At) -> Check:
    seen = f"{found.backend}, {found.ranks} ranks"
    if not found.correct:
        hint = "a GPU, a link or NCCL is broken: try other nodes (`exclude`), NCCL_P2P_DISABLE=1 tells links apart"
        return at.problem("node.all_reduce", f"{seen}: wrong sum", hint)
    if found.bus_gb_s is None:
        return at.ok("node.all_reduce", f"{found.backend}, one rank: DeepSpeed's launcher works")
    seen += f": right sum, bus bandwidth {found.bus_gb_s:.3g} GB/s with {found.size_mb:.0f} MB"
    if found.backend != "nccl":
        return at.ok("node.all_reduce", seen)
    nvlink = gpus is not None and bool(gpus.links) and set(gpus.links.values()) == {"NVLink"}
    if found.bus_gb_s < (SLOW_NVLINK_GB_S if nvlink else SLOW_PCIE_GB_S):
        hint = "`NCCL_DEBUG=INFO` in env tells which way it takes; look for NCCL_P2P_DISABLE, and for ACS on PCIe"
        return at.warning("node.all_reduce", f"{seen}, slow for {'NVLink' if nvlink else 'PCIe'}", hint)
    return at.ok("node.all_reduce", seen)
