"""What `campaign doctor` asks of a node, and what the node answers: plain values, as JSON on the shared folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dscampaign.jobs.shared.documents import Document


@dataclass(frozen=True)
class Question(Document):
    """What a node is asked.

    Attributes:
        python: the Python that runs the training.
        env: what the spec adds to its environment.
        ranks, gpus: processes of the training on this node, and GPUs that it was promised.
        on_gpus: whether the training uses them.
        files: paths that the spec names.
        ops: DeepSpeed's operators that the training needs.
        nvme_path: where states are offloaded to, or None.
        store: URL without a password, or None where a node leaves the store alone (SQLite).
    """

    python: str
    env: Mapping[str, str]
    ranks: int
    gpus: int
    on_gpus: bool
    files: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    nvme_path: str | None = None
    store: str | None = None


@dataclass(frozen=True)
class Device:
    """One GPU. What it does not tell is None, or empty.

    Attributes:
        used_gb: memory in use before anything of ours ran.
        ecc_errors: of memory, uncorrected, since the driver was loaded.
        remap: "failed" or "pending", where broken rows of its memory were or are to be replaced.
        nvlinks: active ones.
    """

    number: int
    name: str = ""
    total_gb: float | None = None
    used_gb: float | None = None
    ecc_errors: int | None = None
    remap: str = ""
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
        locked_gb: memory that a process may pin; None for no limit.
        infiniband: whether there are devices for RDMA.
        address: under which other nodes reach it, "" where none was found.
        name_address: what its own name resolves to there, "" for nothing.
    """

    cpus: int
    memory_gb: float
    limit_gb: float | None
    shm_gb: float
    locked_gb: float | None = None
    infiniband: bool = False
    address: str = ""
    name_address: str = ""


@dataclass(frozen=True)
class Disk:
    """A folder that takes files."""

    path: str
    file_system: str
    free_gb: float


@dataclass(frozen=True)
class Software(Document):
    """What the training's Python has.

    Attributes:
        torch_cuda: the CUDA version that torch was built for, "" for a build without.
        devices: GPUs that torch sees.
        device_trouble: why CUDA does not start.
        deepspeed_trouble: why DeepSpeed does not load.
        accelerator: what DeepSpeed trains on, "cuda" or "cpu".
        ops: for each operator that the training needs whether it is built, or compiles on demand.
        missing: packages that the built-in training needs.
        operators: all of DeepSpeed's: installed, compatible (compiles on demand) or unusable.
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
    missing: tuple[str, ...] = ()
    operators: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Collective(Document):
    """An all-reduce over the ranks of a node, started by DeepSpeed's launcher.

    Attributes:
        backend: nccl or gloo.
        correct: every rank got the sum.
        bus_gb_s: bus bandwidth, 2 (n - 1) / n x size / time as NCCL's own tests count it; None for one rank.
    """

    backend: str
    ranks: int
    correct: bool
    bus_gb_s: float | None


@dataclass(frozen=True)
class NodeReport(Document):
    """The answer. A section is None where it was not asked for, was not reached, or failed: that hides no other.

    Attributes:
        running: the section that was looked at when the answer was written, "" at the end.
        troubles: for each section that failed, why.
        clock_least_s, clock_most_s: bounds of the node's clock minus that of the host that asks; None where that one
            did not answer the node's greeting.
        missing_files: paths of the spec that the node does not have.
        store_offset_s: the database's clock minus the node's, where the node reaches it.
    """

    node: str
    running: str = ""
    troubles: Mapping[str, str] = field(default_factory=dict)
    clock_least_s: float | None = None
    clock_most_s: float | None = None
    gpus: Gpus | None = None
    host: Host | None = None
    missing_files: tuple[str, ...] | None = None
    store_offset_s: float | None = None
    nvme: Disk | None = None
    software: Software | None = None
    collective: Collective | None = None


class Talk:
    """The files through which a host and a node talk: one folder for each examination."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.question = folder / "question.json"
        self.hello = folder / "hello"
        self.echo = folder / "echo.json"
        self.report = folder / "report.json"
