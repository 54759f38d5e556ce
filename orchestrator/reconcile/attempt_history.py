"""The ended attempts of a run, as the retry policy sees them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dscampaign.db.records import AttemptRow, RunRow
from dscampaign.jobs.agent.evidence import LogLine
from dscampaign.orchestrator.failures.policy import FailureClass
from dscampaign.orchestrator.failures.verdict import Verdict
from dscampaign.orchestrator.memory import config_changes

from .actions import Finish
from .snapshot import RunView

NO_PROGRESS_LIMIT = 3
SAME_STEP = 10
"""Steps by which two ends of the same cause may differ: the reported step is seldom the step that failed."""


@dataclass(frozen=True, kw_only=True)
class EndedAttempt(Verdict):
    """An attempt that is over, with its verdict.

    Attributes:
        ended_s: when its end was seen, by the store's clock.
        begun: whether a rank had started.
    """

    row: AttemptRow
    start_step: int
    last_step: int | None
    ended_s: float
    begun: bool = True

    @property
    def progressed(self) -> bool:
        """Whether it made at least one step."""
        return self.last_step is not None and self.last_step > self.start_step

    @property
    def changes(self) -> tuple[str, ...]:
        """The changes of its configuration, see `config_changes`."""
        return config_changes.parse(self.row.changes)

    @property
    def with_hint(self) -> str:
        """Its reason and its hint."""
        return f"{self.reason} · {self.hint}" if self.hint else self.reason


def ended_attempt(row: AttemptRow) -> EndedAttempt:
    """Return an attempt that the store records as ended."""
    told = row.evidence
    return EndedAttempt(
        row=row,
        kind=FailureClass(row.failure_class or FailureClass.CRASH),
        **{name: str(told.get(name, "")) for name in ("reason", "hint", "rule", "host", "place")},
        line=LogLine(**told["line"]) if told.get("line") else None,
        start_step=row.start_step or 0,
        last_step=row.last_step,
        ended_s=float(told.get("seen_s") or row.ended_s or row.created_s),
        begun=bool(told.get("begun", True)),
    )


def ending_attempt(finish: Finish) -> EndedAttempt:
    """Return an attempt whose end was seen in this pass."""
    ended = finish.ended
    return EndedAttempt(
        row=finish.attempt,
        **vars(finish.verdict),
        start_step=ended.start_step,
        last_step=ended.last_step,
        ended_s=finish.seen_s,
        begun=ended.begun,
    )


def attempt_history(ended: Sequence[EndedAttempt], run: RunRow) -> list[EndedAttempt]:
    """Return the ended attempts that count for the next one, oldest first, up to the first success.

    A store that was restored to an earlier state may learn of a success and then of an attempt that had followed it.
    """
    counted = [attempt for attempt in ended if _counts(attempt, run)]
    successes = (place for place, attempt in enumerate(counted) if attempt.kind is FailureClass.COMPLETED)
    return counted[: next(successes, len(counted)) + 1]


def _counts(attempt: EndedAttempt, run: RunRow) -> bool:
    """Return whether it is of the present configuration and, unless it succeeded, of the time since `campaign retry`.

    A success counts no more once the built-in training has more steps.
    """
    success = attempt.kind is FailureClass.COMPLETED and not has_more_steps(attempt, run)
    fresh = attempt.row.retry_epoch == run.retry_epoch or success
    return fresh and attempt.row.config_hash == run.config_hash


def has_more_steps(attempt: EndedAttempt, run: RunRow) -> bool:
    """Return whether the built-in training succeeded with fewer steps than the run has now."""
    made, wanted = attempt.last_step, run.target_step
    if made is None or wanted is None or run.config.get("command"):
        return False
    return attempt.kind is FailureClass.COMPLETED and made < wanted


def latest_of_configuration(view: RunView) -> AttemptRow | None:
    """Return the newest ended attempt of the present configuration, also from before a `campaign retry`."""
    same = [a.row for a in view.attempts if not a.active and a.row.config_hash == view.run.config_hash]
    return same[-1] if same else None


def count(history: Sequence[EndedAttempt], *kinds: FailureClass) -> int:
    """Return how many attempts ended in one of these ways."""
    return sum(attempt.kind in kinds for attempt in history)


def same_end_before(history: Sequence[EndedAttempt]) -> EndedAttempt | None:
    """Return the earlier attempt that the same error ended at the same place and step: the second witness of a mistake.

    A node that is suspected is no witness against the script: it takes another.
    """
    last = history[-1]
    if not last.place:
        return None
    return next((end for end in history[:-1] if _alike(end, last)), None)


def _alike(end: EndedAttempt, last: EndedAttempt) -> bool:
    suspected = FailureClass.NODE in (end.kind, last.kind)
    near = abs(_step(end) - _step(last)) <= SAME_STEP
    return end.place == last.place and near and not (suspected and end.host == last.host)


def _step(end: EndedAttempt) -> int:
    return max(end.start_step, end.last_step or 0)


def makes_no_progress(view: RunView, history: Sequence[EndedAttempt]) -> bool:
    """Return whether three attempts that trained, or that no budget bounds, all began where the next would begin.

    A script with checkpoints of its own reveals where it began only by its first step.
    """
    own_checkpoints = bool(view.run.config.get("command"))
    tried = [end for end in history if end.progressed or end.kind.policy.must_save]
    known = [end for end in tried if not own_checkpoints or end.last_step is not None][-NO_PROGRESS_LIMIT:]
    alike = len(known) == NO_PROGRESS_LIMIT and len({end.start_step for end in known}) == 1
    stuck = alike and view.checkpoint_step <= known[0].start_step
    newest = [end.last_step for end in tried[-NO_PROGRESS_LIMIT:]]
    return stuck or (own_checkpoints and newest == [None] * NO_PROGRESS_LIMIT)
