"""What two changes do together beyond what each does alone, and which effects cannot be told apart. Pure.

Two changes interact where four conditions differ in these two alone, and the second change brings another factor of
speed with the first than without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from .baseline import BaselineComparison
from .conditions import key_of
from .sensitivity import NAMES_POINTS, Sensitivity, change_in_words
from .statistics import TIE, Estimate, contrast
from .wording import listed, times

_Block = tuple[BaselineComparison, BaselineComparison, BaselineComparison, BaselineComparison]
"""Neither change, the first alone, the second alone, both."""


@dataclass(frozen=True)
class Interaction:
    """Two changes, and by what factor their speed together differs from the product of each alone."""

    first: Sensitivity
    second: Sensitivity
    blocks: int
    factor: Estimate

    @property
    def established(self) -> bool:
        """Whether the interval leaves out 1, by more than speeds that count as equal differ."""
        low, high = self.factor.low, self.factor.high
        return low is not None and high is not None and (low > 1.0 + TIE or high < 1.0 / (1.0 + TIE))


def interactions(changes: Sequence[Sensitivity]) -> list[Interaction]:
    """Every two changes of different axes of which all four combinations were timed."""
    found = []
    for first, second in combinations(changes, 2):
        blocks = list(_blocks(first, second)) if first.field != second.field else []
        share = 1.0 / len(blocks) if blocks else 0.0
        weights = (share, -share, -share, share)
        cells = [(one.speeds, weight) for block in blocks for one, weight in zip(block, weights, strict=True)]
        if cells and (factor := contrast(cells)):
            found.append(Interaction(first, second, len(blocks), factor))
    return found


def interaction_sentence(one: Interaction) -> str:
    """An established interaction in words."""
    both = f"{change_in_words(one.first)} and {change_in_words(one.second)}"
    more = f" (over {one.blocks} sets of four conditions)" if one.blocks > 1 else ""
    return f"{both} interact: together {times(one.factor)} × the product of what each brings alone{more}."


def confounded(comparisons: Sequence[BaselineComparison], changes: Sequence[Sensitivity]) -> Iterator[str]:
    """A sentence for axes whose effect cannot be told: no two conditions differ in one of them alone."""
    known = [one for one in comparisons if one.speed or one.losses]
    values = {name: column for name, column in _columns(known).items() if len(set(column)) > 1}
    hidden = [name for name in values if name not in {change.field for change in changes}]
    told: set[str] = set()
    for name in hidden:
        if name in told:
            continue
        together = [other for other in values if _moves_with(values[name], values[other])]
        told.update(together)
        if len(together) > 1:
            yield f"{listed(together)} always change together: their effects cannot be told apart."
        else:
            yield f"No two conditions differ in {name} alone, so its effect cannot be told."


def _blocks(first: Sensitivity, second: Sensitivity) -> Iterator[_Block]:
    alone, both = _ends(second), {(a.condition.name, b.condition.name) for a, b in first.pairs}
    for neither, with_first in first.pairs:
        for with_second in alone.get(neither.condition.name, ()):
            for with_both in alone.get(with_first.condition.name, ()):
                if (with_second.condition.name, with_both.condition.name) in both:
                    yield neither, with_first, with_second, with_both


def _ends(change: Sensitivity) -> Mapping[str, list[BaselineComparison]]:
    found: dict[str, list[BaselineComparison]] = {}
    for before, after in change.pairs:
        found.setdefault(before.condition.name, []).append(after)
    return found


def _columns(comparisons: Sequence[BaselineComparison]) -> dict[str, list[str]]:
    """The values of each axis of the matrix, as texts, in the order of the conditions."""
    names = dict.fromkeys(name for one in comparisons for name in one.condition.params if name not in NAMES_POINTS)
    return {name: [key_of(one.condition.params.get(name)) for one in comparisons] for name in names}


def _moves_with(one: Sequence[str], other: Sequence[str]) -> bool:
    pairs = set(zip(one, other, strict=True))
    return len(pairs) == len(set(one)) == len(set(other))
