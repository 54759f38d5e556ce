"""What a pass did, one line an action: what happened to which run, and why."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

from dscampaign.db.records import RunStatus
from dscampaign.db.states import SETTLED_RUN, RunState
from dscampaign.orchestrator.failures.groups import alike, cause, gist
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

SINGLE_LINES = 10
"""More first attempts than this are told in one line."""

_SAME_LINES = 3
"""More runs than this of which the same is to be said share a line."""

_STATE_STYLES = {RunState.COMPLETED: Style.GREEN, RunState.FAILED: Style.RED, RunState.HELD: Style.YELLOW}


def waiting(done: Pass, after: Mapping[int, RunStatus]) -> set[int]:
    """The runs that were to be submitted and are not, by id; `after` as of `action_lines`."""
    return {a.run.id for a in done.actions if isinstance(a, Submit) and _waits(a, after[a.run.id])}


def action_lines(
    done: Pass, after: Mapping[int, RunStatus], page: Page, waited: Collection[int] = frozenset()
) -> list[str]:
    """One line for each noteworthy action, unless another line about the run already says it; like ones share a line.

    Args:
        done: the pass.
        after: each run's status after the pass, by run id: not everything that was decided has come about.
        page: where it is shown.
        waited: runs that were `waiting` after the pass before, which need not be said again.
    """
    runs = [*(view.run for view in done.snapshot.runs), *(broken.run for broken in done.snapshot.broken)]
    names = {run.id: run.name for run in runs}
    starting = [action for action in done.actions if isinstance(action, Submit)]
    still = {id(a) for a in starting if a.run.id in waited and _waits(a, after[a.run.id])}
    first = [
        a for a in starting if a.generation == 1 and after[a.run.id].state not in SETTLED_RUN and id(a) not in still
    ]
    together = first if len(first) > SINGLE_LINES else []
    before = {view.run.id: view.latest.row.micro_batch for view in done.snapshot.runs if view.latest}
    silent = still | {id(action) for action in together}
    started = {action.run.id for action in starting}
    silent |= {id(a) for a in done.actions if isinstance(a, SetRun) and _says_nothing(a, started)}
    undone = {run_of(action) for action in done.actions if not _recorded(action, after)}
    silent |= {id(action) for action in done.actions if run_of(action) in undone}
    said = [
        _Line(names[run_of(action)], text, _key(action, text, names[run_of(action)]), _job(action, after))
        for action in done.actions
        if id(action) not in silent
        for text in _say(action, before, after, page)
    ]
    lines = [line for same in alike(said, lambda line: line.key) for line in _shared(same, page)]
    return [*lines, *_together(together, after, page)]


class _Line(NamedTuple):
    run: str
    text: str
    key: Hashable
    job: str = ""  # that the line is about, where like lines differ in it


def _key(action: Action, text: str, run: str) -> Hashable:
    """The same for actions of which the same is to be said: numbers of jobs and details of an error do not count."""
    if isinstance(action, Finish):
        verdict = action.verdict
        return Finish, action.attempt.generation, cause(verdict.kind, verdict.rule, verdict.reason, run)
    if isinstance(action, CancelJob):
        return CancelJob
    return type(action), gist(text.replace(run, "#"))


def _shared(same: Sequence[_Line], page: Page) -> list[str]:
    if len(same) <= _SAME_LINES:
        return [f"{page.paint(line.run, Style.BOLD)}: {line.text}" for line in same]
    who = page.paint(count(len(same), "run"), Style.BOLD)
    text = (
        same[0].text.replace(f"job {same[0].job}", _jobs([line.job for line in same])) if same[0].job else same[0].text
    )
    return [f"{who} ({some([line.run for line in same], 2)}): {text}"]


def _job(action: Action, after: Mapping[int, RunStatus]) -> str:
    if isinstance(action, CancelJob):
        return action.job_id
    return after[action.run.id].job_id or "" if isinstance(action, Submit) else ""


def _jobs(job_ids: Sequence[str]) -> str:
    arrays = list(dict.fromkeys(job_id.partition("_")[0] for job_id in job_ids))
    return f"{'jobs' if len(arrays) > 1 else 'job'} {some(arrays, 3)}"


def _together(actions: Sequence[Submit], after: Mapping[int, RunStatus], page: Page) -> list[str]:
    jobs = [job_id for action in actions if (job_id := after[action.run.id].job_id)]
    said = {f"submitted as {_jobs(jobs)}": len(jobs), "not submitted for now": len(actions) - len(jobs)}
    return [f"{page.paint(count(number, 'run'), Style.BOLD)}: {text}" for text, number in said.items() if number]


def _recorded(action: Action, after: Mapping[int, RunStatus]) -> bool:
    """Whether the store has an end; where the shared folder cannot be written, the next pass judges it again."""
    now = after[run_of(action)]
    return not isinstance(action, Finish) or now.generation > action.attempt.generation or bool(now.failure_class)


def _says_nothing(action: SetRun, started: Collection[int]) -> bool:
    return action.state is action.run.state or action.run.id in started


def _say(action: Action, before: Mapping[int, int | None], after: Mapping[int, RunStatus], page: Page) -> Iterator[str]:
    match action:
        case Submit():
            yield from _submission(action, before.get(action.run.id), after[action.run.id], page)
        case Finish():
            yield _ending(action)
        case SetRun():
            early = action.state is RunState.COMPLETED and after[action.run.id].early
            yield from _standing(action.state, action.reason, page, early=early)
        case SetAside():  # before it comes to that, it is a trouble
            if after[action.run_id].state is action.state:
                yield from _standing(action.state, after[action.run_id].reason, page)
        case MarkAttempt():
            yield _doing(action)
        case Adopt():
            named = action.attempt.job_id
            why = f"sbatch had named job {named}" if named else "its submission was never confirmed"
            yield f"job {action.job_id} adopted: {why}"
        case Revoke():
            yield f"attempt {action.attempt.generation} {'withdrawn: ' if action.wanted else ''}{action.why}"
        case CancelJob():
            yield f"cancelling job {action.job_id}"


def _waits(action: Submit, now: RunStatus) -> bool:
    # the job may be that of the attempt before
    return now.state not in SETTLED_RUN and (not now.job_id or now.generation < action.generation)


def _submission(action: Submit, micro_batch: int | None, now: RunStatus, page: Page) -> Iterator[str]:
    """Whether it was submitted: sbatch may have refused it, or timed out, or the run was held instead.

    `micro_batch` is that of the attempt before.
    """
    if now.state in SETTLED_RUN:
        yield from _standing(now.state, now.reason, page)
    elif _waits(action, now):
        yield "not submitted for now"
    else:
        again = action.generation > 1
        reduced = again and action.micro_batch not in (None, micro_batch)
        micro = f" at micro-batch {action.micro_batch}" if reduced else ""
        why = f": {clean(action.why)}" if again else ""
        yield f"submitted as job {now.job_id}{micro}, attempt {action.generation}{why}"


def _ending(action: Finish) -> str:
    verdict, generation = action.verdict, action.attempt.generation
    reason = f": {clean(verdict.reason)}" if verdict.reason else ""
    where = f" ({source(verdict.line.file, verdict.line.number)})" if verdict.line else ""
    return f"attempt {generation} ended, {words(verdict.kind)}{reason}{where}"


def _standing(state: RunState, reason: str, page: Page, *, early: bool = False) -> Iterator[str]:
    if state not in (RunState.QUEUED, RunState.RUNNING):
        why = f": {clean(reason)}" if reason else ""
        yield page.paint(f"{state}{' early' * early}", _STATE_STYLES.get(state, Style.PLAIN)) + why


def _doing(action: MarkAttempt) -> str:
    row = action.attempt
    job = f"job {row.job_id}, " if row.job_id else ""
    resumed = f" from step {action.start_step}" if action.start_step else ""
    return f"{job}attempt {row.generation} {action.state}{resumed}"


def trouble_lines(done: Pass) -> Sequence[str]:
    """What could not be asked or done for now."""
    return [f"{trouble.message}{f' ({trouble.hint})' if trouble.hint else ''}" for trouble in done.troubles]
