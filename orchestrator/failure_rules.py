"""The table of rules: what an error's text proves, each with where the text comes from. Values only."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum


class FailureClass(StrEnum):
    """What an ended attempt was; the policy has one answer for each."""

    COMPLETED = "completed"
    STOPPED = "stopped"  # asked to, after a checkpoint
    PREEMPTED = "preempted"
    TIME_LIMIT = "time_limit"
    NODE = "node"
    OOM = "oom"
    HOST_OOM = "host_oom"
    DETERMINISTIC = "deterministic"
    DIVERGED = "diverged"
    REFUSED = "refused"  # sbatch will never take it
    LOST = "lost"  # submitted, perhaps, but nothing ever ran
    CANCELLED = "cancelled"
    CRASH = "crash"


@dataclass(frozen=True)
class Rule:
    """A pattern of an error's text that proves a class.

    Attributes:
        early: the rule holds only before the first step: later, the same error may be the machine's fault.
    """

    name: str
    kind: FailureClass
    pattern: re.Pattern[str]
    hint: str = ""
    early: bool = False


def _rule(name: str, kind: FailureClass, pattern: str, hint: str = "", early: bool = False) -> Rule:
    return Rule(name, kind, re.compile(pattern), hint, early)


_D = FailureClass.DETERMINISTIC
_LINE = r"(?m)^(?:\[rank\d+\]:\s*)?(?:\w+\.)*"
"""Where an exception's own line begins: a message that only mentions one (ImportError, falling back) proves nothing."""

RULES = (
    # PyTorch's caching allocator and cuBLAS, with the class names of torch 2.5 and before.
    _rule("cuda-oom", FailureClass.OOM, r"OutOfMemoryError|CUDA out of memory|CUDA error: out of memory"),
    _rule("cublas-alloc", FailureClass.OOM, r"CUBLAS_STATUS_ALLOC_FAILED"),
    # c10's CPU allocator and the C++ and Python runtimes under a memory limit: a device only where the CPU trains.
    _rule("cpu-alloc", FailureClass.HOST_OOM, r"DefaultCPUAllocator: can't allocate memory|std::bad_alloc"),
    _rule("memory-error", FailureClass.HOST_OOM, _LINE + r"MemoryError|Cannot allocate memory"),
    _rule("slurm-oom", FailureClass.HOST_OOM, r"oom[_-]kill event|Exceeded job memory limit"),
    # DeepSpeed's and pydantic's checks of the configuration.
    _rule("ds-batch", _D, r"Check batch related parameters", "global_batch must be micro × accumulation × world size"),
    _rule("ds-config", _D, r"Extra inputs are not permitted|DeepSpeedConfigError", "correct the `deepspeed:` section"),
    _rule("ds-config-value", _D, r"validation errors? for DeepSpeed", "correct the `deepspeed:` section"),
    # The environment, alike on every node. Python's own words only: libraries log what they can do without.
    _rule(
        "no-module",
        _D,
        r"(?m)(?:^|Error: |Exception: |python[\d.]*: )No module named",
        "install it in the environment that `python:` names",
    ),
    _rule("no-mpi", _D, r"cannot load MPI library", "start through the `deepspeed` launcher; mpi4py is broken here"),
    _rule("device-ordinal", _D, r"invalid device ordinal", "more ranks than GPUs: lower ranks_per_node"),
    _rule(
        "no-file",
        _D,
        _LINE + r"FileNotFoundError|can't open file",
        "the path must exist on the compute nodes",
        early=True,
    ),
    _rule("no-hub-file", _D, r"Repository Not Found|is not a local folder and is not a valid model", early=True),
    _rule("no-network", _D, r"OfflineModeIsEnabled|couldn't connect to 'https://huggingface", early=True),
    # The built-in trainer's word; the same steps from the same checkpoint would end the same way.
    _rule(
        "non-finite", FailureClass.DIVERGED, r"FloatingPointError: non-finite loss", "lower train.lr, or warm up longer"
    ),
    # The shell that starts the launcher.
    _rule(
        "no-interpreter", _D, r"^\S*(launcher|sh): .*(exec: .*not found|No such file)", "correct `python:`", early=True
    ),
    # Mistakes in the script.
    _rule("syntax", _D, _LINE + r"(Syntax|Indentation|Tab)Error\b"),
    _rule("script-error", _D, _LINE + r"(Type|Key|Attribute|Name|Value|Import|Index|Assertion)Error\b", early=True),
    _rule("argparse", _D, r"error: (the following arguments|unrecognized arguments|argument )", early=True),
    # The machine's faults: NVIDIA's driver, the file system, and a collective whose other end went away.
    _rule("gpu-xid", FailureClass.NODE, r"NVRM: Xid [^:]*: (48|64|74|79|95|119)\b|fallen off the bus"),
    _rule("gpu-ecc", FailureClass.NODE, r"[Uu]ncorrectable ECC error"),
    _rule("storage", FailureClass.NODE, r"No space left on device|[Qq]uota exceeded|[Ss]tale file handle|Errno 5\]"),
    _rule("collective", FailureClass.NODE, r"Watchdog caught collective operation timeout"),
)

CASCADE = re.compile(
    r"NCCL|ProcessGroup|DistBackendError|DistNetworkError|[Cc]onnection (closed|reset|refused)|Broken pipe|gloo"
    r"|TCPStore|Watchdog|killed by signal: Terminated"
)
"""What the other ranks say when one has died, and what a rank says that is being ended itself."""

REFUSALS = re.compile(
    r"[Ii]nvalid (partition|account|qos|feature|node|generic resource|job array|reservation|license|wckey)"
    r"|[Rr]equested (node configuration|time limit) is|Memory specification can not be satisfied"
    r"|unrecognized option|Invalid \S+ specification|Unable to open file|invalid numeric|user not permitted"
    r"|(QOS|Assoc)M(ax|in)\w*(PerJob|GRES\b)",
)
"""sbatch's words for a job that no repetition will make acceptable."""
