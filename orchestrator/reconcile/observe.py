"""Adds the view of the shared folder and the executor to the store's: a snapshot."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Final

from dscampaign.db import metrics
from dscampaign.db.errors import StoreError
from dscampaign.db.open_runs import WaitingAttempt
from dscampaign.db.records import AttemptRow, RunRow, StepTimes
from dscampaign.db.states import SETTLED_RUN, TERMINAL_ATTEMPT, AttemptState, RunState
from dscampaign.db.store import Store
from dscampaign.files.ownership import planted
from dscampaign.jobs.agent.evidence import LogLine
from dscampaign.jobs.agent.node import Start
from dscampaign.jobs.agent.progress import Heartbeat
from dscampaign.jobs.shared import checkpoint, placeholders, spool_steps
from dscampaign.jobs.shared.code_copy import CopyPaths, DamagedCopy
from dscampaign.jobs.shared.divergence import diverged
from dscampaign.jobs.shared.job_array import JobRecord, job_record, run_log
from dscampaign.jobs.shared.layout import CampaignPaths
from dscampaign.jobs.shared.payload import Identity
from dscampaign.jobs.shared.state_layout import arrangement
from dscampaign.orchestrator.commands import counted
from dscampaign.orchestrator.errors import Unreachable
from dscampaign.orchestrator.executors.base import Executor, JobListing, JobView, WaitedJob
from dscampaign.orchestrator.executors.job_request import attempt_paths, code_of, is_copy
from dscampaign.orchestrator.executors.setup_lines import SetUpFailure, record_of
from dscampaign.orchestrator.executors.storage import trouble as trouble_of
from dscampaign.orchestrator.failures.exits import SET_UP
from dscampaign.orchestrator.failures.policy import FailureClass
from dscampaign.orchestrator.memory import config_changes
from dscampaign.orchestrator.memory.prediction import Ledger
from dscampaign.orchestrator.spec.model import RunConfig
from dscampaign.orchestrator.spec.sections import PruneConfig

from .attempt_files import is_foreign, is_there, job_claim, names_in, newest_begun, outcomes_in, tail_of
from .campaign_folder import require_same_cluster, run_folders
from .health import LINES, hopeless
from .origin import Origin
from .set_aside import in_words, may_pass
from .shared_jobs import own_part, share_of
from .snapshot import Absence, AttemptView, BrokenRun, RunView, Snapshot, StoreState, sort_out
from .stored import Stored, later, waits_for_storage

_SIZED: Final = ("micro_batch", "accumulation", "ds_config")
"""Placeholders with an attempt's micro-batch."""


def observe(
    stored: Stored,
    executor: Executor,
    paths: CampaignPaths,
    store: Store,
    renewing: Callable[[Iterable[RunRow]], Iterable[RunRow]] = iter,
    ledgers: Mapping[str, Ledger] | None = None,
) -> tuple[Snapshot, Unreachable | None]:
    """List the executor's jobs once, and read the folders of the attempts that may still run.

    Runs in the queue are looked at only if Slurm shows news of them, or `ledgers`, as of the pass before, have changed.
    Returns the snapshot, and the error if the executor could not be reached. `renewing` keeps the lease. Raises
    Unreachable if the shared folder cannot be read, or the jobs are another cluster's.
    """
    active: list[AttemptRow | WaitingAttempt] = [*stored.active, *stored.waiting]
    listing = JobListing({}, False)
    trouble: Unreachable | None = None
    try:
        listing = list_jobs(executor, active, _waited(stored))
    except Unreachable as exc:
        trouble = exc
    else:
        listed = listing.jobs.keys() | listing.rivals.keys()
        missing = {row.token for row in active if row.job_key not in listed}
        require_same_cluster(missing, paths, executor)
    folder = _Folder(paths)
    news = {key for key, ledger in stored.ledgers.items() if ledger != (ledgers or {}).get(key)}
    queue, look = sort_out(stored.waiting, listing, trouble is None, folder.runs, news)
    stored = stored.looking_at(look, store)
    views, broken, failed = _views(stored, listing, folder, store, renewing)
    if failed and not queue.length and all(view.run.state in SETTLED_RUN for view in views):
        # no other could be read: it is the folder
        message = f"the shared folder cannot be read: {failed[0]}"
        raise Unreachable(message, "the next pass tries again", about="not readable") from failed[0]
    snapshot = Snapshot(
        **{each.name: getattr(stored, each.name) for each in fields(StoreState)},
        runs=views,
        broken=broken,
        listed=trouble is None,
        complete=listing.complete,
        capacity=_capacity(stored),
        intent_grace_s=executor.intent_grace_s,
        lost_grace_s=executor.lost_grace_s,
        outcome_grace_s=executor.outcome_grace_s,
        nodes=_nodes(stored, executor),
        storage=_storage(stored, paths),
        user=executor.user,
        missing=tuple(Origin.of(stored.campaign.provenance).missing(os.environ)),
        damaged=_damaged(stored, paths),
        queue=queue,
    )
    return snapshot, trouble


