"""Snapshot → actions: the whole policy, pure. No clock, no I/O, no randomness but what the snapshot carries.

For every run: first the state of its newest attempt (`attempt_state`), then, if no attempt is active, what comes next
(`retry_policy`). Both happen in one pass: the next attempt is submitted in the pass that sees the last one end. Between
the two comes what all runs share: bad nodes, limits of the campaign, a full disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...db.records import SETTLED_RUN, RunState
from ..failures.policy import FailureClass
from . import retry_policy
from .actions import Action, Finish, Submit, set_run
from .attempt_history import EndedAttempt, attempt_history, counts, ended_attempt, ending_attempt
from .attempt_state import follow_attempt, transitions
from .limits import code_lost, gate, max_active
from .node_exclusion import NodeEvidence, excluded
from .retry_policy import PassContext
from .snapshot import RunView, Snapshot


@dataclass(frozen=True)
class _Seen:
    """A run, what to record of its newest attempt, and the ended attempts that count, None while one is active."""

    view: RunView
    found: tuple[Action, ...]
    history: list[EndedAttempt] | None


def decide(snapshot: Snapshot) -> list[Action]:
    """What to do now, run by run, in an order that is safe to carry out one after another.

    All first repeats come before any second one, so that drift of a machine affects all conditions alike.
    """
    seen = [_see(view, snapshot) for view in sorted(snapshot.runs, key=lambda view: view.run.repeat)]
    everything = list(_all_ended(seen))
    nodes = NodeEvidence.of(everything)
    context = _pass_context(snapshot, [nodes.reattribute(end) for end in everything])
    closed, limit = gate(snapshot), max_active(snapshot)
    active = sum(1 for one in seen if one.history is None)
    actions: list[Action] = []
    for one in seen:
        planned = [*one.found, *_follow_up(one, snapshot, nodes, context)]
        submits = any(isinstance(action, Submit) for action in planned)
        if submits and (held := closed or code_lost(one.view, snapshot)):
            planned = [*one.found, *set_run(one.view, *held)]
        elif submits and limit is not None and active >= limit:
            planned = [action for action in planned if not isinstance(action, Submit)]
        else:
            active += submits
        actions += planned
    return actions


def settled(snapshot: Snapshot) -> bool:
    """Whether nothing is left that this program would do."""
    return all(view.run.state in SETTLED_RUN and not (view.latest and view.latest.active) for view in snapshot.runs)


def _see(view: RunView, snapshot: Snapshot) -> _Seen:
    latest = view.latest
    if latest is None or not latest.active:
        return _Seen(view, (), attempt_history(view))
    found = tuple(transitions(view, latest, snapshot))
    finish = next((action for action in found if isinstance(action, Finish)), None)
    if finish is None:
        return _Seen(view, (*found, *follow_attempt(view, latest, found, snapshot)), None)
    ended = ending_attempt(finish)
    return _Seen(view, found, [*attempt_history(view), *([ended] if counts(ended, view.run) else [])])


def _all_ended(seen: Sequence[_Seen]) -> Iterator[EndedAttempt]:
    """Every ended attempt of the campaign, whatever its configuration: a node is bad for all of them."""
    for one in seen:
        yield from (ended_attempt(attempt.row) for attempt in one.view.attempts if not attempt.active)
        yield from (ending_attempt(action) for action in one.found if isinstance(action, Finish))


def _pass_context(snapshot: Snapshot, ended: Sequence[EndedAttempt]) -> PassContext:
    hours = max((view.retry.exclude_h for view in snapshot.runs), default=0.0)
    return PassContext(
        now_s=snapshot.now_s,
        ledgers=snapshot.ledgers,
        excluded=excluded(ended, snapshot.now_s, hours, snapshot.nodes),
        storage_writable=snapshot.storage == "",
    )


def _follow_up(one: _Seen, snapshot: Snapshot, nodes: NodeEvidence, context: PassContext) -> Iterator[Action]:
    """What comes after the ended attempts of a run; nothing while one is active."""
    view, history = one.view, one.history
    if history is None:
        return
    if not snapshot.is_desired(view):
        if view.run.state not in (RunState.COMPLETED, RunState.FAILED):
            done = bool(history) and history[-1].kind is FailureClass.COMPLETED
            yield from set_run(view, RunState.COMPLETED if done else RunState.CANCELLED, "")
    elif history:
        yield from retry_policy.next_attempt(view, [nodes.reattribute(end) for end in history], context)
    else:
        yield from retry_policy.first_attempt(view, context)
