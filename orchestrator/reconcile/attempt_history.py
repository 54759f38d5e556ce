"""The ended attempts of a run, as the retry policy sees them, and their evidence about nodes. Pure.

A failure is a strike against its node, for all runs of the campaign. A certain hardware fault excludes the node at
once, a suspected fault the second time. Strikes expire, and at most a quarter of the cluster is excluded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

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
    def step(self) -> int:
        """The highest step that it is known to have reached."""
        return max(self.start_step, self.last_step or 0)

    @property
    def with_hint(self) -> str:
        """Its reason and its hint."""
        return f"{self.reason} · {self.hint}" if self.hint else self.reason


def ended_attempt(row: AttemptRow) -> EndedAttempt:
    """Return an attempt that the store records as ended."""
    evidence: defaultdict[str, Any] = defaultdict(str, row.evidence)
    return EndedAttempt(
        row=row,
        kind=FailureClass(row.failure_class or FailureClass.CRASH),
        reason=str(evidence["reason"]),
        hint=str(evidence["hint"]),
        rule=str(evidence["rule"]),
        host=str(evidence["host"]),
        place=str(evidence["place"]),
        line=LogLine(**evidence["line"]) if evidence["line"] else None,
        start_step=row.start_step or 0,
        last_step=row.last_step,
        ended_s=float(evidence["seen_s"] or row.ended_s or row.created_s),
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

    They are of the present configuration and, but for a success, of the time since `campaign retry`. A success counts
    no more once the built-in training has more steps. A restored store may learn of a success, and then of an attempt
    that had followed it.
    """
    counted = []
    for attempt in ended:
        success = attempt.kind is FailureClass.COMPLETED and not has_more_steps(attempt, run)
        fresh = (success or attempt.row.retry_epoch == run.retry_epoch) and attempt.kind is not FailureClass.RETURNED
        counted += [attempt] if fresh and attempt.row.config_hash == run.config_hash else []
    successes = (place for place, attempt in enumerate(counted) if attempt.kind is FailureClass.COMPLETED)
    return counted[: next(successes, len(counted)) + 1]


def has_more_steps(attempt: EndedAttempt, run: RunRow) -> bool:
    """Return whether the built-in training, or a trial of a search, succeeded with fewer steps than the run has now."""
    done, wanted = attempt.step, run.target_step
    known = run.stage is Stage.TRIAL and attempt.row.retry_epoch < run.retry_epoch
    if not done or wanted is None or (run.config.get("command") and not known):
        return False
    return attempt.kind is FailureClass.COMPLETED and done < wanted


def latest_of_configuration(view: RunView) -> AttemptRow | None:
    """Return the newest ended attempt of the present configuration, also from before a `campaign retry`."""
    same = [a.row for a in view.attempts if not a.active and a.row.config_hash == view.run.config_hash]
    return same[-1] if same else None


def count(history: Sequence[EndedAttempt], *kinds: FailureClass) -> int:
    """Return how many attempts ended in these ways."""
    return sum(attempt.kind in kinds for attempt in history)


def same_end_before(history: Sequence[EndedAttempt]) -> EndedAttempt | None:
    """Return the earlier attempt of another node that the same error ended at the same place and step, if any."""
    last = history[-1]
    for end in history[:-1]:
        elsewhere = FailureClass.NODE not in (end.kind, last.kind) or end.host != last.host
        if last.place and end.place == last.place and abs(end.step - last.step) <= SAME_STEP and elsewhere:
            return end
    return None


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
Names = Callable[[], frozenset[str]]


def excluded(ended: Collection[EndedAttempt], now_s: float, exclude_h: float, nodes: int | None) -> tuple[str, ...]:
    """Return the names of the nodes to exclude now, given the ended attempts of all runs.

    A strike counts for at most `exclude_h` hours; one that lies ahead, as the clock was set back, does not. `nodes` is
    the size of the cluster; if unknown (None), at most one node is excluded.
    """
    shown_on: dict[str, set[str]] = defaultdict(set)
    for attempt in ended:
        shown_on[attempt.place].add(attempt.host)
    weights, newest = defaultdict[str, float](float), defaultdict[str, float](float)
    for attempt in ended:
        strike, host = attempt.kind.policy.strike, attempt.host
        everywhere = bool(attempt.place) and len(shown_on[attempt.place]) > 1  # what several nodes show is no node's
        if strike and host and not everywhere and 0 <= now_s - attempt.ended_s < min(exclude_h, strike.hours) * 3600:
            weights[host] += strike.weight
            newest[host] = max(newest[host], attempt.ended_s)
    bad = [host for host, weight in weights.items() if weight >= 1.0]
    worst_first = sorted(bad, key=lambda host: (-weights[host], -newest[host], host))
    room = 1 if nodes is None else int(nodes * MAX_EXCLUDED_SHARE)
    return tuple(sorted(worst_first[:room]))


class NodeEvidence:
    """Evidence of all ended attempts of a campaign about its nodes.

    `hosts` reads the nodes on which any attempt of the campaign has made a step; `pythons` reads the
    interpreters (`python:`) with which one has.
    """

    def __init__(self, ended: Sequence[EndedAttempt], hosts: Names, pythons: Names) -> None:
        self._shown_by = {rule: {end.host for end in ended if end.rule == rule} for rule in ENVIRONMENT_RULES}
        trained = (node for end in ended if end.progressed for node in end.row.evidence.get("nodes", ()))
        self._trained_here = frozenset(str(node["host"]) for node in trained)
        self._hosts, self._trained_with = cache(hosts), cache(pythons)

    @property
    def _trained_on(self) -> frozenset[str]:
        return self._trained_here | self._hosts()

    def reattribute(self, end: EndedAttempt, python: str | None = None) -> EndedAttempt:
        """Return the attempt, classified in the light of all others of the campaign.

        An error of the environment that occurred on a node alone, while runs have trained on others but never on that
        one, is the node's fault: the run resumes elsewhere and the node is excluded, as with a broken GPU. What fails
        before a rank has started, with an interpreter (`python`, None for not to ask) that has trained, is the
        machine's fault, too, and passes. Once others have trained, set-up lines that fail and jobs that Slurm cannot
        start prove nothing against the spec.
        """
        if end.rule in (LAUNCH, SET_UP) and self._trained_on:
            return replace(end, place="")
        if end.kind is not FailureClass.DETERMINISTIC:
            return end
        if not (python is None or end.begun or end.rule == NOT_TRUSTED) and python in self._trained_with():
            return replace(end, kind=FailureClass.NODE, host="", place="")
        if end.rule not in ENVIRONMENT_RULES or not end.host:
            return end
        alone = self._shown_by[end.rule] == {end.host}
        if alone and (trained := self._trained_on) and end.host not in trained:
            return replace(end, kind=FailureClass.GPU, reason=f"{end.reason} (on {end.host} alone)", hint="")
        return end