def list_jobs(
    executor: Executor, active: Sequence[AttemptRow | WaitingAttempt], waited: Iterable[WaitedJob] = ()
) -> JobListing:
    """Return the executor's jobs of these attempts. Raises Unreachable."""
    expected: dict[str, set[int]] = defaultdict(set)
    for row in active:
        token, task = row.job_key
        expected[token].add(task)
    return executor.list_jobs(expected, min((row.created_s for row in active), default=0.0), waited)


def _waited(stored: Stored) -> Iterator[WaitedJob]:
    now_s, heard_s = stored.now_s, stored.heard_s or 0.0

    def ago_s(created_s: float) -> float:  # if the clock was set back since, nobody knows
        seen_s = max(heard_s, created_s)
        return now_s - seen_s if seen_s <= now_s else math.inf

    for attempt in stored.waiting:
        yield WaitedJob(*attempt.job_key, attempt.job_id, ago_s(attempt.created_s))
    for row in stored.active:
        if row.state is AttemptState.QUEUED and row.job_id:
            absence = Absence.of(row)
            missed_s = now_s - absence.since_s if absence and absence.listed_all else 0.0
            yield WaitedJob(*row.job_key, row.job_id, math.inf if absence else ago_s(row.created_s), missed_s)


class _Folder:
    """The campaign's folder, listed once a pass instead of a look at each run."""

    def __init__(self, paths: CampaignPaths) -> None:
        self.paths, self.runs = paths, run_folders(paths)
        self._names: dict[str, list[str]] = {}
        self._records: dict[Path, JobRecord] = {}

    def set_up(self, row: AttemptRow) -> SetUpFailure | None:
        record = record_of(self.paths.batch(row.token), row.job_key[1])
        return None if record.name not in self._listed(row.token) or planted(record) else SetUpFailure.read(record)

    def job_record(self, row: AttemptRow, job_id: str) -> JobRecord:
        path = job_record(self.paths.batch(row.token), job_id)
        if path not in self._records:
            self._records[path] = (None if planted(path) else JobRecord.read(path)) or JobRecord()
        return self._records[path]

    def _listed(self, token: str) -> list[str]:
        batch = self.paths.batch(token)
        if token not in self._names:
            self._names[token] = sorted(entry.name for entry in os.scandir(batch)) if batch.is_dir() else []
        return self._names[token]

    def agent_lines(self, row: AttemptRow, job: JobView) -> tuple[LogLine, ...]:
        """Return the end of the agents' own logs: why a job failed before an agent wrote an outcome."""
        batch, listed = self.paths.batch(row.token), self._listed(row.token)
        own = f"{job.job_id}_"
        if row.task is not None and (step := run_log(batch, job.job_id, row.array_index or 0, "err").name) in listed:
            own = step
        logs = [name for name in listed if name.startswith(own) and name.endswith("_log.err")]
        return tuple(line for log in (*logs, f"{row.array_index or 0}.log") for line in tail_of(batch / log))


def _views(
    stored: Stored,
    listing: JobListing,
    folder: _Folder,
    store: Store,
    renewing: Callable[[Iterable[RunRow]], Iterable[RunRow]],
) -> tuple[tuple[RunView, ...], tuple[BrokenRun, ...], list[Exception]]:
    """Read every run by itself: a run's files never hide the others. Also returns errors of the file system."""
    views, broken, failed = [], [], list[Exception]()
    for run in renewing(counted("runs looked at", stored.runs)):
        try:
            views.append(_run_view(run, stored, listing, folder, store))
        except StoreError:
            raise
        except Exception as exc:  # noqa: BLE001 - whatever it is, it is this run's alone
            row = next((row for row in stored.attempts.get(run.id, ())[-1:] if row.state not in TERMINAL_ATTEMPT), None)
            job = _job(row, listing, "")[0] if row else None
            broken.append(BrokenRun(run, row, job, in_words(exc), may_pass(exc)))
            failed += [exc] if may_pass(exc) else []
    return tuple(views), tuple(broken), failed


