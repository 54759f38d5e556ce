"""The plan: the effect of submitting a spec, and of the next pass. Changes nothing."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from itertools import product
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dscampaign.db import queries
from dscampaign.db.records import COMPLETED_EARLY, CampaignRow, RunRow
from dscampaign.db.states import CANCELLING, RETRYABLE_RUN, UNSETTLED_RUN, RunState, Stage, shown_state
from dscampaign.db.store import Store
from dscampaign.jobs.shared.layout import CampaignPaths
from dscampaign.orchestrator.commands import counted, typed
from dscampaign.orchestrator.errors import Unreachable
from dscampaign.orchestrator.executors import job_request
from dscampaign.orchestrator.executors.base import ARRAY_LIMIT
from dscampaign.orchestrator.executors.job_request import run_config
from dscampaign.orchestrator.executors.slurm_commands import LOOK_S, answering_within
from dscampaign.orchestrator.formatting import count, figure, html_table, words
from dscampaign.orchestrator.memory.config_changes import changed
from dscampaign.orchestrator.memory.observations import ledgers_of
from dscampaign.orchestrator.memory.prediction import Ledger, memory_key, start_micro_batch
from dscampaign.orchestrator.memory.zero_memory import ModelNeeds, Sizes, needs_of
from dscampaign.orchestrator.reconcile.campaign_folder import CampaignFolder
from dscampaign.orchestrator.reconcile.forecast import Forecast, read_history
from dscampaign.orchestrator.reconcile.origin import Origin, why_held
from dscampaign.orchestrator.spec.expand import Run
from dscampaign.orchestrator.spec.follow_up import follow_up, name_of
from dscampaign.orchestrator.spec.model import AUTO, RunConfig, Spec
from dscampaign.orchestrator.spec.trials import CONFIRMS
from dscampaign.orchestrator.spec.validate import remarks

from . import script_checks
from .code_copies import Code, has_code
from .desired import spec_diff
from .diff import SpecDiff, as_kept, changes, unchanged
from .gpu_hours import GpuHours, Jobs, ToRun, hours_of, jobs_of
from .submission import Submission

if TYPE_CHECKING:
    from dscampaign.orchestrator.reconcile.actions import Submit


class Sign(StrEnum):
    """The effect on a run."""

    CREATE = "+"
    RESUBMIT = "~"
    KEEP = "="
    CANCEL = "-"


@dataclass(frozen=True)
class PlannedRun:
    """A run with the effect on it, and the reason."""

    sign: Sign
    name: str
    why: str
    run: Run | None = field(default=None, repr=False)  # None for one that the spec no longer names
    micro_batch: int | None = None  # of the attempt that would be submitted
    mem_scale: float = 1.0  # factor on the memory that the spec asks of a node
    changes: tuple[str, ...] = ()  # made so that the attempt fits into memory, see `memory.config_changes`
    differing: tuple[str, ...] = ()  # settings that the spec changes, as `train.lr: 0.001 → 0.01`
    predicted_gb: float | None = None  # peak memory of a rank, None if like runs have not measured enough
    usable_gb: float | None = None  # memory that a rank could use on the nodes of like runs
    likely: Forecast | None = None  # how long that attempt takes, None if no like run has shown it
    params: Mapping[str, Any] = field(default_factory=dict)  # the point of one that the spec no longer names

    @cached_property
    def config(self) -> RunConfig | None:
        """The configuration of that attempt: with all defaults resolved, and with its changes."""
        return changed(self.run.config, self.changes) if self.run else None

    @cached_property
    def needs(self) -> ModelNeeds:
        """The memory that its model needs."""
        if self.run is None or self.run.config.train.model is None or self.config is None:
            return ModelNeeds()
        sizes = Sizes(self.run.world_size, self.run.config.ranks(), self.accumulation)
        return needs_of(self.config, sizes, self.usable_gb)

    @property
    def starts(self) -> bool:
        """Whether an attempt of it would be submitted."""
        return self.sign is Sign.CREATE or self.sign is Sign.RESUBMIT

    @property
    def accumulation(self) -> int | None:
        """Forward passes of an optimizer step in that attempt."""
        return job_request.accumulation_of(self.run.config, self.micro_batch, self.run.world_size) if self.run else None


@dataclass(frozen=True)
class Plan:
    """All runs of a campaign with the effect on each.

    `trouble` is set if the executor could not be reached: resubmissions may be missing. `notes` name changed limits,
    the code of runs, and obstacles of all of them; `remarks` are on valid, but hardly intended fields of the spec;
    `first_start_s` is when Slurm expects to start a job first, in epoch seconds. `following` are follow-ups, once the
    runs of the plan have completed; `later` is how many runs a search may add beside them.
    """

    campaign: str
    executor: str
    runs: tuple[PlannedRun, ...]
    trouble: Unreachable | None = None
    notes: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    first_start_s: float | None = None
    following: tuple[Run, ...] = ()
    later: int = 0

    @property
    def starting(self) -> list[Run]:
        """The runs of which an attempt would be submitted."""
        return [item.run for item in self.runs if item.run and item.starts]

    @cached_property
    def jobs(self) -> list[Jobs]:
        """The runs of each job that would be submitted, by its resources."""
        starting = ((item, item.run) for item in self.runs if item.run and item.starts)
        return jobs_of(ToRun(run, run.config, item.mem_scale, item.likely) for item, run in starting)

    @property
    def arrays(self) -> int:
        """Job arrays that would be submitted: one for each resource shape, or several where it has very many jobs."""
        return sum(ceil(len(jobs) / ARRAY_LIMIT) for jobs in self.jobs)

    @cached_property
    def hours(self) -> GpuHours | None:
        """The GPU-hours of the jobs, of follow-ups and of a search's further runs; None without Slurm."""
        now = hours_of([*self.jobs, *jobs_of(ToRun(run, run.config) for run in self.following)])
        times = 1 + self.later / max(1, len(self.starting))
        return GpuHours(now.most * times, now.likely and now.likely * times) if self.executor == "slurm" else None

    def count(self, *signs: Sign) -> int:
        """Return how many runs have these signs."""
        return sum(item.sign in signs for item in self.runs)

    def __repr__(self) -> str:
        kept, ends = self.count(Sign.KEEP), self.count(Sign.CANCEL)
        return f"<plan of {self.campaign}: {len(self.starting):,} to submit, {kept:,} kept, {ends:,} to cancel>"

    def _repr_html_(self) -> str:
        header = ("", "run", "batch", "micro-batch", "ranks", "steps", "why")
        runs = ((item, item.run) for item in self.runs)
        sizes = (
            (i, (r.global_batch, i.micro_batch, r.world_size, r.target_step) if r else [None] * 4) for i, r in runs
        )
        rows = [(item.sign, item.name, *map(figure, values), item.why) for item, values in sizes]
        return html_table(repr(self)[1:-1], header, rows)


