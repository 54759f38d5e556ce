"""Carries out actions. Every write depends on the lease and on the state that the decision was made from."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from functools import partial

from dscampaign.db import queries
from dscampaign.db.errors import StaleLease, StoreUnreachable
from dscampaign.db.states import ACTIVE_ATTEMPT, RunState
from dscampaign.files.atomic_files import write_atomically
from dscampaign.files.private_files import make_below
from dscampaign.jobs.shared.closed_tasks import close_tasks
from dscampaign.jobs.shared.layout import CampaignPaths
from dscampaign.orchestrator.errors import Unreachable
from dscampaign.orchestrator.executors import storage
from dscampaign.orchestrator.executors.base import Executor
from dscampaign.orchestrator.executors.job_request import attempt_paths
from dscampaign.orchestrator.failures.policy import FailureClass

from .actions import (
    Action,
    CancelJob,
    Finish,
    Note,
    Resize,
    Revoke,
    SetAside,
    Submit,
    run_of,
)
from .attempt_state import UNWRITABLE
from .campaign_folder import run_folder, run_folders
from .claims import is_claimed, take_claim
from .lease import FencedWriter
from .record import record, record_finish
from .set_aside import in_words, may_pass, set_aside
from .submit import submit


def act(actions: Sequence[Action], writer: FencedWriter, executor: Executor, paths: CampaignPaths) -> list[Unreachable]:
    """Carries out the actions as far as possible; returns what failed for now: the next pass decides again.

    Raises StaleLease if another reconciler has taken over; nothing more was done.
    """
    if any(isinstance(action, Finish | Revoke) for action in actions):
        with writer.write():
            pass  # claims are files, outside of the lease: a process that has lost it must not take them either
    troubles, aside = _close([a for a in actions if isinstance(a, Finish)], writer, paths)
    if troubles:  # a job could still start what would be recorded as ended
        record(_unwritable(actions, troubles[0]), writer)
        return troubles
    actions = _without(actions, aside)
    aside += record(actions, writer)
    actions = _without(actions, aside)
    troubles += _cancel([a for a in actions if isinstance(a, CancelJob)], executor)
    away, apart = _tell_jobs([a for a in actions if isinstance(a, Resize | Revoke)], writer, paths)
    troubles, aside = [*troubles, *away], [*aside, *apart]
    refused, flawed = submit([a for a in actions if isinstance(a, Submit)], writer, executor, paths)
    aside += [*flawed, *(a for a in actions if isinstance(a, SetAside))]
    said = (set_aside(one, writer, executor.outcome_grace_s, partial(record_finish, writer=writer)) for one in aside)
    return [*troubles, *refused, *filter(None, said)]


def _unwritable(actions: Sequence[Action], trouble: Unreachable) -> list[Note]:
    """Notes why agents may have left no word of an end that is to be judged once the folder can be written again."""
    ended = (action for action in actions if isinstance(action, Finish) and not action.ended.outcomes)
    return [Note(end.attempt, UNWRITABLE, trouble.message) for end in ended if UNWRITABLE not in end.attempt.evidence]


def _without(actions: Sequence[Action], aside: Sequence[SetAside]) -> list[Action]:
    left = {one.run_id for one in aside}
    return [action for action in actions if run_of(action) not in left] if left else list(actions)


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
            writer.end_unrun(conn, row, FailureClass.LOST, action.why, action.rule)
        else:
            writer.end_unrun(conn, row, FailureClass.CANCELLED, action.why)
            queries.update_run(conn, row.run_id, state=RunState.CANCELLED, reason="")


def _close(
    ends: Sequence[Finish], writer: FencedWriter, paths: CampaignPaths
) -> tuple[list[Unreachable], list[SetAside]]:
    """Keeps every job from beginning an attempt that is over: a batch that was submitted twice, a job that requeues.

    One that has begun keeps its job's claim; all others of an array are closed together. Returns what is wrong with the
    folder, and the runs of the arrays for which that cannot be done.
    """
    aside: list[SetAside] = []

    def failed(exc: Exception, of_ends: Sequence[Finish]) -> Unreachable | None:
        away = storage.shared_trouble(exc, paths.runs)
        why, passing = in_words(exc), may_pass(exc)
        aside.extend(SetAside(end.attempt.run_id, why, RunState.HELD, end, passing) for end in of_ends if not away)
        return away

    unbegun: dict[str, list[Finish]] = defaultdict(list)
    made = run_folders(paths) if ends else set()  # of thousands that never began, none is looked for by itself
    for end in writer.renewing(ends):
        try:
            if run_folder(end.attempt) not in made or not is_claimed(end.attempt):
                unbegun[end.attempt.token].append(end)
        except Exception as exc:  # noqa: BLE001 - whatever it is, it is this run's alone
            if away := failed(exc, [end]):
                return [away], []
    for token, group in writer.renewing(unbegun.items()):
        try:
            close_tasks(paths.batch(token), (end.attempt.array_index or 0 for end in group))
        except FileNotFoundError:
            continue  # what its tasks were to run is gone, too
        except Exception as exc:  # noqa: BLE001 - as above, this array's
            if away := failed(exc, group):
                return [away], []
    return [], aside
