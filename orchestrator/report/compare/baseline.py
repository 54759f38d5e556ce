"""Each condition of a workload against its baseline. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from .blocks import Block, blocks_of
from .conditions import Condition, few_repeats, unlike
from .statistics import LEAST_REPEATS, Estimate, LossTest, Standing, estimate, loss_margin, loss_test, order, ratio


@dataclass(frozen=True, eq=False)
class BaselineComparison:
    """A condition beside the baseline.

    Attributes:
        speeds: of each of its repeats: tokens per second, or steps per second if a repeat of the workload has no
            tokens.
        in_tokens, in_held_out: whether speeds are of tokens, and whether losses are on held-out text.
        among: comparisons made with a condition of the workload.
        given_margin: the spec's margin for equal losses, if set.
        blocks: speeds by block, if its runs formed blocks that differ; else empty.
        blocks_by: what made blocks: ``job`` or ``round``.
        spent: degrees of freedom that each comparison within blocks gives up.
        baseline: None for the baseline itself.
    """

    condition: Condition
    speeds: tuple[float, ...]
    in_tokens: bool
    in_held_out: bool
    among: int
    given_margin: float | None
    blocks: Mapping[Block, float] = field(default_factory=dict)
    blocks_by: str = ""
    spent: float = 0.0
    baseline: BaselineComparison | None = field(default=None, repr=False)

    @property
    def is_baseline(self) -> bool:
        """Whether it is the baseline."""
        return self.baseline is None

    @cached_property
    def speed(self) -> Estimate | None:
        """The median of its speeds."""
        return estimate(self.speeds)

    @property
    def speed_unit(self) -> str:
        """The unit of speeds."""
        return "tokens/s" if self.in_tokens else "steps/s"

    @cached_property
    def paired_by(self) -> str:
        """What made blocks, if it is compared with the baseline within them; else ""."""
        return self.blocks_by if self.baseline and by_block([self, self.baseline])[1] is not None else ""

    @cached_property
    def times_baseline(self) -> Estimate | None:
        """The speed as a multiple of the baseline's."""
        return times_as_fast(self, self.baseline or self)

    @property
    def times_unpaired(self) -> Estimate | None:
        """The same without pairs of the same block; None if there are no pairs."""
        return ratio(self.speeds, self.baseline.speeds, self.among) if self.baseline and self.paired_by else None

    @property
    def paired_width(self) -> float | None:
        """The width of the interval as a multiple of its width without pairs; None without pairs."""
        both = (self.times_baseline, self.times_unpaired) if self.paired_by else ()
        widths = [math.log(one.ends[1] / one.ends[0]) for one in both if one and one.ends]
        return widths[0] / widths[1] if len(widths) > 1 and widths[1] else None

    @cached_property
    def order(self) -> Standing:
        """Whether it is faster than the baseline."""
        if not self.baseline:
            return Standing.EQUAL
        by_chance = unlike(self.condition, self.baseline.condition)
        return Standing.NOT_PROVEN if by_chance else compare_speeds(self, self.baseline)

    @cached_property
    def losses(self) -> list[tuple[int, float]]:
        """Number of the repeat, and its compared loss (nats)."""
        learned = [(run.repeat, run.loss) for run in self.condition.learned]
        both = ((repeat, loss.held_out if self.in_held_out else loss.final) for repeat, loss in learned)
        return [(repeat, loss) for repeat, loss in both if loss is not None]

    @cached_property
    def loss(self) -> LossTest:
        """The test of its losses against the baseline's."""
        baseline = self.baseline or self
        test, counted = compare_losses(self, baseline), self.condition.counted
        if self.is_baseline and counted:
            none = estimate([0.0] * (len(self.losses) or len(counted)))
            worse = test.verdict == Standing.WORSE
            return test if worse else LossTest(Standing.EQUAL, none, test.margin, no_worse=True)
        both = (self.condition, baseline.condition)
        without = next((one for one in both if not one.counted), None)
        if test.reason and without:
            return replace(test, reason=f"no run of {without.name} counts")
        unsure = test.difference is not None and test.difference.low is None
        few = few_repeats(both, losses=True) if unsure else None
        return replace(test, reason=few.text) if few else test

    @property
    def loss_is(self) -> str:
        """The kind of compared losses."""
        return "held-out" if self.in_held_out else "final training"

    @property
    def loss_unit(self) -> str:
        """The unit of losses: ` nats`, or nothing if the user's script may report any loss."""
        return "" if self.condition.own_loss else " nats"

    @property
    def loss_heading(self) -> str:
        """The heading of differences of losses: `Δ held-out loss (nats)`."""
        return f"Δ {self.loss_is.split()[0]} loss{self.loss_unit and ' (nats)'}"

    @property
    def more_memory(self) -> float | None:
        """Reserved memory beyond the baseline's, as a part of it; None for the baseline itself."""
        own = self.condition.value("mem_reserved_gb")
        other = self.baseline.condition.value("mem_reserved_gb") if self.baseline else None
        return own / other - 1 if own is not None and other else None


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
    """Return what made the blocks of comparisons, and the median of their widths relative to those without pairs."""
    by = next((one.paired_by for one in compared if one.paired_by), "")
    widths = [one.paired_width for one in compared if one.paired_width]
    return by, statistics.median(widths) if widths else None


def pairing_text(compared: Sequence[BaselineComparison]) -> str:
    """Return what pairs brought: `paired by job: intervals 0.4 × as wide`; "" without pairs."""
    by, width = pairing(compared)
    return f"paired by {by}: intervals {width:.2g} × as wide" if width else ""


def compare_losses(one: BaselineComparison, other: BaselineComparison) -> LossTest:
    """Return the test of a condition's losses against another condition's in the baseline's place."""
    own = one.condition.own_loss or other.condition.own_loss
    margin = loss_margin([loss for _, loss in other.losses], one.given_margin, own=own)
    return loss_test(one.losses, other.losses, margin, one.among)


def compare_to_baseline(
    conditions: Sequence[Condition], baseline: Condition, margin: float | None = None, among: int | None = None
) -> list[BaselineComparison]:
    """Return all conditions of a workload, the baseline among them, beside the baseline, in their order.

    Args:
        margin: the spec's margin for equal losses, if set.
        among: comparisons made together; by default the comparisons with the baseline.
    """
    in_held_out = any(run.loss.held_out is not None for one in conditions for run in one.learned)
    in_tokens = all(condition.says_tokens for condition in conditions)
    among = among or max(1, sum(bool(condition.counted) for condition in conditions) - 1)
    by, blocks, spent = blocks_of(conditions, in_tokens=in_tokens)

    def compared(one: Condition, beside: BaselineComparison | None) -> BaselineComparison:
        speeds = tuple(speed for _, speed in one.speeds(in_tokens=in_tokens))
        own = blocks.get(one.name, {})
        return BaselineComparison(one, speeds, in_tokens, in_held_out, among, margin, own, by, spent, beside)

    beside = compared(baseline, None)
    return [beside if one is baseline else compared(one, beside) for one in conditions]