def make_plan(store: Store | None, submission: Submission) -> Plan:
    """Make the plan; `store` is None if there is none yet. Raises as `spec_diff` and `script_checks.checked_code`."""
    campaign, change = spec_diff(store, submission)
    codes, different = script_checks.checked_code(submission)
    submits, trouble = _decided(store, campaign, submission, change) if store and campaign else ({}, None)
    early = set[int]()
    if store and campaign:
        with store.read() as conn:
            early = {run.run_id for run in queries.status(conn, campaign.id) if run.early}
    items = list(_planned(change, submits, early))
    items = list(_with_history(store, campaign, change, items)) if store else items
    order = {run.config_hash: index for index, run in enumerate(submission.runs)}
    order |= {item.run.config_hash: item.run.ordinal for item in items if item.run and item.run.ordinal is not None}
    last = CONFIRMS * 2  # follow-ups, and runs that the spec no longer names
    own = counted("runs planned", items)
    runs = sorted(own, key=lambda item: order.get(item.run.config_hash, last) if item.run else last)
    limits = {"limits": submission.spec.limits.model_dump(exclude_none=True)}
    notes = changes({"limits": campaign.limits}, limits) if campaign else []
    of_code = dict.fromkeys(code.note for code in different)  # scripts in several folders of a work tree share its copy
    notes += [*filter(None, of_code), *_kept_code(submission, change, codes)]
    noted = (*remarks(run.config for run in submission.runs), *_unseeded(submission.spec, different))
    if any(item.starts and item.config and item.config.slurm.runs_per_job == AUTO and not item.likely for item in runs):
        notes.append("`runs_per_job: auto` cannot join all runs in jobs: how long they take is not known yet")
    if reason := why_held(Origin.of(campaign.provenance).missing(os.environ)) if campaign else "":
        notes.append(reason)
    following, later = tuple(_following(submission, runs)), 0
    if search := submission.spec.search:
        confirm, many = search.confirm, count(search.trials, "trial")
        known = len(following) + sum(item.run is not None for item in runs)
        later = max(0, search.trials + confirm.top * confirm.repeats * (1 + len(submission.stages)) - known)
        again = f"then the best {confirm.top} again, {count(confirm.repeats, 'run')} each"
        notes.append(f"search: at most {many}, {search.parallel} at a time; {again}")
    name, executor = submission.spec.name, submission.spec.executor
    return Plan(name, executor, tuple(runs), trouble, tuple(notes), noted, following=following, later=later)


