"""The state of a campaign that a pass sees: one moment of the store, the folder and the executor. Values only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from dscampaign.db.open_runs import WaitingAttempt
from dscampaign.db.records import AttemptRow, CampaignRow, RunRow
from dscampaign.db.states import REMOVED, TERMINAL_ATTEMPT, WANTED, Cause
from dscampaign.jobs.agent.evidence import LogLine, NodeOutcome
from dscampaign.jobs.agent.node import Start
from dscampaign.jobs.agent.progress import Heartbeat
from dscampaign.jobs.shared.user_pattern import UserPattern
from dscampaign.orchestrator.executors.base import JobListing, JobView
from dscampaign.orchestrator.executors.job_request import trains_on_cpu
from dscampaign.orchestrator.executors.pending_reason import waits_because, waits_for_turn
from dscampaign.orchestrator.executors.setup_lines import SetUpFailure
from dscampaign.orchestrator.failures.evidence import Ended, UserRule
from dscampaign.orchestrator.memory.prediction import Ledger
from dscampaign.orchestrator.spec.model import RunConfig
from dscampaign.orchestrator.spec.sections import RetryConfig

ABSENCE = "absence"  # key of an attempt's evidence


@dataclass(frozen=True)
class Absence:
    """The job of an attempt that has begun is not listed."""

    since_s: float  # when that was first seen, or a sign of the attempt's agents last changed, by the store's clock
    # the times of the agents' heartbeats then, by their nodes' clocks: only a change means anything
    signs: tuple[float, ...]
    listed_all: bool = True  # whether an absent job was looked for everywhere

    @classmethod
    def of(cls, row: AttemptRow) -> Absence | None:
        """Return the stored absence; None while the job is listed."""
        stored = row.evidence.get(ABSENCE)
        return cls(stored["since_s"], tuple(stored["signs"]), stored["listed_all"]) if stored else None


@dataclass(frozen=True, slots=True)
class JobShare:
    """The part of an attempt in a job that runs several in turn."""

    runs: bool  # whether the job has nodes and is not over
    began: bool  # whether it has begun any of its attempts
    returned: str = ""  # why it will not begin this one; "" if it may


@dataclass(frozen=True, slots=True)
class AttemptView:
    """An attempt as the store, its folder and the executor show it."""

    row: AttemptRow
    job: JobView | None = None  # the executor's view; None if it shows none
    start: Start | None = None
    outcomes: tuple[NodeOutcome, ...] = ()
    claimed: bool = False  # whether a job has begun to run it
    lines: tuple[LogLine, ...] = ()  # the end of the agents' own log, read only if no agent left an outcome
    heartbeats: tuple[Heartbeat, ...] = ()
    unreadable: tuple[str, ...] = ()  # why outcomes cannot be read
    rivals: tuple[str, ...] = ()  # ids of several jobs of it, of which one may still claim it; ``job`` is None
    restarted: bool = False  # whether Slurm started its job again, which found the attempt taken
    foreign: bool = False  # whether its folder is another submission's, so that no job of this one can begin it
    set_up: SetUpFailure | None = None
    share: JobShare | None = None  # of a job that it shares, whose state in ``job`` is that of its own part; else None

    @property
    def signs(self) -> tuple[float, ...]:
        """The newest heartbeats of its agents, by their nodes' clocks."""
        return tuple(beat.ts for beat in self.heartbeats)

    @property
    def interrupted(self) -> bool:
        """Whether it was ended from outside: only the executor knows by whom."""
        return any(outcome.ended_by == "signal" for outcome in self.outcomes)

    @property
    def start_step(self) -> int | None:
        """The first step, by its agents or its metrics."""
        step = self.start.start_step if self.start else None
        return self.row.start_step if step is None else step

    @property
    def active(self) -> bool:
        """Whether the store expects it to run still."""
        return self.row.state not in TERMINAL_ATTEMPT

    @property
    def complete(self) -> bool:
        """Whether every node has recorded its end."""
        return len(self.outcomes) >= self.row.nodes


