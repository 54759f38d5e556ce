"""The table of rules: what an error's own words prove, and where those words come from. Values only.

What others may word otherwise is told by its kind (`kinds.py`).

A rule is tried on what a rank wrote down (type, message) and, where nobody wrote anything, on lines of logs from which
`log_lines` has taken echoes, handled errors and decoration. Words that people also use in prose, in help texts and
in configurations are therefore tied to the place where an exception's own line begins.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from . import devices
from .policy import FailureClass
from .verdict import Diagnosis, Sureness


@dataclass(frozen=True)
class Rule(Diagnosis):
    """A pattern of an error's text that proves a class; `here` if the node at fault is the one that reports it."""

    pattern: re.Pattern[str] = re.compile("(?!)")
    here: bool = False


class RuleTable:
    """Rules, of which the first that matches counts."""

    def __init__(self, *rules: Rule) -> None:
        self.rules = rules
        self._at = {
            (trained, resumes): tuple(rule for rule in rules if rule.may_hold(trained, resumes))
            for trained in (False, True)
            for resumes in (False, True)
        }

    @lru_cache(maxsize=2048)  # noqa: B019 - the tables live as long as the program, and many ranks report the same
    def first(self, text: str, *, trained: bool, resumes: bool) -> Rule | None:
        """The first rule that matches the text and may hold at this time."""
        return next((rule for rule in self._at[trained, resumes] if rule.pattern.search(text)), None)


USER_ACTIONS = {
    "stop": FailureClass.DETERMINISTIC,
    "retry": FailureClass.CRASH,
    "exclude_node": FailureClass.GPU,
    "smaller": FailureClass.OOM,
}
"""The failure class that has the policy of a user's action."""


def _rule(kind: FailureClass, name: str, pattern: str, hint: str = "", **holds: Any) -> Rule:
    return Rule(name, kind, hint, pattern=re.compile(pattern, re.MULTILINE), **holds)


# A rule begins with its class, and a mistake with when and where it counts as one.
_oom = partial(_rule, FailureClass.OOM)
_host_oom = partial(_rule, FailureClass.HOST_OOM)
_gpu = partial(_rule, FailureClass.GPU)
_gpu_fault = partial(_rule, FailureClass.GPU_FAULT)
_node = partial(_rule, FailureClass.NODE)
_storage = partial(_rule, FailureClass.STORAGE)
_checkpoint = partial(_rule, FailureClass.CHECKPOINT)
_diverged = partial(_rule, FailureClass.DIVERGED)
_crash = partial(_rule, FailureClass.CRASH)
_mistake = partial(_rule, FailureClass.DETERMINISTIC)
_early_mistake = partial(_mistake, early=True)
_environment = partial(_mistake, environment=True)
_early_environment = partial(_early_mistake, environment=True)
_likely = partial(_early_mistake, sure=Sureness.LIKELY)
_lacking = partial(_likely, environment=True)

_TYPE = r"^(?:\w+\.)*"
"""Where an exception's own line begins: a message that only mentions one (ImportError, falling back) proves nothing."""
_TYPE_OF_OURS = r"^(?!(?:redis|valkey|pymemcache|java|py4j|pyspark)\.)(?:\w+\.)*"
"""Likewise, but not of a server whose own memory is short."""
_FIRST = r"\A(?:\w+\.)*"
"""Where the exception that ended a rank begins: further lines of its message may repeat what another program said."""

XID_HARDWARE = "46|48|64|74|79|95|110|119|120|123|136|140|143|149"
"""NVIDIA's list of Xid errors: stopped, double-bit ECC, row remapping failed, NVLink, off the bus, uncontained or
unrecovered ECC, security fault, GSP or PMU gone."""
XID_AMBIGUOUS = "8|13|31|32|43|61|62|68|69|92|94|109|144|145|146|147|148|150"
"""Likewise: exceptions and faults of an engine, channel reset, controller warning or halt, many corrected
errors, contained ECC, switch timeout, NVLink's fatal and other errors of the fifth generation."""

_NODE = r"\b(?:[Nn]odes?|[Hh]ost|[Mm]achine|[Cc]ontainer|[Pp]od|[Cc]group|[Ii]nstance)\b"
_NOT_OF_DEVICES = r"(?:(?!CUDA|HIP|GPU|XPU|VRAM|[Dd]evice)[^\n]){0,60}?"

