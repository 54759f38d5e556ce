"""The reason that a job is pending, as text. Pure."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from dscampaign.db.states import Cause, CauseCode

_WORDS: Final = {
    "Resources": "no free nodes yet",
    "Priority": "other jobs come first",
    "Prolog": "its nodes are being prepared",
    "PartitionDown": "the partition takes no jobs now",
    "ReqNodeNotAvail": "a node that it asks for is not available",
    "Nodes required for job are DOWN": "the nodes that it needs are down, drained or reserved",
    "JobArrayTaskLimit": "array limit (slurm.array_parallelism) reached",
    "JobHeldUser": "held by you: `scontrol release` releases it",
    "JobHeldAdmin": "held by an administrator: only they can release it",
    "launch failed requeued held": "it could not be launched and is held: `scontrol release` releases it",
    "PartitionNodeLimit": "more nodes than the partition allows",
    "PartitionTimeLimit": "more time than the partition allows",
    "BadConstraints": "no node has the requested resources",
    "DependencyNeverSatisfied": "a job that it depends on failed",
    "AccountNotAllowed": "its account may not use the partition",
}
"""By how a reason begins; others are shown as they are, such as `Licenses`."""

_LIMIT: Final = re.compile(r"(QOS|Assoc)(?:Max|Grp)\w+")

NEVER_STARTS: Final = (
    "PartitionNodeLimit", "PartitionTimeLimit", "BadConstraints", "DependencyNeverSatisfied", "AccountNotAllowed",
    "InvalidAccount", "InvalidQOS",
)  # fmt: skip
"""Reasons that only another spec removes."""

_PER_JOB_LIMIT: Final = re.compile(r"(QOS|Assoc)Max\w+PerJob")
"""Likewise. Limits per user are not included: other jobs of the user will end."""


def will_not_start(reason: str) -> bool:
    """Return whether only another spec cures a reason of Slurm's."""
    return reason.startswith(NEVER_STARTS) or _PER_JOB_LIMIT.match(reason) is not None


def waits_for_turn(job_id: str, position: int | None) -> tuple[str, Cause | None]:
    """Return the reason of a run whose job runs others before it."""
    return f"waiting: place {(position or 0) + 1} in job {job_id}, which runs several in turn", None


@lru_cache(maxsize=1000)
def waits_because(reason: str) -> tuple[str, Cause | None]:
    """Return `waiting: no free nodes yet (Resources)`, and its cause; "" if Slurm gives no reason."""
    if reason in ("", "None"):
        return "", None
    text = next((f"{words} ({reason})" for key, words in _WORDS.items() if re.match(rf"{key}\b", reason)), reason)
    if limit := _LIMIT.match(reason):
        text = f"a limit of your {'QOS' if limit[1] == 'QOS' else 'account'} is reached ({reason})"
    if will_not_start(reason):
        advice = "change the spec's slurm section and submit it"
        return f"will not start: {text}; {advice}", Cause(CauseCode.NEVER_STARTS)
    return f"waiting: {text}", None
