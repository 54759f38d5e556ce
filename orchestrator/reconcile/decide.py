"""Snapshot → actions: the whole policy, pure. No clock, no I/O, no randomness but those in the snapshot.

For every run: first the state of its newest attempt (`attempt_state`), then, if it has ended, the next one
(`retry_policy`), in the same pass. Between them comes everything that runs share: bad nodes, limits, a full disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from dscampaign.db.records import AttemptRow
from dscampaign.db.states import SETTLED_RUN, AttemptState, Cause, CauseCode, RunState, Stage
from dscampaign.orchestrator.executors.base import JobView
from dscampaign.orchestrator.executors.job_request import code_of
from dscampaign.orchestrator.failures.policy import FailureClass

from . import retry_policy
from .actions import Action, CancelJob, Finish, SetAside, Submit, set_run
from .attempt_history import EndedAttempt, NodeEvidence, attempt_history, ended_attempt, ending_attempt, excluded
from .attempt_state import follow_attempt, transitions
from .origin import why_held
from .retry_policy import PassContext
from .set_aside import in_words, unreadable
from .snapshot import BrokenRun, RunView, Snapshot, unread_end


@dataclass(frozen=True, slots=True)
class _Seen:
    view: RunView
    found: tuple[Action, ...]
    history: list[EndedAttempt] | None  # the ended attempts that count, None while one is active
    ended: tuple[EndedAttempt, ...]  # every ended attempt, with any configuration: a node is bad for all of them


def decide(snapshot: Snapshot) -> list[Action]:
    """Return the actions of this pass, run by run, in an order that is safe to carry out.

    Trials come first, and all first repeats before any second: drift of a machine affects all conditions alike.
    """
    observed, broken = _each(
        sorted(snapshot.runs, key=lambda view: (view.run.stage is Stage.FULL, view.run.repeat)), snapshot
    )
    everything = [*map(ended_attempt, snapshot.failed), *(end for item in observed for end in item.ended)]
    nodes = NodeEvidence.of(everything, snapshot.trained_on, snapshot.trained_with)
    context = _pass_context(snapshot, [nodes.reattribute(end) for end in everything])
    closed, limit = _gate(snapshot), _max_active(snapshot)
    active = sum(1 for item in observed if item.history is None) + sum(1 for item in broken if item.attempt)
    active += snapshot.queue.length
    actions: list[Action] = [action for item in broken for action in _leave(item, snapshot)]
    for item in observed:
        planned = _planned(item, snapshot, nodes, context)
        submits = any(isinstance(action, Submit) for action in planned)
        if submits and (held := closed or _code_lost(item.view, snapshot)):
            planned = [*item.found, *set_run(item.view, *held)]
        elif submits and limit is not None and active >= limit:
            planned = [action for action in planned if not isinstance(action, Submit)]
        else:
            active += submits
        actions += planned
    return actions


def settled(snapshot: Snapshot) -> bool:
    """Return whether nothing is left to do."""
    if snapshot.more or snapshot.queue.length:
        return False
    all_settled = all(
        view.run.state in SETTLED_RUN and not (view.latest and view.latest.active) for view in snapshot.runs
    )
    return all_settled and all(broken.run.state in SETTLED_RUN and broken.attempt is None for broken in snapshot.broken)


def _each(views: Sequence[RunView], snapshot: Snapshot) -> tuple[list[_Seen], list[BrokenRun]]:
    """Look at each run by itself: a run that the policy cannot handle is broken, and holds up no other."""
    observed, broken = [], list(snapshot.broken)
    for view in views:
        try:
            observed.append(_see(view, snapshot))
        except ImportError:  # what is loaded late is this program's own: the environment is away, for all runs
            raise
        except Exception as exc:  # noqa: BLE001 - whatever it is, it is this run's alone
            broken.append(_broken(view, exc))
    return observed, broken


def _broken(view: RunView, error: Exception) -> BrokenRun:
    latest = view.latest
    if latest is None or not latest.active:
        return BrokenRun(view.run, None, None, in_words(error))
    return BrokenRun(view.run, latest.row, latest.job, in_words(error))


def _leave(broken: BrokenRun, snapshot: Snapshot) -> Iterator[Action]:
    """Let the job of a run that cannot be judged run, or cancel it if its user wants that."""
    run, row, job = broken.run, broken.attempt, broken.job
    wanted = snapshot.is_desired(broken)
    state = RunState.HELD if wanted else RunState.CANCELLED
    if row is None:
        if run.state not in SETTLED_RUN:
            yield SetAside(run.id, broken.why, state, passing=broken.passing)
    elif _is_over(row, job, snapshot) and not broken.passing:
        ended = unread_end(run, row, job)
        finish = Finish(row, AttemptState.FAILED, unreadable(broken.why), ended, snapshot.now_s)
        yield SetAside(run.id, broken.why, state, finish)
    else:
        if job and job.job_id and not wanted:
            yield CancelJob(row, job.job_id)
        yield SetAside(run.id, broken.why, passing=broken.passing)


def _is_over(row: AttemptRow, job: JobView | None, snapshot: Snapshot) -> bool:
    if job is not None:
        return job.terminal
    silent_s = snapshot.now_s - max(row.heartbeat_s or 0.0, row.started_s or row.created_s)
    return snapshot.listed and snapshot.complete and not 0 <= silent_s <= snapshot.lost_grace_s


def _planned(item: _Seen, snapshot: Snapshot, nodes: NodeEvidence, context: PassContext) -> list[Action]:
    try:
        follow_up = _follow_up(item, snapshot, nodes, context)
        return [*item.found, *(_with_job(a, item) if isinstance(a, Submit) else a for a in follow_up)]
    except ImportError:  # as above
        raise
    except Exception as exc:  # noqa: BLE001 - as above
        ended = replace(_broken(item.view, exc), attempt=None)  # if one has just ended, that is recorded
        return [*item.found, *_leave(ended, snapshot)]


def _with_job(action: Submit, item: _Seen) -> Submit:
    """Let a smaller attempt join the job in which the last one has just run out of memory, while it runs others."""
    latest = item.view.latest
    if latest is None or latest.job is None or latest.share is None or not item.ended:
        return action
    goes_on = latest.active and latest.share.runs and latest.row.retry_epoch == item.view.run.retry_epoch
    may_take = item.ended[-1].kind is FailureClass.OOM and latest.job.nodes not in action.exclude
    return replace(action, joins=latest.row) if goes_on and may_take else action


def _see(view: RunView, snapshot: Snapshot) -> _Seen:
    latest = view.latest
    before = tuple(ended_attempt(attempt.row) for attempt in view.attempts if not attempt.active)
    if latest is None or not latest.active:
        return _Seen(view, (), attempt_history(before, view.run), before)
    actions = tuple(transitions(view, latest, snapshot))
    finish = next((action for action in actions if isinstance(action, Finish)), None)
    if finish is None:
        return _Seen(view, (*actions, *follow_attempt(view, latest, actions, snapshot)), None, before)
    ended = (*before, ending_attempt(finish))
    return _Seen(view, actions, attempt_history(ended, view.run), ended)


def _pass_context(snapshot: Snapshot, ended: Sequence[EndedAttempt]) -> PassContext:
    struck = any(end.kind.policy.strike for end in ended)  # what the specs say of strikes matters only then
    hours = max(map(_exclude_h, snapshot.runs), default=0.0) if struck else 0.0
    return PassContext(
        now_s=snapshot.now_s,
        ledgers=snapshot.ledgers,
        excluded=excluded(ended, snapshot.now_s, hours, snapshot.nodes),
        storage_writable=snapshot.storage == "",
        nodes=snapshot.nodes,
    )


def _exclude_h(view: RunView) -> float:
    with suppress(Exception):
        return view.retry.exclude_h
    return 0.0


def _follow_up(item: _Seen, snapshot: Snapshot, nodes: NodeEvidence, context: PassContext) -> Iterator[Action]:
    view, history = item.view, item.history
    if history is None or view.run.state is RunState.PRUNED:
        return
    if not snapshot.is_desired(view):
        if view.run.state not in (RunState.COMPLETED, RunState.FAILED):
            if history and history[-1].kind.policy.run is RunState.COMPLETED:
                yield from set_run(view, RunState.COMPLETED, history[-1].reason)
            else:
                yield from set_run(view, RunState.CANCELLED, "")
    elif view.run.state is RunState.HELD and view.run.has_cause(CauseCode.UNREADABLE):
        return  # nothing follows until its user retries it
    elif history:
        python = str(view.run.config.get("python") or "")
        yield from retry_policy.next_attempt(view, [nodes.reattribute(end, python) for end in history], context)
    else:
        yield from retry_policy.first_attempt(view, context)


# -- limits of the campaign ------------------------------------------------------------------------------------


def _gate(snapshot: Snapshot) -> tuple[RunState, str, Cause | None] | None:
    """Return the state of runs that wait, and why the campaign may start no attempt now; None if it may."""
    if snapshot.storage:
        return RunState.PENDING, f"waits until the campaign's folder is writable: {snapshot.storage}", None
    if reason := why_held(snapshot.missing):
        return RunState.HELD, reason, Cause(CauseCode.MISSING_VARIABLES, tuple(snapshot.missing))
    limit = snapshot.campaign.limits.get("gpu_hours")
    if limit is not None and (used := snapshot.gpu_seconds() / 3600) >= limit:
        hint = "raise it in the spec and submit again"
        return RunState.HELD, f"limits.gpu_hours = {limit:g} is used up ({used:.3g} h); {hint}", Cause(CauseCode.BUDGET)
    return None


def _code_lost(view: RunView, snapshot: Snapshot) -> tuple[RunState, str] | None:
    reason = snapshot.damaged.get(code_of(view.run, view.config))
    hint = "a retry uses the present code"
    return (RunState.HELD, f"its copy of the code cannot be used: {reason}; {hint}") if reason else None


def _max_active(snapshot: Snapshot) -> int | None:
    limits = (snapshot.capacity, snapshot.campaign.limits.get("running"))
    return min((limit for limit in limits if limit is not None), default=None)
