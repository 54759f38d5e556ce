"""The programs that start the ranks of a node, each with a command line for `rank.py` and the script."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dscampaign.jobs.shared.spool_steps import tail

ON_CPUS: Final = "ACCELERATE_USE_CPU"  # the variable without which accelerate's ranks on CPUs form no group
TASKS: Final = str(Path(__file__).parents[1] / "tasks.py")

_DEADLY: Final = re.compile(r"(?m)^ *exitcode +: -(?!15 )(?P<number>\d+)|died with <Signals\.\w+: (?P<only>\d+)>")
_TYPE: Final = re.compile(r"""^[{ ]*["']?distributed_type["']?\s*:\s*["']?(\w+)""", re.MULTILINE)
_MONITOR: Final = ("--monitor_interval", "1")
"""Seconds that pass before others are ended, as with DeepSpeed: the agent sees which rank was first."""
_CHOOSES: Final = ("--multi_gpu", "--use_deepspeed", "--use_fsdp", "--use_megatron_lm")
_ALONE: Final = ("NO", "MULTI_CPU", "MPI")
"""Types of training in accelerate's configuration for which it starts a single process, or needs MPI."""


@dataclass(frozen=True)
class NodeLaunch:
    """A node's part in a launch. A batch script writes variables for the texts.

    `hostfile`: for DeepSpeed, which would count the machine's devices without it.
    """

    python: str
    nodes: int
    ranks_per_node: int
    node_rank: int | str
    address: str
    port: int | str
    hostfile: str


def command(launcher: str, place: NodeLaunch, options: Sequence[str] = ()) -> list[str]:
    """Return the command line that starts a node's ranks, with the user's options; `rank.py` and the script follow."""
    return _LAUNCHERS[launcher](place, options)


def _deepspeed(place: NodeLaunch, options: Sequence[str]) -> list[str]:
    """``--no_ssh`` starts only this node's ranks: every node has an agent of its own."""
    return [
        *(place.python, "-u", "-m", "deepspeed.launcher.runner", *options),
        *("--hostfile", place.hostfile, "--no_ssh", "--node_rank", str(place.node_rank)),
        *("--master_addr", place.address, "--master_port", str(place.port), "--no_local_rank"),
    ]


def _torchrun(place: NodeLaunch, options: Sequence[str]) -> list[str]:
    """The rendezvous is static, for only then ranks follow from the node's rank."""
    return [
        *(place.python, "-u", "-m", "torch.distributed.run", *_MONITOR, *options, "--nnodes", str(place.nodes)),
        *("--nproc_per_node", str(place.ranks_per_node), "--node_rank", str(place.node_rank), "--max_restarts", "0"),
        *("--master_addr", place.address, "--master_port", str(place.port)),
    ]


def _accelerate(place: NodeLaunch, options: Sequence[str]) -> list[str]:
    world = place.nodes * place.ranks_per_node
    on_cpus = ["env", f"{ON_CPUS}=true"] if "--cpu" in options else []
    useless = "--multi_gpu" if world == 1 else "--cpu"  # which would start one process, or need mpirun
    options = [option for option in options if option != useless]
    if world > 1 and not any(option in _CHOOSES for option in options) and _configured_type(options) in _ALONE:
        options = ["--multi_gpu", *options]
    return [
        *(*on_cpus, place.python, "-u", "-m", "accelerate.commands.launch", *_MONITOR, *options),
        *("--num_processes", str(world)),
        *("--num_machines", str(place.nodes), "--machine_rank", str(place.node_rank), "--max_restarts", "0"),
        *("--main_process_ip", place.address, "--main_process_port", str(place.port)),
        *("--rdzv_backend", "static", "--deepspeed_multinode_launcher", "standard"),
    ]


def _configured_type(options: Sequence[str]) -> str:
    """Return the type of training in accelerate's configuration: the file that its options name, or the default."""
    option = re.search(r"--config_file[ =](.+?)(?= --|$)", " ".join(options))
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
    default = Path(os.environ.get("HF_HOME") or f"{cache}/huggingface", "accelerate", "default_config.yaml")
    with suppress(OSError):  # a file that cannot be read is accelerate's to report
        if match := _TYPE.search((Path(option[1]) if option else default).read_text(errors="replace")):
            return match[1]
    return "NO"


def _srun(place: NodeLaunch, _options: Sequence[str]) -> list[str]:
    """Without Slurm's own `srun`, which cannot start a step inside that of the agents, nor in a container."""
    sizes = (place.node_rank, place.nodes, place.ranks_per_node, place.address, place.port)
    return [place.python, "-u", TASKS, *map(str, sizes)]


def _python(place: NodeLaunch, _options: Sequence[str]) -> list[str]:
    """A single process, with the variables from which a script starts others, without a rank's."""
    return [
        *("env", f"MASTER_ADDR={place.address}", f"MASTER_PORT={place.port}"),
        *(f"NODE_RANK={place.node_rank}", f"CAMPAIGN_RANK={place.node_rank}", place.python, "-u"),
    ]


_LAUNCHERS: Final = {form.__name__[1:]: form for form in (_deepspeed, _torchrun, _accelerate, _srun, _python)}


def exit_code(code: int, log: Path) -> int:
    """Return the code with which a launcher ended, as DeepSpeed's would: 256 less the signal that killed a rank first.

    torchrun and accelerate exit with 1, and name the signal in their log.
    """
    if code != 1:
        return code
    report = _DEADLY.search("\n".join(tail(log)))
    return 256 - int(report["number"] or report["only"]) if report else code
