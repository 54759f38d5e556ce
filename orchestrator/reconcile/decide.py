"""Snapshot → actions: the whole policy, pure. No clock, no I/O, no randomness but in the snapshot.

For every run: first the state of its newest attempt (`attempt_state`), then, if it has ended, the next attempt
(`retry_policy`), in the same pass. Between them comes everything that runs share: bad nodes, limits, a full disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from dscampaign.db.states import SETTLED_RUN, AttemptState, Cause, CauseCode, RunState, Stage
from dscampaign.orchestrator.executors.job_request import code_of
from dscampaign.orchestrator.failures.policy import FailureClass

from . import retry_policy
from .actions import Action, CancelJob, Finish, SetAside, Submit, set_run
from .attempt_history import EndedAttempt, NodeEvidence, attempt_history, ended_attempt, ending_attempt, excluded
from .attempt_state import follow_attempt, transitions
from .origin import why_held
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
    observed, broken = list[_Seen](), list(snapshot.broken)
    for view in sorted(snapshot.runs, key=lambda view: (view.run.stage is Stage.FULL, view.run.repeat)):
        try:  # each run by itself: a run that the policy cannot handle is broken, and holds up no other
            observed.append(_see(view, snapshot))
        except ImportError:  # a module that is loaded late is this program's own: the environment is away, for all runs
            raise
        except Exception as exc:  # noqa: BLE001 - whatever it is, it is this run's alone
            active = (attempt for attempt in view.attempts[-1:] if attempt.active)
            row, job = next(((attempt.row, attempt.job) for attempt in active), (None, None))
            broken.append(BrokenRun(view.run, row, job, in_words(exc)))
    everything = [*map(ended_attempt, snapshot.failed), *(end for item in observed for end in item.ended)]
    nodes = NodeEvidence(everything, snapshot.trained_on, snapshot.trained_with)
    bad_nodes = _excluded([nodes.reattribute(end) for end in everything], snapshot)
    closed, limits = _gate(snapshot), (snapshot.capacity, snapshot.campaign.limits.get("running"))
    limit = min((limit for limit in limits if limit is not None), default=None)
    begun = sum(item.history is None for item in observed) + sum(item.attempt is not None for item in broken)
    begun += snapshot.queue.length
    actions: list[Action] = [action for item in broken for action in _leave(item, snapshot)]
    for item in observed:
        planned = _planned(item, snapshot, nodes, bad_nodes)
        submits = any(isinstance(action, Submit) for action in planned)
        if submits and (held := closed or _code_lost(item.view, snapshot)):
            planned = [*item.found, *set_run(item.view, *held)]
        elif submits and limit is not None and begun >= limit:
            planned = [action for action in planned if not isinstance(action, Submit)]
        else:
            begun += submits
        actions += planned
    return actions


def settled(snapshot: Snapshot) -> bool:
    """Return whether nothing is left to do."""
    if snapshot.more or snapshot.queue.length:
        return False
    attempts = [(view.run, bool(view.latest and view.latest.active)) for view in snapshot.runs]
    attempts += [(broken.run, broken.attempt is not None) for broken in snapshot.broken]
    return all(run.state in SETTLED_RUN and not active for run, active in attempts)


def _leave(broken: BrokenRun, snapshot: Snapshot) -> Iterator[Action]:
    """Let the job of a run that cannot be judged run, or cancel it if its user wants that."""
    run, row, job = broken.run, broken.attempt, broken.job
    wanted = snapshot.is_desired(broken)
    state = RunState.HELD if wanted else RunState.CANCELLED
    if row is None:
        if run.state not in SETTLED_RUN:
            yield SetAside(run.id, broken.why, state, passing=broken.passing)
        return
    silent_s = snapshot.now_s - max(row.heartbeat_s or 0.0, row.started_s or row.created_s)
    lost = snapshot.listed and snapshot.complete and not 0 <= silent_s <= snapshot.lost_grace_s
    if (job.terminal if job else lost) and not broken.passing:
        finish = Finish(row, AttemptState.FAILED, unreadable(broken.why), unread_end(run, row, job), snapshot.now_s)
        yield SetAside(run.id, broken.why, state, finish)
    else:
        if job and job.job_id and not wanted:
            yield CancelJob(row, job.job_id)
        yield SetAside(run.id, broken.why, passing=broken.passing)


def _planned(item: _Seen, snapshot: Snapshot, nodes: NodeEvidence, bad_nodes: Sequence[str]) -> list[Action]:
    try:
        follow_up = _follow_up(item, snapshot, nodes, bad_nodes)
        return [*item.found, *(_with_job(a, item) if isinstance(a, Submit) else a for a in follow_up)]
    except ImportError:  # as above
        raise
    except Exception as exc:  # noqa: BLE001 - as above; if an attempt has just ended, that is recorded
        return [*item.found, *_leave(BrokenRun(item.view.run, None, None, in_words(exc)), snapshot)]


def _with_job(action: Submit, item: _Seen) -> Submit:
    """Let a smaller attempt join the job in which the last attempt ran out of memory, while that job runs others."""
    latest = item.view.latest
    if latest is None or latest.job is None or latest.share is None or not item.ended:
        return action
    goes_on = latest.active and latest.share.runs and latest.row.retry_epoch == item.view.run.retry_epoch
    may_take = item.ended[-1].kind is FailureClass.OOM and latest.job.nodes not in action.exclude
    return replace(action, joins=latest.row) if goes_on and may_take else action


def _see(view: RunView, snapshot: Snapshot) -> _Seen:
    latest = view.latest
    ended = tuple(ended_attempt(attempt.row) for attempt in view.attempts if not attempt.active)
    if latest is None or not latest.active:
        return _Seen(view, (), attempt_history(ended, view.run), ended)
    actions = tuple(transitions(view, latest, snapshot))
    finish = next((action for action in actions if isinstance(action, Finish)), None)
    if finish is None:
        return _Seen(view, (*actions, *follow_attempt(view, latest, actions, snapshot)), None, ended)
    ended = (*ended, ending_attempt(finish))
    return _Seen(view, actions, attempt_history(ended, view.run), ended)


def _excluded(ended: Sequence[EndedAttempt], snapshot: Snapshot) -> tuple[str, ...]:
    hours = 0.0
    for view in snapshot.runs if any(end.kind.policy.strike for end in ended) else ():
        with suppress(Exception):
            hours = max(hours, view.retry.exclude_h)
    return excluded(ended, snapshot.now_s, hours, snapshot.nodes)


def _follow_up(item: _Seen, snapshot: Snapshot, nodes: NodeEvidence, bad_nodes: Sequence[str]) -> Iterator[Action]:
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
        known = [nodes.reattribute(end, python) for end in history]
        yield from retry_policy.next_attempt(view, known, snapshot, bad_nodes)
    else:
        yield from retry_policy.first_attempt(view, snapshot, bad_nodes)


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
