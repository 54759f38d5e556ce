"""Records a pass in the store, every run's part under the state that the decision was made from.

All parts go into one transaction of few statements. If the store refuses it, each run's part is written by itself, and
only the runs to blame are set aside.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from sqlalchemy import Connection

from dscampaign.db import bulk, queries
from dscampaign.db.records import ENDING, SUSPENDED, AttemptRow
from dscampaign.db.rows import StoredDocument
from dscampaign.db.states import ACTIVE_ATTEMPT, AttemptState, Cause, CauseCode, RunState
from dscampaign.db.storable import to_json
from dscampaign.db.store import refusal
from dscampaign.jobs.agent.progress import QUIET_START
from dscampaign.jobs.report import UNSAID
from dscampaign.orchestrator.commands import in_pieces
from dscampaign.orchestrator.errors import Unreachable
from dscampaign.orchestrator.executors.base import NO_NODES
from dscampaign.orchestrator.failures.evidence import GROUP, SOFTWARE, frames_of, rank_exits
from dscampaign.orchestrator.failures.policy import FailureClass
from dscampaign.orchestrator.formatting import words
from dscampaign.orchestrator.memory.observations import remember_end

from .actions import Action, Adopt, Failures, Finish, MarkAttempt, Note, NoteAbsence, SetAside, SetRun, run_of
from .lease import FencedWriter
from .set_aside import EVIDENCE, HINT, UNJUDGED, in_words, unreadable
from .snapshot import ABSENCE, AttemptView, Snapshot

_OF_NODES = ("host", "launcher_exit", "ended_by", "variables")
_OF_MEMORY = ("memory_peak_bytes", "memory_peak_of", "memory_limit_bytes")
_OF_VERDICT = ["reason", "hint", "rule", "host", "sure", "place"]
_OF_ATTEMPT = Adopt | MarkAttempt | Note | NoteAbsence | Finish


def record(actions: Iterable[Action], writer: FencedWriter, failures: Failures) -> None:
    """Record each run's part, and set aside the runs whose part the store refuses."""
    parts: dict[int, list[Action]] = defaultdict(list)
    for action in actions:
        if isinstance(action, _OF_ATTEMPT | SetRun):
            parts[run_of(action)].append(action)
    if not parts:
        return
    with writer.write() as conn:
        if refusal(conn, partial(_record_parts, conn, parts, writer)) is None:
            return
        refused = {
            run_id: refusal(conn, partial(_record_parts, conn, {run_id: part}, writer))
            for run_id, part in parts.items()
        }
    failures.aside += [
        _unrecorded(run_id, parts[run_id], in_words(reason)) for run_id, reason in refused.items() if reason
    ]


def set_aside(action: SetAside, writer: FencedWriter) -> Unreachable | None:
    """End a run that cannot be judged, with an event; return the trouble of a run that is tried again instead."""
    with writer.write() as conn:
        run, end = queries.run_by_id(conn, action.run_id), action.finish
        if action.passing or action.state is None:
            message = f"run {run.name} cannot be judged: {action.why}"
            return Unreachable(message, "the other runs continue; this run is tried again", about=run.name)
        queries.add_event(conn, writer.campaign_id, UNJUDGED, f"not judged: {action.why}", run_id=run.id)
        if end and refusal(conn, partial(_record_parts, conn, {run.id: [end]}, writer)):
            evidence = {"reason": action.why, "hint": HINT, "rule": EVIDENCE, "seen_s": end.seen_s}
            failed = {"state": AttemptState.FAILED, "failure_class": FailureClass.CRASH, "ended_s": end.seen_s}
            # nothing else of it can be recorded
            queries.update_attempt(conn, end.attempt.id, expect_states=ACTIVE_ATTEMPT, evidence=evidence, **failed)
        held = action.state is RunState.HELD
        reason, cause = (f"{action.why} · {HINT}", Cause(CauseCode.UNREADABLE)) if held else ("", None)
        queries.update_run(conn, run.id, state=action.state, reason=reason, cause=cause, not_before_s=None)
    return None


def _record_parts(conn: Connection, parts: Mapping[int, Sequence[Action]], writer: FencedWriter) -> None:
    changes = _Changes(conn, writer, [action for part in parts.values() for action in part])
    for part in parts.values():
        for action in part:
            changes.add(action)
    changes.write()


