"""What two knobs do together, and what cannot be told apart, with planted answers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dscampaign.orchestrator.report.compare.baseline import BaselineComparison, compare_to_baseline
from dscampaign.orchestrator.report.compare.conditions import conditions_of
from dscampaign.orchestrator.report.compare.interactions import confounded, effect_sentences, interactions
from dscampaign.orchestrator.report.compare.sensitivity import sensitivities
from dscampaign.orchestrator.report.compare.statistics import contrast, ratio
from dscampaign.orchestrator.report.measure.run import MeasuredRun
from dscampaign.tests.support.planted import Plant, Planted

KNOBS = ("overlap_comm", "NCCL_ALGO")


def compared(runs: Sequence[MeasuredRun]) -> list[BaselineComparison]:
    conditions = conditions_of(runs)
    return compare_to_baseline(conditions, conditions[0])


def point(overlap: bool, algo: str, step_s: float, spread: float = 0.001, repeats: int = 3) -> Planted:
    times = [step_s * (1 + spread * k) for k in (0, 1, -1)][:repeats]
    return Planted(
        f"{algo}-{'on' if overlap else 'off'}",
        times,
        (3.0,) * repeats,
        params=dict(zip(KNOBS, (overlap, algo), strict=True)),
        config={"deepspeed": {"zero_optimization": {"overlap_comm": overlap}}, "env": {"NCCL_ALGO": algo}},
    )


def square(both_s: float, spread: float = 0.001, repeats: int = 3) -> list[Planted]:
    """Overlap alone makes it 1.25 times as fast, Tree alone 0.8 times."""
    points = ((False, "Ring", 0.10), (True, "Ring", 0.08), (False, "Tree", 0.125), (True, "Tree", both_s))
    return [point(overlap, algo, step_s, spread, repeats) for overlap, algo, step_s in points]


def test_a_planted_interaction_of_a_deepspeed_key_and_a_variable_is_found(planted: Plant) -> None:
    said = list(effect_sentences(compared(planted(*square(both_s=0.05)))))
    (line,) = [line for line in said if "interact" in line]
    assert line == (
        "overlap_comm off → on and NCCL_ALGO Ring → Tree interact: together 2.00 [1.98, 2.01] × the product of what "
        "each brings alone."
    )


def test_planted_interactions_in_loss_and_in_memory_are_found(planted: Plant) -> None:
    neither, first, second, both = square(both_s=0.1)
    first = replace(first, held_out=(3.10, 3.11, 3.09), reserved_gb=12.0)
    second = replace(second, held_out=(3.20, 3.21, 3.19), reserved_gb=9.0)
    both = replace(both, held_out=(2.80, 2.81, 2.79), reserved_gb=15.0)
    said = [line for line in effect_sentences(compared(planted(neither, first, second, both))) if "interact" in line]
    changes = "overlap_comm off → on and NCCL_ALGO Ring → Tree"
    assert said == [
        f"{changes} interact in loss: together -0.500 [-0.533, -0.467] nats beyond the sum of what each brings alone.",
        f"{changes} interact in memory: together +4.0 [+4.0, +4.0] GB beyond the sum of what each brings alone.",
    ]


def test_an_interaction_in_a_script_s_own_loss_is_beside_how_large_that_is(planted: Plant) -> None:
    losses = (0.0010, 0.0011, 0.0012, 0.0040)
    points = [
        replace(one, held_out=(loss,) * 3, config={**one.config, "command": ["train.py"]})
        for one, loss in zip(square(both_s=0.1), losses, strict=True)
    ]
    said = [line for line in effect_sentences(compared(planted(*points))) if "interact in loss" in line]
    assert len(said) == 1


def test_differences_that_add_up_are_no_interaction(planted: Plant) -> None:
    neither, first, second, both = square(both_s=0.1)
    first = replace(first, held_out=(3.1,) * 3, reserved_gb=12.0)
    second = replace(second, held_out=(3.2,) * 3, reserved_gb=9.0)
    both = replace(both, held_out=(3.3,) * 3, reserved_gb=11.0)
    assert not any("interact" in line for line in effect_sentences(compared(planted(neither, first, second, both))))


def test_effects_that_multiply_do_not_interact(planted: Plant) -> None:
    comparisons = compared(planted(*square(both_s=0.1)))
    speed, loss, memory = interactions(sensitivities(comparisons))
    assert speed.estimate.value == pytest.approx(1.0, abs=0.01)
    assert (loss.estimate.value, memory.estimate.value) == pytest.approx((0.0, 0.0))
    assert not any(one.established for one in (speed, loss, memory))
    assert not any("interact" in line for line in effect_sentences(comparisons))


@pytest.mark.parametrize(("spread", "repeats"), [(0.5, 3), (0.0, 2), (0.0, 1)])
def test_what_repeats_do_not_establish_is_not_said(planted: Plant, spread: float, repeats: int) -> None:
    found = interactions(sensitivities(compared(planted(*square(0.08, spread, repeats)))))
    assert not any(one.established for one in found)


def test_a_missing_corner_is_no_interaction(planted: Plant) -> None:
    assert interactions(sensitivities(compared(planted(*square(0.05)[:3])))) == []


def test_the_main_effect_over_several_pairs_has_an_interval(planted: Plant) -> None:
    said = list(effect_sentences(compared(planted(*square(both_s=0.1)))))
    assert any(line.startswith("overlap_comm off → on: 1.25 [1.25, 1.25] × the speed, ") for line in said)


def test_axes_that_always_change_together_are_named(planted: Plant) -> None:
    comparisons = compared(planted(point(False, "Ring", 0.1), point(True, "Tree", 0.05)))
    assert list(confounded(comparisons, sensitivities(comparisons))) == [
        "overlap_comm, NCCL_ALGO always change together: their effects cannot be told apart."
    ]


def test_an_axis_that_never_changes_alone_is_named(planted: Plant) -> None:
    runs = planted(point(False, "Ring", 0.1), point(True, "Tree", 0.05), point(True, "Ring", 0.08))
    comparisons = compared(runs)
    assert list(confounded(comparisons, sensitivities(comparisons))) == []
    left = compared([run for run in runs if not run.name.startswith("Ring-on")])
    assert len(list(confounded(left, sensitivities(left)))) == 1


def test_axes_that_never_change_alone_are_one_sentence(planted: Plant) -> None:
    """Groups of ranks take the samples of their ranks together: a micro-batch twice as large comes with each."""
    axes: tuple[dict[str, int], ...] = (
        {"tensor_parallel": 1, "sequence_parallel": 1, "micro_batch": 16},
        {"tensor_parallel": 2, "sequence_parallel": 1, "micro_batch": 32},
        {"tensor_parallel": 1, "sequence_parallel": 2, "micro_batch": 32},
    )
    comparisons = compared(planted(*(Planted(str(i), params=axis, train=axis) for i, axis in enumerate(axes))))
    assert list(confounded(comparisons, sensitivities(comparisons))) == [
        "tensor_parallel, sequence_parallel, micro_batch never change alone: their effects cannot be told."
    ]


def test_a_default_that_one_condition_spells_out_is_no_change(planted: Plant) -> None:
    axes: tuple[dict[str, Any], ...] = ({"lr": 1e-3}, {"lr": 2e-3, "compile": False})
    conditions = [Planted(f"lr-{axis['lr']}", params=axis, train={"lr": axis["lr"], "compile": False}) for axis in axes]
    runs = planted(*conditions)
    comparisons = compared(runs)
    assert list(confounded(comparisons, sensitivities(comparisons))) == []


def test_a_contrast_of_two_is_a_ratio(planted: Plant) -> None:
    above, below = (2.0, 2.1, 2.2), (1.0, 1.1, 0.9)
    made, expected = contrast([(above, 1.0), (below, -1.0)]), ratio(above, below)
    assert made
    assert expected
    assert made.value == pytest.approx(expected.value)
    assert made.low == pytest.approx(expected.low, rel=0.02)
    assert made.high == pytest.approx(expected.high, rel=0.02)


def test_intervals_of_a_contrast_hold_the_truth_about_as_often_as_they_say() -> None:
    """With seven repeats a cell, about nineteen times in twenty."""
    draw = random.Random(3)
    held = 0
    for _ in range(200):
        cells = [(tuple(draw.gauss(mean, 0.05 * mean) for _ in range(7)), w) for mean, w in ((2.0, 1.0), (1.0, -1.0))]
        found = contrast(cells)
        assert found
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 2.0 <= found.high
    assert held >= 170