def _run_view(run: RunRow, stored: Stored, listing: JobListing, folder: _Folder, store: Store) -> RunView:
    rows, paths = stored.attempts.get(run.id, ()), folder.paths
    read_config = partial(stored.configs.of, run)
    untouched = run.name not in folder.runs and _untouched(run, rows, listing)
    if untouched and all(row.task is None for row in rows):
        return RunView(run, tuple(AttemptView(row, listing.jobs[row.job_key]) for row in rows), read_config)
    attempts = tuple(_attempt_view(row, run, listing, folder) for row in rows)
    fixes_batch = partial(_fixes_batch, run, read_config, paths)
    if untouched or (run.state in SETTLED_RUN and run.state is not RunState.HELD):  # then its files do not matter
        return RunView(run, attempts, read_config, fixes_batch=fixes_batch)
    config, latest = read_config(), attempts[-1] if attempts else None
    idle_s = max((beat.idle_s or 0.0 for attempt in attempts for beat in attempt.heartbeats), default=0.0)
    hangs = idle_s >= config.retry.hang_min_s
    times = later(store, metrics.step_times, run.id) if hangs else StepTimes(None, 0)
    hopeless_as, diverged_before, reached_before = "", None, 0
    if latest and latest.row.state is AttemptState.RUNNING and config.prune != PruneConfig():
        lines = later(store, metrics.newest_lines, latest.row.id, LINES)
        hopeless_as = hopeless(lines, latest.row.start_step or 0, config.prune, config.train.untimed_steps)
    if latest and _by_losses(latest):
        same = [row for row in rows if row.config_hash == rows[-1].config_hash]
        newest = (line for row in same for line in reversed(later(store, metrics.newest_lines, row.id, LINES)))
        diverged_before = diverged(line._asdict() for line in newest)
        reached_before = max((_reached(row, run.target_step) for row in same[:-1]), default=0)
    lives = latest is not None and latest.active and latest.job is not None and not latest.job.terminal
    return RunView(
        run=run,
        attempts=attempts,
        read_config=read_config,
        checkpoint_step=_saved_step(run, config, rows[-1], paths) if rows else 0,
        begun=0 if lives else newest_begun(paths.run(run.name)),
        # the built-in trainer shows every step, a custom script only those that it reports
        p99_step_s=times.p99_s if config.command is None else times.between_s,
        steps_known=times.known,
        hopeless=hopeless_as,
        diverged_before=diverged_before,
        reached_before=reached_before,
        fixes_batch=fixes_batch,
    )


def _fixes_batch(run: RunRow, read_config: Callable[[], RunConfig], paths: CampaignPaths) -> bool:
    """Return whether nothing in a script's command and code asks for the micro-batch; False if that is unknown."""
    if not set(_SIZED).isdisjoint(placeholders.names_in(read_config().model_dump_json())):
        return False
    with suppress(OSError, DamagedCopy):
        read = _variables_of(paths.code(code_of(run, read_config())))
        return read is not None and read.isdisjoint(placeholders.AT_LAUNCH[name] for name in _SIZED)
    return False


@cache
def _variables_of(copy: Path) -> frozenset[str] | None:  # it never changes, and every pass looks at a failed run
    files = (copy / path for path in CopyPaths(copy).read().files)
    return placeholders.variables_in(file.read_bytes() for file in files if file.is_file())


def _by_losses(attempt: AttemptView) -> bool:
    """Return whether an attempt that has just ended made no step on any node, or completed without an outcome."""
    if not attempt.complete:
        return attempt.job is not None and attempt.job.state == "COMPLETED"
    start_step = attempt.start_step or 0
    return attempt.active and all((outcome.last_step or 0) <= start_step for outcome in attempt.outcomes)


def _reached(row: AttemptRow, target: int | None) -> int:
    return spool_steps.step_reached(attempt_paths(row).metrics, row.start_step or 0, target) or row.last_step or 0


def _untouched(run: RunRow, rows: Sequence[AttemptRow], listing: JobListing) -> bool:
    """Return whether a run without a folder surely has none: its job, if any, only ever waited."""
    if not rows:
        return run.generation == 0
    job = listing.jobs.get(rows[0].job_key)
    waited = job is not None and (job.pending or job.cancelled_in_queue)
    return len(rows) == 1 and rows[0].state is AttemptState.QUEUED and waited


def _saved_step(run: RunRow, config: RunConfig, last: AttemptRow, paths: CampaignPaths) -> int:
    train = config_changes.changed(config, last.changes.split()).train
    newest = checkpoint.newest_verified(
        paths.run(run.name).checkpoints(run.config_hash),
        run.config_hash,
        config.world_size(),
        zero_stage=train.zero_stage if config.command is None else None,
        arrangement=arrangement(train.model_dump()) if config.command is None else None,
        check_digests=False,
    )
    return newest.step if newest else 0


