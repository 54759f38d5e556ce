"""The classes of failure, and the policy for each: one row says all that follows when an attempt ends so.

A class without a row cannot be written: its member of `FailureClass` is its row. `reconcile/` acts on it, the report
counts by it, and the table of docs/failures.md is made from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from math import inf
from typing import Final, Self

from ...db.records import AttemptState, RunState


class Budget(StrEnum):
    """What a further try is paid from: a number of the spec's section `retry`.

    Attributes:
        longest_wait_s: to which the wait before a try grows, besides `retry.max_backoff_s`; 0 for no wait.
    """

    longest_wait_s: float

    CRASH = "crash", inf
    INFRA = "infra", 600.0
    OOM = "oom", 0.0
    HOST_OOM = "host_oom", 0.0

    def __new__(cls, value: str, longest_wait_s: float) -> Self:
        """A member with what belongs to it."""
        member = str.__new__(cls, value)
        member._value_, member.longest_wait_s = value, longest_wait_s
        return member


class Retry(Enum):
    """How another attempt differs from the last."""

    RESUME = "from the newest checkpoint that is whole"
    SMALLER = "the same global batch in smaller pieces, or what else `retry.allow` names"
    MORE_MEMORY = "more of the node's memory, where the spec asks for a size"


@dataclass(frozen=True)
class Strike:
    """What an end says against the node that showed it.

    Attributes:
        weight: part of an exclusion; a node is excluded from 1 on.
        hours: how long it counts, unless `retry.exclude_h` says less.
    """

    weight: float
    hours: float = inf


BAD: Final = Strike(1.0)
SUSPECT: Final = Strike(0.5)


@dataclass(frozen=True)
class Policy:
    """What follows when an attempt ends in one way.

    Attributes:
        name: the class, as the store and every output have it.
        shows: how the class shows; Markdown, for docs/failures.md.
        follows: what is done about it; likewise.
        attempt: the state of the attempt.
        run: the state in which the run stays; None if another attempt follows.
        retry: how that one differs.
        budgets: what the first, the second, ... such end counts against, None for nothing; the last entry holds for all
            further ones.
        progress_is_free: whether it counts against nothing if the attempt made a step.
        must_save: whether three such ends in a row without a new checkpoint hold the run, though none made a step.
        elsewhere: whether the next attempt avoids the node that showed it.
        awaits_storage: whether the next attempt waits until the campaign's folder takes files.
        strike: what it says against the node, for all runs of the campaign.
        may_hide_hang: whether a job that this program cancelled because it hung may look like this.
        failure: whether its time counts as lost to failures.
    """

    name: str
    shows: str
    follows: str
    attempt: AttemptState = AttemptState.FAILED
    run: RunState | None = None
    retry: Retry = Retry.RESUME
    budgets: tuple[Budget | None, ...] = (None,)
    progress_is_free: bool = False
    must_save: bool = False
    elsewhere: bool = False
    awaits_storage: bool = False
    strike: Strike | None = None
    may_hide_hang: bool = False
    failure: bool = True

    def budget(self, earlier: int, *, progressed: bool) -> Budget | None:
        """What an end counts against.

        Args:
            earlier: how many attempts of the run ended so before.
            progressed: whether the attempt made a step.
        """
        if self.progress_is_free and progressed:
            return None
        return self.budgets[min(earlier, len(self.budgets) - 1)]


class FailureClass(StrEnum):
    """What an ended attempt was, with its policy."""

    policy: Policy

    COMPLETED = Policy(
        "completed",
        shows="every node left an outcome, every rank exited with 0, the target step was reached; a script of one's"
        " own: all exited with 0 and nobody asked it to stop",
        follows="done",
        attempt=AttemptState.COMPLETED,
        run=RunState.COMPLETED,
        failure=False,
    )
    STOPPED = Policy(
        "stopped",
        shows="the ranks were asked to stop, saved, and exited with 0 or 85",
        follows="resume from the checkpoint",
        must_save=True,
        failure=False,
    )
    PREEMPTED = Policy("preempted", shows="Slurm: PREEMPTED", follows="resume", must_save=True)
    TIME_LIMIT = Policy(
        "time_limit",
        shows="Slurm: TIMEOUT, DEADLINE, and no rank reported an error before it was told to end",
        follows="resume; without a new step it counts as a crash",
        budgets=(Budget.CRASH,),
        progress_is_free=True,
        must_save=True,
    )
    OOM = Policy(
        "oom",
        shows="torch's `OutOfMemoryError`, `CUDA error: out of memory`, an allocation of cuBLAS, cuDNN or NCCL that"
        " failed; host memory where the ranks train on the CPU",
        follows="a smaller micro-batch, accumulation grown to match; the global batch stays ([below](#memory))",
        retry=Retry.SMALLER,
        budgets=(Budget.OOM,),
    )
    FOREIGN_OOM = Policy(
        "foreign_oom",
        shows="the same, but torch's numbers (or the GPU's, before the first rank began) show that processes other"
        " than this run's hold more than a tenth of the GPU, and without them it would have fitted",
        follows="resume elsewhere, same configuration; the node is [excluded](#bad-nodes) for two hours",
        budgets=(Budget.INFRA,),
        strike=Strike(1.0, hours=2.0),  # another process goes away sooner than a broken GPU is mended
    )
    FRAGMENTATION = Policy(
        "fragmentation",
        shows="the same, but torch holds at least as much as it asked for, and a twentieth of the GPU, in pieces",
        follows="once more with `expandable_segments:True`, same configuration; again, or where whole memory would"
        " not have done either, as `oom`",
        retry=Retry.SMALLER,
        budgets=(Budget.OOM,),
    )
    HOST_OOM = Policy(
        "host_oom",
        shows="Slurm: OUT_OF_MEMORY of the job or a step, or a killed batch step under OverMemoryKill; an"
        " `oom_kill` of the job's control group or, of one of its ranks, in the kernel's log; `can't allocate"
        " memory`, `MemoryError`, too small a `/dev/shm`; under a run on GPUs",
        follows="1.5 times the memory, if the spec has `slurm.mem`; else failed",
        retry=Retry.MORE_MEMORY,
        budgets=(Budget.HOST_OOM,),
    )
    NODE = Policy(
        "node",
        shows="Slurm: NODE_FAIL, BOOT_FAIL, LAUNCH_FAILED, a step that could not be started; other nodes that never"
        " came; what would be a mistake (a missing file, library, module or GPU), but on one node only, or where"
        " earlier attempts have trained",
        follows="resume, later",
        budgets=(Budget.INFRA,),
        strike=SUSPECT,
    )
    GPU = Policy(
        "gpu",
        shows="the kernel's `NVRM: Xid` 48, 64, 74, 79, 95, 119 or 120, an uncorrectable ECC or NVLink error, fewer"
        " GPUs than were asked of Slurm, a GPU that is lost, a driver that does not answer",
        follows="resume elsewhere; the node is [excluded](#bad-nodes)",
        budgets=(Budget.INFRA,),
        strike=BAD,
    )
    GPU_FAULT = Policy(
        "gpu_fault",
        shows="what bad hardware and a script's own kernels both cause: an illegal memory access, an unspecified"
        " launch failure, Xid 13, 31, 43, 62 or 94, a segmentation fault or bus error without another word",
        follows="once on another node; again, it is the script's",
        budgets=(Budget.INFRA, Budget.CRASH),
        elsewhere=True,
        strike=SUSPECT,
    )
    HANG = Policy(
        "hang",
        shows="a collective waited for as long as it may (NCCL's watchdog, gloo, the store, a monitored barrier),"
        " and no earlier error explains it; or [no step for too long](#hangs-and-stragglers)",
        follows="resume, later",
        budgets=(Budget.INFRA,),
    )
    STORAGE = Policy(
        "storage",
        shows="no space, quota, stale handle, input/output error, a file system that became read-only or went away",
        follows="waits until the campaign's folder takes a file again, and has room for a checkpoint; meanwhile no"
        " run of the campaign is started",
        budgets=(Budget.INFRA,),
        awaits_storage=True,
    )
    CHECKPOINT = Policy(
        "checkpoint",
        shows="what it resumed from cannot be read: a truncated or missing shard, a manifest that differs",
        follows="the checkpoint before it",
        budgets=(None, Budget.CRASH),
    )
    LOST = Policy(
        "lost",
        shows="submitted, perhaps, but no job ever claimed it; or the job is gone and left no word of how it ended;"
        " or it was cancelled by root or another user: by an administrator, or by a Slurm that has lost its state",
        follows="the same again, later",
        budgets=(Budget.INFRA,),
        may_hide_hang=True,
    )
    CRASH = Policy(
        "crash",
        shows="anything else: an error that no rule knows, a hub that cannot be reached, a rank killed by a signal,"
        " an end without any record",
        follows="resume, later",
        budgets=(Budget.CRASH,),
        may_hide_hang=True,
    )
    DETERMINISTIC = Policy(
        "deterministic",
        shows="a mistake in the configuration, the script or the environment, which would show again: on every"
        " node, or on the only one; an agent that runs nothing because others can write to the campaign's folder",
        follows="failed at once, with what to change",
        run=RunState.FAILED,
    )
    DIVERGED = Policy(
        "diverged",
        shows="the loss is not finite: the built-in trainer's word, or a script's own; fp16 with no loss scale left",
        follows="failed",
        run=RunState.FAILED,
    )
    REFUSED = Policy(
        "refused",
        shows="`sbatch` will never take it, such as an invalid partition",
        follows="failed, with sbatch's words",
        run=RunState.FAILED,
    )
    CANCELLED = Policy(
        "cancelled",
        shows="the job was cancelled by the user outside this program, or by it because the run is no longer wanted",
        follows="the run is cancelled",
        attempt=AttemptState.CANCELLED,
        run=RunState.CANCELLED,
        may_hide_hang=True,
    )

    def __new__(cls, policy: Policy | str) -> Self:
        """A class with its row.

        Raises:
            TypeError: it has none. `FailureClass("oom")` looks a member up and never comes here.
        """
        if isinstance(policy, str):
            raise TypeError(f"failure class {policy} has no policy")
        member = str.__new__(cls, policy.name)
        member._value_, member.policy = policy.name, policy
        return member
