"""What the words of `campaign compare` mean: campaigns, conditions, single runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ....db import queries
from ....db.records import CampaignRow
from ....db.store import Store
from ...errors import UserError
from ...find import find
from ..measure.load import read_runs
from .conditions import Condition, conditions_of
from .difference import Comparison, compare, pairs

FIRST: Final = "-r0"
"""Names the first repeat by itself, whose own name stands for the whole condition."""

_USAGE: Final = "`campaign compare [NAME] A B`"


@dataclass(frozen=True)
class Sides:
    """What is compared, and what is not because only one of two campaigns has it.

    Attributes:
        alone: name of a campaign and those of its conditions that the other lacks.
    """

    comparisons: tuple[Comparison, ...]
    alone: tuple[tuple[str, tuple[str, ...]], ...] = ()


def sides_of(store: Store, words: Sequence[str]) -> Sides:
    """Reads what `[NAME] A B` asks for.

    Raises:
        UserError: it is not two, one of them does not exist, or one is a part of the other.
    """
    if len(words) not in (2, 3):
        raise UserError("name two runs, conditions or campaigns", _USAGE)
    with store.read() as conn:
        known = {row.name: row for row in queries.list_campaigns(conn)}
    if len(words) == 2 and set(words) <= known.keys():
        return _campaigns(store, known[words[0]], known[words[1]])
    named = find(store, words[0]) if len(words) == 3 else None
    (home, left), (abroad, right) = (_condition(store, word, known, named) for word in words[-2:])
    shared = {run.name for run in left.runs} & {run.name for run in right.runs}
    if home == abroad and shared and len(left.runs) != len(right.runs):
        whole, part = sorted((left, right), key=lambda one: -len(one.runs))
        raise UserError(
            f"{whole.name} is all {len(whole.runs)} repeats, and {part.name} one of them",
            f"{whole.name}{FIRST} is the first run by itself",
        )
    return Sides((compare(left, right),))


def _campaigns(store: Store, left: CampaignRow, right: CampaignRow) -> Sides:
    both = [_conditions(store, row) for row in (left, right)]
    found = pairs(*both)
    if not found:
        raise UserError(f"{left.name} and {right.name} have no condition with the same parameters")
    compared = tuple(compare(_titled(one, left.name), _titled(other, right.name)) for one, other in found)
    alone = []
    for row, conditions, shared in zip((left, right), both, zip(*found, strict=True), strict=True):
        if names := tuple(one.name for one in conditions if one not in shared):
            alone.append((row.name, names))
    return Sides(compared, tuple(alone))


def _titled(condition: Condition, campaign: str) -> Condition:
    return replace(condition, name=f"{campaign}/{condition.name}")


def _conditions(store: Store, campaign: CampaignRow) -> list[Condition]:
    return conditions_of(read_runs(store, campaign))


def _condition(
    store: Store, word: str, known: Mapping[str, CampaignRow], named: CampaignRow | None
) -> tuple[str, Condition]:
    """The campaign, and its condition of that name, else one run by itself; `CAMPAIGN/NAME` is one of another campaign.

    Raises:
        UserError: there is neither.
    """
    campaign, _, rest = word.partition("/")
    if rest and campaign in known:
        return campaign, _titled(_named(rest, _conditions(store, known[campaign]), campaign), campaign)
    row = named or find(store, None)
    return row.name, _named(word, _conditions(store, row), row.name)


def _named(name: str, conditions: Sequence[Condition], campaign: str) -> Condition:
    for condition in conditions:
        if condition.name == name:
            return condition
        for run in condition.runs:
            if name in (run.name, f"{condition.name}-r{run.repeat}"):
                return replace(condition, name=name, runs=(run,))
    shown = ", ".join(condition.name for condition in conditions[:8])
    more = ", …" if len(conditions) > 8 else ""
    raise UserError(f"no run or condition named {name} in {campaign}", f"one of: {shown}{more}")
