"""Submits attempts as jobs. A crash between any two steps is harmless.

In this order:
  1. the store: attempts with intent, a token and a place in the array;
  2. the shared folder: payloads, the pointer to the current generation;
  3. the store: a sign of life of the submitter, if the lease is still its own;
  4. sbatch, with the token in name and comment;
  5. the store: the job ids.
After a crash behind 1, 2 or 3, the intent has no job: it is revoked and retried. After a crash behind 4, the next pass
finds the job by its token and adopts it. A submitter that has lost its lease by step 3 submits nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection

from dscampaign.db import queries
from dscampaign.db.errors import StaleLease, StaleWrite, StoreError, StoreUnreachable
from dscampaign.db.records import AttemptRow
from dscampaign.db.states import RunState
from dscampaign.files import ours
from dscampaign.files.atomic_files import write_atomically
from dscampaign.files.ownership import distrust
from dscampaign.files.private_files import make_below
from dscampaign.jobs.shared.job_array import joining, make_closed, write_payloads
from dscampaign.jobs.shared.layout import CampaignPaths, payloads_file
from dscampaign.orchestrator.commands import counted
from dscampaign.orchestrator.errors import Unreachable
from dscampaign.orchestrator.executors import job_request, storage
from dscampaign.orchestrator.executors.base import (
    ArrayTooLarge,
    Executor,
    JobArray,
    SubmissionRefused,
    SubmissionUnclear,
)
from dscampaign.orchestrator.executors.sbatch_answer import last_words

from .actions import UNCLEAR, Failures, SetAside, Submit
from .attempt_files import newest_begun, take_claim
from .campaign_folder import run_folders
from .environment import note_cluster
from .intent import Element, Jobs, batches, write_intent
from .lease import FencedWriter
from .origin import Origin
from .set_aside import in_words, may_pass
from .stored import QUEUE_FULL, QUEUE_FULL_S

WITHDRAWN = "withdrawn"
_LIMITED = ("partition", "account", "qos")
"""Slurm limits a user's jobs by these: another shape may have room."""


