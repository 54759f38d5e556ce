"""What two changes do together beyond what each does alone, and which effects cannot be told apart. Pure.

Two changes interact where four conditions differ in these two alone, and the second change brings something else with
the first than without it: another factor of speed, another difference in loss or in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from dscampaign.orchestrator.formatting import some
from dscampaign.orchestrator.report.measure.metrics import METRICS

from .baseline import BaselineComparison
from .sensitivity import (
    LEAST_GB,
    NAMES_POINTS,
    Sensitivity,
    change_in_words,
    sensitivities,
    sensitivity_sentence,
    value_key,
    weights_of,
)
from .statistics import TIE, Estimate, contrast, loss_margin
from .wording import interval, loss_gap, times

_Block = tuple[BaselineComparison, BaselineComparison, BaselineComparison, BaselineComparison]
"""Neither change, the first alone, the second alone, both."""


@dataclass(frozen=True)
class _Quantity:
    """What changes may interact in.

    Attributes:
        of: its values, one a repeat.
        margin: less is no interaction beside a condition with neither change; of speeds, of the factor beside 1.
        word: what stands between "interact" and the figure.
        text: the figure in words.
    """

    of: Callable[[BaselineComparison], Sequence[float]]
    margin: Callable[[BaselineComparison], float]
    word: str
    text: Callable[[Estimate, str], str]
    additive: bool = True


def _beyond(number: Callable[[float, str], str], unit: str) -> Callable[[Estimate, str], str]:
    """The text of a difference; losses of a script of one's own have no unit."""

    def text(found: Estimate, of_loss: str) -> str:
        said = f"{number(found.value, of_loss)}{interval(found, lambda value: number(value, of_loss))}"
        return f"{said}{unit or of_loss} beyond the sum of what each brings alone"

    return text


def _memory_gb(one: BaselineComparison) -> Sequence[float]:
    known = (METRICS["mem_reserved_gb"].of(run) for run in one.condition.counted)
    return [gb for gb in known if gb is not None]


def _losses(one: BaselineComparison) -> Sequence[float]:
    return [loss for _, loss in one.losses]


_QUANTITIES: Final = (
    _Quantity(
        lambda one: one.speeds,
        lambda _: TIE,
        "interact",
        lambda found, _: f"{times(found)} × the product of what each brings alone",
        additive=False,
    ),
    _Quantity(
        _losses,
        lambda neither: loss_margin(_losses(neither), neither.given_margin, own=neither.condition.own_loss),
        "interact in loss",
        _beyond(loss_gap, ""),
    ),
    _Quantity(_memory_gb, lambda _: LEAST_GB, "interact in memory", _beyond(lambda value, _: f"{value:+.1f}", " GB")),
)


@dataclass(frozen=True)
class Interaction:
    """Two changes, and how far they are together from what each brings alone.

    Attributes:
        blocks: how many sets of four conditions show it.
        estimate: of speed a factor, 1 for none; of loss in nats and of memory in GB a difference, 0 for none.
        margin: how far from that still counts as none.
    """

    first: Sensitivity
    second: Sensitivity
    blocks: int
    quantity: _Quantity
    estimate: Estimate
    margin: float

    @property
    def established(self) -> bool:
        """Whether the interval leaves out that there is none, by more than what counts as equal differs."""
        low, high, margin = self.estimate.low, self.estimate.high, self.margin
        if low is None or high is None:
            return False
        if self.quantity.additive:
            return low > margin or high < -margin
        return low > 1.0 + margin or high < 1.0 / (1.0 + margin)


def effect_sentences(comparisons: Sequence[BaselineComparison]) -> Iterator[str]:
    """What each change of an axis does, then what is to be known of several together."""
    changes = sensitivities(comparisons)
    yield from map(sensitivity_sentence, changes)
    yield from joint_sentences(comparisons, changes)


def joint_sentences(comparisons: Sequence[BaselineComparison], changes: Sequence[Sensitivity]) -> Iterator[str]:
    """Which changes interact, and which axes cannot be told apart."""
    yield from (_interaction_sentence(one) for one in interactions(changes) if one.established)
    yield from confounded(comparisons, changes)


def interactions(changes: Sequence[Sensitivity]) -> list[Interaction]:
    """Every two changes of different axes of which all four combinations were measured."""
    found = []
    pairs = [
        (one, other, list(_blocks(one, other))) for one, other in combinations(changes, 2) if one.field != other.field
    ]
    pairs = [(first, second, blocks) for first, second, blocks in pairs if blocks]
    among = len(pairs) * len(_QUANTITIES)
    for first, second, blocks in pairs:
        share = 1.0 / len(blocks)
        weights = (share, -share, -share, share)
        weighted = weights_of(cell for block in blocks for cell in zip(block, weights, strict=True))
        for quantity in _QUANTITIES:
            cells = [(quantity.of(one), weight) for one, weight in weighted]
            if estimate := contrast(cells, additive=quantity.additive, among=among):
                margin = max(quantity.margin(neither) for neither, *_ in blocks)
                found.append(Interaction(first, second, len(blocks), quantity, estimate, margin))
    return found


def _interaction_sentence(one: Interaction) -> str:
    both = f"{change_in_words(one.first)} and {change_in_words(one.second)}"
    more = f" (over {one.blocks} sets of four conditions)" if one.blocks > 1 else ""
    said = one.quantity.text(one.estimate, one.first.pairs[0][0].loss_unit)
    return f"{both} {one.quantity.word}: together {said}{more}."


def confounded(comparisons: Sequence[BaselineComparison], changes: Sequence[Sensitivity]) -> Iterator[str]:
    """Sentences for axes whose effect cannot be told: no two conditions differ in one of them alone."""
    known = [one for one in comparisons if one.speed or one.losses]
    values = {name: column for name, column in _columns(known).items() if len(set(column)) > 1}
    hidden = dict.fromkeys(name for name in values if name not in {change.field for change in changes})
    never_alone: list[str] = []
    while hidden:
        name = next(iter(hidden))
        together = [other for other in values if _moves_with(values[name], values[other])]
        hidden = dict.fromkeys(other for other in hidden if other not in together)
        if len(together) > 1:
            yield f"{some(together)} always change together: their effects cannot be told apart."
        else:
            never_alone.append(name)
    if len(never_alone) > 1:
        yield f"{some(never_alone)} never change alone: their effects cannot be told."
    elif never_alone:
        yield f"No two conditions differ in {never_alone[0]} alone, so its effect cannot be told."


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
    """The values of each axis of the matrix, as texts, in the order of the conditions; defaults count as said."""
    names = dict.fromkeys(name for one in comparisons for name in one.condition.params if name not in NAMES_POINTS)
    return {name: [value_key(one, name) for one in comparisons] for name in names}


def _moves_with(one: Sequence[str], other: Sequence[str]) -> bool:
    pairs = set(zip(one, other, strict=True))
    return len(pairs) == len(set(one)) == len(set(other))
