"""Whose fault an error is that looks like the user's: of the environment, or of one node that has another one. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from .failures import FailureClass
from .past import Past

ENVIRONMENT: Final = frozenset({"no-mpi", "device-ordinal"})
"""Rules about what is alike on all nodes of a sound cluster, whatever a run does."""


def blame(past: Past, everything: Sequence[Past]) -> Past:
    """The attempt as it is to be judged beside all others of the campaign.

    An error of the environment that only one node has shown, while runs have trained on others but never on that one,
    is that node's: the run goes elsewhere, and the node is done without, as one with a broken GPU.
    """
    if past.kind is not FailureClass.DETERMINISTIC or past.rule not in ENVIRONMENT or not past.host:
        return past
    shown_by = {other.host for other in everything if other.rule == past.rule}
    trained_on = {host for other in everything if other.progressed for host in hosts(other)}
    if shown_by == {past.host} and trained_on and past.host not in trained_on:
        return replace(past, kind=FailureClass.GPU, reason=f"{past.reason} (on {past.host} alone)", hint="")
    return past


def hosts(past: Past) -> tuple[str, ...]:
    """The nodes that it ran on, as far as their agents have said."""
    return tuple(str(node["host"]) for node in past.row.evidence.get("nodes", ()))