class _Changes:
    """The changes of one transaction, gathered action by action and then written in few statements.

    An attempt that has left the state in which it was judged stays as it is, and so does the state of a run that its
    user has changed since: the next pass decides again. The rows are locked from the start.
    """

    def __init__(self, conn: Connection, writer: FencedWriter, actions: Sequence[Action]) -> None:
        self._conn, self._writer = conn, writer
        runs = [action.run.id for action in actions if isinstance(action, SetRun)]
        self._marks = bulk.run_marks(conn, writer.campaign_id, runs) if runs else {}
        of_attempts = {a.attempt.id for a in actions if isinstance(a, _OF_ATTEMPT)}
        noted = {a.attempt.id for a in actions if isinstance(a, Note | NoteAbsence)}
        self._states = bulk.lock_attempts(conn, sorted(of_attempts))
        self._evidence = bulk.evidences(conn, sorted(noted))  # another note may just have come
        self._attempts: dict[int, dict[str, Any]] = defaultdict(dict)
        self._runs: dict[int, dict[str, Any]] = {}
        self._told: list[queries.NewEvent] = []
        self._ends: list[Finish] = []

    def add(self, action: Action) -> None:
        match action:
            case Adopt(row, job_id, submit_time_s):
                begun = {"state": AttemptState.QUEUED, "evidence": {}}  # the message of sbatch is obsolete
                news = begun if row.state is AttemptState.INTENT else {}
                if self._change(row, [row.state], job_id=job_id, submit_time_s=submit_time_s, **news):
                    self._tell(row, "adopted", f"job {job_id} found by its token {row.token}")
            case MarkAttempt(row, state, started_s, start_step, micro_batch, accumulation):
                sizes = {"micro_batch": micro_batch, "accumulation": accumulation} if micro_batch is not None else {}
                step = {} if start_step is None else {"start_step": start_step}
                self._change(row, ACTIVE_ATTEMPT, state=state, started_s=started_s, **step, **sizes)
            case Note(row, kind, message):
                if self._change(row, ACTIVE_ATTEMPT, evidence={**self._evidence.get(row.id, {}), kind: message}):
                    self._tell(row, kind, message)
            case NoteAbsence(row, absence):
                before = {name: note for name, note in self._evidence.get(row.id, {}).items() if name != ABSENCE}
                self._change(row, ACTIVE_ATTEMPT, evidence=before | ({ABSENCE: asdict(absence)} if absence else {}))
            case Finish():
                self._finish(action)
            case SetRun(run, state, reason, cause, not_before_s) if self._marks.get(run.id) == bulk.mark_of(run):
                values = {"state": state, "reason": reason, "cause": cause, "not_before_s": not_before_s}
                self._runs[run.id] = values

    def write(self) -> None:
        for some in in_pieces("attempts recorded", list(self._attempts)):
            bulk.change_attempts(self._conn, {row_id: self._attempts[row_id] for row_id in some})
        for some in in_pieces("runs recorded", list(self._runs)):
            bulk.change_runs(self._conn, {row_id: self._runs[row_id] for row_id in some})
        for events in in_pieces("events recorded", self._told):
            queries.add_events(self._conn, self._writer.campaign_id, events)
        for finish in self._ends:
            remember_end(self._conn, finish.attempt, finish.verdict.kind)

    def _change(self, row: AttemptRow, expected: Collection[AttemptState], **values: Any) -> bool:
        """Set columns of an attempt; return False if it has left the expected states."""
        if self._states.get(row.id) not in expected:
            return False
        self._attempts[row.id] |= values
        self._states[row.id] = values.get("state", self._states[row.id])
        self._evidence[row.id] = values.get("evidence", self._evidence.get(row.id, {}))
        return True

    def _tell(self, row: AttemptRow, kind: str, message: str, data: Mapping[str, Any] | None = None) -> None:
        self._told.append(queries.NewEvent(kind, message, row.run_id, row.id, data))

    def _finish(self, action: Finish) -> None:
        row, verdict, ended = action.attempt, action.verdict, action.ended
        job = ended.job
        started_s = min((o.started_s for o in ended.outcomes), default=row.started_s or (job and job.started_s))
        ended_s = max((o.ended_s for o in ended.outcomes), default=(job and job.ended_s) or action.seen_s)
        hosts = ",".join(outcome.host for outcome in ended.outcomes)  # it may end before any pass saw it run
        evidence = StoredDocument(to_json(_evidence(action)))  # once, for the attempt and for the event
        values = {
            "state": action.state,
            "failure_class": verdict.kind,
            "evidence": evidence,
            "started_s": started_s,
            "ended_s": ended_s,
            "start_step": ended.start_step,
            "node_list": job.nodes if job and job.nodes not in NO_NODES else row.node_list or hosts,
            "micro_batch": row.micro_batch,
            "accumulation": row.accumulation,
            "gpu_seconds": row.world_size * _lasted_s(action) if started_s else 0.0,
        }
        if self._change(row, ACTIVE_ATTEMPT, **values):
            reason = f": {verdict.reason}" if verdict.reason else ""
            self._tell(row, "ended", f"attempt {row.generation}: {words(verdict.kind)}{reason}", evidence)
            self._ends.append(action)


