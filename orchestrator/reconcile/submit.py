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

from dscampaign.db import bulk, queries
from dscampaign.db.errors import StaleLease, StaleWrite, StoreError, StoreUnreachable
from dscampaign.db.records import AttemptRow
from dscampaign.db.states import RunState
from dscampaign.files import ours
from dscampaign.files.atomic_files import write_atomically
from dscampaign.files.ownership import distrust
from dscampaign.files.private_files import make_below
from dscampaign.jobs.shared.job_array import joining, make_closed, write_payloads
from dscampaign.jobs.shared.layout import CampaignPaths, cluster_file, payloads_file
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


def submit(
    actions: Sequence[Submit], writer: FencedWriter, executor: Executor, paths: CampaignPaths, failures: Failures
) -> None:
    """Submit one job array for all attempts of one resource shape, or several if they are too many for one.

    Raises StaleLease if another reconciler has taken over.
    """
    submitter, full = _Submitter(writer, executor, paths, failures), dict[tuple[Any, ...], QueueFull]()
    shapes: list[tuple[dict[str, Any], Jobs]] = [({}, [[action]]) for action in actions if action.joins]
    shapes += batches([action for action in actions if action.joins is None], failures, writer)
    for resources, jobs in counted("runs submitted", shapes, lambda shape: sum(map(len, shape[1]))):
        queue = tuple(map(resources.get, _LIMITED))
        if queue in full:
            continue
        try:
            submitter.submit(jobs, resources)
        except QueueFull as exc:
            full[queue] = exc
            if isinstance(exc, ClusterFull):
                break  # sbatch would wait a minute for each shape
        except Unreachable as exc:
            failures.troubles.append(exc)
    failures.troubles += full.values()


