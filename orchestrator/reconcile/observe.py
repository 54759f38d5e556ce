"""Reads the store, the shared folder and the executor into a snapshot."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from ...db import queries
from ...db.records import SETTLED_RUN, TERMINAL_ATTEMPT, AttemptRow, CampaignRow, RunRow, RunState, StepTimes
from ...db.store import Store
from ...jobs.agent.evidence import LINE_LIMIT, LogLine, NodeOutcome
from ...jobs.agent.node import Start
from ...jobs.agent.progress import Heartbeat
from ...jobs.shared import checkpoint
from ...jobs.shared.code_copy import CopyPaths
from ...jobs.shared.files import read_json
from ...jobs.shared.layout import AttemptPaths, CampaignPaths, RunPaths
from ...jobs.shared.spool_steps import tail
from ...jobs.shared.state_layout import arrangement
from ..errors import Unreachable
from ..executors.base import Executor, JobListing, JobView
from ..executors.job_request import code_of, is_copy, revoked, run_config, trains_on_cpu
from ..executors.storage import trouble as trouble_of
from ..failures.policy import FailureClass
from ..memory import config_changes
from ..memory.observations import read_ledgers
from ..memory.prediction import Ledger
from ..spec.model import RunConfig
from .origin import Origin
from .snapshot import AttemptView, RunView, Snapshot

AGENT_LOG_LINES = 40
BLOCK_BYTES = 2**20

StepTimesOfRun = Callable[[int], StepTimes]


@dataclass(frozen=True)
class Stored:
    """What the store knows of a campaign at one moment of its clock.

    By run id: what the spec asks for, the attempts, oldest first, and the size of the largest recorded checkpoint, in
    bytes. By memory key: the measured memory.
    """

    now_s: float
    campaign: CampaignRow
    runs: tuple[RunRow, ...]
    configs: Mapping[int, RunConfig]
    attempts: Mapping[int, Sequence[AttemptRow]]
    ledgers: Mapping[str, Ledger] = field(default_factory=dict)
    checkpoint_bytes: Mapping[int, int] = field(default_factory=dict)

    @property
    def active(self) -> list[AttemptRow]:
        """The attempts that may still run."""
        return [row for rows in self.attempts.values() for row in rows if row.state not in TERMINAL_ATTEMPT]


def read_store(store: Store, campaign: CampaignRow) -> Stored:
    """Reads the campaign in one transaction."""
    with store.read() as conn:
        fresh = queries.campaign_by_name(conn, campaign.name) or campaign
        runs, attempts = queries.runs(conn, campaign.id), queries.attempts_by_run(conn, campaign.id)
        configs = {run.id: run_config(run) for run in runs}
        return Stored(
            now_s=store.now(conn),
            campaign=fresh,
            runs=tuple(runs),
            configs=configs,
            attempts=attempts,
            ledgers=read_ledgers(conn, configs.values(), chain.from_iterable(attempts.values())),
            checkpoint_bytes=queries.checkpoint_sizes(conn, campaign.id),
        )


def observe(
    stored: Stored,
    executor: Executor,
    paths: CampaignPaths,
    step_times: StepTimesOfRun,
    renewing: Callable[[Iterable[RunRow]], Iterable[RunRow]] = iter,
) -> tuple[Snapshot, Unreachable | None]:
    """Lists the executor's jobs once, and reads the folders of the attempts that may still run.

    Returns the snapshot, and the error if the executor could not be reached, which the snapshot then says, too. Asks
    for a run's `step_times` only if it has made no step for long. Goes through the runs with `renewing`, which keeps
    the lease. Raises Unreachable if the shared folder cannot be read.
    """
    listing, trouble = _list_jobs(stored.active, executor)
    try:
        views = tuple(_run_view(run, stored, listing, paths, step_times) for run in renewing(stored.runs))
    except OSError as exc:
        raise Unreachable(f"the shared folder cannot be read: {exc}", "the next pass tries again") from exc
    snapshot = Snapshot(
        now_s=stored.now_s,
        campaign=stored.campaign,
        runs=views,
        listed=trouble is None,
        complete=listing.complete,
        capacity=_capacity(stored),
        intent_grace_s=executor.intent_grace_s,
        lost_grace_s=executor.lost_grace_s,
        outcome_grace_s=executor.outcome_grace_s,
        ledgers=stored.ledgers,
        nodes=_nodes(stored, executor),
        storage=_storage(stored, paths),
        user=executor.user,
        missing=tuple(Origin.of(stored.campaign.provenance).missing(os.environ)),
        damaged=_damaged(stored, paths),
    )
    return snapshot, trouble


def _list_jobs(active: Sequence[AttemptRow], executor: Executor) -> tuple[JobListing, Unreachable | None]:
    expected: dict[str, set[int]] = defaultdict(set)
    for row in active:
        expected[row.token].add(row.array_index or 0)
    since_s = min((row.created_s for row in active), default=0.0)
    try:
        return executor.list_jobs(expected, since_s), None
    except Unreachable as exc:
        return JobListing({}, False), exc


def _run_view(
    run: RunRow, stored: Stored, listing: JobListing, paths: CampaignPaths, step_times: StepTimesOfRun
) -> RunView:
    rows, config = stored.attempts.get(run.id, ()), stored.configs[run.id]
    over = run.state in SETTLED_RUN and run.state is not RunState.HELD  # then its files do not matter
    attempts = tuple(_attempt_view(row, run, listing, paths) for row in rows)
    idle_s = max((beat.idle_s or 0.0 for attempt in attempts for beat in attempt.heartbeats), default=0.0)
    times = step_times(run.id) if idle_s >= config.retry.hang_min_s else StepTimes(None, 0)
    # the built-in trainer shows every step, a custom script only those that it reports
    p99_s = times.p99_s if config.command is None else times.between_s
    return RunView(
        run=run,
        attempts=attempts,
        config=config,
        on_cpu=trains_on_cpu(config),
        checkpoint_step=_saved_step(run, config, rows[-1], paths) if rows and not over else 0,
        begun=0 if run.generation else _begun(paths.run(run.name)),
        p99_step_s=p99_s,
        steps_known=times.known,
    )


def _saved_step(run: RunRow, config: RunConfig, last: AttemptRow, paths: CampaignPaths) -> int:
    """Step of the newest checkpoint that an attempt like the last one could resume from, 0 for none."""
    train = config_changes.changed(config, config_changes.parse(last.changes)).train
    found = checkpoint.newest_verified(
        paths.run(run.name).checkpoints(run.config_hash),
        run.config_hash,
        None if train.universal_checkpoint else config.world_size(),
        zero_stage=train.zero_stage if config.command is None else None,
        arrangement=arrangement(train.model_dump()) if config.command is None else None,
        check_digests=False,
    )
    return found.step if found else 0


def _begun(run: RunPaths) -> int:
    """The highest generation with a claim."""
    return max((int(claim.parent.name[1:]) for claim in run.dir.glob("g[0-9]*/claim")), default=0)


def _attempt_view(row: AttemptRow, run: RunRow, listing: JobListing, paths: CampaignPaths) -> AttemptView:
    if row.state in TERMINAL_ATTEMPT:
        return AttemptView(row)
    files = paths.run(run.name).attempt(row.generation)
    claim = _claim(files, row.token)
    claimed_by = str((claim or {}).get("job_id", ""))
    job = listing.jobs.get((row.token, row.array_index or 0))
    if job and claimed_by and job.job_id not in ("", claimed_by):
        job = None  # a batch that was submitted twice: this is the job that found the claim taken and left
    found = (NodeOutcome.read(files.outcome(node)) for node in range(row.nodes))
    outcomes = tuple(outcome for outcome in found if outcome is not None)
    lines = _agent_lines(paths.batch(row.token), row, job) if job and job.terminal and not outcomes else ()
    beats = (Heartbeat.read(files.heartbeat(node)) for node in range(row.nodes))
    heartbeats = () if job and (job.pending or job.terminal) else tuple(beat for beat in beats if beat)
    return AttemptView(row, job, Start.read(files), outcomes, claim is not None, lines, heartbeats)


def _claim(files: AttemptPaths, token: str) -> dict[str, Any] | None:
    """A job's claim, empty where it cannot be read; None for none.

    The reconciler may have taken it and died before recording that.
    """
    claim = read_json(files.claim)
    if claim is None:
        return {} if files.claim.exists() else None
    return None if claim.get("job_id") == revoked(token) else claim


def _agent_lines(batch: Path, row: AttemptRow, job: JobView) -> tuple[LogLine, ...]:
    """The end of the agents' own logs: why a job failed before an agent wrote an outcome."""
    logs = [*batch.glob(f"{job.job_id}_*_log.err"), batch / f"{row.array_index or 0}.log"]
    return tuple(line for log in logs if log.is_file() for line in _tail(log))


