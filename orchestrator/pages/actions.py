"""The actions of a pass as text, with the run and the reason."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

from dscampaign.db.records import RunStatus
from dscampaign.db.states import UNSETTLED_RUN, RunState
from dscampaign.orchestrator.campaign.activity import LOOKS
from dscampaign.orchestrator.failures.groups import alike, cause
from dscampaign.orchestrator.formatting import clean, count, some, source, words
from dscampaign.orchestrator.reconcile.actions import (
    Action,
    Adopt,
    CancelJob,
    Finish,
    MarkAttempt,
    Revoke,
    SetAside,
    SetRun,
    Submit,
    run_of,
)
from dscampaign.orchestrator.reconcile.loop import Pass

from .text import Page, Style

_SAME_LINES = 3
"""More like lines than this are merged."""

_JOB = "\0"
"""Stands in a line for the job that it is about, in which like lines may differ."""


class _Line(NamedTuple):
    """An action on a run; lines with the same key are merged."""

    run: str
    text: str
    key: Hashable
    job: str = ""


def action_lines(done: Pass, after: Mapping[int, RunStatus], page: Page) -> list[str]:
    """A line for each noteworthy action, unless another line about the run covers it; like lines are merged.

    `after` is each run's status after the pass, by run id: not every decision took effect.
    """
    runs = [*(view.run for view in done.snapshot.runs), *(broken.run for broken in done.snapshot.broken)]
    names = {run.id: run.name for run in runs}
    before = {view.run.id: view.latest.row.micro_batch for view in done.snapshot.runs if view.latest}
    started = {action.run.id for action in done.actions if isinstance(action, Submit)}
    # if the shared folder cannot be written, the store lacks an end, and the next pass judges it again
    unrecorded = {
        run
        for action in done.actions
        if isinstance(action, Finish) and (now := after[run := run_of(action)])
        if now.generation <= action.attempt.generation and not now.failure_class
    }
    lines = []
    for action in done.actions:
        run = run_of(action)
        job_id = action.job_id if isinstance(action, CancelJob) else after[run].job_id
        unchanged = isinstance(action, SetRun) and (action.state is action.run.state or run in started)
        if run not in unrecorded and not unchanged and (text := _text(action, before.get(run), after[run], page)):
            if isinstance(action, Finish):
                verdict = action.verdict
                own = cause(verdict.kind, verdict.rule, verdict.reason, names[run])
                key: Hashable = (action.attempt.generation, own)
            else:
                key = type(action), None if isinstance(action, CancelJob) else cause(None, "", text, names[run])
            lines.append(_Line(names[run], text, key, job_id or ""))
    return [text for same in alike(lines, lambda line: line.key) for text in _merged(same, page)]


def _merged(same: Sequence[_Line], page: Page) -> list[str]:
    if len(same) <= _SAME_LINES:
        return [f"{page.paint(line.run, Style.BOLD)}: {line.text.replace(_JOB, f'job {line.job}')}" for line in same]
    arrays = list(dict.fromkeys(line.job.partition("_")[0] for line in same))
    text = same[0].text.replace(_JOB, f"{'jobs' if len(arrays) > 1 else 'job'} {some(arrays, 3)}")
    return [f"{page.paint(count(len(same), 'run'), Style.BOLD)} ({some([line.run for line in same], 2)}): {text}"]


def _text(action: Action, micro_batch: int | None, now: RunStatus, page: Page) -> str:
    """`micro_batch` is that of the attempt before, `now` the run's status after the pass."""
    text = ""
    match action:
        case Finish():
            verdict = action.verdict
            reason = f": {clean(verdict.reason)}" if verdict.reason else ""
            place = f" ({source(verdict.line.file, verdict.line.number)})" if verdict.line else ""
            text = f"attempt {action.attempt.generation} ended, {words(verdict.kind)}{reason}{place}"
        case CancelJob():
            text = f"cancelling {_JOB}"
        case Submit():
            text = _submission(action, micro_batch, now, page)
        case SetRun():
            early = action.state is RunState.COMPLETED and now.early
            text = _standing(action.state, action.reason, page, early=early)
        case SetAside() if now.state is action.state:  # before it comes to that, it is a trouble
            text = _standing(action.state, now.reason, page)
        case MarkAttempt():
            row = action.attempt
            resumed = f" from step {action.start_step}" if action.start_step else ""
            text = f"{f'job {row.job_id}, ' if row.job_id else ''}attempt {row.generation} {action.state}{resumed}"
        case Adopt():
            job_id = action.attempt.job_id
            reason = f"sbatch had named job {job_id}" if job_id else "its submission was never confirmed"
            text = f"job {action.job_id} adopted: {reason}"
        case Revoke():
            text = f"attempt {action.attempt.generation} {'withdrawn: ' if action.wanted else ''}{action.why}"
    return text


def _submission(action: Submit, micro_batch: int | None, now: RunStatus, page: Page) -> str:
    """Return whether it was submitted: sbatch may have refused it, or timed out, or the run was held instead."""
    if now.state not in UNSETTLED_RUN:
        return _standing(now.state, now.reason, page)
    if not now.job_id or now.generation < action.generation:
        return ""  # an obstacle, see `in_the_way`; the job may be that of the attempt before
    is_retry = action.generation > 1
    reduced = is_retry and action.micro_batch not in (None, micro_batch)
    micro = f" at micro-batch {action.micro_batch}" if reduced else ""
    reason = f": {clean(action.why)}" if is_retry else ""
    return f"submitted as {_JOB}{micro}, attempt {action.generation}{reason}"


def _standing(state: RunState, reason: str, page: Page, *, early: bool = False) -> str:
    if state in (RunState.QUEUED, RunState.RUNNING):
        return ""
    suffix = f": {clean(reason)}" if reason else ""
    return page.paint(f"{state}{' early' * early}", Style[LOOKS[state][1].upper()]) + suffix
