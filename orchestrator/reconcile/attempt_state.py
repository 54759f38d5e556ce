"""The state of a run's newest attempt: adopted, queued, running, ended. The first half of the policy, pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dscampaign.db.states import AttemptState, RunState
from dscampaign.orchestrator.executors.base import JobView
from dscampaign.orchestrator.executors.pending_reason import waits_because, waits_for_turn
from dscampaign.orchestrator.failures.policy import FailureClass
from dscampaign.orchestrator.failures.verdict import Verdict
from dscampaign.orchestrator.formatting import clock_time

from . import health, oom_policy
from .actions import Action, Adopt, CancelJob, Finish, MarkAttempt, Note, NoteAbsence, Resize, Revoke, SetAside, set_run
from .set_aside import unreadable
from .snapshot import Absence, AttemptView, RunView, Snapshot, unread_end

ROOT = 0  # a user's number
COMPLETED_WAIT_S = 180.0
"""Wait for the outcomes of a job that Slurm calls completed: NFS may hide new files for a minute, and to
repeat finished work costs more."""

# Kinds of notes, and keys of an attempt's evidence.
HANG = "hang"
PRUNED = "pruned"
UNWRITABLE = "unwritable"
_UNWANTED = "cancelled by you"
_REPLACED = "replaced while it waited: the spec now requests another job"

ELSEWHERE_S = 600.0
"""Silence after which another machine's process counts as lost. Should it still live, it sees the newer attempt and
ends."""

_ENDS = frozenset({HANG, PRUNED})  # notes for which the job is cancelled


def transitions(view: RunView, attempt: AttemptView, snapshot: Snapshot) -> Iterator[Action]:
    """Yield the changes of an attempt that is active in the store: its job, its progress, or its end."""
    job, row = attempt.job, attempt.row
    if not snapshot.listed:
        return
    if attempt.foreign:  # a job of its own can only find that out
        if job is None or job.terminal:
            if job or (snapshot.complete and snapshot.now_s > _deadline_s(attempt, snapshot)):
                verdict = Verdict(FailureClass.LOST, "another submission had begun in its place", rule="foreign")
                yield _unread(view, attempt, verdict, snapshot)
        elif job.job_id:
            yield CancelJob(row, job.job_id)
    elif attempt.rivals:
        if not snapshot.is_desired(view):
            yield from (CancelJob(row, job_id) for job_id in attempt.rivals)
    elif job is None:
        yield from _observe_absent(view, attempt, snapshot)
    else:
        yield from _observe(view, attempt, job, snapshot)


def _observe(view: RunView, attempt: AttemptView, job: JobView, snapshot: Snapshot) -> Iterator[Action]:
    row, share = attempt.row, attempt.share
    if job.job_id and (row.job_id is None or (attempt.claimed and job.job_id != row.job_id)):
        yield Adopt(row, job.job_id, job.submit_time_s)
    if not job.terminal:
        yield from _observe_live(view, attempt, job, snapshot)
        return
    # Slurm's clock is not the store's: an end may lie a little in the future; far in the future it means nothing
    ended_s = None if job.cancelled_in_queue else job.ended_s
    recent = ended_s is not None and abs(snapshot.now_s - ended_s) < _outcome_wait_s(view, attempt, snapshot)
    if attempt.complete or (share and share.returned) or not recent:
        yield _return(view, attempt, snapshot) or _finish(view, attempt, snapshot)


def follow_attempt(
    view: RunView, attempt: AttemptView, recorded: Sequence[Action], snapshot: Snapshot
) -> Iterator[Action]:
    """Let the run's state follow its attempt's."""
    marked = next((action.state for action in recorded if isinstance(action, MarkAttempt)), attempt.row.state)
    running, job = marked is AttemptState.RUNNING, attempt.job
    state = RunState.RUNNING if running else RunState.QUEUED
    if job is None:
        waits = snapshot.listed and not any(isinstance(action, Revoke) for action in recorded)
        yield from set_run(view, state, _unknown(attempt, snapshot) if waits else "")
    elif job.state == "COMPLETED":
        until = clock_time((job.ended_s or snapshot.now_s) + _outcome_wait_s(view, attempt, snapshot))
        reason = "the record of its end is not visible in the shared folder yet"
        yield from set_run(view, state, f"job {job.job_id} is completed; {reason}: waiting until {until}")
    elif not snapshot.is_desired(view):
        yield from set_run(view, state, f"job {job.job_id} has not ended yet")
    elif job.pending and attempt.share and attempt.share.runs:
        yield from set_run(view, state, *waits_for_turn(job.job_id, attempt.row.position))
    else:
        yield from set_run(view, state, *waits_because("" if running else job.reason))


def _unknown(attempt: AttemptView, snapshot: Snapshot) -> str:
    row = attempt.row
    place = "this machine" if row.executor == "local" else "Slurm"
    if attempt.rivals:
        jobs = " and ".join(attempt.rivals)
        return f"{place} has jobs {jobs} for this run; waiting until its claim distinguishes them"
    job = f"job {row.job_id}" if row.job_id else "the job of this run"
    if not (snapshot.complete or attempt.complete or _elsewhere(attempt, snapshot)):
        return f"squeue does not show {job}, and sacct does not answer: waiting for it"
    return f"{place} does not know {job}; waiting for it until {clock_time(_deadline_s(attempt, snapshot))}"


def _observe_live(view: RunView, attempt: AttemptView, job: JobView, snapshot: Snapshot) -> Iterator[Action]:
    row, notes = attempt.row, [] if job.pending else list(_notice(view, attempt))
    if Absence.of(row):
        yield NoteAbsence(row, None)
    if mark := _mark(attempt, AttemptState.QUEUED if job.pending else AttemptState.RUNNING):
        yield mark
    yield from notes
    if job.pending and not attempt.claimed and row.memory_key in snapshot.ledgers:
        fit = oom_policy.starting_fit(view, row, snapshot.ledgers)
        if fit.micro_batch and row.micro_batch and fit.micro_batch < row.micro_batch:
            yield Resize(row, fit.micro_batch, fit.predicted_gb, fit.why)
    ends = not _ENDS.isdisjoint({*row.evidence, *(note.kind for note in notes)})
    if job.job_id and (ends or _is_replaced(view, attempt) or not snapshot.is_desired(view)):
        yield _cancel(view, attempt, job, snapshot)


def _cancel(view: RunView, attempt: AttemptView, job: JobView, snapshot: Snapshot) -> CancelJob | Revoke:
    row, share = attempt.row, attempt.share
    if share is None or attempt.claimed or not job.pending:
        return CancelJob(row, job.job_id)
    if not share.runs and not snapshot.is_wanted_by_others(row):
        return CancelJob(row, job.job_id, whole=True)
    return Revoke(row, wanted=snapshot.is_desired(view), returned=_REPLACED)


def _return(view: RunView, attempt: AttemptView, snapshot: Snapshot) -> Revoke | None:
    """Give an attempt whose job is over before its turn to another job; None if its end is to be judged.

    A job that began none of its attempts is judged by the first.
    """
    row, job, share = attempt.row, attempt.job, attempt.share
    if share is None or attempt.claimed or attempt.outcomes or attempt.unreadable:
        return None
    if not share.returned:
        by_user = job is not None and job.state == "CANCELLED" and not _not_the_user(attempt, snapshot.user)
        if by_user or (job is not None and job.never_began) or not (share.began or row.position):
            return None
    reason = share.returned or f"job {row.job_id} ended before its turn"
    return Revoke(row, wanted=snapshot.is_desired(view), returned=reason)


def _is_replaced(view: RunView, attempt: AttemptView) -> bool:
    """Return whether its job waits, or never started, and the spec has since asked for another."""
    job, older = attempt.job, attempt.row.retry_epoch < view.run.retry_epoch
    return job is not None and older and (job.cancelled_in_queue or job.pending)


def _notice(view: RunView, attempt: AttemptView) -> Iterator[Note]:
    row, retry = attempt.row, view.retry
    if view.hopeless and PRUNED not in row.evidence:
        yield Note(row, PRUNED, view.hopeless)
    limits = {"factor": retry.hang_factor, "floor_s": float(retry.hang_min_s)}
    hang = health.hang(attempt.heartbeats, view.p99_step_s, view.steps_known, **limits)
    if hang and HANG not in row.evidence:
        yield Note(row, HANG, hang)


def _observe_absent(view: RunView, attempt: AttemptView, snapshot: Snapshot) -> Iterator[Action]:
    row, has_begun, wanted = attempt.row, attempt.claimed or attempt.complete, snapshot.is_desired(view)
    seeks = snapshot.complete or _elsewhere(attempt, snapshot)
    if attempt.complete and not attempt.interrupted:
        yield _finish(view, attempt, snapshot)  # Slurm has forgotten the job, but every node recorded its end
    elif not has_begun and row.job_id is None:
        if seeks and snapshot.now_s > _deadline_s(attempt, snapshot):
            yield Revoke(row, wanted=wanted)
    elif not has_begun and not wanted:
        yield Revoke(row, wanted=False)  # not cancelled: its number may be another job's by now
    elif seeks or attempt.complete:
        absence = _absence(attempt, snapshot)
        if snapshot.now_s >= _deadline_s(attempt, snapshot):
            yield _finish(view, attempt, snapshot) if has_begun else _return(view, attempt, snapshot) or Revoke(row)
        elif absence != Absence.of(row):
            yield NoteAbsence(row, absence)


def _elsewhere(attempt: AttemptView, snapshot: Snapshot) -> bool:
    return attempt.row.executor == "local" and not snapshot.complete and not attempt.complete


def _absence(attempt: AttemptView, snapshot: Snapshot) -> Absence:
    """A node's clock may be days off: only a change of its heartbeats means anything."""
    before, now = Absence.of(attempt.row), Absence(snapshot.now_s, attempt.signs, snapshot.complete)
    if before and before.since_s <= now.since_s and replace(now, since_s=before.since_s) == before:
        return before
    return now