def _following(submission: Submission, planned: Sequence[PlannedRun]) -> Iterator[Run]:
    """Yield the follow-ups that are still to come; none follows a run that has ended without completing."""
    names, ended = {item.name for item in planned}, {*RETRYABLE_RUN, RunState.PRUNED, CANCELLING}
    full = (item.run for item in planned if item.run and item.run.stage is Stage.FULL and item.why not in ended)
    for run, (stage, section) in product(full, submission.stages.items()):
        if name_of(run.name, stage, run.repeat) not in names:
            yield follow_up(section, stage, run.name, run.config, run.params, run.repeat, run.config_hash, "")


def _unseeded(spec: Spec, codes: Sequence[Code]) -> Iterator[str]:
    """Yield a remark if the seed of a repeat reaches no script, as far as all code is known."""
    words = " ".join(map(str, (*(spec.command or ()), *spec.env.values())))
    if spec.command is None or spec.repeats < 2 or "{seed}" in words or "{repeat}" in words:
        return
    read = script_checks.variables_read(codes)
    if read is not None and "SEED" not in read:
        yield (
            "nothing in `command` uses the seed: if the script fixes its own, repeats will be identical and count as "
            "one; add an argument with {seed}, or let the script read CAMPAIGN_SEED"
        )


def _kept_code(submission: Submission, change: SpecDiff, codes: Mapping[str, Code]) -> Iterator[str]:
    known = ((row, codes.get(run.config_hash)) for row, run in change.keep if has_code(row))
    older = [row for row, code in known if code and row.code != code.hash]  # others have the code of the first run
    if older:
        number = count(len(older), "run")
        verb = "keeps" if number == "1 run" else "keep"
        retry = f"`{typed('retry', submission.spec.name, 'RUN')}`, once it has ended, makes a run use the new code"
        yield f"{number} {verb} older code; {retry}"


def _differing(row: RunRow, run: Run) -> tuple[str, ...]:
    """Return the settings of a run that the spec changes; a default that a new version brings is no change."""
    if unchanged(row, run):
        return ()
    now = run.stored_config
    if row.config == now or as_kept(row, run).state is RunState.COMPLETED:
        return ()
    return tuple(changes(run_config(row).model_dump(mode="json", exclude_none=True), now))


