"""Attempts that the folder has and the store has not: the store was restored to an earlier state, or lost.

Every submission is in the store before it leaves `batches/TOKEN` in the folder, so the store has forgotten any token
that it lacks. Its attempts are recorded again, one of a run at a time, oldest first, and are then judged as any other.
Until then the run begins no other. Generations of another experiment's attempts are passed over, which fences them.
Trials of a search are recorded first, from the parameters in their attempts' payloads.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from dscampaign.db import open_runs, queries
from dscampaign.db.records import NewAttempt, RunRow
from dscampaign.db.states import TERMINAL_ATTEMPT, WANTED, RunState, Stage
from dscampaign.files.ownership import Distrusted, open_trusted
from dscampaign.jobs.shared.documents import Count, Number, Whole, decode
from dscampaign.jobs.shared.job_array import close_tasks, read_array
from dscampaign.jobs.shared.layout import CampaignPaths, payloads_file
from dscampaign.orchestrator.errors import Unreachable
from dscampaign.orchestrator.executors.job_request import run_config
from dscampaign.orchestrator.formatting import count
from dscampaign.orchestrator.memory import config_changes
from dscampaign.orchestrator.memory.prediction import memory_key
from dscampaign.orchestrator.spec.trials import TrialTemplate, trial_number

from .campaign_folder import run_folders
from .lease import FencedWriter
from .search import new_run, template_of

RECALLED = "recalled"  # as below, a kind of event about a forgotten attempt
PASSED_OVER = "passed_over"


@dataclass(frozen=True)
class _Submitted:
    """The fields of a payload that matter here."""

    run: str
    generation: Count
    token: str
    config_hash: str
    nodes: Count
    ranks_per_node: Count
    micro_batch: Number | None = None
    accumulation: Number | None = None
    retry_epoch: Whole = 0
    changes: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    target_step: Number | None = None
    code: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    task: Number | None = None
    position: Number | None = None
    job_token: str = ""
    recorded_s: float = 0.0
    index: int = 0  # its place among the payloads of its array


@dataclass(frozen=True)
class Recalled:
    """The result of a look at the folder's submissions."""

    waiting: frozenset[int] = frozenset()  # ids of runs with further attempts to be recorded: they begin no other
    trouble: Unreachable | None = None  # the store was behind; None if it was not
    # numbers of the trials that have begun and that neither the store nor a readable payload knows
    lost: frozenset[int] = frozenset()


@dataclass
class _Found:
    attempts: dict[int, tuple[RunRow, _Submitted]] = field(default_factory=dict)
    passed: list[tuple[RunRow, _Submitted]] = field(default_factory=list)
    waiting: set[int] = field(default_factory=set)


