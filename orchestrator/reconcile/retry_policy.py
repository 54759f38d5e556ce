"""The next attempt of a run, by the failure class of its last attempt. Pure."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence

from dscampaign.db.states import RunState
from dscampaign.orchestrator.failures.exits import SET_UP
from dscampaign.orchestrator.failures.policy import Budget, FailureClass, RetryMode

from .actions import CLUSTER_FULL, Action, Submit, set_run
from .attempt_history import (
    NO_PROGRESS_LIMIT,
    EndedAttempt,
    count,
    ended_attempt,
    has_more_steps,
    latest_of_configuration,
    makes_no_progress,
    same_end_before,
)
from .oom_policy import Fit, after_out_of_memory, starting_fit
from .snapshot import RunView, Snapshot

MEM_GROWTH = 1.5
_OUT_OF_TIME = (FailureClass.TIME_LIMIT, FailureClass.STOPPED)
"""Ends that more time may postpone: a stop is mostly requested before a time limit."""


def first_attempt(view: RunView, snapshot: Snapshot, excluded: Sequence[str]) -> Iterator[Action]:
    """Start a run that has no attempt yet, or none that counts."""
    why = "its experiment has changed" if view.run.generation else "first attempt"
    last = latest_of_configuration(view)
    if last and last.failure_class == FailureClass.RETURNED:
        why = str(last.evidence.get("reason", ""))
    elif view.run.retry_epoch:
        longer = last is not None and has_more_steps(ended_attempt(last), view.run)
        why = "it has more steps now" if longer else "asked for again"
    yield from _submit(view, (), why, starting_fit(view, last, snapshot.ledgers), excluded)


def next_attempt(
    view: RunView, history: Sequence[EndedAttempt], snapshot: Snapshot, excluded: Sequence[str]
) -> Iterator[Action]:
    """Yield the actions that follow the last of these attempts, which avoid the `excluded` nodes."""
    last = history[-1]
    if end := _end(view, history):
        yield from set_run(view, *end)
    elif last.kind.policy.retry is RetryMode.SMALLER:
        fit = after_out_of_memory(view, history, snapshot.ledgers)
        if isinstance(fit, str):
            yield from set_run(view, RunState.FAILED, fit)
        else:
            yield from _submit(view, history, "", fit, excluded)
    elif last.kind.policy.awaits_storage and snapshot.storage != "":
        yield from set_run(view, RunState.PENDING, f"{last.reason}, retried once the folder is writable")
    elif (last.progressed or not _budget(history)) and makes_no_progress(view, history):
        yield from set_run(view, RunState.HELD, _held(view, last))
    else:
        yield from _again(view, history, snapshot, excluded)


def _end(view: RunView, history: Sequence[EndedAttempt]) -> tuple[RunState, str] | None:
    """Return the final state of a run after these attempts; None if another may follow."""
    last, policy = history[-1], history[-1].kind.policy
    if policy.retry is RetryMode.MORE_MEMORY and not view.config.slurm.mem_mb:
        return RunState.FAILED, last.with_hint
    if policy.run is not None:
        return policy.run, last.with_hint if policy.run is RunState.FAILED else last.reason
    if same := same_end_before(history):
        advice = f"the same error at the same place ended attempt {same.row.generation}: retrying would not help"
        return RunState.FAILED, f"{last.with_hint} · {advice}"
    budget = None if policy.retry is RetryMode.SMALLER else _budget(history)
    if budget and _tries(history, budget) > getattr(view.retry, budget):
        longer = "; raise slurm.time" if last.kind in _OUT_OF_TIME else ""
        used_up = f"retry.{budget} = {getattr(view.retry, budget)} is used up{longer}"
        return RunState.FAILED, f"{last.with_hint} · {used_up}"
    return None


def _budget(history: Sequence[EndedAttempt]) -> Budget | None:
    """Return the budget that the last of these attempts is taken from."""
    end, before = history[-1], history[:-1]
    return (
        None if end.rule == CLUSTER_FULL else end.kind.policy.budget(count(before, end.kind), progressed=end.progressed)
    )


def _tries(history: Sequence[EndedAttempt], budget: Budget) -> int:
    return sum(_budget(history[: index + 1]) is budget for index in range(len(history)))


def _again(
    view: RunView, history: Sequence[EndedAttempt], snapshot: Snapshot, excluded: Sequence[str]
) -> Iterator[Action]:
    last, not_before_s = history[-1], 0.0
    why = f"{last.reason}, {'resumed' if view.checkpoint_step else 'started again'}"
    if budget := _budget(history):
        tries = _tries(history, budget)
        why = f"{last.reason}, tried again ({tries} of {getattr(view.retry, budget)})"
        not_before_s = _not_before_s(view, last, tries, budget, snapshot.now_s)
        moves = last.kind.policy.elsewhere or last.rule == SET_UP
        if moves and last.host and (snapshot.nodes is None or snapshot.nodes > last.row.nodes):
            excluded = (*excluded, last.host)
    if snapshot.now_s < not_before_s:
        yield from set_run(view, RunState.PENDING, why, not_before_s=not_before_s)
    else:
        yield from _submit(view, history, why, starting_fit(view, last.row, snapshot.ledgers), excluded)


def _held(view: RunView, last: EndedAttempt) -> str:
    hint = "set or lower train.checkpoint_every"
    if view.config.command:
        hint = "let the script resume from checkpoints of its own"
    if last.kind in _OUT_OF_TIME and view.config.executor == "slurm":
        hint += ", or raise slurm.time"
    ended = f"{NO_PROGRESS_LIMIT} attempts ended without a new checkpoint"
    return f"{last.with_hint} · {ended}; {hint}, then retry the run"


def _submit(
    view: RunView, history: Sequence[EndedAttempt], why: str, fit: Fit, excluded: Sequence[str]
) -> Iterator[Action]:
    reason = "; ".join(filter(None, (why, fit.why)))
    fixed = view.config.slurm.nodelist or view.config.executor == "local"
    # a run that waits for room shows as pending, also when its last attempt has just ended
    yield from set_run(view, RunState.PENDING, reason if history else "")
    yield Submit(
        run=view.run,
        config=view.config,
        generation=max(view.run.generation, view.begun) + 1,
        micro_batch=fit.micro_batch,
        why=reason,
        mem_scale=MEM_GROWTH ** count(history, FailureClass.HOST_OOM),
        changes=fit.changes,
        predicted_gb=fit.predicted_gb,
        exclude=() if fixed else tuple(sorted({*excluded})),
    )


def _not_before_s(view: RunView, last: EndedAttempt, tries: int, budget: Budget, now_s: float) -> float:
    """Back off exponentially, with a jitter that is the same in every pass: runs that failed together restart apart.

    If the clock was set back since the last attempt ended, the wait begins now.
    """
    seed = hashlib.sha256(f"{view.run.campaign_id}/{view.run.name}/{last.row.generation}".encode()).digest()[0]
    jitter = 0.75 + 0.25 * seed / 255  # never above what the spec says
    most_s = min(budget.longest_wait_s, view.retry.max_backoff_s)
    wait_s = float(min(view.retry.backoff_s * 2 ** max(tries - 1, 0), most_s) * jitter)
    if last.ended_s <= now_s:
        return last.ended_s + wait_s
    return min(now_s + wait_s, view.run.not_before_s or math.inf)
