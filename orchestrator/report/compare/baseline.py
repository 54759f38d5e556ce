"""Each condition of a workload against its baseline. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from dscampaign.orchestrator.formatting import short_number

from .blocks import Block, blocks_of
from .conditions import Condition, few_repeats, unlike
from .statistics import LEAST_REPEATS, Estimate, LossTest, Standing, estimate, loss_margin, loss_test, order, ratio
from .wording import interval


@dataclass(frozen=True)
class BaselineComparison:
    """A condition beside the baseline.

    Attributes:
        in_tokens: speeds are tokens per second; steps per second if a repeat of the workload reports no tokens.
        speeds: of each of its repeats.
        blocks: speeds by block, if its runs formed blocks that differ; else empty.
        paired_by: what made blocks, if it is compared with the baseline within them: ``job`` or ``round``; else "".
        spent: degrees of freedom that each comparison within blocks gives up.
        times_baseline: speed as a multiple of the baseline's.
        times_unpaired: the same without pairs of the same block; None if there are no pairs.
        losses: number of the repeat, and its compared loss (nats).
        loss_is: the kind of loss: ``held-out`` or ``final training``.
        more_memory: reserved memory beyond the baseline's, as a part of it; None for the baseline itself.
        among: comparisons made with a condition of the workload.
        given_margin: the spec's margin for equal losses, if set.
    """

    condition: Condition
    is_baseline: bool
    in_tokens: bool
    speeds: tuple[float, ...]
    speed: Estimate | None
    times_baseline: Estimate | None
    order: Standing
    loss: LossTest
    losses: tuple[tuple[int, float], ...]
    loss_is: str
    more_memory: float | None
    among: int = 1
    given_margin: float | None = None
    blocks: Mapping[Block, float] = field(default_factory=dict)
    paired_by: str = ""
    spent: float = 0.0
    times_unpaired: Estimate | None = None

    @property
    def speed_unit(self) -> str:
        """The unit of speeds."""
        return "tokens/s" if self.in_tokens else "steps/s"

    @property
    def paired_width(self) -> float | None:
        """The width of the interval as a multiple of its width without pairs; None without pairs."""
        both = (self.times_baseline, self.times_unpaired) if self.paired_by else ()
        widths = [math.log(one.ends[1] / one.ends[0]) for one in both if one and one.ends]
        return widths[0] / widths[1] if len(widths) > 1 and widths[1] else None

    @property
    def loss_unit(self) -> str:
        """The unit of losses: ` nats`, or nothing if the user's script may report any loss."""
        return "" if self.condition.own_loss else " nats"

    @property
    def loss_heading(self) -> str:
        """The heading of differences of losses: `Δ held-out loss (nats)`."""
        return f"Δ {self.loss_is.split()[0]} loss{self.loss_unit and ' (nats)'}"


def speed_text(one: BaselineComparison) -> str:
    """`72.9k [72.5k, 83k] tokens/s`; nothing if no step was timed."""
    if one.speed is None:
        return ""
    return f"{short_number(one.speed.value)}{interval(one.speed, short_number)} {one.speed_unit}"


def compare_speeds(one: BaselineComparison, other: BaselineComparison) -> Standing:
    """Return whether it is faster than another condition of the workload, or has a higher score."""
    (own, beside), spent = by_block([one, other])
    return order(own, beside, one.among, spent=spent)


def times_as_fast(one: BaselineComparison, other: BaselineComparison) -> Estimate | None:
    """Return its speed, or score, as a multiple of another condition's: of its own, exactly 1."""
    if one.condition is other.condition:
        return replace(one.speed, value=1.0, low=None, high=None, std=None) if one.speed else None
    (own, beside), spent = by_block([one, other])
    return ratio(own, beside, one.among, spent=spent)


def by_block(compared: Sequence[BaselineComparison]) -> tuple[list[tuple[float, ...]], float | None]:
    """Return the speeds of each in all blocks that they share, and the degrees of freedom given up.

    None instead of these: they share too few blocks, and the speeds are of all repeats.
    """
    shared = set(compared[0].blocks).intersection(*(one.blocks for one in compared))
    if len(shared) < LEAST_REPEATS:
        return [one.speeds for one in compared], None
    return [tuple(one.blocks[block] for block in sorted(shared)) for one in compared], compared[0].spent


