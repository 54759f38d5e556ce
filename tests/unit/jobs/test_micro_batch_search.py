"""Which micro-batch is tried, and which is chosen, with planted speeds and memories."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dscampaign.jobs.shared.micro_batch_search import FULL, SizeTrial, best_size, first_size, next_size, smaller_size


def searched(
    share: int,
    step_s: Callable[[int], float],
    peak_gb: Callable[[int], float] | None = None,
    usable_gb: float | None = None,
    begin: int | None = None,
) -> tuple[list[int], int | None]:
    """The sizes that a search tries until one does not fit, and what it chooses."""
    trials: list[SizeTrial] = []
    size: int | None = begin or first_size(share)
    while size is not None:
        held = peak_gb(size) if peak_gb else None
        if held is not None and usable_gb is not None and held > usable_gb:
            break  # the process ends here
        trials.append(SizeTrial(size, step_s(size), held, usable_gb))
        size = next_size(share, trials)
    return [trial.micro_batch for trial in trials], best_size(trials)


def test_a_planted_optimum_in_the_middle_is_found() -> None:
    assert searched(256, lambda size: 1.0 + abs(size - 32) / 32)[1] == 32


def test_a_plateau_ends_it_and_its_smallest_is_chosen() -> None:
    tried, chosen = searched(1024, lambda size: max(1.0, 32 / size))
    assert tried == [8, 16, 32, 64, 128]
    assert chosen == 32


def test_noise_within_two_percent_chooses_the_smallest() -> None:
    speeds = {8: 1.0, 16: 0.99, 32: 0.985, 64: 0.99}
    tried, chosen = searched(64, speeds.__getitem__)
    assert (tried, chosen) == ([8, 16, 32], 8)


def test_a_size_between_is_tried_where_the_double_would_not_fit() -> None:
    tried, chosen = searched(96, lambda size: 10 / size, lambda size: 4.0 + size, 60.0)
    assert tried == [8, 16, 32, 48]
    assert chosen == 48


def test_a_size_that_fills_the_memory_is_not_chosen() -> None:
    """The report would not recommend it."""
    peaks = {8: 10.0, 16: FULL * 40.0 + 0.1}
    tried, chosen = searched(64, lambda size: 10 / size, peaks.__getitem__, 40.0)
    assert (tried, chosen) == ([8, 16], 8)


@pytest.mark.parametrize(
    ("share", "begins", "then"), [(64, 8, [4, 2, 1]), (12, 6, [3, 1]), (7, 7, [1]), (1, 1, []), (22, 2, [1])]
)
def test_it_begins_at_a_divisor_and_goes_down_through_divisors(share: int, begins: int, then: list[int]) -> None:
    assert first_size(share) == begins
    found, size = [], smaller_size(share, begins)
    while size is not None:
        found.append(size)
        size = smaller_size(share, size)
    assert found == then


@pytest.mark.parametrize("share", [1, 2, 7, 12, 96, 97, 360, 1000])
def test_all_sizes_divide_the_share_and_grow(share: int) -> None:
    tried, chosen = searched(share, lambda size: 10 / size)
    assert all(share % size == 0 for size in tried)
    assert tried == sorted(set(tried))
    assert chosen == share == tried[-1]
