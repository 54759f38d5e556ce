"""Actions → effects. Every write depends on the lease and on the state that the decision was made from.

The order inside a submission makes every crash harmless:
  1. the store: attempts with intent, a token and a place in the array;
  2. the shared folder: payloads, the pointer to the current generation;
  3. sbatch, with the token in name and comment;
  4. the store: the job ids.
A process that dies after 1 or 2 leaves an intent that no job answers for: revoked and tried again. One that dies after
3 leaves a job that the next look finds by its token: adopted.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from ..db import queries
from ..db.records import TERMINAL_ATTEMPT, AttemptRow, AttemptState, NewAttempt, RunRow, RunState
from ..db.store import Store
from ..jobs.files import create_exclusively, read_json, write_atomically
from ..jobs.layout import CampaignPaths, payload_file
from ..jobs.payload import Payload
from ..sbatch import prologue
from . import attempts
from .errors import Unreachable
from .executor import Batch, Executor, SubmissionRefused, SubmissionUnclear
from .failures import FailureClass, Verdict
from .slurm import job_name
from .world import Action, Adopt, CancelJob, Finish, MarkAttempt, Revoke, SetRun, Submit

ACTIVE = frozenset(AttemptState) - TERMINAL_ATTEMPT


@dataclass(frozen=True)
class Authority:
    """The right to act for a campaign: a lease and its epoch, which every write checks."""

    store: Store
    lease: str
    epoch: int
    campaign_id: int

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A write transaction that fails with StaleLease if somebody else has taken over."""
        with self.store.write() as conn:
            queries.check_lease(conn, self.lease, self.epoch)
            yield conn

    def event(self, conn: Connection, kind: str, message: str, row: AttemptRow, data: Any = None) -> None:
        """Adds an event about an attempt."""
        queries.add_event(
            conn, self.campaign_id, kind, message, run_id=row.run_id, attempt_id=row.id, data=data and dict(data)
        )


@dataclass(frozen=True)
class Planned:
    """One element of a batch that is being submitted."""

    action: Submit
    payload: Payload


def act(actions: Sequence[Action], authority: Authority, executor: Executor, paths: CampaignPaths) -> list[Unreachable]:
    """Carries the actions out, as far as the world lets it.

    Returns:
        What could not be done for now; the next pass decides anew.

    Raises:
        StaleLease: somebody else acts for this campaign now; nothing more was done.
    """
    _record(actions, authority)
    troubles = _cancel([a for a in actions if isinstance(a, CancelJob)], executor)
    troubles += _revoke_all([a.attempt for a in actions if isinstance(a, Revoke)], authority, paths)
    return troubles + _submit([a for a in actions if isinstance(a, Submit)], authority, executor, paths)


# -- what is only written down -------------------------------------------------------------------------------


def _record(actions: Iterable[Action], authority: Authority) -> None:
    recorded = [a for a in actions if isinstance(a, Adopt | MarkAttempt | Finish | SetRun)]
    if not recorded:
        return
    with authority.write() as conn:
        for action in recorded:
            match action:
                case Adopt():
                    _adopt(conn, action, authority)
                case MarkAttempt():
                    _mark(conn, action)
                case Finish():
                    _finish(conn, action, authority)
                case SetRun():
                    state, reason, not_before_s = action.state, action.reason, action.not_before_s
                    queries.update_run(conn, action.run.id, state=state, reason=reason, not_before_s=not_before_s)


def _adopt(conn: Connection, action: Adopt, authority: Authority) -> None:
    row = action.attempt
    values = {"job_id": action.job_id, "submit_time_s": action.submit_time_s}
    if queries.update_attempt(conn, row.id, expect_states=[AttemptState.INTENT], state=AttemptState.QUEUED, **values):
        authority.event(conn, "adopted", f"job {action.job_id} found by its token {row.token}", row)


def _mark(conn: Connection, action: MarkAttempt) -> None:
    values: dict[str, Any] = {"state": action.state, "started_s": action.started_s}
    if action.start_step is not None:
        values["start_step"] = action.start_step
    queries.update_attempt(conn, action.attempt.id, expect_states=ACTIVE, **values)


def _finish(conn: Connection, action: Finish, authority: Authority) -> None:
    row, verdict, ended = action.attempt, action.verdict, action.ended
    job = ended.job
    started_s = min((o.started_s for o in ended.outcomes), default=row.started_s or (job and job.started_s))
    ended_s = max((o.ended_s for o in ended.outcomes), default=(job and job.ended_s) or action.seen_s)
    values = {
        "state": action.state,
        "failure_class": verdict.kind,
        "evidence": _evidence(action),
        "started_s": started_s,
        "ended_s": ended_s,
        "start_step": ended.start_step,
        "gpu_seconds": row.world_size * max(0.0, ended_s - started_s) if started_s else 0.0,
    }
    if queries.update_attempt(conn, row.id, expect_states=ACTIVE, **values):
        message = f"attempt {row.generation}: {verdict.kind}" + (f": {verdict.reason}" if verdict.reason else "")
        authority.event(conn, "ended", message, row, _evidence(action))