def _deadline_s(attempt: AttemptView, snapshot: Snapshot) -> float:
    """Return until when the job of an attempt may be absent, by the store's clock."""
    row, beat_s = attempt.row, attempt.row.heartbeat_s or 0.0  # of its submitter, then of its agent
    told_s = beat_s or row.created_s
    beat_s, told_s = (at_s if at_s <= snapshot.now_s else 0.0 for at_s in (beat_s, told_s))  # the clock was set back
    elsewhere_s = ELSEWHERE_S if _elsewhere(attempt, snapshot) else 0.0
    if row.job_id is None and not attempt.claimed:
        return told_s + max(snapshot.intent_grace_s, elsewhere_s)
    # who interrupted an attempt the accounting may still say; where it responds, that takes it moments
    soon = attempt.complete and snapshot.complete
    waits_s = snapshot.outcome_grace_s if soon else max(snapshot.lost_grace_s, elsewhere_s)
    return max(_absence(attempt, snapshot).since_s, beat_s) + waits_s


def _outcome_wait_s(view: RunView, attempt: AttemptView, snapshot: Snapshot) -> float:
    done = attempt.job is not None and attempt.job.state == "COMPLETED"
    target, last_step = view.run.target_step, attempt.row.last_step or 0
    unproved = done and (target is None or last_step < target) and not attempt.unreadable
    return max(COMPLETED_WAIT_S, snapshot.outcome_grace_s) if unproved else snapshot.outcome_grace_s


