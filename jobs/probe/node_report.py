"""What `campaign doctor` asks of a node, and what the node answers: plain values, as JSON on the shared folder.

Every section of the answer is either what was seen or a `Trouble`: a look that fails or hangs hides no other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from ..shared.files import read_json, write_atomically

T = TypeVar("T")


@dataclass(frozen=True)
class Trouble:
    """Why a look saw nothing."""

    reason: str


@dataclass(frozen=True)
class Question:
    """What a node is asked.

    Attributes:
        python: the Python that runs the training.
        env: what the spec adds to its environment.
        ranks, gpus: processes of the training on this node, and GPUs that it was promised.
        on_gpus: whether the training uses them.
        folder: the campaign's shared folder.
        files: paths that the spec names.
        nvme_path: where states are offloaded to, or None.
        store: URL without a password, or None where a node leaves the store alone (SQLite).
        asked_s: when, by the clock of the host that asks.
    """

    python: str
    env: Mapping[str, str]
    ranks: int
    gpus: int
    on_gpus: bool
    folder: str
    files: tuple[str, ...] = ()
    nvme_path: str | None = None
    store: str | None = None
    asked_s: float = 0.0

    def write(self, path: Path) -> None:
        """Writes it, readable by its owner only."""
        write_atomically(path, json.dumps(asdict(self), indent=1))

    @classmethod
    def read(cls, path: Path) -> Question:
        """Reads what ``write`` wrote.

        Raises:
            OSError, ValueError: it is not there, or was written by another version.
        """
        raw = json.loads(path.read_text())
        if unknown := set(raw) - {f.name for f in fields(cls)}:
            raise ValueError(f"{path}: written by another version of dscampaign: {sorted(unknown)}")
        return cls(**{**raw, "files": tuple(raw["files"])})


@dataclass(frozen=True)
class Device:
    """One GPU. What it does not tell is None, or empty.

    Attributes:
        used_gb: memory in use before anything of ours ran.
        compute_mode: NVML's number; 0 lets every process in.
        remap: "failed" or "pending", where broken rows of its memory were or are to be replaced.
        throttle: bits of NVML's clock event reasons.
        pcie_width, pcie_width_max: lanes.
        nvlinks: active ones.
    """

    number: int
    name: str = ""
    total_gb: float | None = None
    used_gb: float | None = None
    compute_mode: int | None = None
    ecc: bool | None = None
    ecc_errors: int | None = None
    remap: str = ""
    throttle: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    nvlinks: int | None = None


@dataclass(frozen=True)
class Gpus:
    """The GPUs of a node as the driver shows them.

    Attributes:
        driver: its version.
        cuda: the newest CUDA version that it serves, such as "12.8".
        devices: those that answered.
        links: for each pair (numbers "0-1") the way between them, in words.
        troubles: the driver's word on those that did not.
    """

    driver: str
    cuda: str
    devices: tuple[Device, ...]
    links: Mapping[str, str] = field(default_factory=dict)
    troubles: tuple[str, ...] = ()


@dataclass(frozen=True)
class Host:
    """A node beside its GPUs; sizes in GB of 10^9 bytes.

    Attributes:
        cpus: that this job may use.
        memory_gb: of the machine.
        limit_gb: of this job, by its control group; None for no limit.
        shm_gb: size of /dev/shm, 0 for none.
        open_files: how many a process may have open; the hard limit.
        locked_gb: memory that a process may pin; None for no limit.
        infiniband: devices for RDMA.
        mpi: programs and packages of MPI that are there.
        compiler: the C++ compiler that is there, "" for none.
    """

    cpus: int
    memory_gb: float
    limit_gb: float | None
    shm_gb: float
    open_files: int
    locked_gb: float | None
    infiniband: tuple[str, ...] = ()
    mpi: tuple[str, ...] = ()
    compiler: str = ""

    @property
    def usable_gb(self) -> float:
        """Memory that the job may use."""
        return self.memory_gb if self.limit_gb is None else min(self.memory_gb, self.limit_gb)


@dataclass(frozen=True)
class Disk:
    """A folder's disk; speeds in GB/s.

    Attributes:
        direct: measured past the page cache.
    """

    path: str
    file_system: str
    free_gb: float
    write_gb_s: float
    read_gb_s: float
    direct: bool


@dataclass(frozen=True)
class Software:
    """What the training's Python has.

    Attributes:
        torch_cuda: the CUDA version that torch was built for, "" for a build without.
        devices: GPUs that torch sees.
        device_trouble: why CUDA does not start.
        deepspeed_trouble: why DeepSpeed does not load.
        accelerator: what DeepSpeed trains on, "cuda" or "cpu".
        ops: for each of DeepSpeed's operators whether it can be used here: it is built, or compiles on demand.
        packages: versions of the packages of the built-in training, "" where one is missing.
    """

    python: str
    torch: str
    torch_cuda: str = ""
    devices: int = 0
    device_trouble: str = ""
    deepspeed: str = ""
    deepspeed_trouble: str = ""
    accelerator: str = ""
    ops: Mapping[str, bool] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Collective:
    """An all-reduce over the ranks of a node, started by DeepSpeed's launcher.

    Attributes:
        backend: nccl or gloo.
        correct: every rank got the sum.
        size_mb: of the tensor, in 10^6 bytes.
        bus_gb_s: bus bandwidth, 2 (n - 1) / n x size / time as NCCL's own tests count it; None for one rank.
    """

    backend: str
    ranks: int
    correct: bool
    size_mb: float
    bus_gb_s: float | None


@dataclass(frozen=True)
class StoreSeen:
    """The database as a node reaches it; its clock minus the node's, in seconds."""

    offset_s: float