def _evidence(action: Finish) -> dict[str, Any]:
    verdict, job = action.verdict, action.ended.job
    return {
        "reason": verdict.reason,
        "hint": verdict.hint,
        "rule": verdict.rule,
        "seen_s": action.seen_s,
        "line": asdict(verdict.line) if verdict.line else None,
        "job": {"state": job.state, "exit_code": job.exit_code, "nodes": job.nodes} if job else None,
        "nodes": [
            {
                "host": o.host,
                "launcher_exit": o.launcher_exit,
                "ended_by": o.ended_by,
                "rank_exits": {str(rank.rank): rank.exit for rank in o.ranks},
            }
            for o in action.ended.outcomes
        ],
    }


# -- what changes the world ----------------------------------------------------------------------------------


def _cancel(actions: Sequence[CancelJob], executor: Executor) -> list[Unreachable]:
    try:
        if actions:
            executor.cancel([action.job_id for action in actions])
    except Unreachable as exc:
        return [exc]
    return []


def _revoke_all(rows: Sequence[AttemptRow], authority: Authority, paths: CampaignPaths) -> list[Unreachable]:
    troubles = []
    for row in rows:
        try:
            _revoke(row, authority, paths)
        except OSError as exc:
            troubles.append(_no_folder(exc))
    return troubles


def _no_folder(exc: OSError) -> Unreachable:
    return Unreachable(f"the shared folder does not take files: {exc}", "the next pass tries again")


def _revoke(row: AttemptRow, authority: Authority, paths: CampaignPaths) -> None:
    """Takes the claim ourselves. A job that was faster keeps it, and the next look finds that job."""
    with authority.store.read() as conn:
        run = next(r for r in queries.runs(conn, authority.campaign_id) if r.id == row.run_id)
    files = paths.run(run.name).attempt(row.generation)
    make_private(files.dir)
    mine = attempts.revoked(row.token)
    taken = create_exclusively(files.claim, json.dumps({"job_id": mine, "ts": time.time()}))
    if not taken and (read_json(files.claim) or {}).get("job_id") != mine:
        return
    with authority.write() as conn:
        _never_ran(conn, row, authority, FailureClass.LOST, "the submission led to no job")


def _never_ran(conn: Connection, row: AttemptRow, authority: Authority, kind: FailureClass, reason: str) -> None:
    values = {"failure_class": kind, "evidence": {"reason": reason, "hint": ""}, "ended_s": authority.store.now(conn)}
    if queries.update_attempt(conn, row.id, expect_states=ACTIVE, state=AttemptState.FAILED, **values):
        authority.event(conn, "ended", f"attempt {row.generation}: {kind}: {reason}", row)


def _submit(
    actions: Sequence[Submit], authority: Authority, executor: Executor, paths: CampaignPaths
) -> list[Unreachable]:
    """One job array for all attempts of one resource shape."""
    shapes: dict[str, list[Submit]] = defaultdict(list)
    asked: dict[str, dict[str, Any]] = {}
    for action in actions:
        config = attempts.run_config(action.run)
        resources = attempts.resources(config, mem_scale=action.mem_scale, prologue=prologue())
        shapes[key := attempts.shape(resources)].append(action)
        asked[key] = resources
    troubles = []
    for key, group in shapes.items():
        try:
            _submit_batch(group, asked[key], authority, executor, paths)
        except Unreachable as exc:
            troubles.append(exc)
    return troubles