def pairing(compared: Sequence[BaselineComparison]) -> tuple[str, float | None]:
    """Return what made the blocks of comparisons, and the median of their widths beside those without pairs."""
    by = next((one.paired_by for one in compared if one.paired_by), "")
    widths = [one.paired_width for one in compared if one.paired_width]
    return by, statistics.median(widths) if widths else None


def pairing_text(compared: Sequence[BaselineComparison]) -> str:
    """Return what pairs brought: `paired by job: intervals 0.4 × as wide`; "" without pairs."""
    by, width = pairing(compared)
    return f"paired by {by}: intervals {width:.2g} × as wide" if width else ""


def compare_losses(one: BaselineComparison, other: BaselineComparison) -> LossTest:
    """Return the test of a condition's losses against another condition's in the baseline's place."""
    own = one.condition.own_loss
    margin = loss_margin([loss for _, loss in other.losses], one.given_margin, own=own)
    return loss_test(one.losses, other.losses, margin, one.among)


def compare_to_baseline(
    conditions: Sequence[Condition], baseline: Condition, margin: float | None = None, among: int | None = None
) -> list[BaselineComparison]:
    """Return all conditions of a workload beside its baseline, in their order.

    Args:
        margin: the spec's margin for equal losses, if set.
        among: comparisons made together; by default the comparisons with the baseline.
    """
    held_out = any(condition.held_out for condition in conditions)
    in_tokens = all(condition.says_tokens for condition in conditions)
    among = among or max(1, sum(bool(condition.counted) for condition in conditions) - 1)
    blocks = blocks_of(conditions, in_tokens=in_tokens)
    comparisons = []
    for condition in conditions:
        speeds = tuple(speed for _, speed in condition.speeds(in_tokens=in_tokens))
        comparisons.append(
            BaselineComparison(
                condition=condition,
                is_baseline=condition is baseline,
                in_tokens=in_tokens,
                speeds=speeds,
                speed=estimate(speeds),
                times_baseline=None,
                order=Standing.EQUAL,
                loss=_loss(condition, baseline, held_out=held_out, among=among, margin=margin),
                losses=tuple(_losses(condition, held_out=held_out)),
                loss_is="held-out" if held_out else "final training",
                more_memory=None if condition is baseline else _more_memory(condition, baseline),
                among=among,
                given_margin=margin,
                blocks=blocks.speeds.get(condition.name, {}) if blocks else {},
                spent=blocks.spent if blocks else 0.0,
            )
        )
    beside = next((one for one in comparisons if one.is_baseline), None)
    return [_beside(one, beside, blocks.by if blocks else "") if beside else one for one in comparisons]


def _beside(one: BaselineComparison, baseline: BaselineComparison, block: str) -> BaselineComparison:
    if one.is_baseline:
        return replace(one, times_baseline=times_as_fast(one, baseline))
    is_paired = by_block([one, baseline])[1] is not None
    by_chance = unlike(one.condition, baseline.condition)
    return replace(
        one,
        paired_by=block if is_paired else "",
        times_baseline=times_as_fast(one, baseline),
        times_unpaired=ratio(one.speeds, baseline.speeds, one.among) if is_paired else None,
        order=Standing.NOT_PROVEN if by_chance else compare_speeds(one, baseline),
    )


def _loss(condition: Condition, baseline: Condition, *, held_out: bool, among: int, margin: float | None) -> LossTest:
    losses, beside = (_losses(one, held_out=held_out) for one in (condition, baseline))
    margin = loss_margin([loss for _, loss in beside], margin, own=condition.own_loss or baseline.own_loss)
    test = loss_test(losses, beside, margin, among)
    if condition is baseline and condition.counted:
        none = estimate([0.0] * (len(losses) or len(condition.counted)))
        worse = test.verdict == Standing.WORSE
        return test if worse else LossTest(Standing.EQUAL, none, margin, no_worse=True)
    without = next((one for one in (condition, baseline) if not one.counted), None)
    if test.reason and without:
        return replace(test, reason=f"no run of {without.name} counts")
    unsure = test.difference is not None and test.difference.low is None
    few = few_repeats((condition, baseline), losses=True) if unsure else None
    return replace(test, reason=few.text) if few else test


def _losses(condition: Condition, *, held_out: bool) -> list[tuple[int, float]]:
    if held_out:
        return condition.held_out
    return [(run.repeat, run.loss.final) for run in condition.learned if run.loss.final is not None]


def _more_memory(condition: Condition, baseline: Condition) -> float | None:
    own, other = condition.value("mem_reserved_gb"), baseline.value("mem_reserved_gb")
    return own / other - 1 if own is not None and other else None
