"""The batch arithmetic: exact, whatever the numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dscampaign.orchestrator.spec import batch_size

sizes = st.integers(1, 300)


@given(st.integers(1, 5000))
def test_divisors_are_all_divisors_in_order(number: int) -> None:
    assert batch_size.divisors(number) == tuple(d for d in range(1, number + 1) if number % d == 0)


@given(share=sizes, world_size=sizes)
def test_shrinking_keeps_the_global_batch_down_to_one(share: int, world_size: int) -> None:
    global_batch, micro_batch = share * world_size, share
    while (smaller := batch_size.smaller_micro_batch(global_batch, world_size, micro_batch)) is not None:
        assert smaller <= micro_batch // 2
        steps = batch_size.accumulation(global_batch, smaller, world_size)
        assert smaller * steps * world_size == global_batch
        micro_batch = smaller
    assert micro_batch == 1


@given(share=sizes, world_size=sizes)
def test_the_default_is_the_largest_comfortable_divisor(share: int, world_size: int) -> None:
    default = batch_size.default_micro_batch(share * world_size, world_size)
    assert share % default == 0
    assert not [d for d in range(default + 1, 9) if share % d == 0]


def test_shrinking_skips_what_does_not_divide() -> None:
    assert batch_size.smaller_micro_batch(global_batch=36, world_size=2, micro_batch=9) == 3


def test_an_error_says_what_would_fit() -> None:
    with pytest.raises(ValueError, match=r"100 is not a multiple of 16 ranks; use 96 or 112"):
        batch_size.accumulation(100, 1, 16)
    with pytest.raises(ValueError, match=r"500 is not a multiple of 8 ranks; use 256 or 512"):
        batch_size.accumulation(500, 32, 8)
    with pytest.raises(ValueError, match=r"micro_batch 3 does not divide 8 .* use one of 1, 2, 4, 8"):
        batch_size.accumulation(16, 3, 2)


def test_fewer_samples_than_ranks_suggests_only_more() -> None:
    with pytest.raises(ValueError, match=r"use 16$"):
        batch_size.per_rank_batch(5, 16)
