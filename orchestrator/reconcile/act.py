"""Carries out actions. Every write depends on the lease and on the state that the decision was made from."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from dscampaign.db import bulk, queries
from dscampaign.db.errors import StaleLease, StoreUnreachable
from dscampaign.db.states import ACTIVE_ATTEMPT, RunState
from dscampaign.files.atomic_files import write_atomically
from dscampaign.files.private_files import make_below
from dscampaign.jobs.shared.job_array import close_tasks, closed_tasks
from dscampaign.jobs.shared.layout import CampaignPaths
from dscampaign.orchestrator.errors import Unreachable
from dscampaign.orchestrator.executors import storage
from dscampaign.orchestrator.executors.base import Executor
from dscampaign.orchestrator.executors.job_request import attempt_paths
from dscampaign.orchestrator.failures.policy import FailureClass

from .actions import Action, CancelJob, Failures, Finish, Note, Resize, Revoke, SetAside, Submit, run_of
from .attempt_files import is_claimed, take_claim
from .attempt_state import UNWRITABLE
from .campaign_folder import run_folder, run_folders
from .lease import FencedWriter
from .record import record, set_aside
from .set_aside import in_words, may_pass
from .submit import submit


def act(actions: Sequence[Action], writer: FencedWriter, executor: Executor, paths: CampaignPaths) -> list[Unreachable]:
    """Carry out the actions as far as possible; return the failures for now. Raises StaleLease."""
    if any(isinstance(action, Finish | Revoke) for action in actions):
        with writer.write():
            pass  # claims are files, outside of the lease: a process that has lost it must not take them either
    failures = Failures()
    _close([a for a in actions if isinstance(a, Finish)], writer, paths, failures)
    if failures.troubles:  # a job could still start what would be recorded as ended
        # its agents may have recorded no end, which is judged once the folder can be written again
        ended = [action.attempt for action in actions if isinstance(action, Finish) and not action.ended.outcomes]
        why = failures.troubles[0].message
        record([Note(row, UNWRITABLE, why) for row in ended if UNWRITABLE not in row.evidence], writer, Failures())
        return failures.troubles
    record(failures.unaffected(actions), writer, failures)
    actions = failures.unaffected(actions)
    jobs = dict.fromkeys(a.job_id for a in actions if isinstance(a, CancelJob) and not a.closes)
    try:
        if jobs:
            executor.cancel(list(jobs))
    except Unreachable as exc:
        failures.troubles.append(exc)
    _write_to_jobs(actions, writer, paths, failures)
    submit([a for a in actions if isinstance(a, Submit)], writer, executor, paths, failures)
    failures.aside += [a for a in actions if isinstance(a, SetAside)]
    return [*failures.troubles, *filter(None, (set_aside(each, writer) for each in failures.aside))]


# -- what has effects outside of the store -------------------------------------------------------------------


def _write_to_jobs(actions: Sequence[Action], writer: FencedWriter, paths: CampaignPaths, failures: Failures) -> None:
    arrays: dict[str, list[CancelJob]] = defaultdict(list)
    for action in actions:
        if isinstance(action, CancelJob) and action.closes:
            arrays[action.attempt.token].append(action)
    writes: list[tuple[Sequence[Action], Callable[[], None]]] = [
        (group, partial(_close_waiting, paths.batch(token), group)) for token, group in arrays.items()
    ]
    writes += [([a], partial(_resize, a, writer)) for a in actions if isinstance(a, Resize)]
    writes += [([a], partial(_revoke, a, writer)) for a in actions if isinstance(a, Revoke)]
    for group, write in writes:
        try:
            write()
        except (StaleLease, StoreUnreachable):
            raise
        except Exception as exc:  # noqa: BLE001 - it concerns these runs alone
            if away := storage.shared_trouble(exc, paths.runs):
                failures.troubles.append(away)
                return
            failures.aside += [SetAside(run_of(each), in_words(exc), passing=may_pass(exc)) for each in group]


def _close_waiting(batch: Path, actions: Sequence[CancelJob]) -> None:
    """Close the tasks of an array whose agents look at this; each pass asks again until they have ended."""
    if tasks := {action.attempt.array_index or 0 for action in actions} - closed_tasks(batch):
        close_tasks(batch, tasks)


def _resize(action: Resize, writer: FencedWriter) -> None:
    """Not in a single transaction: a slow shared folder must not hold the store's lock."""
    row, micro = action.attempt, action.micro_batch
    accumulation = row.accumulation and row.accumulation * (row.micro_batch or micro) // micro
    sizes = {"micro_batch": micro, "accumulation": accumulation}
    with writer.store.read() as conn:
        if any(now.state not in ACTIVE_ATTEMPT for now in bulk.attempts_of(conn, [row.id])):
            return
    files = attempt_paths(row)
    make_below(files.dir.parents[1], files.dir)
    write_atomically(files.resize, json.dumps({**sizes, "why": action.why}))
    with writer.write() as conn:
        written = {**sizes, "predicted_gb": action.predicted_gb}
        if queries.update_attempt(conn, row.id, expect_states=ACTIVE_ATTEMPT, **written):
            writer.event(conn, "resized", f"attempt {row.generation} begins at {action.why}", row)


def _revoke(action: Revoke, writer: FencedWriter) -> None:
    row = action.attempt
    if not take_claim(row):
        return
    with writer.write() as conn:
        if action.refused:
            writer.end_refused(conn, row, action.refused)
        elif action.wanted:
            kind = FailureClass.RETURNED if action.returned else FailureClass.LOST
            writer.end_unrun(conn, row, kind, action.why, action.rule)
        else:
            writer.end_unrun(conn, row, FailureClass.CANCELLED, action.why)
            queries.update_run(conn, row.run_id, state=RunState.CANCELLED, reason="")


def _close(ends: Sequence[Finish], writer: FencedWriter, paths: CampaignPaths, failures: Failures) -> None:
    """An attempt that has begun keeps its job's claim; all others of an array are closed together."""
    unbegun: dict[str, list[Finish]] = defaultdict(list)
    folders = run_folders(paths) if ends else set()  # one listing instead of a look at each of thousands
    for end in writer.renewing(ends):
        try:
            if run_folder(end.attempt) not in folders or not is_claimed(end.attempt):
                unbegun[end.attempt.token].append(end)
        except Exception as exc:  # noqa: BLE001 - it concerns this run alone
            if _unclosed(exc, [end], paths, failures):
                return
    for token, group in writer.renewing(unbegun.items()):
        try:
            close_tasks(paths.batch(token), (end.attempt.array_index or 0 for end in group))
        except FileNotFoundError:
            continue  # the payloads of its tasks are gone, too
        except Exception as exc:  # noqa: BLE001 - it concerns this array alone
            if _unclosed(exc, group, paths, failures):
                return


def _unclosed(error: Exception, ends: Sequence[Finish], paths: CampaignPaths, failures: Failures) -> bool:
    """Set the runs aside; return whether the trouble is the whole folder's instead."""
    if away := storage.shared_trouble(error, paths.runs):
        failures.troubles.append(away)
        return True
    reason, passing = in_words(error), may_pass(error)
    failures.aside += [SetAside(end.attempt.run_id, reason, RunState.HELD, end, passing) for end in ends]
    return False