def _attempt_view(row: AttemptRow, run: RunRow, listing: JobListing, folder: _Folder) -> AttemptView:
    if row.state in TERMINAL_ATTEMPT:
        return AttemptView(row)
    files = folder.paths.run(run.name).attempt(row.generation)
    names = names_in(files)
    has_claim = is_there(files.claim, names)
    if has_claim and is_foreign(row):
        return AttemptView(row, _job(row, listing, "")[0], foreign=True)
    claim = job_claim(files, row.token) if has_claim else None
    claimed_by = str((claim or {}).get("job_id", ""))
    job, rivals = _job(row, listing, claimed_by)
    job_id = claimed_by or (job.job_id if job else row.job_id or "")
    record = None if row.task is None else folder.job_record(row, job_id)
    if job and (claim is not None or (record and record.begun)) and job.cancelled_in_queue and job.inferred:
        job = None  # it did begin: what Slurm says of its array lags
    revoked = has_claim and claim is None and files.claim.exists()
    if job and job.terminal and revoked and record is None:
        job = None  # the reconciler took the claim first: this job has run nothing
    mine = Identity.of(row)
    outcomes, unreadable = outcomes_in(files, row.nodes, names)
    outcomes = tuple(outcome for outcome in outcomes if mine.owns(vars(outcome)))
    share = None
    if record is not None:
        share = share_of(row, job, record, revoked=revoked)
        job = job and own_part(row, job, record, claim, outcomes)
    unknown = job is not None and job.terminal and not outcomes
    lines = folder.agent_lines(row, job) if job and unknown else ()
    set_up = folder.set_up(row) if unknown else None
    paths = map(files.heartbeat, range(row.nodes))
    beats = (Heartbeat.read(path) for path in paths if is_there(path, names))
    heartbeats = () if job and (job.pending or job.terminal) else tuple(beat for beat in beats if beat)
    claimed, restarted = claim is not None, (job is None or job.terminal) and files.restarted.exists()
    start = Start.read(files.started)
    start = start if start and mine.owns(vars(start)) else None
    seen = (start, outcomes, claimed, lines, heartbeats, unreadable, rivals, restarted)
    return AttemptView(row, job, *seen, set_up=set_up, share=share)


def _job(row: AttemptRow, listing: JobListing, claimed_by: str) -> tuple[JobView | None, tuple[str, ...]]:
    """A batch that was submitted twice has two: one claims the attempt, the other finds the claim taken and leaves."""
    jobs = listing.rivals.get(row.job_key) or tuple(filter(None, [listing.jobs.get(row.job_key)]))
    if claimed_by:
        return next((job for job in jobs if job.job_id in ("", claimed_by)), None), ()
    alive = [job for job in jobs if not job.terminal]
    if len(alive) > 1:
        return None, tuple(job.job_id for job in jobs)
    return next(iter(alive or jobs[-1:]), None), ()


def _damaged(stored: Stored, paths: CampaignPaths) -> dict[str, str]:
    codes = {run.code for run in stored.runs if run.state is RunState.HELD or run.state not in SETTLED_RUN}
    troubles = ((code, CopyPaths(paths.code(code)).trouble()) for code in codes if is_copy(code))
    return {code: reason for code, reason in troubles if reason}


def _nodes(stored: Stored, executor: Executor) -> int | None:
    """Query the nodes of the cluster only if a node has a strike, or an attempt did not begin on it."""
    strikes = {kind for kind in FailureClass if kind.policy.strike}
    rows = chain(stored.failed, *stored.attempts.values())
    struck = any(row.failure_class in strikes or row.evidence.get("rule") == SET_UP for row in rows)
    return executor.nodes() if struck else None


def _storage(stored: Stored, paths: CampaignPaths) -> str | None:
    """Test the campaign's folder only if a run waits for it."""
    waiting = [run.id for run in stored.runs if waits_for_storage(run, stored.attempts.get(run.id, ()))]
    required_bytes = max((stored.checkpoint_bytes.get(run_id, 0) for run_id in waiting), default=0)
    trouble = trouble_of(paths.dir, required_bytes) if waiting else None
    return trouble.why if trouble else "" if waiting else None


def _capacity(stored: Stored) -> int | None:
    """The spec limits this machine; Slurm has its own queue."""
    if stored.campaign.executor != "local":
        return None
    startable = (run for run in stored.runs if run.state not in (RunState.COMPLETED, RunState.CANCELLED))
    return max((config.local.parallel for config in map(stored.configs.if_readable, startable) if config), default=None)