def _finish(view: RunView, attempt: AttemptView, snapshot: Snapshot) -> Finish | SetAside:
    row, start, replaced = attempt.row, attempt.start, _is_replaced(view, attempt)
    left_queue = attempt.job is not None and attempt.job.cancelled_in_queue
    signs = (attempt.claimed, start, attempt.outcomes, attempt.unreadable, row.last_step)
    if left_queue and not any(signs) and (replaced or not snapshot.is_desired(view)):
        verdict = Verdict(FailureClass.CANCELLED, _REPLACED if replaced else _UNWANTED)
        return _unread(view, attempt, verdict, snapshot)
    # imported here: its patterns take long to compile, and few passes need them
    from dscampaign.orchestrator.failures.classify import classify

    ended = view.ended(attempt)
    verdict = classify(ended)
    by_slurm = ended.job is not None and ended.job.state == "CANCELLED"
    was_ended = by_slurm or not ended.outcomes or attempt.interrupted  # from outside
    if not snapshot.is_desired(view) and verdict.kind is not FailureClass.COMPLETED and was_ended:
        verdict = Verdict(FailureClass.CANCELLED, _UNWANTED)
    elif HANG in row.evidence and verdict.kind.policy.may_hide_hang:
        verdict = Verdict(FailureClass.HANG, str(row.evidence[HANG]), rule="no-step")
    elif PRUNED in row.evidence and verdict.kind.policy.run in (None, RunState.CANCELLED):
        verdict = Verdict(FailureClass.PRUNED, str(row.evidence[PRUNED]), rule="prune")
    elif verdict.kind is FailureClass.CRASH and not (ended.outcomes or ended.set_up):
        verdict = _without_a_trace(attempt) or verdict
    elif verdict.kind is FailureClass.CANCELLED and (who := _not_the_user(attempt, snapshot.user)):
        # who takes a job out of the queue wants it not to run; one that had nodes Slurm itself may have ended
        verdict = Verdict(FailureClass.CANCELLED if left_queue else FailureClass.LOST, who, rule="slurm-state")
    if start and start.micro_batch not in (None, row.micro_batch):  # a `Resize` came too late
        row = replace(row, micro_batch=start.micro_batch, accumulation=start.accumulation)
    finish = Finish(row, verdict.kind.policy.attempt, verdict, ended, snapshot.now_s)
    unproved = verdict.kind in (FailureClass.CRASH, FailureClass.LOST) and not (ended.outcomes and verdict.line)
    unproved |= verdict.kind is FailureClass.COMPLETED  # by the other nodes' records, or Slurm's word
    if attempt.unreadable and unproved:
        reason = "; ".join([verdict.reason, *attempt.unreadable])  # what is not known could be there
        return SetAside(view.run.id, reason, RunState.HELD, replace(finish, verdict=unreadable(reason)))
    return finish