_FABRIC = (
    r"IBV_WC_(?:RETRY|RNR_RETRY|REM_ABORT|FATAL|LOC_PROT)\w*"
    r"|(?:[Gg]ot completion|completion) [^\n]{0,80}(?:error|status)[= ]\w*\(?1[0-3]\b"
    r"|Transport retry count exceeded|RNR retry|UCX +ERROR|UCS_ERR_(?:ENDPOINT_TIMEOUT|UNREACHABLE|CONNECTION_RESET)"
)

_MEMORY = (
    # Slurm's containers: the kernel's limit of namespaces has the errno of a full disk.
    _node("user-namespaces", r"namespaces?\b[^\n]{0,60}No space left|(?:pyxis|enroot)\S*:[^\n]*namespace", here=True),
    # What watches the host's memory: Ray, Dask, YARN, scripts; Level Zero's and OpenCL's names for it.
    _host_oom(
        "host-monitor",
        _NODE
        + _NOT_OF_DEVICES
        + r"\b(?:(?:low on|out of|short of|insufficient|(?:not|n't) (?:have )?enough) (?:free )?"
        r"(?:memory|RAM)|exceed\w* (?:\S+ ){0,3}memory)|memory usage threshold|exceeded \d+% memory budget"
        r"|(?i:(?:out[ _]of|insufficient|not enough|low)[ _](?:host|system|CPU|main)[ _](?:memory|RAM)\b)"
        r"|\b(?:[Hh]ost|[Ss]ystem|CPU|[Mm]ain) (?:memory|RAM) (?:is |was )?(?:exhausted|full|exceeded|ran out)",
    ),
    # PyTorch's caching allocator, with its class names of torch 2.5 and before, and whatever runs the device.
    _oom("cuda-oom", _TYPE_OF_OURS + r"OutOfMemoryError\b|" + devices.MEMORY),
    _oom("cublas-alloc", devices.ALLOCATION),
    # c10's CPU allocator and the runtimes of C++, Rust and Python under a memory limit: a device only where the CPU
    # trains.
    _host_oom(
        "cpu-alloc",
        r"DefaultCPUAllocator: (?:can't allocate|not enough) memory|std::bad_alloc"
        r"|^memory allocation of \d+ bytes failed",
    ),
    _host_oom("memory-error", _TYPE_OF_OURS + r"_?\w*MemoryError\b|Cannot allocate memory"),
    # torch's data loader, and NCCL, which writes nowhere else: /dev/shm holds what processes hand over, and counts as
    # the job's memory.
    _host_oom(
        "shared-memory",
        r"out of shared memory|NCCL WARN .*No space left on device|/dev/shm\b.*No space|No space.*/dev/shm\b"
        r"|insufficient shared memory"
        r"|torch_\d+_\d+\S*:? No space left"
        r"|shared memory (?:object|segment) .*No space",
        "fewer data-loader workers, or a larger /dev/shm",
    ),
    # slurmstepd, of several versions, and the kernel.
    _host_oom("slurm-oom", r"oom[_-]kill event|[Ee]xceeded (?:job|step) memory limit|exceeded memory limit"),
)

_CONFIGURATION = (
    # DeepSpeed's and pydantic's checks of the configuration.
    _mistake("ds-batch", r"Check batch related parameters", "global_batch must be micro × accumulation × world size"),
    _mistake(
        "ds-config",
        r"Extra inputs are not permitted|DeepSpeedConfigError|validation errors? for DeepSpeed",
        "correct the `deepspeed:` section",
    ),
    _mistake(
        "ds-world", r"checkpoint being loaded used a DP world size", "resume on the number of ranks that saved it"
    ),
    # torch.nn.Module.load_state_dict: whole files, another model.
    _early_mistake(
        "state-dict",
        r"Error\(s\) in loading state_dict for|Missing key in checkpoint",
        "the checkpoint belongs to another model",
    ),
)

