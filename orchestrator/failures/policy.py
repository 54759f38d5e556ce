"""The failure classes and the policy for each: one row holds everything that follows.

A class without a row cannot be written: the member of `FailureClass` is the row. `reconcile/` acts on it, the report
counts by it, and docs/failures.md shows its budgets.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from math import inf
from typing import Final, Self

from dscampaign.db.records import COMPLETED_EARLY
from dscampaign.db.states import AttemptState, RunState


class Budget(StrEnum):
    """A number of retries in the spec's `retry` section."""

    CRASH = "crash"
    INFRA = "infra"
    OOM = "oom"
    HOST_OOM = "host_oom"

    @property
    def longest_wait_s(self) -> float:
        """The longest wait before a retry, 0 for none."""
        return {Budget.CRASH: inf, Budget.INFRA: 600.0}.get(self, 0.0)


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

    COMPLETED = Policy("completed", "Nothing: it completed.", AttemptState.COMPLETED, RunState.COMPLETED, failure=False)
    COMPLETED_EARLY = Policy(
        COMPLETED_EARLY,
        "It ended without an error, but before its last step: check whether that is intended.",
        AttemptState.COMPLETED,
        RunState.COMPLETED,
        failure=False,
    )
    STOPPED = Policy("stopped", "Start it again: it continues from its checkpoint.", must_save=True, failure=False)
    PREEMPTED = Policy("preempted", "Submit it again to resume. Save more often if much was lost.", must_save=True)
    TIME_LIMIT = Policy(
        "time_limit",
        "Submit it again with more `--time`, or resume from the newest checkpoint.",
        budgets=(Budget.CRASH,),
        progress_is_free=True,
        must_save=True,
    )
    OOM = Policy(
        "oom",
        "Use a smaller micro-batch with more gradient accumulation; unchanged, it fails again.",
        retry=RetryMode.SMALLER,
        budgets=(Budget.OOM,),
    )
    FOREIGN_OOM = Policy(
        "foreign_oom",
        "Start it again on another node: other processes hold memory of this node's GPUs.",
        budgets=(Budget.INFRA,),
        strike=Strike(1.0, hours=2.0),  # another process goes away sooner than a broken GPU is mended
    )
    FRAGMENTATION = Policy(
        "fragmentation",
        "Start it again with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
        retry=RetryMode.SMALLER,
        budgets=(Budget.OOM,),
    )
    HOST_OOM = Policy(
        "host_oom",
        "Ask for more host memory (`--mem`), or use fewer data-loader workers, less pinning or offload.",
        retry=RetryMode.MORE_MEMORY,
        budgets=(Budget.HOST_OOM,),
    )
    NODE = Policy(
        "node",
        "Start it again on other nodes (`sbatch --exclude`), and report the node to the administrators.",
        budgets=(Budget.INFRA,),
        elsewhere=True,
        strike=SUSPECT,
    )
    GPU = Policy(
        "gpu",
        "Start it again without this node (`sbatch --exclude`), and report the GPU to the administrators.",
        budgets=(Budget.INFRA,),
        strike=BAD,
    )
    GPU_FAULT = Policy(
        "gpu_fault",
        "Try once more on another node. If it ends in the same way, a kernel of the script is at fault:"
        " look for it with CUDA_LAUNCH_BLOCKING=1.",
        budgets=(Budget.INFRA, Budget.CRASH),
        elsewhere=True,
        strike=SUSPECT,
    )
    HANG = Policy(
        "hang",
        "Start it again from the newest checkpoint. If it recurs, find the rank that is behind, with"
        " TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and NCCL_DEBUG=INFO.",
        budgets=(Budget.INFRA,),
    )
    STORAGE = Policy(
        "storage",
        "Make room, or wait until the file system answers; then start it again.",
        budgets=(Budget.INFRA,),
        awaits_storage=True,
    )
    CHECKPOINT = Policy("checkpoint", "Resume from the checkpoint before it.", budgets=(None, Budget.CRASH))
    LOST = Policy(
        "lost", "Submit it again; if it recurs, ask the administrators.", budgets=(Budget.INFRA,), may_hide_hang=True
    )
    CRASH = Policy("crash", "Start it again once; fix it if it recurs.", budgets=(Budget.CRASH,), may_hide_hang=True)
    DETERMINISTIC = Policy(
        "deterministic", "Fix it first: started again unchanged, it fails in the same way.", run=RunState.FAILED
    )
    DIVERGED = Policy(
        "diverged", "Change the training: started again unchanged, it diverges again.", run=RunState.FAILED
    )
    PRUNED = Policy("pruned", "Nothing: its campaign ended it.", run=RunState.FAILED)
    REFUSED = Policy("refused", "Change the refused request, then submit it again.", run=RunState.FAILED)
    CANCELLED = Policy(
        "cancelled",
        "Submit it again if that was a mistake.",
        AttemptState.CANCELLED,
        RunState.CANCELLED,
        may_hide_hang=True,
    )
    RETURNED = Policy("returned", "Submit it again.", AttemptState.CANCELLED, failure=False)

    def __new__(cls, policy: Policy | str) -> Self:
        """A class with its row; a text alone is no class."""
        if isinstance(policy, str):
            raise TypeError(f"failure class {policy} has no policy")
        member = str.__new__(cls, policy.name)
        member._value_, member.policy = policy.name, policy
        return member