def _submit_batch(
    group: Sequence[Submit],
    resources: dict[str, Any],
    authority: Authority,
    executor: Executor,
    paths: CampaignPaths,
) -> None:
    token = uuid.uuid4().hex[:12]
    rows = _write_intent(group, token, authority, paths)
    if not rows:
        return
    batch = Batch(token, job_name(token), paths.batch(token), len(rows), resources)
    try:
        _write_files(rows, batch, paths)
        job_ids = executor.submit(batch)
    except SubmissionRefused as exc:
        with authority.write() as conn:
            for row, _ in rows:
                _never_ran(conn, row, authority, FailureClass.REFUSED, f"sbatch refused it: {exc}")
                queries.update_run(conn, row.run_id, state=RunState.FAILED, reason=f"sbatch refused it: {exc}")
        return
    except SubmissionUnclear as exc:
        with authority.write() as conn:
            for row, _ in rows:
                authority.event(conn, "submission.unclear", str(exc), row)
        raise Unreachable(f"sbatch gave no clear answer: {exc}", "the next pass looks for the job") from exc
    except (Unreachable, OSError) as exc:
        with authority.write() as conn:
            queries.withdraw_attempts(conn, [row.id for row, _ in rows])
            for row, _ in rows:
                message = f"attempt {row.generation} was not submitted: {exc}"
                queries.add_event(conn, authority.campaign_id, "withdrawn", message, run_id=row.run_id)
        raise exc if isinstance(exc, Unreachable) else _no_folder(exc) from exc
    _record_job_ids(rows, job_ids, authority)


def _write_intent(
    group: Sequence[Submit], token: str, authority: Authority, paths: CampaignPaths
) -> list[tuple[AttemptRow, Planned]]:
    """Says in the store what is about to be submitted; from here on the next pass knows what to look for.

    A run that the user has changed since the decision is left out: the next pass decides anew.
    """
    with authority.write() as conn:
        now = {_decided_on(run) for run in queries.runs(conn, authority.campaign_id)}
        group = [action for action in group if _decided_on(action.run) in now]
        ids = [queries.insert_attempt(conn, _new_attempt(a, i, token, paths)) for i, a in enumerate(group)]
        for action in group:
            queries.update_run(conn, action.run.id, state=RunState.QUEUED, not_before_s=None)
        stored = {row.id: row for row in queries.attempts(conn, authority.campaign_id) if row.token == token}
        rows = [stored[attempt_id] for attempt_id in ids]
        for row, action in zip(rows, group, strict=True):
            micro = f" micro-batch {action.micro_batch}" if action.micro_batch else ""
            authority.event(conn, "submitting", f"attempt {row.generation}{micro}: {action.why}", row)
    store = None if authority.store.is_sqlite else authority.store.url_without_password
    return [
        (row, Planned(action, _payload(row, action, paths, store))) for row, action in zip(rows, group, strict=True)
    ]


def _decided_on(run: RunRow) -> tuple[int, str, str, int, int]:
    return run.id, run.config_hash, run.desired, run.generation, run.retry_epoch


def _new_attempt(action: Submit, index: int, token: str, paths: CampaignPaths) -> NewAttempt:
    config = attempts.run_config(action.run)
    world_size = config.nodes * config.ranks()
    return NewAttempt(
        run_id=action.run.id,
        generation=action.generation,
        token=token,
        config_hash=action.run.config_hash,
        micro_batch=action.micro_batch,
        accumulation=attempts.accumulation_of(config, action.micro_batch, world_size),
        world_size=world_size,
        nodes=config.nodes,
        executor=config.executor,
        spool_path=str(paths.run(action.run.name).attempt(action.generation).metrics),
        retry_epoch=action.run.retry_epoch,
        array_index=index,
    )


def _payload(row: AttemptRow, action: Submit, paths: CampaignPaths, store: str | None) -> Payload:
    return attempts.payload(
        action.run,
        attempts.run_config(action.run),
        paths,
        generation=row.generation,
        micro_batch=action.micro_batch,
        token=row.token,
        attempt_id=row.id,
        store=store,
    )


def _write_files(rows: Sequence[tuple[AttemptRow, Planned]], batch: Batch, paths: CampaignPaths) -> None:
    make_private(batch.folder)
    for row, planned in rows:
        run = paths.run(planned.action.run.name)
        make_private(run.attempt(row.generation).dir)
        write_atomically(run.current, json.dumps({"generation": row.generation}))
        planned.payload.write(payload_file(batch.folder, row.array_index or 0))


def make_private(folder: Path) -> None:
    """Creates a folder, and those above it that are missing, for the user alone whatever the umask."""
    previous = os.umask(0o077)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    finally:
        os.umask(previous)


def _record_job_ids(rows: Sequence[tuple[AttemptRow, Planned]], job_ids: Sequence[str], authority: Authority) -> None:
    with authority.write() as conn:
        submit_time_s = authority.store.now(conn)
        for (row, _), job_id in zip(rows, job_ids, strict=True):
            values = {"job_id": job_id, "submit_time_s": submit_time_s, "state": AttemptState.QUEUED}
            if queries.update_attempt(conn, row.id, expect_states=[AttemptState.INTENT], **values):
                authority.event(conn, "submitted", f"attempt {row.generation} is job {job_id}", row)


__all__ = ["Authority", "FailureClass", "Verdict", "act", "make_private"]
