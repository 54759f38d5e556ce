"""Carries out actions. Every write depends on the lease and on the state that the decision was made from."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from sqlalchemy import Connection

from ...db import queries
from ...db.errors import StaleLease, StoreUnreachable
from ...db.records import ACTIVE_ATTEMPT, AttemptRow, AttemptState, RunState
from ...db.store import refusal
from ...jobs.shared.files import write_atomically
from ...jobs.shared.layout import CampaignPaths
from ..errors import Unreachable
from ..executors import storage
from ..executors.base import NO_NODES, Executor
from ..executors.job_request import attempt_paths
from ..failures.evidence import READ_CONFIG, Ended, frames_of
from ..failures.policy import FailureClass
from ..formatting import words
from ..memory.observations import remember_end
from .actions import (
    Action,
    Adopt,
    CancelJob,
    Finish,
    MarkAttempt,
    Note,
    NoteAbsence,
    Resize,
    Revoke,
    SetAside,
    SetRun,
    Submit,
    run_of,
)
from .claims import take_claim
from .lease import FencedWriter
from .set_aside import in_words, may_pass, set_aside, unreadable
from .snapshot import ABSENCE
from .submit import submit


def act(actions: Sequence[Action], writer: FencedWriter, executor: Executor, paths: CampaignPaths) -> list[Unreachable]:
    """Carries out the actions as far as possible; returns what failed for now: the next pass decides again.

    Raises StaleLease if another reconciler has taken over; nothing more was done.
    """
    if any(isinstance(action, Finish | Revoke) for action in actions):
        with writer.write():
            pass  # claims are files, outside of the lease: a process that has lost it must not take them either
    troubles, aside = _close([a for a in actions if isinstance(a, Finish)], writer, paths)
    if troubles:
        return troubles  # a job could still start what would be recorded as ended
    actions = _without(actions, aside)
    aside += _record(actions, writer)
    actions = _without(actions, aside)
    troubles += _cancel([a for a in actions if isinstance(a, CancelJob)], executor)
    away, apart = _tell_jobs([a for a in actions if isinstance(a, Resize | Revoke)], writer, paths)
    troubles, aside = [*troubles, *away], [*aside, *apart]
    refused, flawed = submit([a for a in actions if isinstance(a, Submit)], writer, executor, paths)
    aside += [*flawed, *(a for a in actions if isinstance(a, SetAside))]
    said = (set_aside(one, writer, executor.outcome_grace_s, partial(_finish, writer=writer)) for one in aside)
    return [*troubles, *refused, *filter(None, said)]


def _without(actions: Sequence[Action], aside: Sequence[SetAside]) -> list[Action]:
    """What is not about a run that was set aside."""
    left = {one.run_id for one in aside}
    return [action for action in actions if run_of(action) not in left]


# -- what is only recorded -----------------------------------------------------------------------------------


def _record(actions: Iterable[Action], writer: FencedWriter) -> list[SetAside]:
    """Records each run's part in one transaction; returns the runs of which the store takes it not."""
    recorded = [a for a in actions if isinstance(a, Adopt | MarkAttempt | Note | NoteAbsence | Finish | SetRun)]
    if not recorded:
        return []
    parts: dict[int, list[Action]] = defaultdict(list)
    for action in recorded:
        parts[run_of(action)].append(action)
    with writer.write() as conn:
        if refusal(conn, partial(_record_all, conn, parts, writer)) is None:
            return []
        refused = {run_id: refusal(conn, partial(_record_run, conn, part, writer)) for run_id, part in parts.items()}
    return [_unrecorded(run_id, parts[run_id], in_words(why)) for run_id, why in refused.items() if why]


def _record_all(conn: Connection, parts: Mapping[int, Sequence[Action]], writer: FencedWriter) -> None:
    """The parts of all runs, those that only set a run to what others are set to together."""
    alike: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for run_id, part in parts.items():
        match part:
            case [SetRun(state=state, reason=reason, not_before_s=not_before_s)]:
                alike[state, reason, not_before_s].append(run_id)
            case _:
                _record_run(conn, part, writer)
    for (state, reason, not_before_s), run_ids in alike.items():
        queries.update_runs(conn, run_ids, state=state, reason=reason, not_before_s=not_before_s)


def _record_run(conn: Connection, actions: Iterable[Action], writer: FencedWriter) -> None:
    for action in actions:
        match action:
            case Adopt():
                _adopt(conn, action, writer)
            case MarkAttempt():
                _mark(conn, action)
            case Note():
                _note(conn, action, writer)
            case NoteAbsence():
                _note_absence(conn, action)
            case Finish():
                _finish(conn, action, writer)
            case SetRun():
                state, reason, not_before_s = action.state, action.reason, action.not_before_s
                queries.update_run(conn, action.run.id, state=state, reason=reason, not_before_s=not_before_s)


def _unrecorded(run_id: int, actions: Iterable[Action], why: str) -> SetAside:
    """A run of which the store does not take what is to be recorded: if that lasts, its end without the evidence is."""
    finish = next((action for action in actions if isinstance(action, Finish)), None)
    if finish is None:
        over = all(isinstance(action, SetRun) for action in actions)
        return SetAside(run_id, why, RunState.HELD if over else None)
    ended = replace(finish.ended, job=None, outcomes=())
    bare = replace(finish, state=AttemptState.FAILED, verdict=unreadable(why), ended=ended)
    return SetAside(run_id, why, RunState.HELD, bare)