@dataclass(frozen=True)
class Files:
    """Paths of the spec that the node does not have."""

    missing: tuple[str, ...]


@dataclass(frozen=True)
class NodeReport:
    """The answer. A section is None where it was not asked for, or not reached.

    Attributes:
        running: the section that was looked at when the answer was written, "" at the end.
        clock_least_s, clock_most_s: bounds of the node's clock minus that of the host that asks; None where that one
            did not answer the node's greeting.
    """

    node: str
    running: str = ""
    clock_least_s: float | None = None
    clock_most_s: float | None = None
    gpus: Gpus | Trouble | None = None
    host: Host | Trouble | None = None
    files: Files | Trouble | None = None
    store: StoreSeen | Trouble | None = None
    disk: Disk | Trouble | None = None
    nvme: Disk | Trouble | None = None
    software: Software | Trouble | None = None
    collective: Collective | Trouble | None = None

    def write(self, path: Path) -> None:
        """Writes it, complete or not at all."""
        write_atomically(path, json.dumps(asdict(self), indent=1))

    @classmethod
    def read(cls, path: Path) -> NodeReport | None:
        """What ``write`` wrote; None if it is not there."""
        raw = read_json(path)
        return None if raw is None else cls.parse(raw)

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> NodeReport:
        """The report as JSON holds it."""
        kinds: dict[str, type] = {
            "host": Host,
            "files": Files,
            "store": StoreSeen,
            "disk": Disk,
            "nvme": Disk,
            "software": Software,
        }
        kinds |= {"collective": Collective, "gpus": Gpus}
        given: dict[str, Any] = {k: _section(kinds[k], v) if k in kinds else v for k, v in raw.items()}
        return cls(**given)


def _section(kind: type[T], raw: Mapping[str, Any] | None) -> T | Trouble | None:
    if raw is None:
        return None
    if "reason" in raw:
        return Trouble(raw["reason"])
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in raw.items()}
    if kind is Gpus:
        given["devices"] = tuple(Device(**device) for device in raw["devices"])
    return kind(**given)


class Talk:
    """The files through which a host and a node talk: one folder for each examination."""

    def __init__(self, folder: Path) -> None:
        self.question = folder / "question.json"
        self.hello = folder / "hello.json"
        self.echo = folder / "echo.json"
        self.report = folder / "report.json"
        self.collective = folder / "collective.json"
        self.collective_log = folder / "collective.log"
        self.hostfile = folder / "hostfile"
        self.software = folder / "software.json"
        self.software_log = folder / "software.log"