_ENVIRONMENT = (
    # What torch builds for DeepSpeed is shared by ranks and runs, which may find it half written.
    _crash(
        "extension-race",
        r"torch_extensions.*(?:cannot open shared|file too short|No such file|undefined symbol)"
        r"|lock file .*torch_extensions"
        r"|does not define module export function|build\.ninja:\d+: (?:unexpected|expected)",
        "build DeepSpeed's extensions once before the campaign",
    ),
    # Python's own words only: libraries log what they can do without.
    _environment(
        "no-module",
        r"^(?:[\w.]*(?:Error|Exception): |\S*python[\d.]*: )*No module named|finding module specification for",
        "install it in the environment that `python:` names",
    ),
    _environment("no-mpi", r"cannot load MPI library", "start through the `deepspeed` launcher; mpi4py is broken here"),
    # The dynamic linker, in the words that Python gives on.
    _lacking(
        "no-library",
        r"cannot open shared object file|version `?(?:GLIBC|GLIBCXX|CXXABI)_[\d.]+'? not found|undefined symbol: ",
        "the library must be the same on all nodes",
    ),
    # The device's runtime and torch's words for it.
    _mistake("device-ordinal", devices.ORDINAL, "more ranks than GPUs: lower ranks_per_node", environment=True),
    _lacking(
        "no-gpu",
        devices.ABSENT,
        "ask for GPUs in `slurm:`, and install a torch that can use them",
    ),
    _likely(
        "nccl-usage",
        r"ncclInvalid(?:Usage|Argument)|NCCL [Ee]rror.{0,12}invalid (?:usage|argument)|no socket interface found",
        "NCCL_SOCKET_IFNAME and the like",
    ),
    _early_environment(
        "no-kernel-image",
        devices.NO_KERNEL,
        "build torch or the kernel for this GPU",
    ),
    # An index beyond an embedding's or a loss's classes, as a rule; data that come later may be another matter.
    _likely("device-assert", devices.ASSERTION.pattern, "a label or token out of range", aborts=True),
    _early_mistake("no-file", r"can't open file", "the path must exist on the compute nodes"),
    # huggingface_hub and transformers.
    _likely(
        "no-hub-file",
        r"Repository Not Found|gated repo|is not a local folder and is not a valid model"
        r"|^(?:\w+\.)*(?:GatedRepo|(?:Repository|RemoteEntry|Dataset)NotFound)Error\b",
    ),
    _early_mistake("no-network", r"OfflineModeIsEnabled", "fetch it on the login node first"),
    # jobs/trainer/data.py: prepared tokens.
    _early_mistake("foreign-data", _TYPE + r"Distrusted: ", "only you may be able to write to `data` in `dir`"),
    # The shell that starts the launcher.
    _early_mistake("no-interpreter", r"^\S*(?:launcher|sh): .*(?:exec: .*not found|No such file)", "correct `python:`"),
)

_SCRIPT = (
    # The C library's assert, of a compiled library; not CUDA's on the device, which name a block and a thread.
    _crash("assertion", r"^\S+: \S+:\d+: .{1,400}: Assertion `.{1,400}' failed\.$"),
    # DeepSpeed's launcher, whose argparse looks at all words, also those that follow the script.
    _early_mistake(
        "launcher-option",
        r"^(?:runner|launch)\.py: error: ambiguous option: ",
        "rename the script's option: the launcher takes it for a short form of its own",
    ),
    # argparse, absl, click and hydra.
    _early_mistake(
        "argparse",
        r"error: (?:the following arguments|unrecognized arguments|argument |ambiguous option|one of the arguments)"
        r"|^Flags parsing error: "
        r"|^(?:Error: )?(?:No such option|Missing (?:option|argument|parameter)|Got unexpected extra argument)"
        r"|^Error: Invalid value for|^Could not override '|^In '\S+': Could not find '|^Key '\S+' is not in struct",
    ),
)

_TRAINING = (
    # DeepSpeed's fp16 optimizer's: the same steps would end the same way.
    _diverged(
        "loss-scale",
        r"Current loss scale already at minimum|Minimum loss scale reached",
        "use bf16, lower train.lr, or warm up longer",
    ),
    # jobs/shared/checkpoint.py, torch's zip reader and pickle, safetensors, DeepSpeed's list of shards; not the
    # recomputation of activations, which torch calls checkpointing too.
    _checkpoint("checkpoint", r"(?<!torch\.utils\.checkpoint\.)Checkpoint(?:Error|Exception)\b"),
    _checkpoint(
        "checkpoint-file",
        r"PytorchStreamReader failed|UnpicklingError: (?:invalid load key|pickle data was truncated)"
        r"|EOFError: Ran out of input|unexpected EOF, expected \d+ more bytes|Error while deserializing header"
        r"|Invalid magic number; corrupt file|failed finding central directory",
    ),
)