def _unrecorded(run_id: int, actions: Iterable[Action], reason: str) -> SetAside:
    """The store refuses the part of a run: its end is recorded without the evidence."""
    finish = next((action for action in actions if isinstance(action, Finish)), None)
    if finish is None:
        over = all(isinstance(action, SetRun) for action in actions)
        return SetAside(run_id, reason, RunState.HELD if over else None)
    ended = replace(finish.ended, job=None, outcomes=())
    bare = replace(finish, state=AttemptState.FAILED, verdict=unreadable(reason), ended=ended)
    return SetAside(run_id, reason, RunState.HELD, bare)


def _lasted_s(action: Finish) -> float:
    """By a single clock: the clocks of nodes, Slurm and the store may be days apart."""
    row, job, outcomes = action.attempt, action.ended.job, action.ended.outcomes
    if outcomes:
        return max(0.0, *(outcome.ended_s - outcome.started_s for outcome in outcomes))
    began_s, ended_s = (job.started_s, job.ended_s) if job else (None, None)
    if began_s and ended_s:
        return max(0.0, ended_s - began_s)
    lasted_s = (ended_s or action.seen_s) - (row.started_s or began_s or 0.0)
    return max(0.0, min(lasted_s, action.seen_s - row.created_s))


def _evidence(action: Finish) -> dict[str, Any]:
    verdict, job = action.verdict, action.ended.job
    first = next((rank for rank in action.ended.ranks if rank.rank == 0), None)
    exits = rank_exits(action.ended)
    return {
        **{name: getattr(verdict, name) for name in _OF_VERDICT},
        "begun": action.ended.begun,
        "seen_s": action.seen_s,
        "line": asdict(verdict.line) if verdict.line else None,
        "frames": [asdict(frame) for frame in frames_of(verdict.line, action.ended)],
        "job": {"state": job.state, "exit_code": job.exit_code, "nodes": job.nodes} if job else None,
        GROUP: action.ended.group,
        SOFTWARE: first.software if first else None,
        "nodes": [
            {
                **{name: getattr(o, name) for name in (*_OF_NODES, *_OF_MEMORY)},
                "rank_exits": {str(rank.rank): exits[rank.rank] for rank in o.ranks},
                "rank_steps": {str(rank.rank): rank.step for rank in o.ranks if rank.step is not None},
                "machine": asdict(o.machine) if o.machine else None,
            }
            for o in action.ended.outcomes
        ],
    }


def record_activities(snapshot: Snapshot, writer: FencedWriter) -> None:
    """Record changed activities, and changed reasons of runs in the queue."""
    if snapshot.queue.news:
        with writer.write() as conn:
            for (reason, cause), run_ids in snapshot.queue.news.items():
                bulk.explain_waiting(conn, run_ids, reason, cause)
    if changed := activities(snapshot):
        with writer.write() as conn:
            states = bulk.lock_attempts(conn, list(changed))
            alive = {row_id for row_id, state in states.items() if state in ACTIVE_ATTEMPT}
            bulk.change_attempts(conn, {row_id: now for row_id, now in changed.items() if row_id in alive})


def activities(snapshot: Snapshot) -> dict[int, dict[str, Any]]:
    """Return the changed phases and nodes of attempts that may still run, by id: for people, they decide nothing."""
    changed: dict[int, dict[str, Any]] = {}
    for attempt in (view.latest for view in snapshot.runs):
        now = _activity(attempt, snapshot.now_s) if attempt and attempt.active else None
        if attempt and now and (now["phase"], now["node_list"]) != (attempt.row.phase, attempt.row.node_list):
            changed[attempt.row.id] = now
    return changed


def _activity(attempt: AttemptView, now_s: float) -> dict[str, Any] | None:
    """The slowest rank counts; None if the executor does not show the job."""
    row, job = attempt.row, attempt.job
    if job is None or job.pending or job.cancelled_in_queue:
        return {"phase": "", "phase_since_s": None, "node_list": ""} if job else None
    slowest = min(attempt.heartbeats, key=lambda beat: beat.step, default=None)
    phase, for_s = (slowest.phase, slowest.phase_s or 0.0) if slowest else (QUIET_START, 0.0)
    if phase == QUIET_START and (row.last_step or 0) > (row.start_step or 0):
        phase, for_s = UNSAID, 0.0  # its steps are here before the heartbeat that says so
    if job.state in ("SUSPENDED", "STOPPED"):
        phase, for_s = SUSPENDED, 0.0
    if attempt.complete or job.terminal or job.state == "COMPLETING":
        phase, for_s = ENDING, 0.0
    since_s = row.phase_since_s if phase == row.phase else now_s - for_s
    return {"phase": phase, "phase_since_s": since_s, "node_list": job.nodes or row.node_list}
