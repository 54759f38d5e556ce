"""Snapshot → actions: the whole policy, pure. No clock, no I/O, no randomness but what the snapshot carries.

For every run: first settle what its newest attempt is now (see `settle`), then, if nothing of it is active any more,
say what comes next. Both in one pass: a successor is submitted in the pass that sees the end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..db.records import AttemptRow, RunRow, RunState
from .batching import smaller_micro_batch
from .failures import FailureClass
from .settle import set_run, settle, show_active
from .world import Action, Finish, RunView, Snapshot, Submit

SETTLED = frozenset({RunState.COMPLETED, RunState.FAILED, RunState.HELD, RunState.CANCELLED})
"""The states in which this program has nothing left to do for a run."""

NO_PROGRESS_LIMIT = 3
INFRA_MAX_BACKOFF_S = 600
MEM_GROWTH = 1.5

UNBUDGETED = frozenset({FailureClass.PREEMPTED, FailureClass.STOPPED, FailureClass.TIME_LIMIT})
"""The ends that count against no budget, and so need another bound: three of them without a new checkpoint."""


@dataclass(frozen=True)
class Past:
    """An attempt that is over, as the policy remembers it."""

    row: AttemptRow
    kind: FailureClass
    reason: str
    hint: str
    start_step: int
    last_step: int | None
    ended_s: float

    @property
    def progressed(self) -> bool:
        """Whether it made at least one step."""
        return self.last_step is not None and self.last_step > self.start_step


def decide(snapshot: Snapshot) -> list[Action]:
    """What to do now, run by run, in an order that is safe to carry out one after another."""
    actions: list[Action] = []
    active = sum(1 for view in snapshot.runs if view.latest is not None and view.latest.active)
    for view in snapshot.runs:
        planned = list(_decide_run(view, snapshot))
        active -= any(isinstance(action, Finish) for action in planned)
        if any(isinstance(action, Submit) for action in planned):
            if snapshot.capacity is not None and active >= snapshot.capacity:
                planned = [action for action in planned if not isinstance(action, Submit)]
            else:
                active += 1
        actions += planned
    return actions


def settled(snapshot: Snapshot) -> bool:
    """Whether nothing is left that this program would do."""
    return all(view.run.state in SETTLED and not (view.latest and view.latest.active) for view in snapshot.runs)


def _decide_run(view: RunView, snapshot: Snapshot) -> Iterator[Action]:
    latest = view.latest
    if latest is None or not latest.active:
        yield from _next(view, _past(view), snapshot)
        return
    found = list(settle(view, latest, snapshot))
    yield from found
    finish = next((action for action in found if isinstance(action, Finish)), None)
    if finish:
        past = [*_past(view), *_just_finished(view, finish)]
        yield from _next(view, past, snapshot)
    else:
        yield from show_active(view, latest, found)


# -- what comes next -----------------------------------------------------------------------------------------


def _next(view: RunView, past: Sequence[Past], snapshot: Snapshot) -> Iterator[Action]:
    if not snapshot.wants(view):
        if view.run.state not in (RunState.COMPLETED, RunState.FAILED):
            done = bool(past) and past[-1].kind is FailureClass.COMPLETED
            yield from set_run(view, RunState.COMPLETED if done else RunState.CANCELLED, "")
        return
    if not past:
        changed = "its experiment has changed" if view.run.generation else "first attempt"
        why = "retried by the user" if view.run.retry_epoch else changed
        yield from _submit(view, past, why, snapshot.now_s, 0.0)
        return
    yield from _after(view, past, snapshot.now_s)


def _after(view: RunView, past: Sequence[Past], now_s: float) -> Iterator[Action]:
    last = past[-1]
    match last.kind:
        case FailureClass.COMPLETED:
            yield from set_run(view, RunState.COMPLETED, "")
        case FailureClass.HOST_OOM if view.mem_mb:
            tries = _count(past, FailureClass.HOST_OOM)
            yield from _within(view, past, tries, view.retry.host_oom, "host_oom", now_s, 0.0)
        case FailureClass.DETERMINISTIC | FailureClass.DIVERGED | FailureClass.REFUSED | FailureClass.HOST_OOM:
            yield from set_run(view, RunState.FAILED, _with_hint(last))
        case FailureClass.CANCELLED:
            yield from set_run(view, RunState.CANCELLED, last.reason)
        case FailureClass.OOM:
            yield from _smaller(view, past, now_s)
        case FailureClass.PREEMPTED | FailureClass.STOPPED:
            yield from _resume(view, past, now_s)
        case FailureClass.TIME_LIMIT if last.progressed:
            yield from _resume(view, past, now_s)
        case FailureClass.NODE | FailureClass.LOST:
            tries = _count(past, FailureClass.NODE, FailureClass.LOST)
            wait_s = _backoff(view, last, tries, min(INFRA_MAX_BACKOFF_S, view.retry.max_backoff_s))
            yield from _within(view, past, tries, view.retry.infra, "infra", now_s, wait_s)
        case _:
            tries = sum(1 for p in past if _is_crash(p))
            wait_s = _backoff(view, last, tries, view.retry.max_backoff_s)
            yield from _within(view, past, tries, view.retry.crash, "crash", now_s, wait_s)


def _smaller(view: RunView, past: Sequence[Past], now_s: float) -> Iterator[Action]:
    """The same global batch in smaller pieces."""
    last, batch = past[-1], view.global_batch
    micro = last.row.micro_batch
    tries = _count(past, FailureClass.OOM)
    smaller = smaller_micro_batch(batch, view.world_size, micro) if batch and micro else None
    if not batch or not micro:
        hint = "give train.global_batch and train.micro_batch, so that it can be tried smaller"
        yield from set_run(view, RunState.FAILED, f"{last.reason} · {hint}")
    elif smaller is None:
        hint = "at micro-batch 1; try activation_checkpointing, a higher zero_stage or more ranks"
        yield from set_run(view, RunState.FAILED, f"out of memory {hint}")
    elif tries > view.retry.oom:
        yield from set_run(view, RunState.FAILED, f"{last.reason} · retry.oom = {view.retry.oom} is used up")
    else:
        why = f"out of memory at micro-batch {micro}, tried at {smaller} with the same global batch"
        yield from _submit(view, past, why, now_s, last.ended_s, smaller)


def _resume(view: RunView, past: Sequence[Past], now_s: float) -> Iterator[Action]:
    """The same again, from the newest checkpoint, unless that leads nowhere."""
    last = past[-1]
    if _no_progress(past, view.checkpoint_step):
        hint = "set train.checkpoint_every" if view.checkpoint_every is None else "lower train.checkpoint_every"
        reason = f"{NO_PROGRESS_LIMIT} attempts ended without a new checkpoint; {hint}, then `campaign retry`"
        yield from set_run(view, RunState.HELD, f"{reason} (last: {last.reason})")
    else:
        yield from _submit(view, past, f"{last.reason}, resumed", now_s, last.ended_s)


def _within(
    view: RunView, past: Sequence[Past], tries: int, budget: int, name: str, now_s: float, wait_s: float
) -> Iterator[Action]:
    if tries > budget:
        yield from set_run(view, RunState.FAILED, f"{_with_hint(past[-1])} · retry.{name} = {budget} is used up")
    else:
        last = past[-1]
        why = f"{last.reason}, tried again ({tries} of {budget})"
        yield from _submit(view, past, why, now_s, last.ended_s + wait_s)


def _submit(
    view: RunView, past: Sequence[Past], why: str, now_s: float, not_before_s: float, micro: int | None = None
) -> Iterator[Action]:
    """Starts the next attempt, or says when. A smaller micro-batch that once was necessary stays."""
    if past and now_s < not_before_s:
        yield from set_run(view, RunState.PENDING, why, not_before_s)
        return
    # a run that waits for room shows as pending, also when its last attempt has just ended
    yield from set_run(view, RunState.PENDING, why if past else "")
    micro = micro or (past[-1].row.micro_batch if past else _earlier_micro_batch(view)) or view.micro_batch
    mem_scale = MEM_GROWTH ** _count(past, FailureClass.HOST_OOM)
    yield Submit(view.run, max(view.run.generation, view.begun) + 1, micro, why, mem_scale)


# -- the past ------------------------------------------------------------------------------------------------


def _past(view: RunView) -> list[Past]:
    """The ended attempts that count."""
    past = (_remembered(attempt.row) for attempt in view.attempts if not attempt.active)
    return [p for p in past if _counts(p, view.run)]


def _remembered(row: AttemptRow) -> Past:
    return Past(
        row=row,
        kind=FailureClass(row.failure_class or FailureClass.CRASH),
        reason=str(row.evidence.get("reason", "")),
        hint=str(row.evidence.get("hint", "")),
        start_step=row.start_step or 0,
        last_step=row.last_step,
        ended_s=float(row.evidence.get("seen_s") or row.ended_s or row.created_s),
    )


def _just_finished(view: RunView, finish: Finish) -> list[Past]:
    verdict, ended = finish.verdict, finish.ended
    steps = ended.start_step, ended.last_step
    past = Past(finish.attempt, verdict.kind, verdict.reason, verdict.hint, *steps, finish.seen_s)
    return [past] if _counts(past, view.run) else []


def _counts(past: Past, run: RunRow) -> bool:
    """Whether it is of the present configuration and, unless it succeeded, of the time since `campaign retry`."""
    fresh = past.row.retry_epoch == run.retry_epoch or past.kind is FailureClass.COMPLETED
    return fresh and past.row.config_hash == run.config_hash


def _earlier_micro_batch(view: RunView) -> int | None:
    """What the present configuration last ran with, before a `campaign retry`."""
    same = [a.row for a in view.attempts if not a.active and a.row.config_hash == view.run.config_hash]
    return same[-1].micro_batch if same else None


def _count(past: Sequence[Past], *kinds: FailureClass) -> int:
    return sum(1 for p in past if p.kind in kinds)


def _is_crash(past: Past) -> bool:
    return past.kind is FailureClass.CRASH or (past.kind is FailureClass.TIME_LIMIT and not past.progressed)


def _no_progress(past: Sequence[Past], checkpoint_step: int) -> bool:
    """Three attempts that all began at one step, from which the next one would begin too."""
    starts = [p.start_step for p in past if p.kind in UNBUDGETED][-NO_PROGRESS_LIMIT:]
    return len(starts) == NO_PROGRESS_LIMIT and len(set(starts)) == 1 and checkpoint_step <= starts[0]


def _backoff(view: RunView, last: Past, tries: int, most_s: float) -> float:
    """Doubling, with a jitter that is the same in every pass: runs that failed together do not come back together."""
    seed = hashlib.sha256(f"{view.run.campaign_id}/{view.run.name}/{last.row.generation}".encode()).digest()[0]
    jitter = 0.75 + 0.25 * seed / 255  # never above what the spec says
    return float(min(view.retry.backoff_s * 2 ** max(tries - 1, 0), most_s) * jitter)


def _with_hint(past: Past) -> str:
    return f"{past.reason} · {past.hint}" if past.hint else past.reason


__all__ = ["SETTLED", "Past", "decide", "settled"]
