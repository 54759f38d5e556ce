"""A node beside its GPUs, for `campaign doctor`: memory, shared memory, limits, MPI, compiler."""

from __future__ import annotations

import importlib.util
import os
import re
import resource
import shutil
from pathlib import Path
from typing import Final

from ..agent.node_facts import memory_limit_bytes
from ..shared.layout import SHARED_MEMORY
from .node_report import Host

GB: Final = 1e9
_RDMA: Final = Path("/sys/class/infiniband")
_MPI: Final = ("mpirun", "mpiexec", "ompi_info")
_COMPILERS: Final = ("g++", "c++", "clang++")


def host() -> Host:
    """Looks at this machine, as this job may use it.

    Raises:
        OSError: /proc does not answer.
    """
    limit = memory_limit_bytes()
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return Host(
        cpus=len(os.sched_getaffinity(0)),
        memory_gb=memory_gb(Path("/proc/meminfo").read_text()),
        limit_gb=None if limit is None else limit / GB,
        shm_gb=shutil.disk_usage(SHARED_MEMORY).total / GB if SHARED_MEMORY.is_dir() else 0.0,
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        locked_gb=None if locked == resource.RLIM_INFINITY else locked / GB,
        infiniband=tuple(sorted(path.name for path in _RDMA.iterdir())) if _RDMA.is_dir() else (),
        mpi=_mpi(),
        compiler=next((name for name in _COMPILERS if shutil.which(name)), ""),
    )


def memory_gb(meminfo: str) -> float:
    """Memory of the machine, in GB of 10^9 bytes.

    Args:
        meminfo: the text of /proc/meminfo.

    Raises:
        OSError: it does not say.
    """
    found = re.search(r"^MemTotal:\s+(\d+) kB$", meminfo, re.MULTILINE)
    if not found:
        raise OSError("/proc/meminfo tells no MemTotal")
    return int(found[1]) * 1024 / GB


def _mpi() -> tuple[str, ...]:
    programs = tuple(name for name in _MPI if shutil.which(name))
    return (*programs, "mpi4py") if importlib.util.find_spec("mpi4py") else programs
