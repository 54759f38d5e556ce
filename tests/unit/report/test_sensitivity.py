"""What one change costs: only conditions that differ in it alone are a pair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dscampaign.orchestrator.report.compare.baseline import compare_to_baseline
from dscampaign.orchestrator.report.compare.conditions import conditions_of
from dscampaign.orchestrator.report.compare.sensitivity import sensitivities, sensitivity_sentence
from dscampaign.orchestrator.report.measure.run import MeasuredRun
from dscampaign.tests.support.planted import Plant, Planted


def said(runs: Sequence[MeasuredRun]) -> list[str]:
    conditions = conditions_of(runs)
    return [sensitivity_sentence(change) for change in sensitivities(compare_to_baseline(conditions, conditions[0]))]


def on(name: str, step_s: float, zero_stage: int, *, train: dict[str, Any] | None = None, **slurm: Any) -> Planted:
    return Planted(name, (step_s,) * 3, train={"zero_stage": zero_stage, **(train or {})}, config={"slurm": slurm})


def test_other_machines_are_no_pair(planted: Plant) -> None:
    runs = planted(
        on("z1-h", 0.1, 1, partition="h100"),
        on("z1-a", 0.3, 1, partition="a100"),
        on("z2-h", 0.1, 2, partition="h100"),
        on("z2-a", 0.3, 2, partition="a100"),
    )
    assert said(runs) == ["zero_stage 1 → 2: as fast (z1-h → z2-h and 1 more)."]


def test_other_gpus_are_no_pair(planted: Plant) -> None:
    assert said(planted(on("a", 0.1, 1, gpus_per_node="h100:2"), on("b", 0.3, 2, gpus_per_node="a100:2"))) == []


def test_how_long_a_job_may_take_is_no_difference(planted: Plant) -> None:
    runs = planted(on("a", 0.1, 1, time="1:00:00", mem="64G"), on("b", 0.2, 2, time="4:00:00", mem="512G"))
    assert said(runs) == ["zero_stage 1 → 2: 0.50 [0.50, 0.50] × the speed (a → b)."]


def test_other_seeds_are_no_pair(planted: Plant) -> None:
    runs = planted(*(on(f"z{stage}-s{seed}", 0.1, stage, train={"seed": seed}) for stage in (1, 2) for seed in (1, 2)))
    assert said(runs) == ["zero_stage 1 → 2: as fast (z1-s1 → z2-s1 and 1 more)."]


def test_all_that_are_alike_are_pairs(planted: Plant) -> None:
    runs = planted(
        on("short", 0.1, 1, time="1:00:00"), on("long", 0.2, 1, time="4:00:00"), on("other", 0.4, 2, time="1:00:00")
    )
    assert said(runs) == ["zero_stage 1 → 2: 0.25 to 0.50 × the speed (short → other and 1 more)."]


def test_a_folder_on_a_disk_goes_with_offload_to_it(planted: Plant) -> None:
    disk = {"offload": "nvme", "nvme_path": "/scratch"}
    runs = planted(on("none", 0.1, 3, train={"offload": "none"}), on("nvme", 0.2, 3, train=disk))
    assert said(runs) == ["offload none → nvme: 0.50 [0.50, 0.50] × the speed (none → nvme)."]


def test_without_a_zero_stage_engines_have_a_price(planted: Plant) -> None:
    runs = planted(
        Planted("ddp", train={"engine": "ddp", "zero_stage": None}),
        Planted("zero1", (0.2,) * 3),
        Planted("zero2", (0.4,) * 3, train={"zero_stage": 2}),
    )
    assert said(runs) == [
        "engine ddp → deepspeed: 0.50 [0.50, 0.50] × the speed (ddp → zero1).",
        "zero_stage 1 → 2: 0.50 [0.50, 0.50] × the speed (zero1 → zero2).",
    ]
