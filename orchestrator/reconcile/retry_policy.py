"""The next attempt of a run, by the failure class of its last one. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dscampaign.db.states import RunState
from dscampaign.orchestrator.failures.exits import SET_UP
from dscampaign.orchestrator.failures.policy import Budget, FailureClass, RetryMode

from . import oom_policy
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
from .oom_policy import Fit, Ledgers
from .snapshot import RunView

MEM_GROWTH = 1.5
_OUT_OF_TIME = (FailureClass.TIME_LIMIT, FailureClass.STOPPED)
"""Ends that more time may postpone: a stop is mostly requested before a time limit."""


@dataclass(frozen=True)
class PassContext:
    """State that all runs share in this pass."""

    now_s: float
    ledgers: Ledgers
    excluded: tuple[str, ...]
    storage_writable: bool  # whether the folder was tested, and can be written
    nodes: int | None = None  # the size of the cluster, None if not known


@dataclass(frozen=True)
class _Next:
    why: str
    ended_s: float = 0.0
    wait_s: float = 0.0
    fit: Fit | None = None
    exclude: tuple[str, ...] = ()


def first_attempt(view: RunView, context: PassContext) -> Iterator[Action]:
    """Start a run that has no attempt yet, or none that counts."""
    reason = "its experiment has changed" if view.run.generation else "first attempt"
    last = latest_of_configuration(view)
    if last and last.failure_class == FailureClass.RETURNED:
        reason = str(last.evidence.get("reason", ""))
    elif view.run.retry_epoch:
        longer = last is not None and has_more_steps(ended_attempt(last), view.run)
        reason = "it has more steps now" if longer else "asked for again"
    yield from _submit(view, (), _Next(reason), context)


def next_attempt(view: RunView, history: Sequence[EndedAttempt], context: PassContext) -> Iterator[Action]:
    """Yield the actions that follow the last of these attempts."""
    last = history[-1]
    if end := _end(view, last):
        yield from set_run(view, *end)
    elif same := same_end_before(history):
        advice = f"the same error at the same place ended attempt {same.row.generation}: retrying would not help"
        yield from set_run(view, RunState.FAILED, f"{last.with_hint} · {advice}")
    elif last.kind.policy.retry is RetryMode.SMALLER:
        yield from _fitted(view, history, context)
    elif used_up := _used_up(view, history):  # before it waits: no folder is tested for a run that has failed
        yield from set_run(view, RunState.FAILED, f"{last.with_hint} · {used_up}")
    elif last.kind.policy.awaits_storage and not context.storage_writable:
        yield from set_run(view, RunState.PENDING, f"{last.reason}, retried once the folder is writable")
    elif budget := _budget(history, len(history) - 1):
        yield from _within(view, history, budget, context)
    else:
        yield from _resumed(view, history, context)


def _end(view: RunView, last: EndedAttempt) -> tuple[RunState, str] | None:
    """Return the final state of a run after such an attempt; None if another attempt follows."""
    policy = last.kind.policy
    if policy.retry is RetryMode.MORE_MEMORY and not view.config.slurm.mem_mb:
        return RunState.FAILED, last.with_hint
    if policy.run is None:
        return None
    return policy.run, last.with_hint if policy.run is RunState.FAILED else last.reason


def _budget(history: Sequence[EndedAttempt], index: int) -> Budget | None:
    end, before = history[index], history[:index]
    if end.rule == CLUSTER_FULL:
        return None
    return end.kind.policy.budget(count(before, end.kind), progressed=end.progressed)


def _tries(history: Sequence[EndedAttempt], budget: Budget) -> int:
    return sum(_budget(history, index) is budget for index in range(len(history)))


def _used_up(view: RunView, history: Sequence[EndedAttempt]) -> str:
    """Return the setting whose budget the last attempt exceeds, "" for none."""
    budget = _budget(history, len(history) - 1)
    allowed = int(getattr(view.retry, budget)) if budget else 0
    if not budget or _tries(history, budget) <= allowed:
        return ""
    longer = "; raise slurm.time" if history[-1].kind in _OUT_OF_TIME else ""
    return f"retry.{budget} = {allowed} is used up{longer}"


def _fitted(view: RunView, history: Sequence[EndedAttempt], context: PassContext) -> Iterator[Action]:
    fit = oom_policy.after_out_of_memory(view, history, context.ledgers)
    if isinstance(fit, str):
        yield from set_run(view, RunState.FAILED, fit)
    else:
        yield from _submit(view, history, _Next(fit.why, fit=fit), context)


def _resumed(view: RunView, history: Sequence[EndedAttempt], context: PassContext) -> Iterator[Action]:
    last, how = history[-1], "resumed" if view.checkpoint_step else "started again"
    if makes_no_progress(view, history):
        yield from _held(view, last)
    else:
        yield from _submit(view, history, _Next(f"{last.reason}, {how}"), context)


def _within(view: RunView, history: Sequence[EndedAttempt], budget: Budget, context: PassContext) -> Iterator[Action]:
    last, allowed = history[-1], int(getattr(view.retry, budget))
    tries = _tries(history, budget)
    if last.progressed and makes_no_progress(view, history):
        yield from _held(view, last)
    else:
        wait_s = _backoff(view, last, tries, min(budget.longest_wait_s, view.retry.max_backoff_s))
        moves = last.host and (last.kind.policy.elsewhere or last.rule == SET_UP)
        moves = moves and (context.nodes is None or context.nodes > last.row.nodes)
        elsewhere = (last.host,) if moves else ()
        reason = f"{last.reason}, tried again ({tries} of {allowed})"
        yield from _submit(view, history, _Next(reason, last.ended_s, wait_s, exclude=elsewhere), context)


def _held(view: RunView, last: EndedAttempt) -> Iterator[Action]:
    hint = (
        "set train.checkpoint_every" if view.config.train.checkpoint_every is None else "lower train.checkpoint_every"
    )
    if view.config.command:
        hint = "let the script resume from checkpoints of its own"
    if last.kind in _OUT_OF_TIME and view.config.executor == "slurm":
        hint += ", or raise slurm.time"
    ended = f"{NO_PROGRESS_LIMIT} attempts ended without a new checkpoint"
    reason = f"{ended}; {hint}, then retry the run (last: {last.reason})"
    if last.kind is FailureClass.CRASH:  # fix the crash, not the checkpoint interval
        reason = f"{last.with_hint} · {ended}; fix it, or {hint}, then retry the run"
    yield from set_run(view, RunState.HELD, reason)


def _submit(view: RunView, history: Sequence[EndedAttempt], how: _Next, context: PassContext) -> Iterator[Action]:
    not_before_s = _not_before_s(view, how, context.now_s)
    if history and context.now_s < not_before_s:
        yield from set_run(view, RunState.PENDING, how.why, not_before_s=not_before_s)
        return
    fit = how.fit or oom_policy.starting_fit(
        view, history[-1].row if history else latest_of_configuration(view), context.ledgers
    )
    reason = how.why if how.fit or not fit.why else f"{how.why}; {fit.why}"
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
        exclude=() if fixed else tuple(sorted({*context.excluded, *how.exclude})),
    )


def _not_before_s(view: RunView, how: _Next, now_s: float) -> float:
    """If the clock was set back since the last attempt ended, this is one wait from now."""
    latest_s = now_s + how.wait_s
    known_s = view.run.not_before_s
    planned_s = how.ended_s + how.wait_s
    if planned_s <= latest_s:
        return planned_s
    return latest_s if known_s is None or known_s > latest_s else known_s


def _backoff(view: RunView, last: EndedAttempt, tries: int, most_s: float) -> float:
    """Exponential, with a jitter that is the same in every pass: runs that failed together restart apart."""
    seed = hashlib.sha256(f"{view.run.campaign_id}/{view.run.name}/{last.row.generation}".encode()).digest()[0]
    jitter = 0.75 + 0.25 * seed / 255  # never above what the spec says
    return float(min(view.retry.backoff_s * 2 ** max(tries - 1, 0), most_s) * jitter)