def _planned(change: SpecDiff, submits: Mapping[int, Submit], early: Collection[int]) -> Iterator[PlannedRun]:
    for run in change.create:
        yield PlannedRun(Sign.CREATE, run.name, "", run, run.micro_batch)
    for row, run in change.replace:
        reason, differing = "its experiment changed in the spec", _differing(row, run)
        yield PlannedRun(Sign.RESUBMIT, row.name, reason, run, run.micro_batch, differing=differing)
    for row, run in change.keep:
        differing = _differing(row, run)
        if submit := submits.get(row.id):
            sign, why = (Sign.RESUBMIT, submit.why) if row.generation else (Sign.CREATE, "recorded, not started yet")
            sizes = submit.micro_batch, submit.mem_scale, submit.changes
            yield PlannedRun(sign, row.name, why, run, *sizes, differing=differing)
        else:
            why = words(COMPLETED_EARLY) if row.id in early else shown_state(row.state, as_kept(row, run).desired)
            yield PlannedRun(Sign.KEEP, row.name, why, run, run.micro_batch, differing=differing)
    for row in change.drop:
        ends = row.state in UNSETTLED_RUN
        reason = "no longer in the spec" if ends else f"{row.state}, no longer in the spec"
        yield PlannedRun(Sign.CANCEL if ends else Sign.KEEP, row.name, reason, params=row.params)


def _with_history(
    store: Store, campaign: CampaignRow | None, change: SpecDiff, planned: Sequence[PlannedRun]
) -> Iterator[PlannedRun]:
    """Yield the runs with the memory and the times that earlier runs have shown."""
    keys = {item.name: key for item in planned if item.starts and item.config and (key := memory_key(item.config))}
    with store.read() as conn:
        ledgers = ledgers_of(conn, keys.values()) if keys else {}
        history = read_history(conn, campaign.id if campaign else None, {row.id for row, _ in change.replace})
        saved = queries.saved_steps(conn, campaign.id) if campaign else {}
        done = {run.name: saved[row.id] for row, run in change.keep if row.id in saved} if saved else {}
        for item in planned:
            ledger, run = ledgers.get(keys.get(item.name, "")), item.run
            now = _remembered(item, ledger) if ledger else item
            if run and item.starts:
                steps = run.target_step and max(0, run.target_step - done.get(run.name, 0))
                now = replace(now, likely=history.forecast(run.params, lambda: run.stored_config, steps))  # noqa: B023
            yield now


def _remembered(item: PlannedRun, ledger: Ledger) -> PlannedRun:
    """Start a new run at the size of the ledger; for the others the policy has decided that."""
    run, micro, reason = item.run, item.micro_batch, item.why
    if run and run.global_batch and run.micro_batch and micro == run.micro_batch and not item.changes:
        choice = start_micro_batch(run.global_batch, run.config.train.data_parallel(run.world_size), micro, ledger)
        micro, reason = choice.micro_batch, choice.why or reason
    predicted_gb = None if micro is None else ledger.predict_gb(micro)
    return replace(item, micro_batch=micro, why=reason, predicted_gb=predicted_gb, usable_gb=ledger.usable_gb)


def _decided(
    store: Store, campaign: CampaignRow, submission: Submission, change: SpecDiff
) -> tuple[dict[int, Submit], Unreachable | None]:
    """Return the next pass' submissions of the kept runs, by run id. `local.parallel` does not count here."""
    # imported here: the first plan of a campaign needs none of them
    from dscampaign.orchestrator.reconcile.actions import Submit
    from dscampaign.orchestrator.reconcile.decide import decide
    from dscampaign.orchestrator.reconcile.loop import make_executor
    from dscampaign.orchestrator.reconcile.observe import observe
    from dscampaign.orchestrator.reconcile.stored import read_store

    # as submitting the spec would leave it
    provenance = {**campaign.provenance, **submission.rules}
    limits = submission.spec.limits.model_dump(exclude_none=True)
    campaign = replace(campaign, desired="active", limits=limits, provenance=provenance)
    stored = read_store(store, campaign)
    kept = {row.id: run for row, run in change.keep}
    rows = tuple(as_kept(row, kept[row.id]) for row in stored.runs if row.id in kept)
    paths = CampaignPaths(Path(campaign.dir), campaign.name)
    desired = replace(stored, runs=rows, campaign=campaign)
    try:
        CampaignFolder(campaign).require()
    except Unreachable as exc:
        return {}, exc
    with answering_within(LOOK_S):
        snapshot, trouble = observe(desired, make_executor(campaign, paths), paths, store)
    actions = decide(replace(snapshot, capacity=None))
    return {action.run.id: action for action in actions if isinstance(action, Submit)}, trouble