class RunUnwritable(Unreachable):
    """The folder of a run cannot be written; that of the campaign can. `passing` as of `SetAside`."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"the run's folder is not writable: {error}", "the next pass tries again")
        self.passing = may_pass(error)


class QueueFull(Unreachable):
    """The user may have no more jobs in the queue for now."""


class ClusterFull(QueueFull):
    """Nobody may."""


@dataclass(frozen=True)
class _Target:
    writer: FencedWriter
    executor: Executor
    paths: CampaignPaths


def submit(
    actions: Sequence[Submit], writer: FencedWriter, executor: Executor, paths: CampaignPaths, failures: Failures
) -> None:
    """Submit one job array for all attempts of one resource shape, or several if they are too many for one.

    Raises StaleLease if another reconciler has taken over.
    """
    target = _Target(writer, executor, paths)
    for action in actions:
        if action.joins:
            _join_apart(action, action.joins, target, failures)
    shapes = batches([action for action in actions if action.joins is None], failures, writer)
    full: dict[tuple[Any, ...], QueueFull] = {}
    for resources, jobs in counted("runs submitted", shapes, lambda shape: sum(map(len, shape[1]))):
        queue = tuple(map(resources.get, _LIMITED))
        if queue in full:
            continue
        try:
            _submit_apart(jobs, resources, target, failures)
        except QueueFull as exc:
            full[queue] = exc
            if isinstance(exc, ClusterFull):
                break  # sbatch would wait a minute for each shape
        except Unreachable as exc:
            failures.troubles.append(exc)
    failures.troubles += full.values()


def _join_apart(action: Submit, last: AttemptRow, target: _Target, failures: Failures) -> None:
    try:
        _join(action, last, target)
    except (StaleLease, StoreUnreachable, ImportError):
        raise
    except StaleWrite:
        return  # the next pass looks again
    except Unreachable as exc:
        failures.troubles.append(exc)


def _join(action: Submit, last: AttemptRow, target: _Target) -> None:
    """Hand an attempt to the job of another, which takes it unless it ends before: then it goes into a job of its own.

    As for a submission, step 4 being a file that the job looks for.
    """
    _require_trust(target.paths)
    token = job_request.new_token(target.paths.campaign, [action.run.name])
    rows = write_intent([[action]], token, target.writer, target.paths, _origin(target.writer), shared=True)
    if not rows:
        return
    batch = JobArray(token, target.paths.batch(token), 1, shared=True)
    job_token, task = rows[0].row.job_key
    try:
        _prepare(rows, batch, target)
        write_atomically(joining(target.paths.batch(job_token), task, token), "")
    except StaleLease:
        ours.remove(batch.folder)
        raise
    except (Unreachable, OSError) as exc:
        ours.remove(batch.folder)
        _withdraw(rows, target.writer, exc)
        raise exc if isinstance(exc, Unreachable) else storage.unwritable(exc) from exc
    _record_job_ids(rows, {rows[0].row.id: last.job_id or ""}, target.writer)


def _submit_apart(jobs: Jobs, resources: dict[str, Any], target: _Target, failures: Failures) -> None:
    """Submit them together, or one by one if one of them fails for a reason of its own."""
    group = [action for job in jobs for action in job]
    try:
        _submit_jobs(jobs, resources, target)
    except (StaleLease, StoreUnreachable, ImportError):
        raise
    except StaleWrite as exc:
        raise Unreachable(f"not submitted: {exc}", "another process acted first; the next pass looks again") from exc
    except Exception as exc:
        if isinstance(exc, Unreachable) and not isinstance(exc, RunUnwritable):
            raise
        if len(group) == 1:
            passing = isinstance(exc, RunUnwritable) and exc.passing
            failures.aside.append(SetAside(group[0].run.id, in_words(exc), RunState.HELD, passing=passing))
            return
        for action in group:
            for own, alone in batches([action], failures, target.writer):
                _submit_apart(alone, own, target, failures)


def _submit_jobs(jobs: Jobs, resources: dict[str, Any], target: _Target) -> None:
    # If the queue was full a while ago, starts with one job and doubles: recording a thousand attempts in every pass
    # and withdrawing them again would be wasted work.
    doubles = _was_full(target.writer)
    done, most = 0, 1 if doubles else len(jobs)
    while part := jobs[done : done + most]:
        try:
            _submit_batch(part, resources, target)
        except ArrayTooLarge as exc:
            if len(part) == 1:
                raise _full(sum(map(len, jobs[done:])), target.writer, exc) from exc
            doubles, most = False, (len(part) + 1) // 2
        else:
            done, most = done + len(part), 2 * most if doubles else most


def _was_full(writer: FencedWriter) -> bool:
    with writer.store.read() as conn:
        return _lately(conn, QUEUE_FULL, writer)


def _lately(conn: Connection, kind: str, writer: FencedWriter) -> bool:
    """Record an event once: its repetition every ten seconds adds nothing."""
    told_s = queries.newest_event_s(conn, writer.campaign_id, kind)
    return told_s is not None and writer.store.now(conn) - told_s < QUEUE_FULL_S


def _full(waiting: int, writer: FencedWriter, exc: ArrayTooLarge) -> QueueFull:
    message = f"{waiting} {'run waits' if waiting == 1 else 'runs wait'} for room in the queue: {exc}"
    _tell_full(message, writer)
    return QueueFull(message, "none of them was submitted; the next pass tries again")


def _tell_full(message: str, writer: FencedWriter) -> None:
    if not _was_full(writer):
        with writer.write() as conn:
            queries.add_event(conn, writer.campaign_id, QUEUE_FULL, message)


def _submit_batch(jobs: Jobs, resources: dict[str, Any], target: _Target) -> None:
    writer, paths = target.writer, target.paths
    _require_trust(paths)
    group = [action for job in jobs for action in job]
    shared, lanes = job_request.shares_jobs(group[0].config), job_request.width(jobs[0], group[0].config)
    token = job_request.new_token(paths.campaign, [action.run.name for action in group])
    origin = _origin(writer)
    rows = write_intent(jobs, token, writer, paths, origin, shared=shared)
    if not rows:
        return
    size = 1 + max(element.row.job_key[1] for element in rows)
    folder, workdir = paths.batch(token), origin.workdir or None
    batch = JobArray(token, folder, size, resources, workdir=workdir, shared=shared, lanes=lanes)
    try:
        _prepare(rows, batch, target)
        job_ids = _hand_over(batch, target.executor)
    except SubmissionRefused as exc:
        if any(action.exclude for action in group):
            ours.remove(batch.folder)
            _withdraw(rows, writer, exc)
            _submit_without_exclusions(group, target)
            return
        _refuse(rows, writer, str(exc))
    except ArrayTooLarge as exc:
        if size == 1 and not exc.for_now:
            _refuse(rows, writer, str(exc))
            return
        ours.remove(batch.folder)  # first: a submission without attempts would be recalled
        with writer.write() as conn:
            queries.withdraw_attempts(conn, [row.id for row, *_ in rows])
        raise
    except SubmissionUnclear as exc:
        raise _left_open(rows, writer, exc) from exc
    except StaleLease:
        ours.remove(batch.folder)  # whoever has the lease now revokes the intent
        raise
    except (Unreachable, OSError) as exc:
        ours.remove(batch.folder)
        _withdraw(rows, writer, exc)
        raise exc if isinstance(exc, Unreachable) else storage.unwritable(exc) from exc
    else:
        _record_job_ids(rows, {row.id: job_ids[row.job_key[1]] for row, *_ in rows}, writer)


def _prepare(rows: Sequence[Element], batch: JobArray, target: _Target) -> None:
    """After an unforeseen error there were no attempts."""
    try:
        _write_files(rows, batch, target)
        _say_alive(batch, target.writer)
    except (StoreError, Unreachable, OSError):
        raise
    except Exception as exc:
        ours.remove(batch.folder)
        _withdraw(rows, target.writer, exc)
        raise


def _hand_over(batch: JobArray, executor: Executor) -> list[str]:
    """After an unforeseen error there may be jobs, too: raises SubmissionUnclear."""
    try:
        return executor.submit(batch)
    except (SubmissionRefused, SubmissionUnclear, ArrayTooLarge, StoreError, Unreachable, OSError):
        raise
    except Exception as exc:
        raise SubmissionUnclear(in_words(exc)) from exc


def _origin(writer: FencedWriter) -> Origin:
    with writer.store.read() as conn:
        campaign = queries.campaign_by_id(conn, writer.campaign_id)
    return Origin.of(campaign.provenance if campaign else {})


def _require_trust(paths: CampaignPaths) -> None:
    """Raise Unreachable if other users can write to the folders that jobs run from."""
    try:
        doubt = distrust(paths.batches, paths.root) or distrust(paths.runs, paths.root)
    except OSError as exc:
        raise storage.unwritable(exc) from exc
    if doubt:
        raise Unreachable(f"{doubt}, so they could run any code as you", doubt.hint)


def _submit_without_exclusions(group: Sequence[Submit], target: _Target) -> None:
    """The excluded nodes may be all that there are, or no longer exist."""
    everywhere = [replace(action, exclude=()) for action in group]
    for resources, part in batches(everywhere, Failures(), target.writer):
        _submit_batch(part, resources, target)


def _refuse(rows: Sequence[Element], writer: FencedWriter, answer: str) -> None:
    # A job that has been faster keeps its claim, and the next pass finds it, as it does an attempt whose claim cannot
    # be taken for now.
    refused, failed = [], None
    for row, *_ in writer.renewing(rows):
        try:
            refused += [row] if take_claim(row) else []
        except OSError as exc:
            failed = exc
    with writer.write() as conn:
        for row in refused:
            writer.end_refused(conn, row, answer)
    if failed:
        raise storage.unwritable(failed) from failed


def _left_open(rows: Sequence[Element], writer: FencedWriter, unclear: SubmissionUnclear) -> Unreachable:
    """Keep the intent: only the next listing shows whether there is a job. Returns the error."""
    evidence = {UNCLEAR: {"said": last_words(str(unclear)), "full": unclear.full, "objects": unclear.objects}}
    with writer.write() as conn:
        queries.change_attempts(conn, {row.id: {"evidence": evidence} for row, *_ in rows})
        for row, *_ in rows:
            writer.event(conn, "submission.unclear", str(unclear), row)
    if unclear.full:
        _tell_full(str(unclear), writer)
    kind = ClusterFull if unclear.full else Unreachable
    return kind(f"sbatch did not confirm the submission: {unclear}", "the next pass looks for the job")


def _withdraw(rows: Sequence[Element], writer: FencedWriter, exc: Exception) -> None:
    with writer.write() as conn:
        queries.withdraw_attempts(conn, [row.id for row, *_ in rows])
        subject = f"attempt {rows[0].row.generation} was" if len(rows) == 1 else f"attempts of {len(rows)} runs were"
        run_id = rows[0].row.run_id if len(rows) == 1 else None
        if not _lately(conn, WITHDRAWN, writer):
            queries.add_event(conn, writer.campaign_id, WITHDRAWN, f"{subject} not submitted: {exc}", run_id=run_id)


def _say_alive(batch: JobArray, writer: FencedWriter) -> None:
    """The last moment before sbatch: the grace for its job to show up begins now, however long the files took."""
    with writer.write() as conn:
        queries.beat_batch(conn, batch.token)


def _write_files(rows: Sequence[Element], batch: JobArray, target: _Target) -> None:
    writer, paths = target.writer, target.paths
    make_below(paths.batches, batch.folder)
    folders = run_folders(paths)
    for row, action, _ in writer.renewing(rows):
        if row.generation == 1 and action.run.name not in folders:
            continue  # nothing of it can still run, and its agents make its folder
        run = paths.run(action.run.name)
        try:
            make_below(paths.runs, run.dir)
            if newest_begun(run) >= row.generation:  # begun since the decision, by a store that is ahead of this one
                raise Unreachable(f"{run.dir} has a newer attempt than the store", "the next pass looks again")
            write_atomically(run.current, json.dumps({"generation": row.generation}))
        except OSError as exc:
            if away := storage.shared_trouble(exc, paths.runs):
                raise away from exc
            raise RunUnwritable(exc) from exc
    writer.renew()
    make_closed(batch.folder)
    write_payloads(payloads_file(batch.folder), [element.payload for element in rows])
    note_cluster(batch.folder, target.executor)


def _record_job_ids(rows: Sequence[Element], jobs: Mapping[int, str], writer: FencedWriter) -> None:
    with writer.write() as conn:
        queued = set(queries.mark_queued(conn, jobs))
        events = [
            queries.NewEvent(
                "submitted", f"attempt {row.generation} is {_place(row, jobs[row.id])}", row.run_id, row.id
            )
            for row, *_ in rows
            if row.id in queued
        ]
        queries.add_events(conn, writer.campaign_id, events)


def _place(row: AttemptRow, job_id: str) -> str:
    return f"job {job_id}" if row.position is None else f"place {row.position + 1} in job {job_id}"
