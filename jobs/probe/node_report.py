"""The question of `campaign doctor` to a node, and the node's report: JSON documents on the shared folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dscampaign.jobs.shared.documents import Document

QUESTION: Final = "question.json"
REPORT: Final = "report.json"
"""Their names in the folder of an examination."""


@dataclass(frozen=True)
class Question(Document):
    """The question."""

    python: str  # the Python that runs the training; if `setup_chooses`, unless the lines of `setup` choose another
    env: Mapping[str, str]  # the spec's additions to its environment
    # ranks, gpus, on_gpus: its processes on this node, GPUs that it was promised, and whether it uses them
    ranks: int
    gpus: int
    on_gpus: bool
    files: tuple[str, ...] = ()  # paths that the spec names
    ops: tuple[str, ...] = ()  # DeepSpeed's operators that the training needs
    nvme_path: str | None = None
    store: str | None = None  # URL without a password, or None if nodes leave the store alone (SQLite)
    setup_chooses: bool = False
    launcher: str = "deepspeed"
    container: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Device:
    """A GPU; `used_gb` before any process of this job ran, `ecc_errors` since the driver was loaded."""

    number: int
    name: str = ""
    total_gb: float | None = None
    used_gb: float | None = None
    ecc_errors: int | None = None
    nvlinks: int | None = None


@dataclass(frozen=True)
class Gpus:
    """The GPUs of a node, the newest CUDA version that their driver serves, and its errors for further GPUs."""

    driver: str
    cuda: str
    devices: tuple[Device, ...]
    troubles: tuple[str, ...] = ()


@dataclass(frozen=True)
class Host:
    """A node beside its GPUs; sizes in GB of 10^9 bytes; None for no limit."""

    cpus: int
    # memory_gb, limit_gb: of the machine, and of this job by its control group
    memory_gb: float
    limit_gb: float | None
    shm_gb: float
    address: str = ""  # its address for other nodes, "" for none


@dataclass(frozen=True)
class Disk:
    """A folder that takes files."""

    path: str
    file_system: str
    free_gb: float


@dataclass(frozen=True)
class Software(Document):
    """The packages of the training's Python."""

    python: str
    torch: str
    torch_cuda: str = ""  # the CUDA version that torch was built for, "" for a build without
    devices: int = 0  # GPUs that torch sees
    device_trouble: str = ""
    deepspeed: str = ""
    deepspeed_trouble: str = ""
    accelerator: str = ""  # DeepSpeed's device, "cuda" or "cpu"
    # for each operator that the training needs, whether it is built or compiles on demand
    ops: Mapping[str, bool] = field(default_factory=dict)
    missing: tuple[str, ...] = ()  # packages that the built-in training needs
    path: str = ""


@dataclass(frozen=True)
class Collective(Document):
    """An all-reduce over the ranks of a node, started by their launcher; `correct`: every rank got the sum.

    `bus_gb_s`: bus bandwidth, 2 (n - 1) / n x size / time as NCCL's own tests count it; None for a single rank.
    """

    backend: str
    ranks: int
    correct: bool
    bus_gb_s: float | None


@dataclass(frozen=True)
class NodeReport(Document):
    """The answer. A section is None if it was not asked for, was not reached, or failed."""

    node: str
    running: str = ""  # the section in progress when the report was written, "" at the end
    troubles: Mapping[str, str] = field(default_factory=dict)  # for each section that failed, why
    gpus: Gpus | None = None
    host: Host | None = None
    missing_files: tuple[str, ...] | None = None
    store_reached: bool | None = None
    nvme: Disk | None = None
    software: Software | None = None
    collective: Collective | None = None