@dataclass(frozen=True, slots=True)
class RunView:
    """A run with its attempts, oldest first, and its checkpoint."""

    run: RunRow
    attempts: tuple[AttemptView, ...]
    read_config: Callable[[], RunConfig]  # reads its configuration; a pass over thousands of waiting runs never does
    checkpoint_step: int = 0  # step of the newest complete checkpoint of this configuration, 0 for none
    begun: int = 0  # the highest generation in the folder of a run without a job, which a store may have forgotten
    # 99th percentile of its step time, for a custom script of the time between two reports, if known
    p99_step_s: float | None = None
    steps_known: int = 0  # how many steps that was taken from
    hopeless: str = ""  # why it is to end early, "" for nothing
    # the loss that is not finite at the end of its attempts' reports, and since which step; looked for only if the
    # newest attempt ended without a step
    diverged_before: tuple[str, int] | None = None
    reached_before: int = 0  # the highest step that attempts before the newest one may have made; read in the same case
    fixes_batch: Callable[[], bool] = bool  # reads whether an attempt's micro-batch surely does not reach the script

    @property
    def config(self) -> RunConfig:
        """Its configuration."""
        return self.read_config()

    @property
    def retry(self) -> RetryConfig:
        """The `retry` section of its spec."""
        return self.config.retry

    @property
    def latest(self) -> AttemptView | None:
        """The newest attempt."""
        return self.attempts[-1] if self.attempts else None

    def ended(self, attempt: AttemptView) -> Ended:
        """Return the evidence about an attempt that has ended."""
        config, train, row = self.config, self.config.train, attempt.row
        on_cpu, batch_known = trains_on_cpu(config), bool(train.global_batch and train.fixed_micro_batch)
        field, requested = "slurm.mem", config.slurm.mem
        if config.executor == "local":
            field, requested = "local.mem_per_process", config.local.mem_per_process
        targets = (outcome.target_step for outcome in attempt.outcomes if outcome.target_step)
        return Ended(
            job=attempt.job,
            outcomes=attempt.outcomes,
            nodes=row.nodes,
            target_step=self.run.target_step or next(targets, None),
            steps_decide=self.config.command is None,
            on_cpu=on_cpu,
            resizable=config.command is None or (on_cpu and batch_known and not self.fixes_batch()),
            host_memory=(field, requested or ""),
            agent_lines=attempt.lines,
            set_up=attempt.set_up,
            known_start_step=attempt.start_step,
            known_last_step=row.last_step,
            diverged_before=self.diverged_before,
            started_again=attempt.restarted,
            reached_before=self.reached_before,
            claimed=attempt.claimed,
            user_rules=tuple(UserRule(UserPattern(r.match), r.action, r.hint) for r in self.retry.rules),
        )


def unread_end(run: RunRow, row: AttemptRow, job: JobView | None) -> Ended:
    """Return the evidence about an attempt whose files and configuration are not read."""
    first, last = row.start_step, row.last_step
    return Ended(job, (), row.nodes, run.target_step, False, False, known_start_step=first, known_last_step=last)


@dataclass(frozen=True)
class BrokenRun:
    """A run with rows or files that cannot be read."""

    run: RunRow
    attempt: AttemptRow | None  # its newest one, if the store takes that to be active
    job: JobView | None  # that attempt's job, None if the executor showed none
    why: str
    passing: bool = False  # whether the file system fails, rather than the files


@dataclass(frozen=True)
class Queue:
    """The runs that wait in the queue and need no look."""

    length: int = 0  # how many there are
    shared: Collection[tuple[str, int]] = ()  # the jobs that run several of them, by array and task
    # ids of runs with another reason than the store has, by the present reason and its cause
    news: Mapping[tuple[str, Cause | None], Sequence[int]] = field(default_factory=dict)


