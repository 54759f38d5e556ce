"""The name and the colour of each condition, the same everywhere on the page. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dscampaign.orchestrator.report.compare.results import Results, WorkloadResults

COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#886644", "#AA2266")
"""Okabe and Ito's, and two more: any two look different without a kind of cone, on a light and a dark page."""

REST: Final = len(COLOURS)
"""Number of the colour of all conditions without their own colour."""

GREY: Final = "#9AA0A6"
OTHERS: Final = "others"
"""The group of all conditions without their own colour."""


@dataclass(frozen=True)
class Look:
    """How a condition is shown.

    Attributes:
        number: its place in the campaign, which the charts' data have.
        title: for people, unique in the campaign.
        colour: its place in `COLOURS`, or `REST`.
    """

    number: int
    name: str
    title: str
    colour: int

    @property
    def group(self) -> str:
        """Its name in a legend."""
        return OTHERS if self.colour == REST else self.title

    @property
    def paint(self) -> str:
        """The colour itself."""
        return (*COLOURS, GREY)[self.colour]


Looks = Mapping[str, Look]
"""By name of the condition."""


def looks_of(results: Results) -> Looks:
    """Return the look of each condition: with more than eight in a workload, only the answers have a colour."""
    looks: dict[str, Look] = {}
    for one in results.workloads:
        coloured = _coloured(one)
        for each in one.comparisons:
            name = each.condition.name
            colour = coloured.index(name) if name in coloured else REST
            looks[name] = Look(len(looks), name, each.condition.title, colour)
    return looks


def _coloured(one: WorkloadResults) -> Sequence[str]:
    names = [each.condition.name for each in one.comparisons]
    if len(names) <= len(COLOURS):
        return names
    answer = one.answer
    chosen = [answer.chosen, answer.fastest, answer.learner, one.workload.baseline]
    return list(dict.fromkeys(each.name for each in chosen if each))