def _unread(view: RunView, attempt: AttemptView, verdict: Verdict, snapshot: Snapshot) -> Finish:
    ended = unread_end(view.run, attempt.row, attempt.job)
    return Finish(attempt.row, verdict.kind.policy.attempt, verdict, ended, snapshot.now_s)


def _without_a_trace(attempt: AttemptView) -> Verdict | None:
    if cause := attempt.row.evidence.get(UNWRITABLE):  # when the end was seen: its agents could not record it
        reason = f"ended without a record, which could not be written: {cause}"
        return Verdict(FailureClass.STORAGE, reason, "free space there", rule=UNWRITABLE)
    if attempt.job is None or (attempt.job.state == "GONE" and attempt.claimed and attempt.row.executor == "slurm"):
        return Verdict(FailureClass.LOST, "the job disappeared without a record of its end")
    never = attempt.job.state == "GONE" and not attempt.claimed
    return Verdict(FailureClass.LOST, "never started") if never else None


def _not_the_user(attempt: AttemptView, user: int) -> str:
    # An administrator cancels jobs, and so does Slurm itself, as root, if slurmd cannot launch a job or a controller
    # that has lost its state reuses its number.
    job = attempt.job
    if job is None or job.cancelled_by is None:
        return ""
    if job.cancelled_by != user:
        who = "root" if job.cancelled_by == ROOT else f"user {job.cancelled_by}"
        return f"the job was cancelled by {who}, not by you"
    began = attempt.claimed or attempt.outcomes or (attempt.share and attempt.share.began)
    return "" if began or job.cancelled_in_queue or user != ROOT else "Slurm ended the job before an agent had begun"


def _mark(attempt: AttemptView, state: AttemptState) -> MarkAttempt | None:
    row, start = attempt.row, attempt.start
    if start is None:
        started_s = attempt.job.started_s if attempt.job else None
        return None if state is row.state else MarkAttempt(row, state, started_s)
    resumed = start.start_step is not None and row.start_step != start.start_step
    resized = start.micro_batch is not None and row.micro_batch != start.micro_batch
    sizes = start.start_step, start.micro_batch, start.accumulation
    return MarkAttempt(row, state, start.started_s, *sizes) if state is not row.state or resumed or resized else None
