"""From planted campaigns to verdicts: equal, faster, worse, changed by a retry, too little to tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from dscampaign.db.states import RunState
from dscampaign.orchestrator.report.compare.answer import Answer, answer
from dscampaign.orchestrator.report.compare.baseline import BaselineComparison, compare_to_baseline
from dscampaign.orchestrator.report.compare.conditions import conditions_of
from dscampaign.orchestrator.report.compare.sensitivity import sensitivities
from dscampaign.orchestrator.report.compare.statistics import Standing
from dscampaign.orchestrator.report.compare.workloads import workloads_of
from dscampaign.orchestrator.report.measure.run import MeasuredRun
from dscampaign.tests.support.effects import effect_line
from dscampaign.tests.support.planted import Planted, Try, flags_of

Plant = Callable[..., list[MeasuredRun]]


def judged(runs: Sequence[MeasuredRun]) -> dict[str, BaselineComparison]:
    (workload,) = workloads_of(conditions_of(runs))
    assert workload.baseline
    return {one.condition.name: one for one in compare_to_baseline(workload.conditions, workload.baseline)}


def advice(runs: Sequence[MeasuredRun]) -> Answer:
    return answer(list(judged(runs).values()))


def texts(found: Answer) -> dict[str, str]:
    return {name: reason.text for name, reason in found.excluded.items()}


BASE = Planted("base", (0.100, 0.101, 0.102), (3.000, 3.002, 2.998))


def test_speed_is_all_tokens_over_all_time_without_the_warm_up(planted: Plant) -> None:
    (run,) = planted(Planted("one", (0.1,), (3.0,)))
    assert run.timing
    assert run.timing.step_s == pytest.approx(0.1, rel=0.01)
    assert run.timing.tokens_per_s == pytest.approx(8 * 128 / 0.1, rel=0.01)
    assert run.timing.mfu == pytest.approx(0.4, rel=0.01)
    assert (run.timing.steps, run.timing.warm_up_steps) == (80, 20)
    assert run.timing.warm_up_s == pytest.approx(30 * 0.1 + 9 * 0.3 + 10 * 0.1, rel=0.02)
    assert run.tokens_per_step == 8 * 128
    assert run.loss.held_out == 3.0
    assert flags_of(run) == ["only 80 steps and 8.0 s timed; at least 100 steps and 20 s are recommended"]
    longer = replace(run, timing=replace(run.timing, steps=280))
    assert flags_of(longer) == ["only 8.0 s timed; at least 20 s are recommended"]


def test_repeats_are_one_condition_and_the_first_point_is_the_baseline(planted: Plant) -> None:
    found = judged(planted(BASE, Planted("twice", (0.05, 0.051, 0.049))))
    assert list(found) == ["base", "twice"]
    assert found["base"].is_baseline
    assert len(found["twice"].condition.runs) == 3
    assert found["twice"].times_baseline
    assert found["twice"].times_baseline.value == pytest.approx(2.02, rel=0.01)
    assert found["twice"].order == Standing.FASTER


def test_without_three_pairs_of_losses_nothing_is_established(planted: Plant) -> None:
    runs = planted(BASE, Planted("fast", (0.05, 0.051), (3.0, 3.0)))
    fast = judged(runs)["fast"]
    assert (fast.loss.verdict, fast.loss.reason) == (Standing.NOT_PROVEN, "only 2 runs each; add repeats")
    found = advice(runs)
    assert found.chosen
    assert (found.chosen.name, found.proven) == ("fast", False)


def test_every_change_of_one_axis_has_its_price(planted: Plant) -> None:
    def point(name: str, step_s: float, reserved_gb: float, **params: object) -> Planted:
        return Planted(name, (step_s,) * 3, reserved_gb=reserved_gb, params=params)

    runs = planted(
        point("zero2", 0.125, 8.0, zero_stage=2, offload="none"),
        point("zero3", 0.25, 6.0, zero_stage=3, offload="none"),
        point("z2-cpu", 0.5, 5.0, zero_stage=2, offload="optimizer"),
        point("zero3-cpu", 0.5, 3.0, zero_stage=3, offload="optimizer"),
        point("other", 0.01, 8.0, zero_stage=2, precision="fp16", compile=True),
    )
    said = [effect_line(change) for change in sensitivities(list(judged(runs).values()))]
    pairs = {
        "zero_stage 2 → 3: 0.71 [0.71, 0.71] × the speed (0.50 to 1.00), -2.0 GB": "zero2 → zero3 and 1 more",
        "offload none → optimizer: 0.35 [0.35, 0.35] × the speed (0.25 to 0.50), -3.0 GB": "zero2 → z2-cpu and 1 more",
    }
    assert said == [f"{effect}, equal held-out loss ({which})." for effect, which in pairs.items()]


@pytest.mark.parametrize(
    ("times", "sentence"),
    [
        ((0.100, 0.101, 0.099), "zero_stage 0 → 1: as fast, equal held-out loss (a → b)."),
        (
            (0.05, 0.10, 0.20),
            "zero_stage 0 → 1: 1.00 [0.18, 5.59] × the speed, equal held-out loss (a → b; not proven).",
        ),
        (
            (0.05, 0.09, 0.20),
            "zero_stage 0 → 1: 1.04 [0.18, 5.83] × the speed, equal held-out loss (a → b; not proven).",
        ),
    ],
)
def test_a_price_says_what_the_repeats_show(planted: Plant, times: tuple[float, ...], sentence: str) -> None:
    stages = Planted("a", (0.1,) * 3, params={"zero_stage": 0}), Planted("b", times, params={"zero_stage": 1})
    (change,) = sensitivities(list(judged(planted(*stages)).values()))
    assert effect_line(change) == sentence


def test_nearly_full_memory_is_not_recommended(planted: Plant) -> None:
    found = advice(planted(BASE, Planted("tight", (0.05, 0.05, 0.05), reserved_gb=78.0)))
    assert texts(found) == {"tight": "takes 98% of the GPU's memory, above 92%"}


def test_planted_divergence(planted: Plant) -> None:
    runs = planted(
        BASE,
        Planted(
            "wild",
            (0.05,),
            (3.0,),
            nan_from=60,
            state=RunState.FAILED,
            reason="non-finite loss",
            tries=(Try(ended="diverged"),),
        ),
    )
    wild = next(run for run in runs if run.name == "wild")
    assert wild.quality.non_finite == 41
    assert "41 losses are not finite" in flags_of(wild)
    assert texts(advice(runs))["wild"] == "diverged: non-finite loss"


def test_a_resumed_run_counts_each_step_once_and_its_losses_by_cause(planted: Plant) -> None:
    (run,) = planted(
        Planted("back", (0.1,), (3.0,), tries=(Try(0, 60, "preempted", queued_s=100.0), Try(50, 100, after_s=4.0)))
    )
    assert run.quality.received == 100
    assert run.tries == 2
    cost = run.cost
    assert set(cost.lost) == {"preempted"}
    assert cost.lost["preempted"] == pytest.approx(2 * (10 + 10 * 0.1), rel=0.05)  # its start, and ten steps made again
    assert cost.queued_s == pytest.approx(105.0)
    assert cost.around == pytest.approx(2 * (10 + 4), rel=0.05)
    first_steps_s = 30 * 0.1 + 9 * 0.3 + 10 * 0.1
    assert cost.warm_up == pytest.approx(2 * 2 * first_steps_s, rel=0.02)
    assert cost.training == pytest.approx(2 * 60 * 0.1, rel=0.02)
    assert run.timing
    assert run.timing.warm_up_steps == 40


def test_steps_that_compiled_do_not_count_though_the_rest_of_their_attempt_was_made_again(planted: Plant) -> None:
    back, other, _ = planted(Planted("back", tries=(Try(0, 60, "node"), Try(10, 100))))
    assert back.timing
    assert other.timing
    assert (back.timing.steps, back.timing.warm_up_steps) == (70, 30)
    assert back.timing.p99_s == pytest.approx(other.timing.p99_s, rel=0.01)
    assert back.timing.tokens_per_s == pytest.approx(other.timing.tokens_per_s, rel=0.01)


def test_other_models_are_other_workloads_with_their_own_baselines(planted: Plant) -> None:
    runs = planted(
        Planted("m-ddp", train={"engine": "ddp"}),
        Planted("m-zero1"),
        Planted("l-zero3", train={"model": "gpt2-large", "zero_stage": 3}),
        Planted("l-offload", train={"model": "gpt2-large", "offload": "optimizer"}),
    )
    found = workloads_of(conditions_of(runs))
    assert [(one.name, one.baseline.name if one.baseline else "") for one in found] == [
        ("gpt2", "m-ddp"),
        ("gpt2-large", "l-zero3"),
    ]


def test_a_workload_goes_by_the_spec_s_words_where_they_name_it(planted: Plant) -> None:
    models = [{"model_type": "gpt2", "n_layer": layers} for layers in (2, 4)]
    digests = planted(
        Planted("a", params={"model": "1f7c1b", "strategy": "zero1"}, train={"model": models[0]}),
        Planted("b", params={"model": "93c843", "strategy": "zero3"}, train={"model": models[1]}),
    )
    found = [one.name for one in workloads_of(conditions_of(digests))]
    assert found == ["model.n layer 2", "model.n layer 4"]


def test_a_loss_that_padding_gives_and_few_timed_steps_are_flagged(planted: Plant) -> None:
    (run,) = planted(Planted("short", (0.1,), (3.0,), floor=-0.2, steps=30, tries=(Try(0, 30),)))
    flags = flags_of(run)
    assert "only 15 steps and 1.5 s timed; at least 100 steps and 20 s are recommended" in flags
    assert any("is what padding or memorised text gives" in flag for flag in flags)


def test_more_ranks_are_another_workload(planted: Plant) -> None:
    runs = planted(
        Planted("two", (0.1,), (3.0,)),
        Planted("four", (0.1,), (3.0,), ranks=4, train={"global_batch": 16}),
        Planted("four-slow", (0.1,), (3.0,), ranks=4, train={"global_batch": 16, "zero_stage": 3}),
    )
    assert len(workloads_of(conditions_of(runs))) == 2
