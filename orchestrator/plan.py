"""What submitting a spec would do: the merge with the stored runs, and what the next pass decides. Changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil
from pathlib import Path

from ..db.records import CampaignRow, RunRow, StepTimes
from ..db.store import Store
from ..jobs.layout import CampaignPaths
from . import attempts
from .campaign import Submission, compare
from .decide import decide
from .errors import Unreachable
from .executor import ARRAY_LIMIT
from .expand import Run
from .merge import Merge, wanted_again
from .observe import observe, read_store
from .reconcile import make_executor
from .status import LIVE
from .world import Submit


class Sign(StrEnum):
    """What happens to a run."""

    CREATE = "+"
    RESUBMIT = "~"
    KEEP = "="
    CANCEL = "-"


@dataclass(frozen=True)
class PlannedRun:
    """A run, what would happen to it, and why.

    Attributes:
        run: what the spec says of it; None for one that the spec no longer names.
        micro_batch: samples of one forward pass on one rank in the attempt that would be submitted.
        mem_scale: factor on the memory that the spec asks of a node.
    """

    sign: Sign
    name: str
    why: str
    run: Run | None = None
    micro_batch: int | None = None
    mem_scale: float = 1.0

    @property
    def accumulation(self) -> int | None:
        """Forward passes of one optimizer step in that attempt."""
        return attempts.accumulation_of(self.run.config, self.micro_batch, self.run.world_size) if self.run else None


@dataclass(frozen=True)
class Plan:
    """All runs of a campaign with what would happen to them.

    Attributes:
        trouble: why the executor could not be asked, so that resubmissions may be missing.
    """

    campaign: str
    executor: str
    runs: tuple[PlannedRun, ...]
    trouble: Unreachable | None = None

    @property
    def starting(self) -> list[Run]:
        """The runs of which an attempt would be submitted."""
        return [item.run for item in self.runs if item.run and item.sign in (Sign.CREATE, Sign.RESUBMIT)]

    @property
    def arrays(self) -> int:
        """Job arrays that would be submitted: one for each resource shape, or several where it has very many runs."""
        starting = (item for item in self.runs if item.run and item.sign in (Sign.CREATE, Sign.RESUBMIT))
        asked = (attempts.resources(i.run.config, mem_scale=i.mem_scale) for i in starting if i.run)
        sizes = Counter(attempts.shape(resources) for resources in asked)
        return sum(ceil(size / ARRAY_LIMIT) for size in sizes.values())

    @property
    def gpu_hours(self) -> float | None:
        """The most that the submitted attempts can use before their time limit; None without Slurm."""
        if self.executor != "slurm":
            return None
        asked = (run.config.slurm for run in self.starting)
        return sum(slurm.nodes * slurm.gpus * slurm.time_min / 60 for slurm in asked)

    def count(self, *signs: Sign) -> int:
        """How many runs have one of these signs."""
        return sum(item.sign in signs for item in self.runs)


def make_plan(store: Store | None, submission: Submission) -> Plan:
    """Makes the plan.

    Args:
        store: None if there is none yet.
        submission: What would be submitted.

    Raises:
        UserError: as `compare`.
    """
    campaign, change = compare(store, submission)
    submits, trouble = _decided(store, campaign, change) if store and campaign else ({}, None)
    place = {run.config_hash: index for index, run in enumerate(submission.runs)}
    runs = sorted(_planned(change, submits), key=lambda item: place[item.run.config_hash] if item.run else len(place))
    return Plan(submission.spec.name, submission.spec.executor, tuple(runs), trouble)


def _planned(change: Merge, submits: Mapping[int, Submit]) -> Iterator[PlannedRun]:
    for run in change.create:
        yield PlannedRun(Sign.CREATE, run.name, "", run, run.micro_batch)
    for row, run in change.replace:
        yield PlannedRun(Sign.RESUBMIT, row.name, "its experiment changed in the spec", run, run.micro_batch)
    for row, run in change.keep:
        yield _kept(row, run, submits.get(row.id))
    for row in change.drop:
        ends = row.state in LIVE
        why = "no longer in the spec" if ends else f"{row.state}, no longer in the spec"
        yield PlannedRun(Sign.CANCEL if ends else Sign.KEEP, row.name, why)


def _kept(row: RunRow, run: Run, submit: Submit | None) -> PlannedRun:
    if submit is None:
        return PlannedRun(Sign.KEEP, row.name, row.state, run, run.micro_batch)
    sign, why = (Sign.RESUBMIT, submit.why) if row.generation else (Sign.CREATE, "recorded, not started yet")
    return PlannedRun(sign, row.name, why, run, submit.micro_batch, submit.mem_scale)


def _decided(store: Store, campaign: CampaignRow, change: Merge) -> tuple[dict[int, Submit], Unreachable | None]:
    """What the next pass would submit of the kept runs, by run id. Room on this machine does not count here."""
    stored = read_store(store, campaign)
    kept = {row.id for row, _ in change.keep}
    rows = tuple(wanted_again(row) for row in stored.runs if row.id in kept)
    paths = CampaignPaths(Path(campaign.dir), campaign.name)
    desired = replace(stored, runs=rows, campaign=replace(stored.campaign, desired="active"))
    snapshot, trouble = observe(desired, make_executor(campaign, paths), paths, lambda _run_id: StepTimes(None, 0))
    actions = decide(replace(snapshot, capacity=None))
    return {action.run.id: action for action in actions if isinstance(action, Submit)}, trouble
