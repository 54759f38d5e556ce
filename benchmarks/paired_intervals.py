"""How often 95 % intervals hold the true ratio of speeds, and how wide they are, by repeats alone and paired by job.

python benchmarks/paired_intervals.py

Simulated campaigns: each repeat is a job that runs all conditions in turn, in an order that rotates. Jobs begin at any
time of an hour in which the machine becomes 30 % slower, each on a node of its own speed. It takes three minutes;
`results/paired_intervals.txt` is what it prints.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from dscampaign.benchmarks.statistics_rates import Simulated
from dscampaign.orchestrator.report.compare.baseline import BaselineComparison, compare_to_baseline

SIZES: Final = tuple((conditions, blocks) for conditions in (2, 3, 5, 8) for blocks in (3, 5, 8))
NUMBER: Final = 2000
HOUR_S: Final = 3600.0
DRIFT: Final = 0.3
"""Of the speed, lost over the hour."""
NODE: Final = 0.05
"""Standard deviation of the logarithm of the speed over nodes."""
NOISE: Final = 0.02
"""The same over repeats of a run."""


@dataclass(frozen=True)
class Packed(Simulated):
    """A condition, each repeat of which is in a job with all others."""

    starts_s: Mapping[int, float] = field(default_factory=dict)
    run_s: float = 60.0
    job: str = "1_{}"

    @property
    def spans_s(self) -> dict[int, tuple[float, float]]:
        """Start and end of each repeat."""
        return {number: (start, start + self.run_s) for number, start in self.starts_s.items()}


@dataclass(frozen=True)
class Campaign:
    """The true ratios of all conditions to the first, and what is found."""

    truth: tuple[float, ...]
    found: tuple[BaselineComparison, ...]


def packed(
    rng: np.random.Generator, conditions: int, blocks: int, run_s: float = 60.0, *, among: int | None = 1
) -> Campaign:
    """Return a campaign in jobs that hold a repeat of each condition.

    Args:
        among: comparisons whose intervals hold together; None for all with the first condition.
    """
    truth = np.exp(rng.uniform(-0.3, 0.3, conditions))
    jobs_s, nodes = rng.uniform(0.0, HOUR_S - conditions * run_s, blocks), NODE * rng.standard_normal(blocks)
    starts_s = [
        {block: float(jobs_s[block]) + (number - block) % conditions * run_s for block in range(blocks)}
        for number in range(conditions)
    ]
    speeds = [
        tuple(
            float(truth[number] * (1.0 - DRIFT * (start + run_s / 2) / HOUR_S))
            * math.exp(nodes[block] + NOISE * rng.standard_normal())
            for block, start in starts_s[number].items()
        )
        for number in range(conditions)
    ]
    losses = [(block, 3.0) for block in range(blocks)]
    made: list[Any] = [
        Packed(f"c{number}", own, losses, starts_s=starts_s[number], run_s=run_s) for number, own in enumerate(speeds)
    ]
    return Campaign(tuple(map(float, truth / truth[0])), tuple(compare_to_baseline(made, made[0], among=among)))


def rates(campaigns: Iterator[Campaign]) -> dict[str, float]:
    """Return the shares of intervals that hold the truth, their median widths, and the share of pairs."""
    holds: dict[str, list[bool]] = {"unpaired": [], "paired": []}
    widths: dict[str, list[float]] = {"unpaired": [], "paired": []}
    number = 0
    for campaign in campaigns:
        for one, truth in list(zip(campaign.found, campaign.truth, strict=True))[1:]:
            number += 1
            for name, interval in (("unpaired", one.times_unpaired), ("paired", one.times_baseline)):
                if one.paired_by and interval and interval.low and interval.high:
                    holds[name].append(interval.low <= truth <= interval.high)
                    widths[name].append(interval.high / interval.low - 1.0)
    return {
        **{f"{name} holds": float(np.mean(each)) for name, each in holds.items()},
        **{f"{name} width": float(np.median(each)) for name, each in widths.items()},
        "pairs": len(holds["paired"]) / number,
    }


def any_misses(campaigns: Iterator[Campaign]) -> float:
    """Return the share of campaigns in which any interval that the report shows misses the truth."""
    return float(np.mean([any(map(_misses, found.found[1:], found.truth[1:])) for found in campaigns]))


def _misses(one: BaselineComparison, truth: float) -> bool:
    interval = one.times_baseline
    return not (interval and interval.low and interval.high and interval.low <= truth <= interval.high)


def main() -> None:
    """Print the table."""
    names = ("pairs", "unpaired holds", "paired holds", "unpaired width", "paired width")
    print("| conditions | blocks | minutes a run | compared in pairs | unpaired: holds the truth |", end="")
    print(" paired: the same | unpaired: median width | paired: the same | corrected for all: any misses |")
    print("|" + "---:|" * 9)
    for minutes in (1, 4):
        for conditions, blocks in SIZES:
            rng = np.random.default_rng((conditions, blocks))
            found = rates(packed(rng, conditions, blocks, 60.0 * minutes) for _ in range(NUMBER))
            together = any_misses(packed(rng, conditions, blocks, 60.0 * minutes, among=None) for _ in range(NUMBER))
            shares = [*(found[name] for name in names), together]
            row = [*map(str, (conditions, blocks, minutes)), *(f"{share:.1%}" for share in shares)]
            print("|", " | ".join(row), "|")


if __name__ == "__main__":
    main()
