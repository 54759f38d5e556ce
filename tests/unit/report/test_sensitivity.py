"""What one change of an axis does: only conditions that differ in it alone are a pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dscampaign.orchestrator.report.compare.sensitivity import sensitivities
from dscampaign.orchestrator.report.measure.run import MeasuredRun
from dscampaign.tests.support.effects import effect_line
from dscampaign.tests.support.planted import Plant, Planted, beside_first


def said(runs: Sequence[MeasuredRun]) -> list[str]:
    return [effect_line(change) for change in sensitivities(beside_first(runs))]


def test_other_machines_are_no_pair(planted: Plant) -> None:
    """The effect of a machine is one of its own."""
    runs = planted(
        varied("z1-h", 0.1, 3.0, zero_stage=1, partition="h100"),
        varied("z1-a", 0.3, 3.0, zero_stage=1, partition="a100"),
        varied("z2-h", 0.1, 3.0, zero_stage=2, partition="h100"),
        varied("z2-a", 0.3, 3.0, zero_stage=2, partition="a100"),
    )
    stage, machine = said(runs)
    assert stage == "zero_stage 1 → 2: as fast, equal held-out loss (z1-h → z2-h and 1 more)."
    assert machine.startswith("partition h100 → a100: 0.33 [0.33, 0.33] × the speed, ")


def test_repeats_that_vary_much_make_nothing_equal_without_a_word(planted: Plant) -> None:
    runs = planted(
        Planted("a", held_out=(3.0, 3.4, 2.6), params={"zero_stage": 1}),
        Planted("b", held_out=(3.0, 3.1, 2.9), params={"zero_stage": 2}),
    )
    assert said(runs) == ["zero_stage 1 → 2: as fast, held-out loss +0.00 [-0.75, +0.75] nats (a → b)."]


def varied(name: str, step_s: float, held_out: float, **params: Any) -> Planted:
    return Planted(name, (step_s,) * 3, (held_out,) * 3, params=params, train=params)


def test_any_axis_has_its_effects_on_loss_speed_and_memory(planted: Plant) -> None:
    """Numbers from each to the next, whatever their order in the matrix."""
    runs = planted(
        *(
            varied(f"lr-{lr}", step_s, loss, lr=lr)
            for lr, step_s, loss in ((0.1, 0.1, 2.5), (0.01, 0.1, 3.0), (1, 0.2, 4.0))
        )
    )
    assert said(runs) == [
        "lr 0.01 → 0.1: as fast, held-out loss -0.500 [-0.500, -0.500] nats (lr-0.01 → lr-0.1).",
        "lr 0.1 → 1: 0.50 [0.50, 0.50] × the speed, held-out loss +1.500 [+1.500, +1.500] nats (lr-0.1 → lr-1).",
    ]


def test_an_effect_on_the_loss_needs_repeats_that_differ(planted: Plant) -> None:
    """Three repeats with the same losses are one; their speeds are three."""
    runs = planted(varied("a", 0.1, 3.0, lr=0.1), varied("b", 0.2, 2.0, lr=0.2))
    first = {run.params["label"]: run.curve for run in reversed(runs)}
    (change,) = sensitivities(beside_first([replace(run, curve=first[run.params["label"]]) for run in runs]))
    assert change.proofs == {"speed": True, "loss": False}


def test_the_effects_of_a_word_are_told_from_the_first_of_the_matrix(planted: Plant) -> None:
    words = planted(
        *(
            varied(word, step_s, 3.0, attention=word)
            for word, step_s in (("sdpa", 0.1), ("eager", 0.2), ("flash", 0.05))
        )
    )
    assert said(words) == [
        "attention sdpa → eager: 0.50 [0.50, 0.50] × the speed, equal held-out loss (sdpa → eager).",
        "attention sdpa → flash: 2.00 [2.00, 2.00] × the speed, equal held-out loss (sdpa → flash).",
    ]


def test_the_effect_of_an_axis_is_over_all_pairs_that_are_alike_in_the_others(planted: Plant) -> None:
    runs = planted(
        *(
            varied(f"{lr}-{wd}", 0.1, 3.0 - lr - gain * (wd > 0), lr=lr, weight_decay=wd)
            for lr, gain in ((0.1, 0.1), (0.2, 0.3))
            for wd in (0.0, 0.5)
        )
    )
    loss = "as fast, held-out loss -0.200 [-0.200, -0.200] nats (-0.300 to -0.100)"
    assert said(runs) == [
        f"lr 0.1 → 0.2: {loss} (0.1-0.0 → 0.2-0.0 and 1 more).",
        f"weight_decay 0 → 0.5: {loss} (0.1-0.0 → 0.1-0.5 and 1 more).",
    ]
