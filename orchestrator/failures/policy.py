"""The failure classes and the policy for each: one row holds everything that follows.

A class without a row cannot be written: the member of `FailureClass` is the row. `reconcile/` acts on it, the report
counts by it, and the table of docs/failures.md is generated from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from math import inf
from typing import Final, Self

from dscampaign.db.records import COMPLETED_EARLY
from dscampaign.db.states import AttemptState, RunState


class Budget(StrEnum):
    """A number of retries in the spec's `retry` section, and the longest wait before one; 0 for none."""

    longest_wait_s: float

    CRASH = "crash", inf
    INFRA = "infra", 600.0
    OOM = "oom", 0.0
    HOST_OOM = "host_oom", 0.0

    def __new__(cls, value: str, longest_wait_s: float) -> Self:
        """A member with its attribute."""
        member = str.__new__(cls, value)
        member._value_, member.longest_wait_s = value, longest_wait_s
        return member


class RetryMode(Enum):
    """How the next attempt differs from the last."""

    RESUME = "from the newest complete checkpoint"
    SMALLER = "the same global batch in smaller micro-batches, or a change that `retry.allow` names"
    MORE_MEMORY = "more host memory, if the spec requests a size"


@dataclass(frozen=True)
class Strike:
    """The weight of a failure against its node, which is excluded at 1, and how many hours it counts at most."""

    weight: float
    hours: float = inf


BAD: Final = Strike(1.0)
SUSPECT: Final = Strike(0.5)


@dataclass(frozen=True)
class Policy:
    """Everything that follows an end of an attempt.

    Attributes:
        shows: How to recognize the class; Markdown, for docs/failures.md.
        follows: The next action; likewise.
        by_hand: The next action of a person who starts jobs without a campaign.
        run: The final state of the run; None if another attempt follows.
        budgets: The budget that the first, second, ... failure uses; the last applies to all further failures.
        progress_is_free: Whether it counts against nothing if the attempt made a step.
        must_save: Whether three of these in a row without a new checkpoint hold the run, even if none made a step.
        elsewhere: Whether the next attempt avoids the node.
        awaits_storage: Whether the next attempt waits until the campaign's folder is writable.
        may_hide_hang: Whether a job that the reconciler cancelled because it hung may look like this.
        failure: Whether its time counts as lost to failures.
    """

    name: str
    shows: str
    follows: str
    by_hand: str
    attempt: AttemptState = AttemptState.FAILED
    run: RunState | None = None
    retry: RetryMode = RetryMode.RESUME
    budgets: tuple[Budget | None, ...] = (None,)
    progress_is_free: bool = False
    must_save: bool = False
    elsewhere: bool = False
    awaits_storage: bool = False
    strike: Strike | None = None
    may_hide_hang: bool = False
    failure: bool = True

    def budget(self, earlier: int, *, progressed: bool) -> Budget | None:
        """Return the budget that an attempt uses after so many of its class."""
        if self.progress_is_free and progressed:
            return None
        return self.budgets[min(earlier, len(self.budgets) - 1)]


