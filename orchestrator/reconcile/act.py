"""Carries out actions. Every write depends on the lease and on the state that the decision was made from."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection

from ...db import queries
from ...db.records import ACTIVE_ATTEMPT, AttemptRow, AttemptState
from ...jobs.shared.files import create_exclusively, make_private, read_json, write_atomically
from ...jobs.shared.layout import CampaignPaths
from ..errors import Unreachable
from ..executors import job_request, storage
from ..executors.base import Executor
from ..executors.job_request import attempt_paths
from ..failures.policy import FailureClass
from ..memory.observations import remember_end
from .actions import Action, Adopt, CancelJob, Finish, MarkAttempt, Note, Resize, Revoke, SetRun, Submit
from .lease import FencedWriter
from .submit import submit


def act(actions: Sequence[Action], writer: FencedWriter, executor: Executor, paths: CampaignPaths) -> list[Unreachable]:
    """Carries out the actions as far as possible; returns what failed for now: the next pass decides again.

    Raises StaleLease if another reconciler has taken over; nothing more was done.
    """
    if any(isinstance(action, Finish | Revoke) for action in actions):
        with writer.write():
            pass  # claims are files, outside of the lease: a process that has lost it must not take them either
    troubles = _close([a.attempt for a in actions if isinstance(a, Finish)])
    if troubles:
        return troubles  # a job could still start what would be recorded as ended
    _record(actions, writer)
    troubles += _cancel([a for a in actions if isinstance(a, CancelJob)], executor)
    for action in actions:
        try:
            if isinstance(action, Resize):
                _resize(action, writer)
            elif isinstance(action, Revoke):
                _revoke(action.attempt, writer)
        except OSError as exc:
            troubles.append(storage.unwritable(exc))
    return troubles + submit([a for a in actions if isinstance(a, Submit)], writer, executor, paths)


# -- what is only recorded -----------------------------------------------------------------------------------


def _record(actions: Iterable[Action], writer: FencedWriter) -> None:
    recorded = [a for a in actions if isinstance(a, Adopt | MarkAttempt | Note | Finish | SetRun)]
    if not recorded:
        return
    with writer.write() as conn:
        for action in recorded:
            match action:
                case Adopt():
                    _adopt(conn, action, writer)
                case MarkAttempt():
                    _mark(conn, action)
                case Note():
                    _note(conn, action, writer)
                case Finish():
                    _finish(conn, action, writer)
                case SetRun():
                    state, reason, not_before_s = action.state, action.reason, action.not_before_s
                    queries.update_run(conn, action.run.id, state=state, reason=reason, not_before_s=not_before_s)


def _adopt(conn: Connection, action: Adopt, writer: FencedWriter) -> None:
    row = action.attempt
    values = {"job_id": action.job_id, "submit_time_s": action.submit_time_s}
    if queries.update_attempt(conn, row.id, expect_states=[AttemptState.INTENT], state=AttemptState.QUEUED, **values):
        writer.event(conn, "adopted", f"job {action.job_id} found by its token {row.token}", row)


def _mark(conn: Connection, action: MarkAttempt) -> None:
    values: dict[str, Any] = {"state": action.state, "started_s": action.started_s}
    if action.start_step is not None:
        values["start_step"] = action.start_step
    if action.micro_batch is not None:
        values |= {"micro_batch": action.micro_batch, "accumulation": action.accumulation}
    queries.update_attempt(conn, action.attempt.id, expect_states=ACTIVE_ATTEMPT, **values)


def _note(conn: Connection, action: Note, writer: FencedWriter) -> None:
    row = action.attempt
    evidence = {**queries.evidence(conn, row.id), action.kind: action.message}  # another note may just have come
    if queries.update_attempt(conn, row.id, expect_states=ACTIVE_ATTEMPT, evidence=evidence):
        writer.event(conn, action.kind, action.message, row)


def _finish(conn: Connection, action: Finish, writer: FencedWriter) -> None:
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
        "micro_batch": row.micro_batch,
        "accumulation": row.accumulation,
        "gpu_seconds": row.world_size * max(0.0, ended_s - started_s) if started_s else 0.0,
    }
    if queries.update_attempt(conn, row.id, expect_states=ACTIVE_ATTEMPT, **values):
        message = f"attempt {row.generation}: {verdict.kind}" + (f": {verdict.reason}" if verdict.reason else "")
        writer.event(conn, "ended", message, row, _evidence(action))
        remember_end(conn, row, verdict.kind)


def _evidence(action: Finish) -> dict[str, Any]:
    verdict, job = action.verdict, action.ended.job
    return {
        "reason": verdict.reason,
        "hint": verdict.hint,
        "rule": verdict.rule,
        "host": verdict.host,
        "sure": verdict.sure,
        "would_decide": verdict.would_decide,
        "place": verdict.place,
        "seen_s": action.seen_s,
        "line": asdict(verdict.line) if verdict.line else None,
        "job": {"state": job.state, "exit_code": job.exit_code, "nodes": job.nodes} if job else None,
        "nodes": [
            {
                "host": o.host,
                "launcher_exit": o.launcher_exit,
                "ended_by": o.ended_by,
                "rank_exits": {str(rank.rank): rank.exit for rank in o.ranks},
                "rank_steps": {str(rank.rank): rank.step for rank in o.ranks if rank.step is not None},
                "memory_peak_bytes": o.memory_peak_bytes,
                "memory_peak_of": o.memory_peak_of,
                "memory_limit_bytes": o.memory_limit_bytes,
            }
            for o in action.ended.outcomes
        ],
    }


# -- what has effects outside of the store -------------------------------------------------------------------


def _cancel(actions: Sequence[CancelJob], executor: Executor) -> list[Unreachable]:
    try:
        if actions:
            executor.cancel([action.job_id for action in actions])
    except Unreachable as exc:
        return [exc]
    return []


def _resize(action: Resize, writer: FencedWriter) -> None:
    """Tells the agent of a queued attempt; what an attempt really begins with, its agent reports."""
    row, micro = action.attempt, action.micro_batch
    accumulation = row.accumulation and row.accumulation * (row.micro_batch or micro) // micro
    sizes = {"micro_batch": micro, "accumulation": accumulation}
    with writer.write() as conn:
        written = {**sizes, "predicted_gb": action.predicted_gb}
        if queries.update_attempt(conn, row.id, expect_states=ACTIVE_ATTEMPT, **written):
            writer.event(conn, "resized", f"attempt {row.generation} begins at {action.why}", row)
            write_atomically(attempt_paths(row).resize, json.dumps({**sizes, "why": action.why}))


def _revoke(row: AttemptRow, writer: FencedWriter) -> None:
    """A job that was faster keeps its claim, and the next pass finds that job."""
    if _take_claim(row):
        with writer.write() as conn:
            writer.end_unrun(conn, row, FailureClass.LOST, "the submission led to no job")


def _close(rows: Sequence[AttemptRow]) -> list[Unreachable]:
    """Keeps every job from beginning an attempt that is over: a batch that was submitted twice, a job that requeues."""
    try:
        for row in rows:
            _take_claim(row)
    except OSError as exc:
        return [storage.unwritable(exc)]
    return []


def _take_claim(row: AttemptRow) -> bool:
    """Takes an attempt's claim for the reconciler; False if a job was faster."""
    files, mine = attempt_paths(row), job_request.revoked(row.token)
    if files.claim.exists():
        return (read_json(files.claim) or {}).get("job_id") == mine
    make_private(files.dir)
    taken = create_exclusively(files.claim, json.dumps({"job_id": mine, "ts": time.time()}))
    return taken or (read_json(files.claim) or {}).get("job_id") == mine