def _adopt(conn: Connection, action: Adopt, writer: FencedWriter) -> None:
    row = action.attempt
    values = {"job_id": action.job_id, "submit_time_s": action.submit_time_s}
    state = AttemptState.QUEUED if row.state is AttemptState.INTENT else row.state
    if queries.update_attempt(conn, row.id, expect_states=[row.state], state=state, **values):
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


def _note_absence(conn: Connection, action: NoteAbsence) -> None:
    row, evidence = action.attempt, queries.evidence(conn, action.attempt.id)
    evidence.pop(ABSENCE, None)
    known = {ABSENCE: asdict(action.absence)} if action.absence else {}
    queries.update_attempt(conn, row.id, expect_states=ACTIVE_ATTEMPT, evidence={**evidence, **known})


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
        "node_list": _node_list(row, ended),
        "micro_batch": row.micro_batch,
        "accumulation": row.accumulation,
        "gpu_seconds": row.world_size * max(0.0, ended_s - started_s) if started_s else 0.0,
    }
    if queries.update_attempt(conn, row.id, expect_states=ACTIVE_ATTEMPT, **values):
        message = f"attempt {row.generation}: {words(verdict.kind)}{f': {verdict.reason}' if verdict.reason else ''}"
        writer.event(conn, "ended", message, row, _evidence(action))
        remember_end(conn, row, verdict.kind)


def _node_list(row: AttemptRow, ended: Ended) -> str:
    """Where it ran, also if it ended before any pass saw it run."""
    if ended.job and ended.job.nodes not in NO_NODES:
        return ended.job.nodes
    return row.node_list or ",".join(outcome.host for outcome in ended.outcomes)


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
        "frames": [asdict(frame) for frame in frames_of(verdict.line, action.ended)],
        "job": {"state": job.state, "exit_code": job.exit_code, "nodes": job.nodes} if job else None,
        READ_CONFIG: next(
            (rank.read_config for o in action.ended.outcomes for rank in o.ranks if rank.rank == 0), None
        ),
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
                "machine": asdict(o.machine) if o.machine else None,
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


def _tell_jobs(
    actions: Sequence[Resize | Revoke], writer: FencedWriter, paths: CampaignPaths
) -> tuple[list[Unreachable], list[SetAside]]:
    """Writes what the jobs of attempts in the queue will read; returns the same as `_close`."""
    aside: list[SetAside] = []
    for action in actions:
        try:
            if isinstance(action, Resize):
                _resize(action, writer)
            else:
                _revoke(action, writer)
        except (StaleLease, StoreUnreachable):
            raise
        except Exception as exc:  # noqa: BLE001 - whatever it is, it is this run's alone
            if away := storage.shared_trouble(exc, paths.runs):
                return [away], aside
            aside.append(SetAside(run_of(action), in_words(exc), passing=may_pass(exc)))
    return [], aside


def _resize(action: Resize, writer: FencedWriter) -> None:
    """Tells the agent of a queued attempt, then the store; what an attempt really begins with, its agent reports.

    Not both at once: a shared folder that is slow must not hold the store's lock.
    """
    row, micro = action.attempt, action.micro_batch
    accumulation = row.accumulation and row.accumulation * (row.micro_batch or micro) // micro
    sizes = {"micro_batch": micro, "accumulation": accumulation}
    with writer.store.read() as conn:
        if not queries.is_active(conn, row.id):
            return
    write_atomically(attempt_paths(row).resize, json.dumps({**sizes, "why": action.why}))
    with writer.write() as conn:
        written = {**sizes, "predicted_gb": action.predicted_gb}
        if queries.update_attempt(conn, row.id, expect_states=ACTIVE_ATTEMPT, **written):
            writer.event(conn, "resized", f"attempt {row.generation} begins at {action.why}", row)


def _revoke(action: Revoke, writer: FencedWriter) -> None:
    """A job that was faster keeps its claim, and the next pass finds that job."""
    row = action.attempt
    if not take_claim(row):
        return
    with writer.write() as conn:
        if action.wanted:
            writer.end_unrun(conn, row, FailureClass.LOST, "the submission led to no job")
        else:
            writer.end_unrun(conn, row, FailureClass.CANCELLED, "cancelled before it began")
            queries.update_run(conn, row.run_id, state=RunState.CANCELLED, reason="")


def _close(
    ends: Sequence[Finish], writer: FencedWriter, paths: CampaignPaths
) -> tuple[list[Unreachable], list[SetAside]]:
    """Keeps every job from beginning an attempt that is over: a batch that was submitted twice, a job that requeues.

    Returns what is wrong with the folder, and the runs in whose own folders that cannot be done.
    """
    aside = []
    for end in writer.renewing(ends):
        try:
            take_claim(end.attempt)
        except Exception as exc:  # noqa: BLE001 - whatever it is, it is this run's alone
            if away := storage.shared_trouble(exc, paths.runs):
                return [away], []
            aside.append(SetAside(end.attempt.run_id, in_words(exc), RunState.HELD, end, may_pass(exc)))
    return [], aside
