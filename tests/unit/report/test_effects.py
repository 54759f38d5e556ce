"""Effects of two knobs, and effects that cannot be separated, with planted answers."""

from __future__ import annotations

from collections.abc import Sequence

from dscampaign.orchestrator.report.compare.baseline import BaselineComparison, compare_to_baseline
from dscampaign.orchestrator.report.compare.conditions import conditions_of
from dscampaign.orchestrator.report.compare.sensitivity import sensitivities
from dscampaign.orchestrator.report.measure.run import MeasuredRun
from dscampaign.tests.support.effects import effect_line
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


def test_the_main_effect_over_several_pairs_has_an_interval(planted: Plant) -> None:
    said = [effect_line(change) for change in sensitivities(compared(planted(*square(both_s=0.1))))]
    assert any(line.startswith("overlap_comm off → on: 1.25 [1.25, 1.25] × the speed, ") for line in said)
