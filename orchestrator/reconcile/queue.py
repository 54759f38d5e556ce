"""Runs that wait in the queue: of thousands, a pass looks only at those for which Slurm shows news."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from dscampaign.db.open_runs import WaitingAttempt
from dscampaign.db.states import Cause
from dscampaign.orchestrator.executors.base import JobListing
from dscampaign.orchestrator.executors.pending_reason import waits_because
from dscampaign.orchestrator.memory.prediction import Ledger


@dataclass(frozen=True)
class Queue:
    """The runs that wait in the queue and need no look.

    Attributes:
        length: how many there are.
        news: ids of runs with another reason than the store has, by the present reason and its cause.
    """

    length: int = 0
    news: Mapping[tuple[str, Cause | None], Sequence[int]] = field(default_factory=dict)


def sort_out(
    waiting: Sequence[WaitingAttempt],
    listing: JobListing,
    listed: bool,
    folders: Collection[str],
    news: Collection[str],
) -> tuple[Queue, list[int]]:
    """Return the runs that still wait, and the ids of those to look at.

    Args:
        waiting: the runs that waited when the store was last written.
        listing: the executor's jobs.
        listed: whether it answered.
        folders: names of the runs that have a folder: an agent has made it.
        news: memory keys with new measurements.
    """
    length, look = 0, []
    news_of: dict[tuple[str, Cause | None], list[int]] = defaultdict(list)
    for one in waiting:
        job = listing.jobs.get((one.token, one.array_index))
        waits = job.pending and job.job_id == one.job_id if job else not listed
        if not waits or one.name in folders or one.memory_key in news:
            look.append(one.run_id)
            continue
        length += 1
        why = waits_because(job.reason if job else "")
        if why[0] != one.reason:
            news_of[why].append(one.run_id)
    return Queue(length, news_of), look


def changed(ledgers: Mapping[str, Ledger], before: Mapping[str, Ledger]) -> set[str]:
    """Return the memory keys with new measurements."""
    return {key for key, ledger in ledgers.items() if ledger != before.get(key)}
