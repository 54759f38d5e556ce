"""Attempts that the folder has and the store has not: the store was restored to an earlier state, or lost.

Every submission is in the store before it leaves `batches/TOKEN` in the folder, so the store has forgotten any token
that it lacks. Its attempts are recorded again, one of a run at a time, oldest first, and are then judged as any other.
Until then the run begins no other. Generations of another experiment's attempts are passed over, which fences them.
Trials of a search are recorded first, from the parameters in their attempts' payloads.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Connection

from dscampaign.db import bulk, leases, open_runs, queries
from dscampaign.db.records import CampaignRow, NewAttempt, RunRow
from dscampaign.db.states import TERMINAL_ATTEMPT, WANTED, RunState, Stage
from dscampaign.files.ownership import Distrusted, open_trusted
from dscampaign.jobs.shared.job_array import close_tasks, read_array
from dscampaign.jobs.shared.layout import CampaignPaths, payloads_file
from dscampaign.jobs.shared.payload import Payload
from dscampaign.orchestrator.errors import Unreachable
from dscampaign.orchestrator.executors.job_request import run_config
from dscampaign.orchestrator.formatting import count
from dscampaign.orchestrator.memory import config_changes
from dscampaign.orchestrator.memory.prediction import memory_key

from .lease import FencedWriter
from .search import new_run, template_of

RECALLED = "recalled"  # as below, a kind of event about a forgotten attempt
PASSED_OVER = "passed_over"


class _Task(NamedTuple):
    """A payload of a submission, and its place there."""

    place: int
    payload: Payload


class Recalled(NamedTuple):
    """The result of a look at the folder's submissions."""

    waiting: frozenset[int] = frozenset()  # ids of runs with further attempts to be recorded: they begin no other
    trouble: Unreachable | None = None  # the store was behind; None if it was not


@dataclass
class _Found:
    attempts: dict[int, tuple[RunRow, _Task]] = field(default_factory=dict)
    passed: list[tuple[RunRow, _Task]] = field(default_factory=list)
    waiting: set[int] = field(default_factory=set)


class Recollection:
    """Compares the submissions of a campaign's folder with those of its store, pass by pass."""

    def __init__(self, paths: CampaignPaths) -> None:
        self._paths = paths
        self._known: set[str] = set()
        self._reported_s: float | None = None

    def reported(self, looked_s: float) -> None:
        """Remember the time that a pass left in the store: with another time there, the store has gone back."""
        self._reported_s = looked_s

    def recall(self, writer: FencedWriter) -> Recalled:
        """Record the attempts that the store has forgotten. Raises OSError: the folder cannot be read or written."""
        names = set[str]()
        with suppress(FileNotFoundError):
            names = {entry.name for entry in os.scandir(self._paths.batches)}
        with writer.store.read() as conn:
            lease = leases.read_lease(conn, writer.lease)
            if lease is None or self._reported_s is None or lease.asked_s != self._reported_s:
                self._known.clear()
            self._reported_s = None
            self._known |= queries.known_tokens(conn, names - self._known)
            forgotten = names - self._known
            runs = {run.name: run for run in queries.runs(conn, writer.campaign_id)} if forgotten else {}
            campaign = queries.campaign_by_id(conn, writer.campaign_id)
        tasks = [task for token in sorted(forgotten) for task in self._tasks(token)]
        if campaign is None or not tasks:
            return Recalled()
        if any(payload.run not in runs for _, payload in tasks) and campaign.provenance.get("search"):
            runs = _record_trials(writer, [payload for _, payload in tasks])
        result = _sorted_out(tasks, runs, campaign, writer)
        of_batch: dict[str, list[int]] = defaultdict(list)
        for _, task in result.passed:
            of_batch[task.payload.token].append(task.place)
        for token, indexes in of_batch.items():  # the jobs that wait for attempts of other experiments begin none
            close_tasks(self._paths.batch(token), indexes)
        if result.attempts or result.passed:
            with writer.write() as conn:
                self._record(conn, result, campaign, writer)
        behind = count(len({row.id for row, _ in result.passed} | result.attempts.keys() | result.waiting), "run")
        message = f"the store is older than the folder: attempts of {behind} that the store lacks were found"
        trouble = Unreachable(message, "they are recorded again before anything else of these runs begins")
        return Recalled(frozenset(result.waiting), None if result == _Found() else trouble)

    def _tasks(self, token: str) -> Iterator[_Task]:
        """Yield the tasks of a submission; none if its file is missing or not ours."""
        path = payloads_file(self._paths.batch(token))
        with suppress(FileNotFoundError, Distrusted, ValueError):
            for index, raw in enumerate(read_array(open_trusted(path, self._paths.root), path)):
                payload = Payload.of(raw, path)
                if payload.token == token:
                    yield _Task(index, payload)

    def _attempt(self, run: RunRow, task: _Task, executor: str) -> NewAttempt:
        place, payload = task
        key = None
        with suppress(Exception):  # a configuration that cannot be read is told where its run is looked at
            key = memory_key(config_changes.changed(run_config(run), payload.changes.split()))
        same = "generation token config_hash micro_batch accumulation nodes retry_epoch task position changes"
        return NewAttempt(
            run_id=run.id,
            executor=executor,
            world_size=payload.world_size,
            spool_path=self._paths.spool(run.name, payload.generation),
            array_index=place,
            job_token=payload.job_token or None,
            memory_key=key,
            code=Path(payload.code).name,
            **{name: getattr(payload, name) for name in same.split()},
        )

    def _record(self, conn: Connection, result: _Found, campaign: CampaignRow, writer: FencedWriter) -> None:
        events, changes, new = [], dict[int, dict[str, object]](), []
        for run, (_, payload) in result.passed:
            message = f"attempt {payload.generation} ({payload.token}) is of another experiment: it is not taken over"
            events.append(queries.NewEvent(PASSED_OVER, message, run.id))
            changes[run.id] = {"generation": payload.generation}
        template = template_of(campaign)
        for run, task in result.attempts.values():
            new.append(self._attempt(run, task, campaign.executor))
            epoch, steps = task.payload.retry_epoch, task.payload.target_step
            state = {"state": RunState.QUEUED, "reason": "", "not_before_s": None}
            generation = task.payload.generation
            changes[run.id] = {**state, "retry_epoch": max(run.retry_epoch, epoch), "generation": generation}
            if epoch > run.retry_epoch and run.desired not in WANTED:
                changes[run.id] |= {"desired": "run"}
            rises = run.stage is Stage.TRIAL and (steps or 0) > (run.target_step or 0)
            if template and rises and (higher := template.again(run.name, run.params, steps)):
                changes[run.id] |= {"config": higher.stored_config, "target_step": higher.target_step}
        bulk.change_runs(conn, changes)
        for row in bulk.insert_attempts(conn, new):
            message = f"attempt {row.generation} ({row.token}) was submitted, and this store did not know it"
            events.append(queries.NewEvent(RECALLED, message, row.run_id, row.id))
        queries.add_events(conn, writer.campaign_id, events)


