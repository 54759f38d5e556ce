"""The `slurm:` section: Slurm's own names and forms, checked before sbatch sees them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from math import ceil
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, ConfigDict, Field, field_validator, model_validator

from dscampaign.orchestrator.errors import Finding, did_you_mean

from .field_types import Hint, Lines, Scalar, SpecSection, Text, Whole
from .slurm_syntax import gpus_of_node, slurm_minutes

_OWNED: Final = {
    "attempts with the same resources are submitted as an array": "array",
    "one task per node starts the ranks": "batch ntasks ntasks_per_core ntasks_per_gpu ntasks_per_node=ranks_per_node"
    " ntasks_per_socket gpus=slurm.gpus_per_node gpus_per_socket=slurm.gpus_per_node gpus_per_task=slurm.gpus_per_node",
    "attempts start in the spec's folder": "chdir=workdir",
    "a campaign uses one cluster": "clusters",
    "all nodes of a run have the same resources; the options of the others are left out": "hetjob",
    "it carries the token that identifies an attempt": "comment",
    "a resubmitted attempt would wait for it again; chain with `campaign submit --watch` in a script": "dependency",
    "logs go to the attempt's folder": "error open_mode output",
    "the ranks start in it, not the job": "container=container.image container_env=container.env"
    " container_image=container.image container_mounts=container.mounts container_workdir=container.workdir"
    " container_writable=container.writable",
    "attempts get your environment": "export=env export_file=env",
    "jobs run as you": "gid uid",
    "an attempt reads nothing from standard input": "input",
    "it names the campaign and the run": "job_name",
    "only this program restarts an attempt, so that none runs twice": "no_requeue requeue",
    "this program parses sbatch's output": "parsable quiet verbose",
    "a run then saves a checkpoint": "signal=slurm.signal_delay_s",
    "this program submits its own script": "test_only wait wrap",
}
OWNED_OPTIONS: Final = {each.partition("=")[0]: reason for reason, names in _OWNED.items() for each in names.split()}
INSTEAD: Final = dict(each.split("=") for names in _OWNED.values() for each in names.split() if "=" in each)
"""The reasons why a spec cannot set options of sbatch, and the fields instead of some."""

PASSED_OPTIONS: Final = frozenset(
    """acctg_freq bb bbf begin cluster_constraint contiguous core_spec cores_per_socket cpu_freq cpus_per_gpu
    deadline delay_boot exclusive extra extra_node_info get_user_env gpu_bind gpu_freq gres_flags hint hold
    kill_on_invalid_dep licenses mail_type mail_user mcs_label mem_bind mem_per_cpu mem_per_gpu mincpus network nice
    no_kill nodefile oom_kill_step overcommit oversubscribe power prefer priority profile propagate reboot resv_ports
    segment sockets_per_node spread_job switches thread_spec threads_per_core time_min tmp tres_bind tres_per_task
    use_min_nodes wait_all_nodes wckey""".split()  # noqa: SIM905
)
"""Options of sbatch that are passed through unchanged."""

_GPU_COUNT = re.compile(r"(?:(?!\d+:)[\w.+-]+:)?\d+")
_GRES_TYPE = re.compile(r"(?:^|,)(?:gres/)?gpu:([A-Za-z\d][\w.+-]*)[:=]\d")
_TYPE = re.compile(r"([A-Za-z\d][\w.+-]*):\d")
_UNIT_MB = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2}


def parse_time_min(text: str) -> int:
    """Return the minutes of a Slurm time (`30`, `4:00:00`, `2-12:30`), rounded up; raise Hint."""
    total = slurm_minutes(text)
    if not total:
        raise Hint(f"{text!r} is not a time limit", 'use minutes ("90"), "4:00:00" or days-hours ("2-12")')
    return total


def parse_mem_mb(text: str) -> int:
    """Return the megabytes of a Slurm memory size (`64G`, `512M`), rounded up; raise Hint."""
    match = re.fullmatch(r"(\d+)([KMGT])?B?", text, re.IGNORECASE)
    if not match:
        raise Hint(f"{text!r} is not a memory size", "use a number with a unit, such as 64G or 512M")
    return ceil(int(match[1]) * _UNIT_MB[(match[2] or "M").upper()])


def _readable(read: Callable[[str], int]) -> AfterValidator:
    return AfterValidator(lambda text: text if read(text) is not None else "")


MemorySize = Annotated[Text, _readable(parse_mem_mb)]
"""A Slurm memory size (`64G`)."""

SlurmTime = Annotated[Text, _readable(parse_time_min)]
"""A Slurm time: `90`, `4:00:00` or `2-12`."""

MOST_RUNS: Final = 1000
"""Most runs of a job."""


class SlurmConfig(SpecSection):
    """Resources that an attempt requests. Other long options of sbatch are passed through."""

    model_config = ConfigDict(extra="allow")

    partition: Text | None = None
    """Partition, or several with commas."""
    account: Text | None = None
    """Account to charge."""
    qos: Text | None = None
    """Quality of service."""
    nodes: Whole = Field(default=1, ge=1, le=100_000)
    """Nodes per run."""
    gpus_per_node: Text = "8"
    """GPUs per node: a number, or `type:number` such as `h100:8`; `0` for CPUs."""
    gres: Text | None = None
    """Generic resources (`gpu:h100:8`); replaces gpus_per_node. Without GPUs among them, set `gpus_per_node: 0`."""
    time: SlurmTime = "1:00:00"
    """Time limit of an attempt: minutes, `4:00:00`, or days-hours (`2-12`). A longer run resumes."""
    mem: MemorySize | None = None
    """Memory per node (`512G`); `0` for all of it."""
    cpus_per_task: Whole | None = Field(default=None, ge=1)
    """CPU cores per node."""
    constraint: Text | None = None
    """Node features (`nvlink&ib`)."""
    exclude: Text | None = None
    """Nodes to exclude."""
    nodelist: Text | None = None
    """Nodes to run on."""
    reservation: Text | None = None
    """Reservation to run in."""
    gpus_per_run: Whole | None = Field(default=None, ge=1)
    """GPUs of a run if [runs share a node](cluster.md#side-by-side-on-one-node)."""
    array_parallelism: Whole = Field(default=64, ge=1)
    """Most jobs of an array that run at a time."""
    runs_per_job: Annotated[Whole, Field(ge=1, le=MOST_RUNS)] | Literal["auto"] = 1
    """[Runs of a job](cluster.md#several-runs-in-one-job), in turn, or `auto`; with `gpus_per_run` at least the runs
    that share a node."""
    setup: Lines = ()
    """[Shell lines](cluster.md#setup) to run first: a list or a block of text."""
    signal_delay_s: Whole = Field(default=120, ge=1)
    """Seconds before the time limit at which a run saves and exits."""

    @model_validator(mode="before")
    @classmethod
    def _underscores(cls, data: Any) -> Any:
        """`cpus-per-task`, as on the command line, is as good as `cpus_per_task`."""
        if not isinstance(data, dict):
            return data
        return {str(key).replace("-", "_"): value for key, value in data.items() if value is not None}

    @field_validator("gpus_per_node")
    @classmethod
    def _gpu_count(cls, value: str) -> str:
        if not _GPU_COUNT.fullmatch(value):
            raise Hint(f"{value!r} is not a number of GPUs", "use a number, or type:number such as h100:8")
        return value

    @property
    def gpus(self) -> int:
        """GPUs that a run uses on a node."""
        return self.gpus_per_run or self.node_gpus

    @property
    def node_gpus(self) -> int:
        """GPUs of a node, from `gres` or else from `gpus_per_node`."""
        return gpus_of_node(self.gpus_per_node, self.gres)

    @property
    def lanes(self) -> int:
        """Runs that share a node at a time."""
        return max(1, self.node_gpus // self.gpus_per_run) if self.gpus_per_run else 1

    @property
    def gpu_type(self) -> str | None:
        """The kind of GPU that is asked for by name; None for any."""
        match = _TYPE.match(self.gpus_per_node) if self.gres is None else _GRES_TYPE.search(self.gres)
        return match[1] if match else None

    @property
    def time_min(self) -> int:
        """Time limit in minutes, rounded up."""
        return parse_time_min(self.time)

    @property
    def mem_mb(self) -> int | None:
        """Memory of a node in MB; None for the cluster's default, 0 for the whole node."""
        return None if self.mem is None else parse_mem_mb(self.mem)


_OPTIONS: Final = (*SlurmConfig.model_fields, *PASSED_OPTIONS)


def option_findings(options: Mapping[str, Any]) -> Iterator[Finding]:
    """Find the errors in options of sbatch, by names with underscores, that have no field of their own."""
    for name, value in options.items():
        place = ("slurm", name)
        if name in OWNED_OPTIONS:
            hint = f"use {INSTEAD[name]}" if name in INSTEAD else "leave it out"
            yield Finding((place,), f"is set by this program: {OWNED_OPTIONS[name]}", hint, at_key=True)
        elif name not in PASSED_OPTIONS:
            hint = did_you_mean(name, _OPTIONS, "it is not a long option of sbatch")
            yield Finding((place,), "unknown field", hint, at_key=True)
        elif not isinstance(value, Scalar) or "\n" in str(value):
            yield Finding((place,), "has lines, or a structure", "write one value, on a single line", at_key=True)
