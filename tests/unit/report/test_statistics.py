"""Known answers: planted ties, planted differences, planted divergence, too little to tell."""

from __future__ import annotations

import math

import pytest

from dscampaign.orchestrator.report.compare.statistics import (
    LOSS_MARGIN_NATS,
    Standing,
    estimate,
    loss_margin,
    loss_test,
    order,
    ratio,
    student,
)


def test_a_median_has_a_range_from_three_repeats_on() -> None:
    assert estimate([]) is None
    assert estimate([math.nan]) is None
    one, two, three = estimate([5.0]), estimate([5.0, 7.0]), estimate([5.0, 9.0, 7.0])
    assert one
    assert (one.value, one.low, one.std, one.repeats) == (5.0, None, None, 1)
    assert two
    assert (two.value, two.low, two.repeats) == (6.0, None, 2)
    assert two.std == pytest.approx(2**0.5)
    assert three
    assert (three.value, three.low, three.high, three.repeats) == (7.0, 5.0, 9.0, 3)


def test_a_ratio_is_of_geometric_means_and_leaves_out_what_is_no_speed() -> None:
    found = ratio([20.0, 22.0, 24.0, math.nan], [10.0, 11.0, 12.0, 0.0])
    assert found
    assert found.repeats == 3
    assert found.value == pytest.approx(2.0)
    assert found.low == pytest.approx(1.6265, abs=0.001)
    assert found.high == pytest.approx(2.4593, abs=0.001)
    assert ratio([], [1.0]) is None


@pytest.mark.parametrize(
    ("speeds", "expected"),
    [
        ([100, 101, 102], Standing.EQUAL),  # planted tie: overlapping
        ([101.5, 101.6, 101.7], Standing.EQUAL),  # apart, but by less than 2 %
        ([120, 121, 122], Standing.FASTER),
        ([80, 81, 82], Standing.SLOWER),
        ([95, 100.5, 104], Standing.EQUAL),
        ([98, 103, 105], Standing.EQUAL),  # overlapping, and close
        ([97, 104, 106], Standing.NOT_PROVEN),  # 8 % apart may be behind these, and so may 11 %
        ([90, 104, 130], Standing.NOT_PROVEN),  # too wide to tell
        ([120, 121], Standing.NOT_PROVEN),
        ([], Standing.NOT_PROVEN),
    ],
)
def test_the_order_of_two_speeds(speeds: list[float], expected: Standing) -> None:
    assert order(speeds, [99.0, 100.0, 101.0]) == expected


BASE = [(0, 3.00), (1, 3.004), (2, 2.996)]


def shifted(by: float, base: list[tuple[int, float]] = BASE) -> list[tuple[int, float]]:
    return [(repeat, loss + by) for repeat, loss in base]


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        (shifted(0.005), Standing.EQUAL),
        (shifted(0.2), Standing.WORSE),
        (shifted(-0.2), Standing.BETTER),
        ([(0, 3.2)], Standing.NOT_PROVEN),  # one pair beyond the margin may be luck
        ([(0, 3.002)], Standing.NOT_PROVEN),  # and so may one within it
        ([(0, 3.002), (1, 3.001)], Standing.NOT_PROVEN),
        ([(0, 2.98), (1, 3.10), (2, 2.99)], Standing.NOT_PROVEN),
        ([(7, 3.0)], Standing.NOT_PROVEN),  # no baseline with that seed
        ([(0, 3.0), (1, math.nan), (2, 3.0)], Standing.WORSE),  # diverged
        ([], Standing.NOT_PROVEN),
    ],
)
def test_losses_beside_the_baseline(losses: list[tuple[int, float]], expected: Standing) -> None:
    found = loss_test(losses, BASE)
    assert found.verdict == expected
    assert found.margin == LOSS_MARGIN_NATS
    assert bool(found.reason) == (expected == Standing.NOT_PROVEN or found.difference is None)


def test_the_margin_never_depends_on_how_much_repeats_differ() -> None:
    noisy = [(0, 3.0), (1, 3.1), (2, 2.9)]
    found = loss_test(shifted(0.05, noisy), noisy)
    assert found.margin == LOSS_MARGIN_NATS
    assert found.verdict == Standing.WORSE  # by as much in every pair


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize(("by", "expected"), [(0.001, Standing.EQUAL), (3.0, Standing.WORSE), (-0.5, Standing.BETTER)])
def test_a_script_s_own_losses_are_equal_within_a_part_of_them(unit: float, by: float, expected: Standing) -> None:
    base = [(repeat, unit * loss) for repeat, loss in enumerate((1.0, 1.001, 1.0))]
    margin = loss_margin([loss for _, loss in base], None, own=True)
    found = loss_test([(repeat, loss + by * unit) for repeat, loss in base], base, margin)
    assert found.verdict == expected
    assert found.margin == pytest.approx(0.003 * unit)


@pytest.mark.parametrize(
    ("degrees", "tail", "expected"),
    [(2, 0.025, 4.302653), (4, 0.025, 2.776445), (10, 0.001, 4.143700), (60, 0.025, 2.000298), (2, 1e-4, 70.7001)],
)
def test_quantiles_of_student_s_t_are_those_of_the_tables(degrees: float, tail: float, expected: float) -> None:
    assert student(degrees, tail) == pytest.approx(expected, rel=1e-4)


def test_pairs_take_out_what_the_seed_does() -> None:
    noisy = [(0, 3.0), (1, 3.5), (2, 2.5)]  # seeds differ by half a nat, the condition by five hundredths
    found = loss_test(shifted(0.05, noisy), noisy)
    assert found.difference
    assert found.difference.value == pytest.approx(0.05)
