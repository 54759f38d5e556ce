"""Each condition of a workload against its baseline. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...formatting import short_number
from .conditions import Condition, unlike
from .statistics import Estimate, LossTest, Order, Sameness, estimate, loss_test, order, ratio
from .wording import interval


@dataclass(frozen=True)
class BaselineComparison:
    """A condition beside the baseline.

    Attributes:
        in_tokens: speeds are tokens per second; steps per second where a repeat of the workload does not say tokens.
        speeds: of each of its repeats.
        times_baseline: speed as a multiple of the baseline's.
        losses: number of the repeat, and the loss (nats) that was compared.
        loss_is: which loss that is: ``held-out`` or ``final training``.
        more_memory: by what part more memory is reserved than the baseline does; None of the baseline itself.
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

    @property
    def speed_unit(self) -> str:
        """What speeds are counted in."""
        return "tokens/s" if self.in_tokens else "steps/s"

    @property
    def loss_unit(self) -> str:
        """What follows a loss in a sentence: ` nats`, or nothing where a script of one's own may report any loss."""
        return "" if self.condition.own_loss else " nats"


def speed_text(one: BaselineComparison) -> str:
    """`72.9k [72.5k, 83k] tokens/s`; nothing where no step was timed."""
    if one.speed is None:
        return ""
    return f"{short_number(one.speed.value)}{interval(one.speed, short_number)} {one.speed_unit}"


def compare_losses(one: BaselineComparison, other: BaselineComparison) -> LossTest:
    """The test of a condition's losses against those of another one in the baseline's place."""
    return loss_test(one.losses, other.losses, own=one.condition.own_loss)


def compare_to_baseline(conditions: Sequence[Condition], baseline: Condition) -> list[BaselineComparison]:
    """All conditions of a workload beside its baseline, in their order."""
    held_out = any(condition.held_out for condition in conditions)
    in_tokens = all(condition.says_tokens for condition in conditions)
    return [_compare(condition, baseline, in_tokens=in_tokens, held_out=held_out) for condition in conditions]


def _compare(condition: Condition, baseline: Condition, *, in_tokens: bool, held_out: bool) -> BaselineComparison:
    itself = condition is baseline
    speeds, beside = condition.speeds(in_tokens=in_tokens), baseline.speeds(in_tokens=in_tokens)
    return BaselineComparison(
        condition=condition,
        is_baseline=itself,
        in_tokens=in_tokens,
        speeds=tuple(speeds),
        speed=estimate(speeds),
        times_baseline=ratio(speeds, beside),
        order=Order.TIE if itself else _order(condition, baseline, speeds, beside),
        loss=_loss(condition, baseline, held_out=held_out),
        losses=tuple(_losses(condition, held_out=held_out)),
        loss_is="held-out" if held_out else "final training",
        more_memory=None if itself else _more_memory(condition, baseline),
    )


def _order(condition: Condition, baseline: Condition, speeds: Sequence[float], beside: Sequence[float]) -> Order:
    return Order.INCONCLUSIVE if unlike(condition, baseline) else order(speeds, beside)


def _loss(condition: Condition, baseline: Condition, *, held_out: bool) -> LossTest:
    if condition is baseline and condition.counted:
        none, own = estimate([0.0] * len(condition.counted)), _losses(baseline, held_out=held_out)
        itself = loss_test(own, own, own=baseline.own_loss)
        return itself if itself.verdict == Sameness.WORSE else LossTest(Sameness.EQUIVALENT, none, itself.margin)
    losses, beside = (_losses(one, held_out=held_out) for one in (condition, baseline))
    test = loss_test(losses, beside, own=condition.own_loss or baseline.own_loss)
    without = next((one for one in (condition, baseline) if not one.counted), None)
    return replace(test, reason=f"no run of {without.name} counts") if test.reason and without else test


def _losses(condition: Condition, *, held_out: bool) -> list[tuple[int, float]]:
    if held_out:
        return condition.held_out
    return [(run.repeat, run.loss.final) for run in condition.counted if run.loss.final is not None]


def _more_memory(condition: Condition, baseline: Condition) -> float | None:
    own, other = condition.value("mem_reserved_gb"), baseline.value("mem_reserved_gb")
    return own / other - 1 if own is not None and other else None