class FailureClass(StrEnum):
    """Why an attempt ended, with the policy for it."""

    policy: Policy

    COMPLETED = Policy(
        "completed",
        shows="the target step was reached and every rank exited with 0, or only the clean-up failed",
        follows="done",
        by_hand="Nothing: it completed.",
        attempt=AttemptState.COMPLETED,
        run=RunState.COMPLETED,
        failure=False,
    )
    COMPLETED_EARLY = Policy(
        COMPLETED_EARLY,
        shows="every rank of your own script exited with 0 before the target step",
        follows="done, but marked and left out of comparisons; `campaign retry` runs it again if named",
        by_hand="It ended without an error, but before its last step: check whether that is intended.",
        attempt=AttemptState.COMPLETED,
        run=RunState.COMPLETED,
        failure=False,
    )
    STOPPED = Policy(
        "stopped",
        shows="the ranks saved on a request to stop, and exited with 0 or 85",
        follows="resumes",
        by_hand="Start it again: it continues from its checkpoint.",
        must_save=True,
        failure=False,
    )
    PREEMPTED = Policy(
        "preempted",
        shows="Slurm: PREEMPTED; or it ended the job and started it again",
        follows="resumes",
        by_hand="Submit it again, and resume from the newest checkpoint. Save more often if much was lost.",
        must_save=True,
    )
    TIME_LIMIT = Policy(
        "time_limit",
        shows="Slurm: TIMEOUT, DEADLINE, and no rank reported an error before the signal",
        follows="resumes",
        by_hand="Submit it again with more `--time`, or resume from the newest checkpoint.",
        budgets=(Budget.CRASH,),
        progress_is_free=True,
        must_save=True,
    )
    OOM = Policy(
        "oom",
        shows="the memory of a device ran out, or the host's if the ranks train on the CPU",
        follows="a smaller micro-batch at [the same global batch](out-of-memory.md)",
        by_hand="Use a smaller micro-batch with more gradient accumulation; unchanged, it fails again.",
        retry=RetryMode.SMALLER,
        budgets=(Budget.OOM,),
    )
    FOREIGN_OOM = Policy(
        "foreign_oom",
        shows="the same, but it would have fitted without other processes that hold over a tenth of the GPU",
        follows="resumes elsewhere",
        by_hand="Start it again on another node: other processes hold memory of this node's GPUs.",
        budgets=(Budget.INFRA,),
        strike=Strike(1.0, hours=2.0),  # another process goes away sooner than a broken GPU is mended
    )
    FRAGMENTATION = Policy(
        "fragmentation",
        shows="the same, but torch holds enough memory in free fragments, and its expandable segments were off",
        follows="one retry with `expandable_segments:True`; after that as `oom`",
        by_hand="Start it again with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
        retry=RetryMode.SMALLER,
        budgets=(Budget.OOM,),
    )
    HOST_OOM = Policy(
        "host_oom",
        shows="Slurm: OUT_OF_MEMORY; a process killed for memory; `MemoryError`; a `/dev/shm` that is too small",
        follows="retries with 1.5 times the memory if the spec sets `slurm.mem`; else fails",
        by_hand="Ask for more host memory (`--mem`), or use fewer data-loader workers, less pinning, less offload.",
        retry=RetryMode.MORE_MEMORY,
        budgets=(Budget.HOST_OOM,),
    )
    NODE = Policy(
        "node",
        shows="Slurm: NODE_FAIL, BOOT_FAIL, LAUNCH_FAILED; an error of the fabric; a node that never joined or lacks a"
        " folder; any mistake that only one of several nodes shows",
        follows="resumes after a wait, on other nodes if a node is to blame",
        by_hand="Start it again on other nodes (`sbatch --exclude`), and report the node to the administrators.",
        budgets=(Budget.INFRA,),
        elsewhere=True,
        strike=SUSPECT,
    )
    GPU = Policy(
        "gpu",
        shows="an Xid of the hardware, an uncorrectable error, a lost or missing GPU, a driver that does not respond",
        follows="resumes elsewhere",
        by_hand="Start it again without this node (`sbatch --exclude`), and report the GPU to the administrators.",
        budgets=(Budget.INFRA,),
        strike=BAD,
    )
    GPU_FAULT = Policy(
        "gpu_fault",
        shows="an error of bad hardware or of the script's kernels: an illegal memory access, an ambiguous Xid, a"
        " segmentation fault without message",
        follows="one retry on another node; after that as `crash`",
        by_hand="Try once more on another node. If it ends in the same way, a kernel of the script is at fault:"
        " look for it with CUDA_LAUNCH_BLOCKING=1.",
        budgets=(Budget.INFRA, Budget.CRASH),
        elsewhere=True,
        strike=SUSPECT,
    )
    HANG = Policy(
        "hang",
        shows="a collective timed out without an earlier error, or [no step for too long](#hangs-and-stragglers)",
        follows="resumes after a wait",
        by_hand="Start it again from the newest checkpoint. If it recurs, find the rank that is behind, with"
        " TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and NCCL_DEBUG=INFO.",
        budgets=(Budget.INFRA,),
    )
    STORAGE = Policy(
        "storage",
        shows="an error of the file system: no space, quota, stale handle, input/output error, read-only",
        follows="resumes once the campaign's folder is writable and has room for a checkpoint",
        by_hand="Make room, or wait until the file system answers; then start it again.",
        budgets=(Budget.INFRA,),
        awaits_storage=True,
    )
    CHECKPOINT = Policy(
        "checkpoint",
        shows="the checkpoint that a run resumes from cannot be read",
        follows="resumes from the checkpoint before it",
        by_hand="Resume from the checkpoint before it.",
        budgets=(None, Budget.CRASH),
    )
    LOST = Policy(
        "lost",
        shows="the job disappeared, no job ever claimed it, or root or another user ended it",
        follows="retries after a wait",
        by_hand="Submit it again; if it recurs, ask the administrators.",
        budgets=(Budget.INFRA,),
        may_hide_hang=True,
    )
    CRASH = Policy(
        "crash",
        shows="anything else: an unknown error, a likely mistake with one witness, a network that is away, a signal",
        follows="resumes after a wait; an error that comes back at the same place fails",
        by_hand="Start it again once.",
        budgets=(Budget.CRASH,),
        may_hide_hang=True,
    )
    DETERMINISTIC = Policy(
        "deterministic",
        shows="an error in the program's text, its arguments or its configuration; any other mistake before the first"
        " step that several ranks, on all nodes, show",
        follows="fails at once",
        by_hand="Fix it first: started again unchanged, it fails in the same way.",
        run=RunState.FAILED,
    )
    DIVERGED = Policy(
        "diverged",
        shows="a loss, gradient or other value of training is not finite; fp16 with the loss scale exhausted",
        follows="fails",
        by_hand="Change the training: started again unchanged, it diverges again.",
        run=RunState.FAILED,
    )
    PRUNED = Policy(
        "pruned",
        shows="the spec's `prune` section: steps that take too long, or losses that are not finite",
        follows="fails",
        by_hand="Nothing: its campaign ended it.",
        run=RunState.FAILED,
    )
    REFUSED = Policy(
        "refused",
        shows="`sbatch` rejects it for good, or its `slurm.deadline` passed in the queue",
        follows="fails",
        by_hand="Change the refused request, then submit it again.",
        run=RunState.FAILED,
    )
    CANCELLED = Policy(
        "cancelled",
        shows="somebody cancelled the job outside of this program, or the reconciler did for a cancelled run",
        follows="the run is cancelled",
        by_hand="Submit it again if that was a mistake.",
        attempt=AttemptState.CANCELLED,
        run=RunState.CANCELLED,
        may_hide_hang=True,
    )
    RETURNED = Policy(
        "returned",
        shows="its job, which runs several (`slurm.runs_per_job`), ended or had no time left before its turn",
        follows="goes into another job; counts against nothing",
        by_hand="Submit it again.",
        attempt=AttemptState.CANCELLED,
        failure=False,
    )

    def __new__(cls, policy: Policy | str) -> Self:
        """A class with its row; a text alone is no class."""
        if isinstance(policy, str):
            raise TypeError(f"failure class {policy} has no policy")
        member = str.__new__(cls, policy.name)
        member._value_, member.policy = policy.name, policy
        return member
