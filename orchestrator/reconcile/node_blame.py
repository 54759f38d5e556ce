"""Whose fault an error is that looks like the user's: of the environment, or of one node that has another one. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ..failures.policy import FailureClass
from .attempt_history import EndedAttempt

ENVIRONMENT: Final = frozenset({"no-mpi", "device-ordinal"})
"""Rules about what is alike on all nodes of a sound cluster, whatever a run does."""


@dataclass(frozen=True)
class Campaign:
    """What all ended attempts together say of the nodes.

    Attributes:
        shown_by: the nodes that have shown an error of the environment, by the rule that told it.
        trained_on: the nodes on which a run has made a step.
    """

    shown_by: Mapping[str, frozenset[str]]
    trained_on: frozenset[str]

    @classmethod
    def of(cls, everything: Sequence[EndedAttempt]) -> Campaign:
        """What these attempts say."""
        shown_by = {rule: frozenset(p.host for p in everything if p.rule == rule) for rule in ENVIRONMENT}
        return cls(shown_by, frozenset(host for p in everything if p.progressed for host in hosts(p)))

    def judge(self, past: EndedAttempt) -> EndedAttempt:
        """The attempt as it is to be judged beside all others of the campaign.

        An error of the environment that only one node has shown, while runs have trained on others but never on that
        one, is that node's: the run goes elsewhere, and the node is done without, as one with a broken GPU.
        """
        if past.kind is not FailureClass.DETERMINISTIC or past.rule not in ENVIRONMENT or not past.host:
            return past
        alone = self.shown_by[past.rule] == {past.host} and past.host not in self.trained_on
        if alone and self.trained_on:
            return replace(past, kind=FailureClass.GPU, reason=f"{past.reason} (on {past.host} alone)", hint="")
        return past


def hosts(past: EndedAttempt) -> tuple[str, ...]:
    """The nodes that it ran on, as far as their agents have said."""
    return tuple(str(node["host"]) for node in past.row.evidence.get("nodes", ()))