class Recollection:
    """Compares the submissions of a campaign's folder with those of its store, pass by pass."""

    def __init__(self, paths: CampaignPaths) -> None:
        self._paths = paths
        self._known: set[str] = set()
        self._reported_s: float | None = None
        self._recorded_s = 0.0
        self._unreadable = False

    def reported(self, looked_s: float) -> None:
        """Remember the time that a pass left in the store: with another time there, the store has gone back."""
        self._reported_s = looked_s

    def recall(self, writer: FencedWriter) -> Recalled:
        """Record the attempts that the store has forgotten. Raises OSError: the folder cannot be read or written."""
        names = self._names()
        with writer.store.read() as conn:
            lease = queries.read_lease(conn, writer.lease)
            if lease is None or self._reported_s is None or lease.asked_s != self._reported_s:
                self._known.clear()
            self._reported_s = None
            self._known |= queries.known_tokens(conn, names - self._known)
            forgotten = names - self._known
            runs = {run.name: run for run in queries.runs(conn, writer.campaign_id)} if forgotten else {}
            campaign = queries.campaign_by_id(conn, writer.campaign_id)
        self._recorded_s = campaign.created_s if campaign else 0.0
        self._unreadable = False
        tasks = [task for token in sorted(forgotten) for task in self._tasks(token)]
        lost = self._lost(runs.keys() | {task.run for task in tasks}) if self._unreadable else frozenset()
        if any(task.run not in runs for task in tasks) and campaign and campaign.provenance.get("search"):
            runs = _record_trials(writer, tasks)
        if not tasks:
            return Recalled(lost=lost)
        result = self._sorted_out(tasks, runs, writer)
        self._fence(result.passed)
        if result.attempts or result.passed:
            with writer.write() as conn:
                self._record(conn, result, writer)
        behind = count(len({row.id for row, _ in result.passed} | result.attempts.keys() | result.waiting), "run")
        message = f"the store is older than the folder: attempts of {behind} that the store lacks were found"
        trouble = Unreachable(message, "they are recorded again before anything else of these runs begins")
        return Recalled(frozenset(result.waiting), None if result == _Found() else trouble, lost)

    def _lost(self, known: Collection[str]) -> frozenset[int]:
        """A trial whose payload cannot be read has begun if it has a folder; else no job can begin it."""
        numbers = (trial_number(name) for name in run_folders(self._paths) - set(known))
        return frozenset(number for number in numbers if number is not None)

    def _names(self) -> set[str]:
        try:
            return {entry.name for entry in os.scandir(self._paths.batches)}
        except FileNotFoundError:
            return set()

    def _tasks(self, token: str) -> Iterator[_Submitted]:
        """Yield the tasks of a submission; none if its file is missing or not ours."""
        path = payloads_file(self._paths.batch(token))
        try:
            for index, raw in enumerate(read_array(open_trusted(path, self._paths.root), path)):
                submitted = decode(_Submitted, raw)
                if submitted.token == token:
                    yield replace(submitted, index=index)
        except (FileNotFoundError, Distrusted, ValueError):
            self._unreadable = True

    def _sorted_out(self, tasks: Sequence[_Submitted], runs: Mapping[str, RunRow], writer: FencedWriter) -> _Found:
        """A submission is recorded as a whole, once it is the next one of all of its runs."""
        open_tasks = [task for task in tasks if task.run in runs and task.generation > runs[task.run].generation]
        oldest: dict[str, int] = {}
        for task in open_tasks:
            oldest[task.run] = min(task.generation, oldest.get(task.run, task.generation))
        with writer.store.read() as conn:
            rows = list(open_runs.attempts_of_runs(conn, [runs[name].id for name in oldest]))
        active = {row.run_id for row in rows if row.state not in TERMINAL_ATTEMPT}
        late = {task.token for task in open_tasks if task.generation > oldest[task.run] or runs[task.run].id in active}
        result = _Found()
        for task in open_tasks:
            run = runs[task.run]
            if task.token in late:
                result.waiting.add(run.id)
            elif self._is_same(run, task):
                result.attempts[run.id] = run, task
            else:
                result.passed.append((run, task))
        return result

    def _is_same(self, run: RunRow, submitted: _Submitted) -> bool:
        """Return whether an attempt is of its run's experiment and, if that was recorded anew, has its variables."""
        same = submitted.config_hash == run.config_hash
        with suppress(Exception):
            return same and (
                submitted.recorded_s == self._recorded_s or dict(run_config(run).env) == dict(submitted.env)
            )
        return False

    def _attempt(self, run: RunRow, submitted: _Submitted, executor: str) -> NewAttempt:
        key = None
        with suppress(Exception):  # a configuration that cannot be read is told where its run is looked at
            key = memory_key(config_changes.changed(run_config(run), submitted.changes.split()))
        return NewAttempt(
            run_id=run.id,
            generation=submitted.generation,
            token=submitted.token,
            config_hash=submitted.config_hash,
            micro_batch=submitted.micro_batch,
            accumulation=submitted.accumulation,
            world_size=submitted.nodes * submitted.ranks_per_node,
            nodes=submitted.nodes,
            executor=executor,
            spool_path=str(self._paths.run(run.name).attempt(submitted.generation).metrics),
            retry_epoch=submitted.retry_epoch,
            array_index=submitted.index,
            task=submitted.task,
            position=submitted.position,
            job_token=submitted.job_token or None,
            changes=submitted.changes,
            memory_key=key,
            code=Path(submitted.code).name,
        )

    def _fence(self, passed: Sequence[tuple[RunRow, _Submitted]]) -> None:
        """Keep the jobs from beginning that wait for attempts of other experiments."""
        of_batch: dict[str, list[int]] = defaultdict(list)
        for _, task in passed:
            of_batch[task.token].append(task.index)
        for token, indexes in of_batch.items():
            close_tasks(self._paths.batch(token), indexes)

    def _record(self, conn: Connection, result: _Found, writer: FencedWriter) -> None:
        campaign = queries.campaign_by_id(conn, writer.campaign_id)
        assert campaign is not None
        events, changes = [], dict[int, dict[str, object]]()
        for run, task in result.passed:
            message = f"attempt {task.generation} ({task.token}) is of another experiment: it is not taken over"
            events.append(queries.NewEvent(PASSED_OVER, message, run.id))
            changes[run.id] = {"generation": task.generation}
        new, template = [], template_of(campaign)
        for run, submitted in result.attempts.values():
            new.append(self._attempt(run, submitted, campaign.executor))
            epoch = max(run.retry_epoch, submitted.retry_epoch)
            wanted = {"desired": "run"} if submitted.retry_epoch > run.retry_epoch and run.desired not in WANTED else {}
            state = {"state": RunState.QUEUED, "reason": "", "not_before_s": None, "retry_epoch": epoch}
            rung = _rung(template, run, submitted) if template and run.stage is Stage.TRIAL else {}
            changes[run.id] = {**state, **wanted, **rung, "generation": submitted.generation}
        queries.change_runs(conn, changes)
        for row in queries.insert_attempts(conn, new):
            message = f"attempt {row.generation} ({row.token}) was submitted, and this store did not know it"
            events.append(queries.NewEvent(RECALLED, message, row.run_id, row.id))
        queries.add_events(conn, writer.campaign_id, events)


def _record_trials(writer: FencedWriter, tasks: Sequence[_Submitted]) -> dict[str, RunRow]:
    """Record the runs of a search that the store has forgotten, each as its oldest attempt had it; return all runs."""
    with writer.write() as conn:
        campaign = queries.lock_campaign(conn, writer.campaign_id)
        rows = queries.runs(conn, writer.campaign_id)
        template = template_of(campaign) if campaign and campaign.desired == "active" else None
        if template:
            code = next((row.code for row in rows if row.stage is Stage.TRIAL), "")
            known, new = {row.name for row in rows}, []
            for submitted in sorted(tasks, key=lambda task: task.generation):
                run = template.again(submitted.run, submitted.params, submitted.target_step)
                if run and run.name not in known and run.config_hash == submitted.config_hash:
                    known.add(run.name)
                    new.append(new_run(run, run.ordinal or 0, code))
            if new:
                queries.insert_runs(conn, writer.campaign_id, new)
                rows = queries.runs(conn, writer.campaign_id)
    return {row.name: row for row in rows}


def _rung(template: TrialTemplate, run: RunRow, submitted: _Submitted) -> dict[str, object]:
    """Return the columns of a trial that an attempt has brought to a higher rung than the store knows."""
    if (submitted.target_step or 0) <= (run.target_step or 0):
        return {}
    higher = template.again(run.name, run.params, submitted.target_step)
    return {"config": higher.stored_config, "target_step": higher.target_step} if higher else {}
