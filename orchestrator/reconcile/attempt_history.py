"""The ended attempts of a run, as the retry policy sees them, and their evidence about nodes. Pure.

A failure is a strike against its node, for all runs of the campaign. A certain hardware fault excludes the node at
once, a suspected fault the second time. Strikes expire, and at most a quarter of the cluster is excluded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from dscampaign.db.records import AttemptRow, RunRow
from dscampaign.db.states import Stage
from dscampaign.jobs.agent.evidence import LogLine
from dscampaign.orchestrator.failures.exits import LAUNCH, NOT_TRUSTED, SET_UP
from dscampaign.orchestrator.failures.policy import FailureClass
from dscampaign.orchestrator.failures.verdict import Verdict

from .actions import Finish
from .snapshot import RunView

NO_PROGRESS_LIMIT = 3
SAME_STEP = 10  # steps by which two ends of the same cause may differ: the reported step is seldom the step that failed


@dataclass(frozen=True, kw_only=True)
class EndedAttempt(Verdict):
    """An attempt that is over, with its verdict."""

    row: AttemptRow
    start_step: int
    last_step: int | None
    ended_s: float  # when its end was seen, by the store's clock
    begun: bool = True  # whether a rank had started

    @property
    def progressed(self) -> bool:
        """Whether it made at least one step."""
        return self.last_step is not None and self.last_step > self.start_step

    @property
    def changes(self) -> tuple[str, ...]:
        """The changes of its configuration, see `config_changes`."""
        return tuple(self.row.changes.split())

    @property
    def with_hint(self) -> str:
        """Its reason and its hint."""
        return f"{self.reason} · {self.hint}" if self.hint else self.reason


def ended_attempt(row: AttemptRow) -> EndedAttempt:
    """Return an attempt that the store records as ended."""
    evidence = row.evidence
    return EndedAttempt(
        row=row,
        kind=FailureClass(row.failure_class or FailureClass.CRASH),
        reason=str(evidence.get("reason", "")),
        hint=str(evidence.get("hint", "")),
        rule=str(evidence.get("rule", "")),
        host=str(evidence.get("host", "")),
        place=str(evidence.get("place", "")),
        line=LogLine(**evidence["line"]) if evidence.get("line") else None,
        start_step=row.start_step or 0,
        last_step=row.last_step,
        ended_s=float(evidence.get("seen_s") or row.ended_s or row.created_s),
        begun=bool(evidence.get("begun", True)),
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

    A restored store may learn of a success, and then of an attempt that had followed it.
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
    return fresh and attempt.kind is not FailureClass.RETURNED and attempt.row.config_hash == run.config_hash


def has_more_steps(attempt: EndedAttempt, run: RunRow) -> bool:
    """Return whether the built-in training, or a trial of a search, succeeded with fewer steps than the run has now."""
    done, wanted = max(attempt.start_step, attempt.last_step or 0), run.target_step
    known = run.stage is Stage.TRIAL and attempt.row.retry_epoch < run.retry_epoch
    if not done or wanted is None or (run.config.get("command") and not known):
        return False
    return attempt.kind is FailureClass.COMPLETED and done < wanted


def latest_of_configuration(view: RunView) -> AttemptRow | None:
    """Return the newest ended attempt of the present configuration, also from before a `campaign retry`."""
    same = [a.row for a in view.attempts if not a.active and a.row.config_hash == view.run.config_hash]
    return same[-1] if same else None


def count(history: Sequence[EndedAttempt], *kinds: FailureClass) -> int:
    """Return how many attempts ended in one of these ways."""
    return sum(attempt.kind in kinds for attempt in history)


def same_end_before(history: Sequence[EndedAttempt]) -> EndedAttempt | None:
    """Return the earlier attempt of another node that the same error ended at the same place and step, if any."""
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
    recent = [end for end in tried if not own_checkpoints or end.last_step is not None][-NO_PROGRESS_LIMIT:]
    alike = len(recent) == NO_PROGRESS_LIMIT and len({end.start_step for end in recent}) == 1
    stuck = alike and view.checkpoint_step <= recent[0].start_step
    newest = [end.last_step for end in tried[-NO_PROGRESS_LIMIT:]]
    return stuck or (own_checkpoints and newest == [None] * NO_PROGRESS_LIMIT)


# -- nodes: the quarantine of bad ones ------------------------------------------------------------------------------


MAX_EXCLUDED_SHARE: Final = 0.25  # of the nodes of the cluster
ENVIRONMENT_RULES: Final = frozenset({"device-ordinal"})  # errors that all nodes of a healthy cluster share
REFUSALS: Final = frozenset({NOT_TRUSTED})  # rules by which the agent itself refuses to run, for good


def excluded(ended: Iterable[EndedAttempt], now_s: float, exclude_h: float, nodes: int | None) -> tuple[str, ...]:
    """Return the names of the nodes to exclude now, given the ended attempts of all runs.

    A strike counts for at most `exclude_h` hours; one that lies ahead, as the clock was set back, does not. `nodes` is
    the size of the cluster; if unknown (None), at most one node is excluded.
    """
    attempts = list(ended)
    shown_on: dict[str, set[str]] = defaultdict(set)
    for attempt in attempts:
        shown_on[attempt.place].add(attempt.host)
    weights: dict[str, float] = defaultdict(float)
    newest: dict[str, float] = defaultdict(float)
    for attempt in attempts:
        strike = attempt.kind.policy.strike
        if attempt.place and len(shown_on[attempt.place]) > 1:
            continue  # what several nodes show is no node's fault
        if strike and attempt.host and 0 <= now_s - attempt.ended_s < min(exclude_h, strike.hours) * 3600:
            weights[attempt.host] += strike.weight
            newest[attempt.host] = max(newest[attempt.host], attempt.ended_s)
    bad = [host for host, weight in weights.items() if weight >= 1.0]
    worst_first = sorted(bad, key=lambda host: (-weights[host], -newest[host], host))
    room = 1 if nodes is None else int(nodes * MAX_EXCLUDED_SHARE)
    return tuple(sorted(worst_first[:room]))


@dataclass(frozen=True)
class NodeEvidence:
    """Evidence of all ended attempts of a campaign about its nodes."""

    shown_by: Mapping[str, frozenset[str]]  # by rule, the nodes with such an error of the environment
    shown_here: frozenset[str]  # the nodes on which one of these attempts has made a step
    # reads the nodes on which any attempt of the campaign has, also of those not looked at
    shown_elsewhere: Callable[[], frozenset[str]] = frozenset
    # reads the interpreters (`python:`) with which any attempt has made a step
    trained_with: Callable[[], frozenset[str]] = frozenset

    @property
    def trained_on(self) -> frozenset[str]:
        """The nodes on which a run has made a step."""
        return self.shown_here | self.shown_elsewhere()

    @classmethod
    def of(
        cls,
        ended: Sequence[EndedAttempt],
        elsewhere: Callable[[], frozenset[str]] = frozenset,
        trained_with: Callable[[], frozenset[str]] = frozenset,
    ) -> NodeEvidence:
        """Return the evidence of these attempts."""
        shown_by = {rule: frozenset(end.host for end in ended if end.rule == rule) for rule in ENVIRONMENT_RULES}
        trained = (node for end in ended if end.progressed for node in end.row.evidence.get("nodes", ()))
        return cls(shown_by, frozenset(str(node["host"]) for node in trained), cache(elsewhere), cache(trained_with))

    def reattribute(self, end: EndedAttempt, python: str | None = None) -> EndedAttempt:
        """Return the attempt, classified in the light of all others of the campaign.

        An error of the environment that occurred on a node alone, while runs have trained on others but never on that
        one, is the node's fault: the run resumes elsewhere and the node is excluded, as with a broken GPU. What fails
        before a rank has started, with an interpreter (`python`, None for not to ask) that has trained, is the
        machine's fault, too, and passes. Once others have trained, set-up lines that fail and jobs that Slurm cannot
        start prove nothing against the spec.
        """
        if end.rule in (LAUNCH, SET_UP) and self.trained_on:
            return replace(end, place="")
        if end.kind is not FailureClass.DETERMINISTIC:
            return end
        if not (python is None or end.begun or end.rule in REFUSALS) and python in self.trained_with():
            return replace(end, kind=FailureClass.NODE, host="", place="")
        if end.rule not in ENVIRONMENT_RULES or not end.host:
            return end
        alone = self.shown_by[end.rule] == {end.host}
        if alone and (trained := self.trained_on) and end.host not in trained:
            return replace(end, kind=FailureClass.GPU, reason=f"{end.reason} (on {end.host} alone)", hint="")
        return end