_MACHINE = (
    # NVIDIA's driver, in the kernel's log and in CUDA's words.
    _gpu("gpu-xid", rf"NVRM: Xid \([^)]*\): (?:(?:{XID_HARDWARE})\b|\d+,[^\n]*\bFatal\b)|{devices.LOST}"),
    _gpu("gpu-ecc", devices.UNCORRECTABLE),
    _gpu("gpu-driver", devices.DRIVER),
    _gpu_fault("gpu-fault-xid", rf"NVRM: Xid \([^)]*\): (?:{XID_AMBIGUOUS})\b"),
    _gpu_fault("gpu-fault", devices.FAULT),
    # torch's zip writer, databases and MPI-IO, which pass no errno on.
    _storage(
        "storage",
        r"PytorchStreamWriter failed writing|unexpected pos \d+ vs \d+|database or disk is full|disk I/O error"
        r"|errors\.DiskFull\b|MPI_ERR_(?:NO_SPACE|QUOTA|READ_ONLY|IO)\b"
        r"|kind: (?:StorageFull|ReadOnlyFilesystem|StaleNetworkFileHandle|\w*QuotaExceeded)"
        r"|\bIO error: While (?:appending|fsync|sync|fdatasync|pread)",
    ),
    # slurmstepd and srun, where Slurm's accounting has no word of it.
    _rule(FailureClass.TIME_LIMIT, "slurm-log", r"CANCELLED AT .* DUE TO TIME LIMIT"),
    _rule(FailureClass.PREEMPTED, "slurm-log", r"CANCELLED AT .* DUE TO PREEMPTION"),
    _node(
        "slurm-log",
        r"DUE TO NODE FAILURE"
        r"|(?:srun: error: Node failure on|Task launch for \S+ failed on node)(?: (?P<host>[\w.-]+)(?=[\s,:]|$))?",
    ),
    # The fabric: InfiniBand's verbs as NCCL and UCX report them, and NVLink's switches.
    _node("fabric-peer", _FABRIC),
    _node(
        "fabric",
        r"NVLink SHARP|NVLS|[Mm]ulticast (?:memory|object|group)|ibv_\w+ failed|IBV_EVENT_\w*(?:FATAL|ERR)",
        here=True,
    ),
    # torch.distributed's start: node 0 waits for others that never came.
    _node("no-peers", r"waiting for clients\. \d+/\d+ clients joined"),
)

MEMORY_RULES = RuleTable(*_MEMORY)
"""Asked before an errno: memory that is short has many names, one of them a full disk's."""

_UNNAMED = (
    # NCCL's result for an error of the rank's own device; what follows it may say which.
    _gpu_fault("nccl-cuda", r"ncclUnhandledCudaError|unhandled cuda error"),
)

RULES = RuleTable(*_CONFIGURATION, *_MACHINE, *_TRAINING, *_ENVIRONMENT, *_SCRIPT, *_UNNAMED)
"""The first that matches counts: what names a cause stands before what only names an exception's class."""

LOG_RULES = RuleTable(
    *MEMORY_RULES.rules,
    *RULES.rules,
    # errno 28, 122, 116, 5, 30, 108 and 107, as libc words them, in whatever line: who died of it leaves no record.
    _storage(
        "storage",
        r"No space left on device|[Qq]uota exceeded|[Ss]tale (?:NFS )?file handle|Input/output error|Errno 5\]"
        r"|Read-only file system|Cannot send after transport endpoint shutdown|Transport endpoint is not connected",
    ),
)
"""What lines of logs are matched with."""

_GAVE_UP = re.compile(
    r"Watchdog caught collective operation timeout|Timed out waiting \d+ms for (?:recv|send)"
    r"|failed to pass monitoredBarrier|watchdog (?:hang\b|got stuck)|Heartbeat monitor timed out"
    r"|collective operation timed out"
    r"|wait timeout after \d+ms",
    re.IGNORECASE,
)
"""A collective that waited for as long as it may: torch's NCCL watchdog, gloo, the store, the monitored barrier."""


@lru_cache(maxsize=2048)
def gave_up_waiting(text: str) -> bool:
    """Whether a collective reports that it waited for as long as it may."""
    return bool(_GAVE_UP.search(text))


KERNEL_STORAGE = re.compile(
    r"I/O error, dev |nfs: server \S+ not responding|Remounting filesystem read-only|lost connection to .* lustre"
    r"|LustreError: .*evicted",
    re.IGNORECASE,
)
"""Kernel messages about storage that does not respond."""

KERNEL_OOM = re.compile(r"Kill(?:ed)? process (\d+)|oom-kill:.*\bpid=(\d+)|oom_reaper: reaped process (\d+)")
"""Kernel messages about a process killed for lack of memory."""
