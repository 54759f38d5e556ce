"""The nodes that the campaign excludes for now: the quarantine of bad nodes. Pure.

A failure counts as a strike against its node, for all runs of the campaign: a certain hardware fault excludes the node
at once, a suspected one the second time. Strikes expire, and at most a quarter of the cluster is excluded: beyond that
the nodes are not to blame.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from dscampaign.orchestrator.failures.exits import LAUNCH, NOT_TRUSTED, SET_UP
from dscampaign.orchestrator.failures.policy import FailureClass

from .attempt_history import EndedAttempt

MAX_EXCLUDED_SHARE: Final = 0.25
"""Of the nodes of the cluster."""

ENVIRONMENT_RULES: Final = frozenset({"device-ordinal"})
"""Errors that all nodes of a healthy cluster share."""

REFUSALS: Final = frozenset({NOT_TRUSTED})
"""Rules by which the agent itself refuses to run, for good."""


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
    """Evidence of all ended attempts of a campaign about its nodes.

    Attributes:
        shown_by: by rule, the nodes with such an error of the environment.
        shown_here: the nodes on which one of these attempts has made a step.
        shown_elsewhere: reads the nodes on which any attempt of the campaign has, also of those not looked at.
        trained_with: reads the interpreters (`python:`) with which any attempt has made a step.
    """

    shown_by: Mapping[str, frozenset[str]]
    shown_here: frozenset[str]
    shown_elsewhere: Callable[[], frozenset[str]] = frozenset
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
        if python is not None and not end.begun and self._is_away(end) and python in self.trained_with():
            return replace(end, kind=FailureClass.NODE, host="", place="")
        if end.kind is not FailureClass.DETERMINISTIC or end.rule not in ENVIRONMENT_RULES or not end.host:
            return end
        alone = self.shown_by[end.rule] == {end.host}
        if alone and (trained := self.trained_on) and end.host not in trained:
            return replace(end, kind=FailureClass.GPU, reason=f"{end.reason} (on {end.host} alone)", hint="")
        return end

    def _is_away(self, end: EndedAttempt) -> bool:
        return end.kind is FailureClass.DETERMINISTIC and end.rule not in REFUSALS
