"""The arithmetic of an optimizer step: `global_batch = micro_batch x accumulation x world_size`.

A group of ranks that work on the same samples counts as one rank, see `TrainConfig.data_parallel`.
"""

from __future__ import annotations

from math import isqrt

from dscampaign.orchestrator.formatting import count

COMFORTABLE_MICRO_BATCH = 8


def divisors(number: int) -> tuple[int, ...]:
    """Return all divisors of a positive number, ascending."""
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    large = [number // d for d in reversed(small) if d * d != number]
    return (*small, *large)


def sharers(world_size: int, ranks_per_sample: int) -> str:
    """Return the sharers of a batch as text: `4 ranks`, `2 groups of 2 ranks`."""
    if ranks_per_sample == 1:
        return count(world_size, "rank")
    return f"{count(world_size // ranks_per_sample, 'group')} of {ranks_per_sample} ranks"


class IndivisibleError(ValueError):
    """Raised if a batch cannot be divided: the field of `train`, and a hint with the sizes that fit."""

    def __init__(self, field: str, message: str, hint: str) -> None:
        super().__init__(f"{message}; {hint}")
        self.field, self.message, self.hint = field, message, hint


def per_rank_batch(global_batch: int, shares: int, micro_batch: int = 1, ranks_per_sample: int = 1) -> int:
    """Return the samples of a rank, or group of ranks, in an optimizer step; raise IndivisibleError."""
    if global_batch % shares == 0:
        return global_batch // shares
    below = global_batch - global_batch % (unit := shares * micro_batch)
    message = f"global_batch {global_batch} is not a multiple of {sharers(shares * ranks_per_sample, ranks_per_sample)}"
    raise IndivisibleError("global_batch", message, f"use {f'{below} or ' if below else ''}{below + unit}")


def accumulation(global_batch: int, micro_batch: int, shares: int, ranks_per_sample: int = 1) -> int:
    """Return the passes of a rank in an optimizer step; raise IndivisibleError if the three numbers do not multiply."""
    share = per_rank_batch(global_batch, shares, micro_batch, ranks_per_sample)
    if share % micro_batch == 0:
        return share // micro_batch
    ranks = sharers(shares * ranks_per_sample, ranks_per_sample)
    message = f"micro_batch {micro_batch} does not divide {share} = global_batch {global_batch} / {ranks}"
    allowed = ", ".join(map(str, divisors(share)))
    raise IndivisibleError("micro_batch", message, f"use {'one of ' if share > 1 else ''}{allowed}")


def default_micro_batch(global_batch: int, world_size: int) -> int:
    """Return the largest micro-batch up to 8 that divides a rank's share of the batch; errors as above."""
    return max(d for d in divisors(per_rank_batch(global_batch, world_size)) if d <= COMFORTABLE_MICRO_BATCH)


def smaller_micro_batch(global_batch: int, world_size: int, micro_batch: int) -> int | None:
    """Return the micro-batch to try, with the same global batch, after another ran out of memory; None at 1."""
    share = per_rank_batch(global_batch, world_size)
    return max((d for d in divisors(share) if d <= micro_batch // 2), default=None)