@dataclass(frozen=True)
class _Submitter:
    writer: FencedWriter
    executor: Executor
    paths: CampaignPaths
    failures: Failures

    def submit(self, jobs: Jobs, resources: dict[str, Any]) -> None:
        """Submit them together, or one by one if one of them fails for a reason of its own."""
        group = [action for job in jobs for action in job]
        try:
            self._submit_jobs(jobs, resources)
        except (StaleLease, StoreUnreachable, ImportError):
            raise
        except StaleWrite as exc:
            hint = "another process acted first; the next pass looks again"
            raise Unreachable(f"not submitted: {exc}", hint) from exc
        except Exception as exc:
            if isinstance(exc, Unreachable) and not isinstance(exc, RunUnwritable):
                raise
            if len(group) == 1:
                passing = isinstance(exc, RunUnwritable) and exc.passing
                self.failures.aside.append(SetAside(group[0].run.id, in_words(exc), RunState.HELD, passing=passing))
                return
            for action in group:
                for own, alone in batches([action], self.failures, self.writer):
                    self.submit(alone, own)

    def _submit_jobs(self, jobs: Jobs, resources: dict[str, Any]) -> None:
        # If the queue was full a while ago, starts with one job and doubles: recording a thousand attempts in every
        # pass and withdrawing them again would be wasted work.
        with self.writer.store.read() as conn:
            doubles = self._lately(conn, QUEUE_FULL)
        done, most = 0, 1 if doubles else len(jobs)
        while part := jobs[done : done + most]:
            try:
                self._submit_batch(part, resources)
            except ArrayTooLarge as exc:
                if len(part) == 1:
                    waiting = sum(map(len, jobs[done:]))
                    runs = "run waits" if waiting == 1 else "runs wait"
                    message = f"{waiting} {runs} for room in the queue: {exc}"
                    self._note_full(message)
                    raise QueueFull(message, "none of them was submitted; the next pass tries again") from exc
                doubles, most = False, (len(part) + 1) // 2
            else:
                done, most = done + len(part), 2 * most if doubles else most

    def _record(self, jobs: Jobs, resources: dict[str, Any]) -> tuple[list[Element], JobArray]:
        group, paths, config = [action for job in jobs for action in job], self.paths, jobs[0][0].config
        token = job_request.new_token(paths.campaign, [action.run.name for action in group])
        with self.writer.store.read() as conn:
            campaign = queries.campaign_by_id(conn, self.writer.campaign_id)
        origin = Origin.of(campaign.provenance if campaign else {})
        shared = group[0].joins is not None or job_request.shares_jobs(config)
        rows = write_intent(jobs, token, self.writer, paths, origin, shared=shared)
        size = 1 if group[0].joins else 1 + max((row.job_key[1] for row, *_ in rows), default=0)
        folder, lanes = paths.batch(token), job_request.width(jobs[0], config)
        workdir = origin.workdir or None
        return rows, JobArray(token, folder, size, resources, workdir=workdir, shared=shared, lanes=lanes)

    def _submit_batch(self, jobs: Jobs, resources: dict[str, Any]) -> None:
        _require_trust(self.paths)
        joins = jobs[0][0].joins
        rows, batch = self._record(jobs, resources)
        if not rows:
            return
        try:
            job_ids = self._hand_over(rows, batch, joins)
        except (SubmissionRefused, ArrayTooLarge) as exc:
            self._refused(jobs, rows, batch, exc)
        except SubmissionUnclear as exc:
            raise self._left_open(rows, exc) from exc
        except StoreError as exc:
            if isinstance(exc, StaleLease):
                ours.remove(batch.folder)  # whoever has the lease now revokes the intent
            raise
        except Exception as exc:
            ours.remove(batch.folder)
            self._withdraw(rows, exc)
            if isinstance(exc, OSError):
                raise storage.unwritable(exc) from exc
            raise
        else:
            by_row = {row.id: job_ids[0 if joins else row.job_key[1]] for row, *_ in rows}
            self._record_job_ids(rows, by_row)

    def _hand_over(self, rows: Sequence[Element], batch: JobArray, joins: AttemptRow | None) -> list[str]:
        self._write_files(rows, batch)
        with self.writer.write() as conn:  # the grace for its job to show up begins now, however long the files took
            queries.beat_batch(conn, batch.token)
        if joins:  # instead of step 4, a file for another attempt's job, which takes this one unless it ends before
            job_token, task = rows[0].row.job_key
            write_atomically(joining(self.paths.batch(job_token), task, batch.token), "")
            return [joins.job_id or ""]
        try:
            return self.executor.submit(batch)
        except (SubmissionRefused, SubmissionUnclear, ArrayTooLarge, StoreError, Unreachable, OSError):
            raise
        except Exception as exc:  # there may be jobs
            raise SubmissionUnclear(in_words(exc)) from exc

    def _refused(
        self, jobs: Jobs, rows: Sequence[Element], batch: JobArray, exc: SubmissionRefused | ArrayTooLarge
    ) -> None:
        group = [action for job in jobs for action in job]
        if isinstance(exc, ArrayTooLarge) and (batch.size > 1 or exc.for_now):
            ours.remove(batch.folder)  # first: a submission without attempts would be recalled
            with self.writer.write() as conn:
                bulk.withdraw_attempts(conn, [row.id for row, *_ in rows])
            raise exc
        if isinstance(exc, ArrayTooLarge) or not any(action.exclude for action in group):
            self._refuse(rows, str(exc))
            return
        ours.remove(batch.folder)
        self._withdraw(rows, exc)
        everywhere = [replace(action, exclude=()) for action in group]  # they may be all nodes, or no longer exist
        for resources, part in batches(everywhere, Failures(), self.writer):
            self._submit_batch(part, resources)

    def _refuse(self, rows: Sequence[Element], answer: str) -> None:
        # A job that has been faster keeps its claim, and the next pass finds it, as it does an attempt whose claim
        # cannot be taken for now.
        refused, failed = [], None
        for row, *_ in self.writer.renewing(rows):
            try:
                refused += [row] if take_claim(row) else []
            except OSError as exc:
                failed = exc
        with self.writer.write() as conn:
            for row in refused:
                self.writer.end_refused(conn, row, answer)
        if failed:
            raise storage.unwritable(failed) from failed

    def _left_open(self, rows: Sequence[Element], unclear: SubmissionUnclear) -> Unreachable:
        """Keep the intent: only the next listing shows whether there is a job. Returns the error."""
        evidence = {UNCLEAR: {"said": last_words(str(unclear)), "full": unclear.full, "objects": unclear.objects}}
        with self.writer.write() as conn:
            bulk.change_attempts(conn, {row.id: {"evidence": evidence} for row, *_ in rows})
            for row, *_ in rows:
                self.writer.event(conn, "submission.unclear", str(unclear), row)
        if unclear.full:
            self._note_full(str(unclear))
        kind = ClusterFull if unclear.full else Unreachable
        return kind(f"sbatch did not confirm the submission: {unclear}", "the next pass looks for the job")

    def _withdraw(self, rows: Sequence[Element], exc: Exception) -> None:
        row, alone = rows[0].row, len(rows) == 1
        subject = f"attempt {row.generation} was" if alone else f"attempts of {len(rows)} runs were"
        with self.writer.write() as conn:
            bulk.withdraw_attempts(conn, [row.id for row, *_ in rows])
            if not self._lately(conn, WITHDRAWN):
                message, run_id = f"{subject} not submitted: {exc}", row.run_id if alone else None
                queries.add_event(conn, self.writer.campaign_id, WITHDRAWN, message, run_id=run_id)

    def _note_full(self, message: str) -> None:
        with self.writer.write() as conn:
            if not self._lately(conn, QUEUE_FULL):
                queries.add_event(conn, self.writer.campaign_id, QUEUE_FULL, message)

    def _lately(self, conn: Connection, kind: str) -> bool:
        """Return whether there was an event of this kind lately: repeating it every ten seconds adds nothing."""
        last_s = queries.newest_event_s(conn, self.writer.campaign_id, kind)
        return last_s is not None and self.writer.store.now(conn) - last_s < QUEUE_FULL_S

    def _write_files(self, rows: Sequence[Element], batch: JobArray) -> None:
        paths = self.paths
        make_below(paths.batches, batch.folder)
        folders = run_folders(paths)
        for row, action, _ in self.writer.renewing(rows):
            if row.generation == 1 and action.run.name not in folders:
                continue  # nothing of it can still run, and its agents make its folder
            run = paths.run(action.run.name)
            try:
                make_below(paths.runs, run.dir)
                if newest_begun(run) >= row.generation:  # begun since the decision, by a store that is ahead of this
                    raise Unreachable(f"{run.dir} has a newer attempt than the store", "the next pass looks again")
                write_atomically(run.current, json.dumps({"generation": row.generation}))
            except OSError as exc:
                if away := storage.shared_trouble(exc, paths.runs):
                    raise away from exc
                raise RunUnwritable(exc) from exc
        self.writer.renew()
        make_closed(batch.folder)
        write_payloads(payloads_file(batch.folder), [element.payload for element in rows])
        if cluster := self.executor.cluster():
            write_atomically(cluster_file(batch.folder), cluster)

    def _record_job_ids(self, rows: Sequence[Element], jobs: Mapping[int, str]) -> None:
        with self.writer.write() as conn:
            queued, events = set(bulk.mark_queued(conn, jobs)), []
            for row, *_ in rows:
                place = "" if row.position is None else f"place {row.position + 1} in "
                message = f"attempt {row.generation} is {place}job {jobs[row.id]}"
                events += [queries.NewEvent("submitted", message, row.run_id, row.id)] if row.id in queued else []
            queries.add_events(conn, self.writer.campaign_id, events)


def _require_trust(paths: CampaignPaths) -> None:
    """Raise Unreachable if other users can write to the folders that jobs run from."""
    try:
        doubt = distrust(paths.batches, paths.root) or distrust(paths.runs, paths.root)
    except OSError as exc:
        raise storage.unwritable(exc) from exc
    if doubt:
        raise Unreachable(f"{doubt}, so they could run any code as you", doubt.hint)