def _tail(log: Path) -> list[LogLine]:
    """The last lines, cut like those that an agent keeps: a log may be of any length, and so may its lines."""
    kept = tail(log)[-AGENT_LOG_LINES:]
    first = max(1, _line_count(log) - len(kept) + 1)
    return [LogLine(log.name, number, text.rstrip()[:LINE_LIMIT]) for number, text in enumerate(kept, first)]


def _line_count(log: Path) -> int:
    ends, last = 0, b"\n"
    with log.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            ends, last = ends + block.count(b"\n"), block[-1:]
    return ends + (last != b"\n")


def _damaged(stored: Stored, paths: CampaignPaths) -> dict[str, str]:
    """By hash, why a copy of code cannot be used that a run may still need."""
    waiting = (run for run in stored.runs if run.state is RunState.HELD or run.state not in SETTLED_RUN)
    codes = {code_of(run, stored.configs[run.id]) for run in waiting}
    troubles = {code: CopyPaths(paths.code(code)).trouble() for code in codes if is_copy(code)}
    return {code: why for code, why in troubles.items() if why}


def _nodes(stored: Stored, executor: Executor) -> int | None:
    """Nodes of the cluster, queried only if one has a strike."""
    struck = any(
        FailureClass(row.failure_class).policy.strike
        for rows in stored.attempts.values()
        for row in rows
        if row.failure_class
    )
    return executor.nodes() if struck else None


def _storage(stored: Stored, paths: CampaignPaths) -> str | None:
    """What is wrong with the campaign's folder, tested only if a run waits for it."""
    waiting = [run.id for run in stored.runs if _waits_for_storage(run, stored)]
    needed = max((stored.checkpoint_bytes.get(run_id, 0) for run_id in waiting), default=0)
    return trouble_of(paths.dir, needed) if waiting else None


def _waits_for_storage(run: RunRow, stored: Stored) -> bool:
    rows = stored.attempts.get(run.id)
    if not rows or run.desired != "run" or run.state in SETTLED_RUN - {RunState.HELD}:
        return False
    return rows[-1].failure_class == FailureClass.STORAGE and rows[-1].state in TERMINAL_ATTEMPT


def _capacity(stored: Stored) -> int | None:
    """How many attempts may be active at once: on this machine, what the spec says; Slurm has its own queue."""
    configs = (stored.configs[run.id] for run in stored.runs)
    return max((config.local.parallel for config in configs if config.executor == "local"), default=None)
