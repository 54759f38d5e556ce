"""The arithmetic of one optimizer step: `global_batch = micro_batch x accumulation x world_size`.

Where ranks work on the same samples, each group of them counts as one: `TrainConfig.data_parallel` says how many there
are.
"""

from __future__ import annotations

from math import isqrt

from dscampaign.orchestrator.formatting import count

COMFORTABLE_MICRO_BATCH = 8


def divisors(number: int) -> tuple[int, ...]:
    """All divisors of a positive number, ascending."""
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    large = [number // d for d in reversed(small) if d * d != number]
    return (*small, *large)


def sharers(world_size: int, ranks_per_sample: int) -> str:
    """Who divides the batch, in words: `4 ranks`, `2 groups of 2 ranks`."""
    if ranks_per_sample == 1:
        return count(world_size, "rank")
    return f"{count(world_size // ranks_per_sample, 'group')} of {ranks_per_sample} ranks"


def per_rank_batch(global_batch: int, world_size: int, micro_batch: int = 1) -> int:
    """Samples that one rank handles in an optimizer step.

    Raises:
        ValueError: The ranks cannot share the batch evenly; the text says what would fit, also this micro-batch.
    """
    if global_batch % world_size:
        unit = world_size * micro_batch
        below = global_batch - global_batch % unit
        nearest = " or ".join(str(size) for size in (below, below + unit) if size)
        raise ValueError(f"global_batch {global_batch} is not a multiple of {world_size} ranks; use {nearest}")
    return global_batch // world_size


def accumulation(global_batch: int, micro_batch: int, world_size: int) -> int:
    """Forward and backward passes of one rank in an optimizer step.

    Raises:
        ValueError: The three numbers do not multiply; the text says which would.
    """
    share = per_rank_batch(global_batch, world_size, micro_batch)
    if share % micro_batch:
        allowed = ", ".join(str(d) for d in divisors(share))
        raise ValueError(
            f"micro_batch {micro_batch} does not divide {share} = global_batch {global_batch} / {world_size} ranks; "
            f"use {'one of ' if share > 1 else ''}{allowed}"
        )
    return share // micro_batch


def default_micro_batch(global_batch: int, world_size: int) -> int:
    """The largest micro-batch up to 8 that divides a rank's share of the batch.

    Raises:
        ValueError: The ranks cannot share the batch evenly.
    """
    share = per_rank_batch(global_batch, world_size)
    return max(d for d in divisors(share) if d <= COMFORTABLE_MICRO_BATCH)


def smaller_micro_batch(global_batch: int, world_size: int, micro_batch: int) -> int | None:
    """The micro-batch to try after `micro_batch` ran out of memory.

    The global batch stays what it is, so the experiment does not change: only the accumulation grows.

    Returns:
        The largest divisor of a rank's share of the batch that is at most half of `micro_batch`; None at 1.
    """
    share = per_rank_batch(global_batch, world_size)
    return max((d for d in divisors(share) if d <= micro_batch // 2), default=None)
