"""The table of rules: pattern or condition, failure class, sureness, and a hint. Values only.

The first rule that holds decides: memory before errnos, since memory that is short has many names, one of them a full
disk's; then an error's own text, texts that name a cause first; last its kind (class, place and time, see `scene.py`).

Terms that people also use in prose, help texts and configurations are tied to the place where an exception's own line
begins. A mistake is certain if no file, node or network can cause it; else only another attempt can show it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from . import devices
from .errnos import Fault
from .policy import FailureClass
from .raised import OF_FILES
from .scene import Scene
from .verdict import Sureness


@dataclass(frozen=True, eq=False)
class Rule:
    """Proof of a class: a pattern of an error's text, a condition on the error and its circumstances, or both.

    Attributes:
        early: It holds only before the first step: later, the same error may be the machine's fault.
        environment: All nodes should have the missing part: for a run that has trained, it is the node's fault.
        aborts: It ends a process by SIGABRT, so that the signal is no other cause.
        here: The node at fault is the node that reports it.
    """

    kind: FailureClass
    name: str
    text: re.Pattern[str] | None = None
    hint: str = ""
    when: Callable[[Scene], bool] | None = None
    sure: Sureness = Sureness.CERTAIN
    early: bool = False
    environment: bool = False
    aborts: bool = False
    here: bool = False

    @property
    def mistake(self) -> bool:
        """Whether it blames the program or its input."""
        return self.kind is FailureClass.DETERMINISTIC

    def holds(self, scene: Scene) -> bool:
        """Return whether its condition holds, at this time."""
        if self.early and scene.trained and not (self.environment and scene.resumes):
            return False
        return self.when is None or self.when(scene)


def _rule(kind: FailureClass, name: str, text: str = "", hint: str = "", **holds: Any) -> Rule:
    return Rule(kind, name, re.compile(text, re.MULTILINE) if text else None, hint, **holds)


_oom = partial(_rule, FailureClass.OOM)
_host_oom = partial(_rule, FailureClass.HOST_OOM)
_gpu = partial(_rule, FailureClass.GPU)
_node = partial(_rule, FailureClass.NODE)
_storage = partial(_rule, FailureClass.STORAGE, "storage")
_checkpoint = partial(_rule, FailureClass.CHECKPOINT)
_diverged = partial(_rule, FailureClass.DIVERGED, hint="lower train.lr, or warm up longer")
_hang = partial(_rule, FailureClass.HANG, "collective")
_mistake = partial(_rule, FailureClass.DETERMINISTIC)
_early = partial(_mistake, early=True)
_again = partial(_early, sure=Sureness.UNSURE)

_TYPE_OF_OURS = r"^(?!(?:redis|valkey|pymemcache|java|py4j|pyspark|ray)\.)(?:\w+\.)*"
"""The begin of an exception's own line: a message that only mentions a class proves nothing, nor does a server whose
own memory is short."""

_TEXTS = (
    # Slurm's containers: the kernel's limit of namespaces has the errno of a full disk.
    _node("user-namespaces", r"namespaces?\b[^\n]{0,60}No space left|(?:pyxis|enroot)\S*:[^\n]*namespace", here=True),
    # PyTorch's caching allocator, with its class names of torch 2.5 and before, and the device's runtime.
    _oom("cuda-oom", _TYPE_OF_OURS + r"OutOfMemoryError\b|" + devices.MEMORY),
    _oom("cublas-alloc", devices.ALLOCATION),
    # c10's CPU allocator and the runtimes of C++, Rust and Python under a memory limit; a device's if the CPU trains.
    _host_oom(
        "memory-error",
        _TYPE_OF_OURS + r"_?\w*MemoryError\b|Cannot allocate memory"
        r"|DefaultCPUAllocator: (?:can't allocate|not enough) memory|std::bad_alloc"
        r"|^memory allocation of \d+ bytes failed",
    ),
    # torch's data loader, and NCCL, which writes nowhere else: /dev/shm holds objects that processes hand over, and
    # counts as the job's memory.
    _host_oom(
        "shared-memory",
        r"(?:out of|insufficient) shared memory|NCCL WARN .*No space left on device|/dev/shm\b.*No space"
        r"|No space.*/dev/shm\b|torch_\d+_\d+\S*:? No space left|shared memory (?:object|segment) .*No space",
        "fewer data-loader workers, or a larger /dev/shm",
    ),
    # slurmstepd, of several versions, the kernel, and Ray's monitor of a node.
    _host_oom(
        "slurm-oom",
        r"oom[_-]kill event|[Ee]xceeded (?:job |step )?memory limit|^ray\.(?:\w+\.)*OutOfMemoryError\b",
    ),
    _storage(when=lambda scene: scene.fault is Fault.STORAGE),
    # DeepSpeed's and pydantic's checks of the configuration.
    _mistake(
        "ds-config",
        r"Extra inputs are not permitted|DeepSpeedConfigError|validation errors? for DeepSpeed",
        "correct the `deepspeed:` section",
    ),
    # torch.nn.Module.load_state_dict: whole files, another model.
    _early(
        "state-dict",
        r"Error\(s\) in loading state_dict for|Missing key in checkpoint",
        "the checkpoint belongs to another model",
    ),
    # NVIDIA's driver, in CUDA's words.
    _gpu("gpu-lost", devices.LOST),
    _gpu("gpu-ecc", devices.UNCORRECTABLE),
    _gpu("gpu-driver", devices.DRIVER),
    _rule(FailureClass.GPU_FAULT, "gpu-fault", devices.FAULT),
    # slurmstepd and srun, for a cluster without accounting; Open MPI and Ray, which start processes on nodes, too.
    _rule(FailureClass.TIME_LIMIT, "slurm-log", r"CANCELLED AT .* DUE TO TIME LIMIT"),
    _rule(FailureClass.PREEMPTED, "slurm-log", r"CANCELLED AT .* DUE TO PREEMPTION"),
    _node(
        "slurm-log",
        r"DUE TO NODE FAILURE|lost communication with a remote daemon|daemon has unexpectedly failed after launch"
        r"|because its node has died|marked dead because the detector"
        r"|(?:srun: error: Node failure on|Task launch for \S+ failed on node|ssh: connect to host(?= [\w-]+ port))"
        r"(?: (?P<host>[\w.-]+)(?=[\s,:]|$))?",
    ),
    # The fabric: InfiniBand's verbs as NCCL and UCX report them, and NVLink's switches.
    _node(
        "fabric-peer",
        r"IBV_WC_(?:RETRY|RNR_RETRY|REM_ABORT|FATAL|LOC_PROT)\w*"
        r"|(?:[Gg]ot completion|completion) [^\n]{0,80}(?:error|status)[= ]\w*\(?1[0-3]\b"
        r"|Transport retry count exceeded|RNR retry|UCX +ERROR"
        r"|UCS_ERR_(?:ENDPOINT_TIMEOUT|UNREACHABLE|CONNECTION_RESET)",
    ),
    _node(
        "fabric",
        r"NVLink SHARP|NVLS|[Mm]ulticast (?:memory|object|group)|ibv_\w+ failed|IBV_EVENT_\w*(?:FATAL|ERR)"
        r"|Got async (?:fatal )?event ?: [^\n]*(?:error|fatal)",
        here=True,
    ),
    # torch.distributed's start: node 0 waits for others that never came.
    _node("no-peers", r"waiting for clients\. \d+/\d+ clients joined"),
    # DeepSpeed's fp16 optimizer's: the same steps would end the same way.
    _diverged(
        "loss-scale",
        r"Current loss scale already at minimum|Minimum loss scale reached",
        hint="use bf16, lower train.lr, or warm up longer",
    ),
    # jobs/shared/checkpoint.py, torch's zip reader and pickle, safetensors, DeepSpeed's list of shards; not the
    # recomputation of activations, which torch calls checkpointing too.
    _checkpoint(
        "checkpoint-file",
        r"(?<!torch\.utils\.checkpoint\.)Checkpoint(?:Error|Exception)\b"
        r"|PytorchStreamReader failed|UnpicklingError: (?:invalid load key|pickle data was truncated)"
        r"|EOFError: Ran out of input|unexpected EOF, expected \d+ more bytes|Error while deserializing header"
        r"|Invalid magic number; corrupt file|failed finding central directory",
    ),
    # Python's own words only: libraries log modules that they can do without.
    _mistake(
        "no-module",
        r"^(?:[\w.]*(?:Error|Exception): |\S*python[\d.]*: )*No module named|finding module specification for",
        "install it in the environment that `python:` names",
        environment=True,
    ),
    # The dynamic linker, as Python passes it on, and CUDA's.
    _again(
        "no-library",
        r"cannot open shared object file|version `?(?:GLIBC|GLIBCXX|CXXABI)_[\d.]+'? not found|undefined symbol: "
        r"|no kernel image is available",
        "the library must fit all nodes and their GPUs",
        environment=True,
    ),
    # The device's runtime and torch's words for it.
    _mistake("device-ordinal", devices.ORDINAL, "more ranks than GPUs: lower ranks_per_node", environment=True),
    # An index beyond an embedding's or a loss's classes, as a rule; data that come later may be another matter.
    _again("device-assert", devices.ASSERTION, "a label or token out of range", aborts=True),
    _early("no-file", r"can't open file", "the path must exist on the compute nodes"),
    # huggingface_hub and transformers.
    _again(
        "no-hub-file",
        r"Repository Not Found|gated repo|is not a local folder and is not a valid model"
        r"|^(?:\w+\.)*(?:GatedRepo|(?:Repository|RemoteEntry|Dataset)NotFound)Error\b",
    ),
    _early("no-network", r"OfflineModeIsEnabled", "fetch it on the login node first"),
    # The shell that starts the launcher.
    _early("no-interpreter", r"^\S*(?:launcher|sh): .*(?:exec: .*not found|No such file)", "correct `python:`"),
    # argparse, click, absl, hydra and srun.
    _early(
        "argparse",
        r"error: (?:the following arguments|unrecognized arguments|argument |ambiguous option|one of the arguments)"
        r"|^(?:Error: )?(?:No such option|Missing (?:option|argument|parameter)|Got unexpected extra argument)"
        r"|^Flags parsing error: |^Error: Invalid value for"
        r"|^srun: error: Unable to create step for job \S+ (?:More processors requested|Invalid generic resource)"
        r"|^Could not override '|^In '\S+': Could not find '|^Key '\S+' is not in struct",
    ),
    # torch's zip writer, databases and MPI-IO, which pass no errno on; and errno 28, 122, 116, 5, 30 and 108, as libc
    # and libraries word them: a process that died of them leaves no record.
    _storage(
        r"PytorchStreamWriter failed writing|unexpected pos \d+ vs \d+|database or disk is full|disk I/O error"
        r"|errors\.DiskFull\b|MPI_ERR_(?:NO_SPACE|QUOTA|READ_ONLY|IO)\b"
        r"|kind: (?:StorageFull|ReadOnlyFilesystem|StaleNetworkFileHandle|\w*QuotaExceeded)"
        r"|\bIO error: While (?:appending|fsync|sync|fdatasync|pread)"
        r"|(?i:no space left|(?:not enough|insufficient|out of) (?:free )?(?:disk|storage) space"
        r"|(?:disk|file ?system|volume) (?:is )?full|quota exceeded|stale (?:nfs )?file handle|input/output error"
        r"|errno 5\]|read-?only file ?system|cannot send after transport endpoint shutdown"
        r"|line \d+: .*(?:transport endpoint is not connected|communication error on send|host is down)$)",
    ),
)

_KINDS = (
    _diverged("loss-not-finite", when=lambda scene: scene.diverged, sure=Sureness.LIKELY),
    _hang(when=lambda scene: scene.hung, sure=Sureness.LIKELY),
    _mistake("script-error", when=lambda scene: scene.is_mistake),
    _rule(FailureClass.CRASH, "passing", when=lambda scene: scene.passing, sure=Sureness.LIKELY),
    _checkpoint("checkpoint-unreadable", when=lambda scene: scene.of_a_checkpoint, sure=Sureness.LIKELY),
    _again(
        "no-file",
        hint="the path must exist on the compute nodes",
        when=lambda scene: scene.raised.is_a(*OF_FILES) or scene.fault is Fault.REQUEST,
    ),
    _again("error", when=lambda scene: scene.of_a_program),
)
"""In the order of their subjects: a value, the machine, others, and only then the program."""

UNKNOWN = _KINDS[-1]
"""Any other error of a program: the same error at the same place in another attempt is a mistake."""

RULES = (*_TEXTS, *_KINDS)

_GAVE_UP = _hang(
    r"(?i)Watchdog caught collective operation timeout|Timed out waiting \d+ms for (?:recv|send)"
    r"|failed to pass monitoredBarrier|watchdog (?:hang\b|got stuck)|Heartbeat monitor timed out"
    r"|collective operation timed out|wait timeout after \d+ms"
)
"""A collective that waited for as long as it may: torch's NCCL watchdog, gloo, the store, the monitored barrier."""

LOG_RULES = (_GAVE_UP, *(rule for rule in _TEXTS if rule.text))
"""The rules for lines of logs: patterns that prove something wherever they stand."""

USER_ACTIONS = {
    "stop": FailureClass.DETERMINISTIC,
    "retry": FailureClass.CRASH,
    "exclude_node": FailureClass.GPU,
    "smaller": FailureClass.OOM,
}
"""The failure class that has the policy of a user's action."""


def first(scene: Scene, text: str, rules: tuple[Rule, ...] = RULES) -> Rule | None:
    """Return the first of the rules that holds for an error with this text."""
    return next((rule for rule in _matching(text, rules) if rule.holds(scene)), None)


@lru_cache(maxsize=4096)
def _matching(text: str, rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """Select by pattern alone: many ranks report the same."""
    return tuple(rule for rule in rules if rule.text is None or rule.text.search(text))


def gave_up_waiting(text: str) -> bool:
    """Return whether a collective reports that it waited for as long as it may."""
    return bool(_matching(text, (_GAVE_UP,)))
