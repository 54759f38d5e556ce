"""How often a report's verdicts are wrong, and how often they show what is there: simulated campaigns of known truth.

python benchmarks/statistics_rates.py

It takes minutes; `results/statistics_rates.txt` is what it prints.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dscampaign.orchestrator.report.compare.baseline import BaselineComparison, compare_to_baseline
from dscampaign.orchestrator.report.compare.statistics import LOSS_MARGIN_NATS, Standing

SIZES: Final = tuple((conditions, repeats) for conditions in (2, 8, 24) for repeats in (3, 5))
SEED_SD: Final = 0.05
"""How far the losses of two seeds are apart, in nats; runs with the same seed share it."""

_CAMPAIGNS: Final = 600
_DRIFT: Final = 0.1
"""Between rounds, of a machine that becomes slower or faster."""


@dataclass(frozen=True)
class Simulated:
    """What a comparison asks of a condition."""

    name: str
    tokens_per_s: tuple[float, ...]
    held_out: list[tuple[int, float]]
    says_tokens: bool = True
    own_loss: bool = False
    devices: tuple[str, ...] = ()
    neighbours: float = 0.0
    job: str = ""

    @property
    def counted(self) -> tuple[SimpleNamespace, ...]:
        """Its repeats."""
        losses = dict(self.held_out)
        return tuple(
            SimpleNamespace(
                repeat=number,
                span_s=span_s,
                loss=SimpleNamespace(held_out=losses.get(number)),
                variables=(),
                shared_job=self.job.format(number),
                hosts=(),
                tries=1,
            )
            for number, span_s in self.spans_s.items()
        )

    @property
    def learned(self) -> tuple[SimpleNamespace, ...]:
        """All of them."""
        return self.counted

    @property
    def spans_s(self) -> dict[int, tuple[float, float]]:
        """They ran in rounds."""
        return {number: (2.0 * number, 2.0 * number + 1.0) for number in range(len(self.tokens_per_s))}

    def speeds(self, *, in_tokens: bool) -> list[tuple[int, float]]:
        """Tokens per second of each repeat."""
        return list(enumerate(self.tokens_per_s)) if in_tokens else []

    def value(self, _metric: str) -> None:
        """Nothing else was measured."""


def campaigns(
    conditions: int,
    repeats: int,
    number: int,
    *,
    speed: Sequence[float] | float = 1.0,
    cv: Sequence[float] | float = 0.02,
    worse: float = 0.0,
    pair_sd: Sequence[float] | float = 0.002,
    drift: float = 0.0,
) -> Iterator[list[BaselineComparison]]:
    """Yield campaigns whose first condition is the baseline.

    Args:
        speed: true speed of each condition.
        cv: standard deviation of its logarithm over repeats.
        worse: by how much the loss of all but the baseline is higher, in nats.
        pair_sd: standard deviation of a condition's loss beside what its seed gives, in nats.
        drift: standard deviation of the logarithm of the speed of all conditions over rounds.
    """
    rng = np.random.default_rng((conditions, repeats))
    shape = number, conditions, repeats
    noise = np.broadcast_to(np.asarray(cv, float), conditions)[None, :, None]
    truth = np.log(np.broadcast_to(np.asarray(speed, float), conditions))[None, :, None]
    slower = drift * rng.standard_normal((number, 1, repeats)) if drift else 0.0
    speeds = np.exp(truth + slower + noise * rng.standard_normal(shape)) * 1e5
    own = np.broadcast_to(np.asarray(pair_sd, float), conditions)[None, :, None] * rng.standard_normal(shape)
    losses = 3.0 + SEED_SD * rng.standard_normal((number, 1, repeats)) + own
    losses[:, 1:] += worse
    for each in range(number):
        yield _compared(speeds[each], losses[each])


def _compared(speeds: NDArray[np.float64], losses: NDArray[np.float64]) -> list[BaselineComparison]:
    pairs = zip(speeds.tolist(), losses.tolist(), strict=True)
    made: list[Any] = [Simulated(f"c{n}", tuple(s), list(enumerate(loss))) for n, (s, loss) in enumerate(pairs)]
    return compare_to_baseline(made, made[0])


def any_order(found: Sequence[BaselineComparison], *orders: Standing) -> bool:
    """Whether a condition has one of these verdicts."""
    return any(one.order in orders for one in found[1:])


def any_loss(found: Sequence[BaselineComparison], *verdicts: Standing) -> bool:
    """Whether the loss of a condition has one of these verdicts."""
    return any(one.loss.verdict in verdicts for one in found[1:])


def best_holds(found: Sequence[BaselineComparison], truth: float = 1.0) -> bool:
    """Whether the interval of the condition that looks fastest holds its true ratio to the baseline's speed."""
    best = max((one.times_baseline for one in found[1:] if one.times_baseline), key=lambda one: one.value)
    return best.low is not None and best.high is not None and best.low <= truth <= best.high


