"""Each condition of a workload against its baseline. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dscampaign.orchestrator.formatting import short_number

from .conditions import Condition, few_repeats, unlike
from .statistics import Estimate, LossTest, Order, Sameness, estimate, loss_margin, loss_test, order, ratio
from .wording import interval


@dataclass(frozen=True)
class BaselineComparison:
    """A condition beside the baseline.

    Attributes:
        in_tokens: speeds are tokens per second; steps per second if a repeat of the workload reports no tokens.
        speeds: of each of its repeats.
        times_baseline: speed as a multiple of the baseline's.
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
    order: Order
    loss: LossTest
    losses: tuple[tuple[int, float], ...]
    loss_is: str
    more_memory: float | None
    among: int = 1
    given_margin: float | None = None

    @property
    def speed_unit(self) -> str:
        """The unit of speeds."""
        return "tokens/s" if self.in_tokens else "steps/s"

    @property
    def loss_unit(self) -> str:
        """The unit of losses: ` nats`, or nothing if the user's script may report any loss."""
        return "" if self.condition.own_loss else " nats"


def speed_text(one: BaselineComparison) -> str:
    """`72.9k [72.5k, 83k] tokens/s`; nothing if no step was timed."""
    if one.speed is None:
        return ""
    return f"{short_number(one.speed.value)}{interval(one.speed, short_number)} {one.speed_unit}"


def compare_speeds(one: BaselineComparison, other: BaselineComparison) -> Order:
    """Return whether it is faster than another condition of the workload, or has a higher score."""
    return order(one.speeds, other.speeds, one.among)


def times_as_fast(one: BaselineComparison, other: BaselineComparison) -> Estimate | None:
    """Return its speed, or score, as a multiple of another condition's."""
    return ratio(one.speeds, other.speeds, one.among)


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
    return [
        _compare(condition, baseline, in_tokens=in_tokens, held_out=held_out, among=among, margin=margin)
        for condition in conditions
    ]


def _compare(
    condition: Condition, baseline: Condition, *, in_tokens: bool, held_out: bool, among: int, margin: float | None
) -> BaselineComparison:
    itself = condition is baseline
    speeds, beside = condition.speeds(in_tokens=in_tokens), baseline.speeds(in_tokens=in_tokens)
    by_chance = unlike(condition, baseline)
    return BaselineComparison(
        condition=condition,
        is_baseline=itself,
        in_tokens=in_tokens,
        speeds=tuple(speeds),
        speed=estimate(speeds),
        times_baseline=ratio(speeds, beside, among),
        order=Order.TIE if itself else Order.INCONCLUSIVE if by_chance else order(speeds, beside, among),
        loss=_loss(condition, baseline, held_out=held_out, among=among, margin=margin),
        losses=tuple(_losses(condition, held_out=held_out)),
        loss_is="held-out" if held_out else "final training",
        more_memory=None if itself else _more_memory(condition, baseline),
        among=among,
        given_margin=margin,
    )


def _loss(condition: Condition, baseline: Condition, *, held_out: bool, among: int, margin: float | None) -> LossTest:
    losses, beside = (_losses(one, held_out=held_out) for one in (condition, baseline))
    margin = loss_margin([loss for _, loss in beside], margin, own=condition.own_loss or baseline.own_loss)
    test = loss_test(losses, beside, margin, among)
    if condition is baseline and condition.counted:
        none = estimate([0.0] * (len(losses) or len(condition.counted)))
        worse = test.verdict == Sameness.WORSE
        return test if worse else LossTest(Sameness.EQUIVALENT, none, margin, no_worse=True)
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