def sort_out(
    waiting: Sequence[WaitingAttempt],
    listing: JobListing,
    listed: bool,
    folders: Collection[str],
    news: Collection[str],
) -> tuple[Queue, list[int]]:
    """Return the runs that still wait in the executor's `listing`, and the ids of those to look at.

    An agent has made the `folders` of runs; `news` has the memory keys with new measurements.
    """
    length, look, shared = 0, [], set()
    news_of: dict[tuple[str, Cause | None], list[int]] = defaultdict(list)
    for attempt in waiting:
        job = listing.jobs.get(attempt.job_key)
        behind = job is not None and attempt.position is not None and not (job.pending or job.terminal)
        waits = (job.pending or behind) and job.job_id == attempt.job_id if job else not listed
        if not waits or attempt.name in folders or attempt.memory_key in news:
            look.append(attempt.run_id)
            continue
        length += 1
        if attempt.position is not None:
            shared.add(attempt.job_key)
        reason = (
            waits_for_turn(attempt.job_id, attempt.position) if behind else waits_because(job.reason if job else "")
        )
        if reason[0] != attempt.reason:
            news_of[reason].append(attempt.run_id)
    return Queue(length, shared, news_of), look


@dataclass(frozen=True, kw_only=True)
class StoreState:
    """The part of a campaign that a pass reads from the store, at a single moment of the store's clock."""

    now_s: float
    campaign: CampaignRow
    ledgers: Mapping[str, Ledger] = field(default_factory=dict)  # measured memory, by memory key
    more: bool = False  # whether further runs wait to be begun
    failed: Sequence[AttemptRow] = ()  # attempts of other runs which may show a bad node
    # reads the nodes on which an attempt of the campaign has made a step; hardly any pass asks
    trained_on: Callable[[], frozenset[str]] = frozenset
    # reads the interpreters with which an attempt has made a step, "" for the default
    trained_with: Callable[[], frozenset[str]] = frozenset
    gpu_seconds: Callable[[], float] = float  # reads the usage of all attempts until now


@dataclass(frozen=True, kw_only=True)
class Snapshot(StoreState):
    """One moment of a campaign."""

    runs: tuple[RunView, ...]
    listed: bool  # whether the executor responded; if not, absent jobs mean nothing
    complete: bool  # whether an absent job was looked for everywhere
    capacity: int | None  # attempts that may be active at once on this machine; None for no limit
    # intent_grace_s, lost_grace_s, outcome_grace_s: the executor's delays, see there
    intent_grace_s: float
    lost_grace_s: float
    outcome_grace_s: float
    nodes: int | None = None  # nodes of the cluster; None if not known or not needed
    storage: str | None = None  # why the campaign's folder cannot be written, "" if it can; None if not tested
    user: int = 0  # number of the user as whom jobs run
    missing: tuple[str, ...] = ()  # variables of the submitting shell that this process lacks
    damaged: Mapping[str, str] = field(default_factory=dict)  # by hash, why a copy of code cannot be used
    broken: tuple[BrokenRun, ...] = ()  # the runs that cannot be read; they are not among ``runs``
    # runs that wait there and need no look; they are not among ``runs``, nor are those that are done
    queue: Queue = field(default_factory=Queue)

    def is_desired(self, view: RunView | BrokenRun) -> bool:
        """Return whether the run is still wanted."""
        return view.run.desired in WANTED and self.campaign.desired not in ("cancelled", REMOVED)

    def is_wanted_by_others(self, row: AttemptRow) -> bool:
        """Return whether another run still wants a job that it shares."""
        return bool(self._wanted.get(row.job_key, set()) - {row.run_id})

    @cached_property
    def _wanted(self) -> Mapping[tuple[str, int], set[int]]:
        wanted: dict[tuple[str, int], set[int]] = defaultdict(set)
        for key in self.queue.shared:
            wanted[key].add(0)  # of some run that waits
        newest = [(view.run, view.latest.row) for view in self.runs if view.latest and self.is_desired(view)]
        newest += [(view.run, view.attempt) for view in self.broken if view.attempt and self.is_desired(view)]
        for run, row in newest:
            if row.task is not None and row.state not in TERMINAL_ATTEMPT and row.retry_epoch == run.retry_epoch:
                wanted[row.job_key].add(run.id)
        return wanted
