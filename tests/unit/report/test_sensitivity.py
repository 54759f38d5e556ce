"""What one change of an axis does: only conditions that differ in it alone are a pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dscampaign.orchestrator.report.compare.baseline import compare_to_baseline
from dscampaign.orchestrator.report.compare.conditions import conditions_of
from dscampaign.orchestrator.report.compare.sensitivity import proofs, sensitivities
from dscampaign.orchestrator.report.measure.run import MeasuredRun
from dscampaign.tests.support.effects import effect_line
from dscampaign.tests.support.planted import Plant, Planted


def said(runs: Sequence[MeasuredRun]) -> list[str]:
    conditions = conditions_of(runs)
    return [effect_line(change) for change in sensitivities(compare_to_baseline(conditions, conditions[0]))]


def on(name: str, step_s: float, zero_stage: int, *, train: dict[str, Any] | None = None, **slurm: Any) -> Planted:
    return Planted(name, (step_s,) * 3, train={"zero_stage": zero_stage, **(train or {})}, config={"slurm": slurm})


def test_other_machines_are_no_pair(planted: Plant) -> None:
    runs = planted(
        on("z1-h", 0.1, 1, partition="h100"),
        on("z1-a", 0.3, 1, partition="a100"),
        on("z2-h", 0.1, 2, partition="h100"),
        on("z2-a", 0.3, 2, partition="a100"),
    )
    assert said(runs) == ["zero_stage 1 → 2: as fast, equal held-out loss (z1-h → z2-h and 1 more)."]


def test_other_gpus_are_no_pair(planted: Plant) -> None:
    assert said(planted(on("a", 0.1, 1, gpus_per_node="h100:2"), on("b", 0.3, 2, gpus_per_node="a100:2"))) == []


def test_how_long_a_job_may_take_is_no_difference(planted: Plant) -> None:
    runs = planted(on("a", 0.1, 1, time="1:00:00", mem="64G"), on("b", 0.2, 2, time="4:00:00", mem="512G"))
    assert said(runs) == ["zero_stage 1 → 2: 0.50 [0.50, 0.50] × the speed, equal held-out loss (a → b)."]


def test_other_seeds_are_no_pair(planted: Plant) -> None:
    runs = planted(*(on(f"z{stage}-s{seed}", 0.1, stage, train={"seed": seed}) for stage in (1, 2) for seed in (1, 2)))
    assert said(runs) == ["zero_stage 1 → 2: as fast, equal held-out loss (z1-s1 → z2-s1 and 1 more)."]


def test_all_that_are_alike_are_pairs(planted: Plant) -> None:
    runs = planted(
        on("short", 0.1, 1, time="1:00:00"), on("long", 0.2, 1, time="4:00:00"), on("other", 0.4, 2, time="1:00:00")
    )
    (line,) = said(runs)
    assert line.startswith("zero_stage 1 → 2: 0.35 [0.35, 0.35] × the speed (0.25 to 0.50), equal held-out loss (short")


def test_repeats_that_vary_much_make_nothing_equal_without_a_word(planted: Plant) -> None:
    runs = planted(
        Planted("a", held_out=(3.0, 3.4, 2.6), train={"zero_stage": 1}),
        Planted("b", held_out=(3.0, 3.1, 2.9), train={"zero_stage": 2}),
    )
    assert said(runs) == ["zero_stage 1 → 2: as fast, held-out loss +0.00 [-0.75, +0.75] nats (a → b)."]


def test_a_condition_in_several_pairs_is_no_more_certain_for_it(planted: Plant) -> None:
    """Both pairs end at the same five repeats, whose interval alone is that wide."""
    twice = Planted(
        "other", (0.1, 0.15, 0.2, 0.3, 0.4), (3.0,) * 5, train={"zero_stage": 2}, config={"slurm": {"time": "1:00:00"}}
    )
    (line,) = said(planted(on("short", 0.2, 1, time="1:00:00"), on("long", 0.2, 1, time="4:00:00"), twice))
    assert "0.98 [0.41, 2.30] × the speed, " in line


def test_a_folder_on_a_disk_goes_with_offload_to_it(planted: Plant) -> None:
    disk = {"offload": "nvme", "nvme_path": "/scratch"}
    runs = planted(on("none", 0.1, 3, train={"offload": "none"}), on("nvme", 0.2, 3, train=disk))
    assert said(runs) == ["offload none → nvme: 0.50 [0.50, 0.50] × the speed, equal held-out loss (none → nvme)."]


def test_without_a_zero_stage_engines_have_a_price(planted: Plant) -> None:
    runs = planted(
        Planted("ddp", train={"engine": "ddp", "zero_stage": None}),
        Planted("zero1", (0.2,) * 3),
        Planted("zero2", (0.4,) * 3, train={"zero_stage": 2}),
    )
    assert said(runs) == [
        "engine ddp → deepspeed: 0.50 [0.50, 0.50] × the speed, equal held-out loss (ddp → zero1).",
        "zero_stage 1 → 2: 0.50 [0.50, 0.50] × the speed, equal held-out loss (zero1 → zero2).",
    ]


def test_an_engine_is_beside_the_stage_that_shares_most_like_it(planted: Plant) -> None:
    runs = planted(
        Planted("zero1"),
        Planted("zero3", (0.2,) * 3, train={"zero_stage": 3}),
        Planted("fsdp2", (0.1,) * 3, train={"engine": "fsdp2", "zero_stage": 0}),
    )
    assert said(runs)[0] == (
        "engine deepspeed → fsdp2: 2.00 [2.00, 2.01] × the speed, equal held-out loss (zero3 → fsdp2)."
    )


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
    conditions = conditions_of([replace(run, curve=first[run.params["label"]]) for run in runs])
    (change,) = sensitivities(compare_to_baseline(conditions, conditions[0]))
    assert proofs(change) == {"speed": True, "loss": False}


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


def test_a_value_that_a_point_leaves_out_is_unset(planted: Plant) -> None:
    key = "deepspeed.zero_optimization.contiguous_gradients"
    runs = planted(Planted("plain", (0.1,) * 3), Planted("off", (0.2,) * 3, params={key: False}))
    assert [line for line in said(runs) if "None" in line] == []
    assert any("unset → off" in line for line in said(runs))


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
        f"weight_decay 0.0 → 0.5: {loss} (0.1-0.0 → 0.1-0.5 and 1 more).",
    ]


def test_a_variable_of_the_environment_is_an_axis_too(planted: Plant) -> None:
    runs = planted(
        *(
            Planted(name, (step_s,) * 3, params={"env.NCCL_ALGO": name}, config={"env": {"NCCL_ALGO": name}})
            for name, step_s in (("Ring", 0.1), ("Tree", 0.2))
        )
    )
    assert said(runs) == [
        "env.NCCL_ALGO Ring → Tree: 0.50 [0.50, 0.50] × the speed, equal held-out loss (Ring → Tree)."
    ]


def of_script(name: str, step_s: float, held_out: float) -> Planted:
    command = {"command": ["train.py", "--lr", name]}
    return Planted(name, (step_s,) * 3, (held_out,) * 3, params={"lr": float(name)}, config=command)


def test_a_placeholder_of_a_command_is_an_axis_whatever_the_trainer_calls_it(planted: Plant) -> None:
    runs = planted(of_script("0.001", 0.1, 3.0), of_script("0.02", 0.2, 2.5))
    told = "held-out loss -0.500 [-0.500, -0.500]"  # in whatever unit the script reports it
    assert said(runs) == [f"lr 0.001 → 0.02: 0.50 [0.50, 0.50] × the speed, {told} (0.001 → 0.02)."]
    assert said([replace(run, timing=None) for run in runs]) == [f"lr 0.001 → 0.02: {told} (0.001 → 0.02)."]