def _share(found: Sequence[bool]) -> str:
    return f"{np.mean(found):.1%}"


def _wrong(conditions: int, repeats: int) -> list[str]:
    equal = list(campaigns(conditions, repeats, _CAMPAIGNS))
    uneven = campaigns(conditions, repeats, _CAMPAIGNS, cv=[0.005, *[0.04, 0.01] * conditions][:conditions])
    drifting = campaigns(conditions, repeats, _CAMPAIGNS, drift=_DRIFT)
    limit = list(campaigns(conditions, repeats, _CAMPAIGNS, worse=LOSS_MARGIN_NATS))
    near = campaigns(conditions, repeats, _CAMPAIGNS, speed=[1.0, *[1.1] * (conditions - 1)])
    return [
        _share([any_order(one, Standing.FASTER, Standing.SLOWER) for one in equal]),
        _share([any_order(one, Standing.FASTER, Standing.SLOWER) for one in uneven]),
        _share([any_order(one, Standing.FASTER, Standing.SLOWER) for one in drifting]),
        _share([not best_holds(one) for one in equal]),
        _share([any_order(one, Standing.EQUAL) for one in near]),
        _share([any_loss(one, Standing.WORSE, Standing.BETTER) for one in limit]),
        _share([any_loss(one, Standing.EQUAL) for one in limit]),
    ]


def _power(conditions: int, repeats: int) -> list[str]:
    number = _CAMPAIGNS // 2
    faster = (
        campaigns(conditions, repeats, number, speed=[1.0, 1.0 + gain, *[1.0] * conditions][:conditions], cv=cv)
        for cv in (0.01, 0.03)
        for gain in (0.05, 0.1, 0.3)
    )
    equal = (campaigns(conditions, repeats, number, pair_sd=sd) for sd in (0.0005, 0.002))
    gain = [1.0, 1.1, *[1.0] * conditions][:conditions]
    drifting = campaigns(conditions, repeats, number, speed=gain, cv=0.01, drift=_DRIFT)
    return [
        *(_share([one[1].order == Standing.FASTER for one in found]) for found in faster),
        _share([one[1].order == Standing.FASTER for one in drifting]),
        *(_share([one[1].loss.verdict == Standing.EQUAL for one in found]) for found in equal),
    ]


def main() -> None:
    """Prints both tables."""
    sizes = "| conditions | repeats |"
    print(f"{sizes} equal: faster or slower | unequal noise: the same | drifting rounds: the same | ", end="")
    print("interval of the best misses | ", end="")
    print("10 % faster: equal | worse by the margin: worse or better | worse by the margin: equal |")
    print("|" + "---:|" * 9)
    for size in SIZES:
        print("|", " | ".join([*map(str, size), *_wrong(*size)]), "|")
    cases = (f"{gain} % faster, {cv} % noise" for cv in (1, 3) for gain in (5, 10, 30))
    print(f"\n{sizes} {' | '.join(cases)} | 10 % faster, 1 % noise, drifting rounds | ", end="")
    print("equal loss, 0.0005 nats of noise | equal loss, 0.002 nats |")
    print("|" + "---:|" * 11)
    for size in SIZES:
        print("|", " | ".join([*map(str, size), *_power(*size)]), "|")


if __name__ == "__main__":
    main()