def _sorted_out(
    tasks: Sequence[_Task], runs: Mapping[str, RunRow], campaign: CampaignRow, writer: FencedWriter
) -> _Found:
    """A submission is recorded as a whole, once it is the next one of all of its runs."""
    given = [(runs[task.payload.run], task, task.payload) for task in tasks if task.payload.run in runs]
    given = [(run, task, payload) for run, task, payload in given if payload.generation > run.generation]
    oldest: dict[int, int] = {}
    for run, _, payload in given:
        oldest[run.id] = min(payload.generation, oldest.get(run.id, payload.generation))
    with writer.store.read() as conn:
        rows = list(open_runs.attempts_of_runs(conn, list(oldest)))
    active = {row.run_id for row in rows if row.state not in TERMINAL_ATTEMPT}
    late = {own.token for run, _, own in given if own.generation > oldest[run.id] or run.id in active}
    result = _Found()
    for run, task, payload in given:
        if payload.token in late:
            result.waiting.add(run.id)
        elif _is_same(run, payload, campaign):
            result.attempts[run.id] = run, task
        else:
            result.passed.append((run, task))
    return result


def _is_same(run: RunRow, payload: Payload, campaign: CampaignRow) -> bool:
    """Return whether an attempt is of its run's experiment and, if that was recorded anew, has its variables."""
    with suppress(Exception):
        recorded_now = payload.recorded_s == campaign.created_s or dict(run_config(run).env) == dict(payload.env)
        return payload.config_hash == run.config_hash and recorded_now
    return False


def _record_trials(writer: FencedWriter, payloads: Sequence[Payload]) -> dict[str, RunRow]:
    """Record the runs of a search that the store has forgotten, each as its oldest attempt had it; return all runs."""
    with writer.write() as conn:
        campaign = queries.lock_campaign(conn, writer.campaign_id)
        rows = queries.runs(conn, writer.campaign_id)
        template = template_of(campaign) if campaign and campaign.desired == "active" else None
        if template:
            code = next((row.code for row in rows if row.stage is Stage.TRIAL), "")
            known, new = {row.name for row in rows}, []
            for payload in sorted(payloads, key=lambda payload: payload.generation):
                run = template.again(payload.run, payload.params, payload.target_step)
                if run and run.name not in known and run.config_hash == payload.config_hash:
                    known.add(run.name)
                    new.append(new_run(run, run.ordinal or 0, code))
            if new:
                bulk.insert_runs(conn, writer.campaign_id, new)
                rows = queries.runs(conn, writer.campaign_id)
    return {row.name: row for row in rows}
