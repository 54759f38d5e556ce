"""The actions of a pass. Values only; `act` carries them out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dscampaign.db.records import AttemptRow, RunRow
from dscampaign.db.states import AttemptState, Cause, RunState
from dscampaign.orchestrator.errors import Unreachable
from dscampaign.orchestrator.failures.evidence import Ended
from dscampaign.orchestrator.failures.verdict import Verdict
from dscampaign.orchestrator.spec.model import RunConfig

from .snapshot import Absence, RunView

UNCLEAR = "unclear"  # key of an attempt's evidence: the message of an sbatch that did not confirm its submission
CLUSTER_FULL = "cluster-full"  # rule of an attempt without a job because the cluster took no more: it costs no budget


@dataclass(frozen=True, slots=True)
class Adopt:
    """Records the job of a submission that got no response, or named another job."""

    attempt: AttemptRow
    job_id: str
    submit_time_s: float | None


@dataclass(frozen=True, slots=True)
class MarkAttempt:
    """Records the present state of an active attempt."""

    attempt: AttemptRow
    state: AttemptState
    started_s: float | None = None
    start_step: int | None = None
    micro_batch: int | None = None
    accumulation: int | None = None


@dataclass(frozen=True, slots=True)
class Note:
    """Records an observation about an active attempt, once: as an event of this kind, and in its evidence."""

    attempt: AttemptRow
    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class NoteAbsence:
    """Records since when the executor has not listed the job of an attempt that began; None: it does again."""

    attempt: AttemptRow
    absence: Absence | None


@dataclass(frozen=True, slots=True)
class Resize:
    """Gives a queued attempt a smaller micro-batch."""

    attempt: AttemptRow
    micro_batch: int
    predicted_gb: float | None
    why: str


@dataclass(frozen=True, slots=True)
class Finish:
    """Records the end of an attempt; backoff counts from `seen_s`, by the store's clock."""

    attempt: AttemptRow
    state: AttemptState
    verdict: Verdict
    ended: Ended
    seen_s: float


@dataclass(frozen=True, slots=True)
class Revoke:
    """Takes the claim of an attempt that has not begun, so that no late job can run it."""

    attempt: AttemptRow
    wanted: bool = True  # whether its run still is
    returned: str = ""  # why it goes into another job, if it shared its job; "" if it has no job

    @property
    def why(self) -> str:
        """Why it is over. A job that had a number was in the queue."""
        if not self.wanted:
            return "cancelled before it began"
        if self.returned:
            return self.returned
        if job := self.attempt.job_id:
            return f"job {job} disappeared from the queue before it began"
        message = self._unclear.get("said")
        return "the submission led to no job" + (f": {message}" if message else "")

    @property
    def rule(self) -> str:
        """The rule of its verdict."""
        return CLUSTER_FULL if self._unclear.get("full") else ""

    @property
    def refused(self) -> str:
        """The objection of sbatch, "" for none: as the queue has no job, it was a refusal."""
        return str(self._unclear.get("said", "")) if self.wanted and self._unclear.get("objects") else ""

    @property
    def _unclear(self) -> Mapping[str, Any]:
        unclear: Mapping[str, Any] = self.attempt.evidence.get(UNCLEAR, {})
        return unclear


@dataclass(frozen=True, slots=True)
class SetRun:
    """Records the state of a run, and why: `reason` for people, `cause` for later decisions."""

    run: RunRow
    state: RunState
    reason: str
    cause: Cause | None = None
    not_before_s: float | None = None


@dataclass(frozen=True, slots=True)
class Submit:
    """Starts the next attempt of a run."""

    run: RunRow
    config: RunConfig  # the spec's, before `changes`, which make it fit into memory (see `config_changes`)
    generation: int
    micro_batch: int | None
    why: str
    mem_scale: float = 1.0  # factor on the memory of a node
    changes: tuple[str, ...] = ()
    predicted_gb: float | None = None  # the expected peak of a rank
    exclude: tuple[str, ...] = ()  # nodes that it must not run on
    # the attempt whose job, which still runs others, takes it; None for a job of its own
    joins: AttemptRow | None = None


@dataclass(frozen=True, slots=True)
class CancelJob:
    """Cancels an attempt's job; only its own part of a shared job, unless `whole`."""

    attempt: AttemptRow
    job_id: str
    whole: bool = False

    @property
    def closes(self) -> bool:
        """Whether the job goes on with other attempts."""
        return self.attempt.task is not None and not self.whole


@dataclass(frozen=True, slots=True)
class SetAside:
    """Leaves alone a run that cannot be judged, and ends it in this state."""

    run_id: int
    why: str
    state: RunState | None = None  # None while its job runs: then it is tried again
    finish: Finish | None = None  # the end of its newest attempt; None if none has just ended
    passing: bool = False  # an error of the file system is waited for as long as it lasts


Action = Adopt | MarkAttempt | Note | NoteAbsence | Finish | Revoke | SetRun | Submit | CancelJob | Resize | SetAside


def run_of(action: Action) -> int:
    """Return the id of an action's run."""
    if isinstance(action, SetAside):
        return action.run_id
    return action.run.id if isinstance(action, SetRun | Submit) else action.attempt.run_id


@dataclass
class Failures:
    """Failures of a pass."""

    troubles: list[Unreachable] = field(default_factory=list)  # errors that pass: the next pass tries again
    aside: list[SetAside] = field(default_factory=list)  # runs that cannot go on for reasons of their own

    def unaffected(self, actions: Sequence[Action]) -> list[Action]:
        """Return the actions on other runs."""
        runs = {each.run_id for each in self.aside}
        return [action for action in actions if run_of(action) not in runs]


def set_run(
    view: RunView, state: RunState, reason: str, cause: Cause | None = None, not_before_s: float | None = None
) -> Iterator[Action]:
    """Record the state of the run, if it has changed."""
    run = view.run
    if (run.state, run.reason, run.cause, run.not_before_s) != (state, reason, cause, not_before_s):
        yield SetRun(run, state, reason, cause, not_before_s)
