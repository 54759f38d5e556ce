"""Which configuration to use, where several are as fast, and why not the others."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dscampaign.db.states import RunState
from dscampaign.orchestrator.cli.main import main
from dscampaign.orchestrator.report.compare.advice import unread_config
from dscampaign.orchestrator.report.compare.baseline import compare_to_baseline
from dscampaign.orchestrator.report.compare.conditions import baseline_of, conditions_of
from dscampaign.orchestrator.report.compare.difference import compare, verdict
from dscampaign.orchestrator.report.compare.ranking import lowest_loss_sentence
from dscampaign.orchestrator.report.compare.recommend import Recommendation, recommend
from dscampaign.orchestrator.report.compare.statistics import estimate
from dscampaign.orchestrator.report.measure.run import MeasuredRun
from dscampaign.orchestrator.report.measure.telemetry import GpuDetails
from dscampaign.orchestrator.report.page.data import document_of
from dscampaign.orchestrator.spec.objective import Objective
from dscampaign.tests.support.planted import Plant, Planted, PlantStore, Try, results_at

NO_DETAILS = GpuDetails({}, (), ())


def advice(runs: Sequence[MeasuredRun], by: Objective | None = None) -> Recommendation:
    conditions = conditions_of(runs)
    return recommend(compare_to_baseline(conditions, conditions[0]), by)


def names(found: Recommendation) -> list[str | None]:
    """Of what is chosen, of the fastest, and of what learns best."""
    return [one.name if one else None for one in (found.chosen, found.fastest, found.learner)]


def test_one_that_ties_may_need_less_than_the_chosen_one(planted: Plant) -> None:
    found = advice(
        planted(
            Planted("fastest", (0.1000,) * 3),
            Planted("steady", (0.1015,) * 3, reserved_gb=8.0),
            Planted("lean", (0.1030,) * 3, reserved_gb=2.0),
        )
    )
    assert found.chosen
    assert (found.chosen.name, found.tied) == ("steady", ("fastest", "lean"))
    assert found.sentence == "Use steady (0.98 [0.98, 0.99] × baseline): as fast as fastest, lean."


def test_what_needs_as_much_does_not_need_least(planted: Plant) -> None:
    found = advice(planted(Planted("base", (0.1,) * 3), Planted("same", (0.101,) * 3)))
    assert found.sentence == "Use base (10.2k [10.2k, 10.2k] tokens/s): as fast as same."


def test_memory_that_differs_by_little_does_not_decide_and_is_not_called_least(planted: Plant) -> None:
    stages = [Planted("z2", (0.101,) * 3, reserved_gb=10.0, train={"zero_stage": 2}), Planted("z1", reserved_gb=10.04)]
    found = advice(planted(*stages))
    assert found.chosen
    assert found.chosen.name == "z1"
    assert found.sentence.endswith("as fast as z2.")


def test_what_another_beats_in_everything_is_not_chosen(planted: Plant) -> None:
    stages = [Planted("z2", reserved_gb=10.0, train={"zero_stage": 2}), Planted("z1", (0.101,) * 3, reserved_gb=10.04)]
    found = advice(planted(*stages))
    assert found.chosen
    assert (found.chosen.name, found.front) == ("z2", ("z2",))
    assert found.sentence == "Use z2 (10.2k [10.2k, 10.2k] tokens/s): as fast as z1, and needs least."


def test_what_has_completed_without_a_speed_is_told(planted: Plant) -> None:
    runs = planted(Planted("base"), Planted("silent"))
    found = advice([replace(run, timing=None) if run.name.startswith("silent") else run for run in runs])
    assert found.excluded == {"silent": "no step was timed"}
    assert found.chosen
    assert found.chosen.name == "base"


def test_nothing_is_recommended_where_no_speed_is_known(planted: Plant) -> None:
    found = advice([replace(run, timing=None) for run in planted(Planted("base"))])
    assert found.sentence == "Nothing can be recommended: base: no step was timed."


def test_what_stands_alone_is_said_to(planted: Plant) -> None:
    alone = advice(planted(Planted("one")))
    assert alone.sentence.startswith("Use one (10.2k [10.2k, 10.2k] tokens/s): the only configuration.")


UNSURE = Planted("unsure", (0.05, 0.051, 0.052), (3.0, 3.4, 2.6))
"""Neither shown to learn as well as the baseline, nor worse as far as was seen."""


def test_losses_that_vary_too_much_are_a_doubt(planted: Plant) -> None:
    found = advice(planted(Planted("base"), UNSURE))
    assert found.chosen
    assert (found.chosen.name, found.established) == ("unsure", False)
    assert found.sentence.endswith("losses vary too much to show that it learns as well as the baseline. Add repeats.")


def test_losses_that_vary_too_much_lose_a_tie(planted: Plant) -> None:
    found = advice(planted(Planted("base"), replace(UNSURE, step_s=(0.1,) * 3, reserved_gb=1.0)))
    assert found.chosen
    assert (found.chosen.name, found.established) == ("base", True)


@pytest.mark.parametrize("by", [None, Objective.LOSS])
def test_what_stands_alone_beside_what_is_excluded_is_not_the_only_configuration(
    planted: Plant, by: Objective | None
) -> None:
    vague = Planted("vague", held_out=(3.0, 3.5, 2.6), train={"zero_stage": 2})
    found = advice(planted(Planted("base"), vague), by)
    assert found.sentence.endswith("the baseline; nothing else can be recommended beside it.")


@pytest.mark.parametrize(
    ("base", "told"),
    [
        (
            Planted("base"),
            ["The last held-out loss of early was measured after 50% of the steps, that of others after 100%"],
        ),
        (Planted("base", held_out=(None,) * 3, evaluated={48: 3.5}), []),
    ],
)
def test_held_out_losses_of_different_points_of_training_are_told(
    planted: Plant, base: Planted, told: list[str]
) -> None:
    early = Planted("early", held_out=(None,) * 3, evaluated={50: 3.5})
    found = advice(planted(base, early, Planted("never", held_out=(None,) * 3)))
    assert [one.partition(":")[0] for one in found.advice if "held-out" in one] == told


def test_what_completed_early_is_left_out_and_is_no_baseline(planted_url: PlantStore) -> None:
    early = Planted("early", (0.05,), (2.0,), tries=(Try(last=20, ended="completed_early"),))
    results = results_at(planted_url(early, Planted("base"), Planted("other")))
    (one,) = results.workloads
    assert one.workload.baseline.name == "base"
    assert one.recommendation.excluded == {"early": "completed early"}
    assert [run["early"] for run in document_of(results, NO_DETAILS)["runs"]][:2] == [True, False]


def test_repeats_that_are_of_no_use_are_counted_by_how_they_ended(planted: Plant) -> None:
    runs = planted(Planted("base"), Planted("lost"))
    ends = {"lost": RunState.FAILED, "lost-r1": RunState.CANCELLED, "lost-r2": RunState.FAILED}
    found = advice([replace(run, state=ends.get(run.name, run.state)) for run in runs])
    assert found.excluded == {"lost": "2 of 3 repeats failed, 1 cancelled"}


@pytest.mark.parametrize(
    ("config", "unit"),
    [
        ({"slurm": {"gpus_per_node": "0"}}, "rank-hours"),
        ({"slurm": {"gpus_per_node": "h100:0"}}, "rank-hours"),
        ({"slurm": {"gpus_per_node": "8", "gres": "license:2"}}, "rank-hours"),
        ({"slurm": {"gpus_per_node": "8"}, "env": {"DS_ACCELERATOR": "cpu"}}, "rank-hours"),
        ({"slurm": {"gpus_per_node": "h100:2"}}, "GPU-hours"),
    ],
)
def test_hours_are_of_gpus_where_jobs_ask_for_them(planted: Plant, config: dict[str, Any], unit: str) -> None:
    """Of scripts that say nothing of a device."""
    (run, *_) = (
        replace(run, config={**run.config, **config}, start={}) for run in planted(Planted("base", printed=True))
    )
    assert run.on_gpus is (unit == "GPU-hours")


def test_what_was_not_measured_is_no_part_of_the_front(planted: Plant) -> None:
    lean, quick = Planted("lean", (0.2,) * 3, reserved_gb=2.0), Planted("quick")
    found = advice(planted(quick, lean))
    assert found.trade_off == "Pareto-optimal in speed and memory: quick, lean."


def test_speed_alone_has_no_front(planted: Plant) -> None:
    """Of a script that prints its steps, memory is not known."""
    printed = [replace(run, memory=replace(run.memory, reserved=None)) for run in planted(Planted("a"), Planted("b"))]
    assert advice(printed).trade_off == ""


def test_the_baseline_is_one_whose_loss_is_a_number(planted_url: PlantStore) -> None:
    """Earlier versions took a script that ended with NaN for completed."""
    lost = Planted("lost", held_out=(None,) * 3, nan_from=50)
    results = results_at(planted_url(lost, Planted("base", held_out=(None,) * 3)))
    assert results.workloads[0].workload.baseline.name == "base"


@pytest.mark.parametrize(("opened", "said"), [(None, "it is not known whether"), (False, "did not read"), (True, "")])
def test_a_configuration_is_shown_only_where_the_script_has_read_it(
    planted: Plant, opened: bool | None, said: str
) -> None:
    full: dict[str, Any] = {"reserved_gb": 20.0, "config": {"command": ["train.py"]}}
    lost = Planted("large", (0.2,), (3.0,), tries=(Try(last=1, ended="oom"), Try()), **full)
    found = advice([replace(run, read_config=opened) for run in planted(Planted("base", **full), lost)])
    told = " ".join(found.advice)
    assert found.chosen
    unread = unread_config(found.chosen)
    assert ("CAMPAIGN_DS_CONFIG" in unread, said in unread) == (bool(said), True)
    assert ("larger `global_batch`" in told, "ZeRO 3" in told) == (opened is True, opened is True)


SLOW_LEARNER = Planted("quick", (0.100,) * 3, (3.0, 3.001, 2.999))
LEARNER = Planted("good", (0.104,) * 3, (2.5, 2.501, 2.499))


def test_the_fastest_and_the_best_learner_are_named_apart(planted: Plant) -> None:
    """One is half a nat better and 4 % slower: neither is the answer before somebody says what counts."""
    runs = planted(SLOW_LEARNER, LEARNER)
    found = advice(runs)
    assert names(found) == [None, "quick", "good"]
    assert found.established
    assert found.sentence == (
        "good learns best: its held-out loss is 0.500 nats below that of quick. "
        "quick is the fastest, at 1.04 [1.04, 1.04] × its speed. "
        "Which to use depends on what counts, loss or speed."
    )
    by_loss, by_speed = advice(runs, Objective.LOSS), advice(runs, Objective.SPEED)
    assert (names(by_loss)[0], names(by_speed)[0]) == ("good", "quick")
    assert "Use good (0.96 [0.96, 0.96] × baseline): no other learns as well." in by_loss.sentence
    assert by_speed.sentence.startswith("good learns best")
    assert "Use quick (10.2k [10.2k, 10.3k] tokens/s): the fastest of 2" in by_speed.sentence


def test_what_wins_both_is_used_whatever_counts(planted: Plant) -> None:
    runs = planted(replace(SLOW_LEARNER, step_s=(0.2,) * 3), LEARNER)
    for by in (None, Objective.SPEED, Objective.LOSS):
        found = advice(runs, by)
        assert names(found) == ["good", "good", "good"]
        assert "good learns best: its held-out loss is 0.500 nats below that of quick. Use good" in found.sentence


@pytest.mark.parametrize("by", [None, Objective.SPEED])
def test_of_those_that_are_as_fast_the_one_that_learns_better_is_used(planted: Plant, by: Objective | None) -> None:
    """Although it needs more memory, and is a little slower than another by what is no more than a tie."""
    lean = replace(SLOW_LEARNER, reserved_gb=2.0)
    found = advice(planted(lean, replace(LEARNER, step_s=(0.101, 0.1012, 0.1009))), by)
    assert names(found) == ["good", "good", "good"]
    assert found.sentence == (
        "good learns best: its held-out loss is 0.500 nats below that of quick. "
        "Use good (0.99 [0.99, 0.99] × baseline): as fast as quick."
    )


@pytest.mark.parametrize("unit", [0.001, 1000.0])
def test_a_script_s_own_losses_are_told_apart_in_any_unit(planted: Plant, unit: float) -> None:
    script: dict[str, Any] = {"config": {"command": ["train.py"]}}
    base = Planted("base", (0.1,) * 3, (unit, 1.001 * unit, 0.999 * unit), **script)
    found = advice(planted(base, Planted("quick", (0.05,) * 3, (4.0 * unit,) * 3, **script)))
    assert found.chosen
    assert found.chosen.name == "base"
    assert f"loss is higher by {3.0 * unit:{'.3f' if unit >= 0.001 else '.1g'}}" in found.excluded["quick"]
    assert not any("count as equal" in sentence for sentence in found.advice)


@pytest.mark.parametrize(("unit", "low", "gap"), [(1e-5, "2e-05", "1e-05"), (1e6, "2,000,000", "1,000,000")])
def test_a_script_s_own_losses_are_written_in_any_unit(planted: Plant, unit: float, low: str, gap: str) -> None:
    script: dict[str, Any] = {"config": {"command": ["train.py"]}}
    points = (
        Planted("base", (0.1,) * 3, (3 * unit,) * 3, **script),
        Planted("low", held_out=(2 * unit,) * 3, **script),
    )
    conditions = conditions_of(planted(*points))
    found = compare_to_baseline(conditions, conditions[0])
    said = recommend(found, Objective.LOSS).answer
    assert said
    assert (said.figure, said.gain, said.shown, said.level) == (low, gap, "established", False)
    assert lowest_loss_sentence("", found) == (
        f"low came to the lowest held-out loss, {low}; all others are established as worse."
    )
    assert f"Held-out loss: -{gap}: better" in " ".join(verdict(compare(*conditions)))


def test_of_those_that_learn_best_the_fastest_counts(planted: Plant) -> None:
    """Also where both are better than the baseline, and the slower of them by less than repeats differ."""
    other = Planted("other", (0.3,) * 3, (2.4995, 2.501, 2.499))
    middling = Planted("middling", (0.102,) * 3, (2.8, 2.801, 2.799))
    found = advice(planted(SLOW_LEARNER, other, middling, LEARNER), Objective.LOSS)
    assert names(found) == ["good", "quick", "good"]
    assert "0.300 to 0.500 nats below that of quick, middling" in found.sentence
    assert "the fastest of 2 that learn best" in found.sentence


FEW = [replace(one, step_s=one.step_s[:2], held_out=one.held_out[:2]) for one in (SLOW_LEARNER, LEARNER)]
VAGUE = [SLOW_LEARNER, replace(LEARNER, held_out=(2.5, 3.002, 2.99))]


@pytest.mark.parametrize(("conditions", "chosen"), [(FEW, "quick"), (VAGUE, "quick")])
def test_a_difference_that_is_not_established_decides_nothing(
    planted: Plant, conditions: list[Planted], chosen: str
) -> None:
    found = advice(planted(*conditions))
    assert names(found) == [chosen] * 3
    assert "learns best" not in found.sentence


def test_by_loss_no_speed_is_needed(planted: Plant) -> None:
    """A script of one's own that prints its losses faster than they are read."""
    runs = [replace(run, timing=None) for run in planted(SLOW_LEARNER, LEARNER)]
    blind = advice(runs)
    assert names(blind) == [None, None, "good"]
    assert blind.sentence == (
        "good learns best: its held-out loss is 0.500 nats below that of quick. "
        "Nothing can be recommended by speed: no step of quick, good was timed."
    )
    found = advice(runs, Objective.LOSS)
    assert names(found) == ["good", None, "good"]
    assert found.established
    assert found.sentence.endswith("Use good: no other learns as well.")


def test_by_loss_the_lowest_is_named_where_nothing_is_established(planted: Plant) -> None:
    found = advice(planted(*FEW), Objective.LOSS)
    assert (names(found)[0], found.established) == ("good", False)
    assert "its held-out loss is the lowest of 2." in found.sentence
    assert found.sentence.endswith("Inconclusive: only 2 runs each; set `repeats: 3`.")


@pytest.mark.parametrize(
    ("quick", "slow", "chosen"), [(3.00001, 3.0, "quick"), (3.001, 3.0, "slow"), (9e-6, 3e-6, "slow")]
)
def test_by_loss_rounding_decides_nothing(planted: Plant, quick: float, slow: float, chosen: str) -> None:
    """One repeat, the same loss as of two ways to add up the same numbers: the faster one. Losses may be small."""
    runs = planted(Planted("quick", (0.1,), (quick,)), Planted("slow", (0.2,), (slow,)))
    assert names(advice(runs, Objective.LOSS))[0] == chosen


def test_by_loss_repeats_that_vary_are_told(planted: Plant) -> None:
    found = advice(planted(*VAGUE), Objective.LOSS)
    assert (names(found)[0], found.established) == ("good", False)
    assert found.sentence.endswith("losses vary too much to separate it from quick. Add repeats.")


def test_what_is_faster_and_learns_worse_is_told(planted: Plant) -> None:
    """Whichever of the two is the baseline, both are in the answer."""
    found = advice(planted(LEARNER, SLOW_LEARNER))
    assert found.chosen
    assert found.chosen.name == "good"
    assert "Faster, but learns worse than the baseline: quick (1.04 [1.04, 1.04] × its speed)." in found.sentence


def test_the_reason_of_one_of_several_is_told_as_such(planted: Plant) -> None:
    lost = [
        Planted(name, (0.1,), (3.0,), state=RunState.FAILED, tries=(Try(last=1, ended="crash"),)) for name in ("a", "b")
    ]
    assert advice(planted(*lost)).sentence == "Nothing can be recommended: a: failed (and 1 more)."


def test_the_command_that_decides_can_be_pasted(planted_url: PlantStore, capsys: pytest.CaptureFixture[str]) -> None:
    url = planted_url(SLOW_LEARNER, LEARNER, name="rates")
    planted_url(SLOW_LEARNER, name="other")
    assert main(["recommend", "rates", "--store", url]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"next: campaign recommend rates --by loss --store {url}   (or --by speed)"
    assert main(shlex.split(last.removeprefix("next: campaign ").partition("   (")[0])) == 0
    assert "next:" not in capsys.readouterr().out


def test_what_a_configuration_lacks_is_told_to_who_asks_for_it(
    planted_url: PlantStore, capsys: pytest.CaptureFixture[str]
) -> None:
    url = planted_url(Planted("base", config={"command": ["train.py"]}), name="rates")
    for words, told in ([], False), (["--config"], True):
        assert main(["recommend", "rates", "--store", url, *words]) == 0
        assert ("CAMPAIGN_DS_CONFIG" in capsys.readouterr().out) is told


BRIEF = "are from fewer than 100 timed steps or less than 20 s of them: longer runs make them surer."
WHOLE: Any = {"steps": 400, "tries": (Try(last=400),)}
"""The usual 100 steps of 0.1 s are too few."""


@pytest.mark.parametrize(
    ("conditions", "said"),
    [
        ((Planted("base"), Planted("fast", (0.05,) * 3)), (f"Speeds {BRIEF}",)),
        ((Planted("base", **WHOLE), Planted("brief", (0.05,) * 3)), (f"Speeds of brief {BRIEF}",)),
        ((Planted("base", **WHOLE), Planted("long", (0.2,) * 3, **WHOLE)), ()),
        ((Planted("alone"),), ()),
    ],
)
def test_speeds_that_were_timed_too_briefly_say_so(
    planted: Plant, conditions: Sequence[Planted], said: Sequence[str]
) -> None:
    found = advice(planted(*conditions))
    assert [sentence for sentence in found.advice if BRIEF in sentence] == list(said)


ONE_RANK = {"ranks": 1, "step_s": (0.1,)}
SHARED = {"tries": (Try(micro_batch=2),), "step_s": (0.1,)}
WHOLE = "its micro-batch is all that a rank has of a step; a larger `global_batch` would use more"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (SHARED, "a larger micro-batch is likely to be faster (`micro_batch: auto` finds it)"),
        (
            {**SHARED, "train": {"offload": "optimizer"}},
            "a larger micro-batch is likely to be faster (`micro_batch: auto` finds it), and so is no offload",
        ),
        ({**SHARED, "train": {"micro_batch": "auto"}}, ""),
        ({"step_s": (0.1,)}, WHOLE),
        ({"train": {"offload": "optimizer"}}, "no offload is likely to be faster"),
        (
            {"reserved_gb": 70.0, "train": {"engine": "ddp", "zero_stage": 0}},
            "longer samples or a larger model need ZeRO 1, 2 or 3",
        ),
        ({"reserved_gb": 70.0}, "longer samples or a larger model need ZeRO 2 or 3"),
        ({"reserved_gb": 70.0, "train": {"zero_stage": 2}}, "longer samples or a larger model need ZeRO 3"),
        (
            {"reserved_gb": 70.0, "train": {"zero_stage": 3}},
            "longer samples or a larger model need offload or more GPUs",
        ),
        (
            {"reserved_gb": 70.0, "train": {"engine": "fsdp2"}},
            "longer samples or a larger model need offload or more GPUs",
        ),
        ({"reserved_gb": 70.0, **ONE_RANK}, "longer samples or a larger model need offload or more GPUs"),
        (
            {"reserved_gb": 70.0, "train": {"zero_stage": 3, "offload": "full"}},
            "longer samples or a larger model need a smaller micro-batch or more GPUs",
        ),
    ],
)
def test_what_is_advised_about_memory_can_be_done(planted: Plant, given: dict[str, Any], said: str) -> None:
    told = [one for one in advice(planted(Planted("base", **given))).advice if "of the GPU's memory: " in one]
    assert [one.partition("memory: ")[2] for one in told] == ([f"{said}."] if said else [])


def test_no_search_is_advised_to_a_script(planted: Plant) -> None:
    runs = [
        replace(run, config={**run.config, "command": ["t.py"]}, read_config=True)
        for run in planted(Planted("base", (0.1,), tries=(Try(micro_batch=2),)))
    ]
    assert "base takes 12% of the GPU's memory: a larger micro-batch is likely to be faster." in advice(runs).advice


def test_what_sharding_saves_on_one_rank_is_left_to_the_measurements(planted: Plant) -> None:
    stages = (Planted(f"z{n}", reserved_gb=12.0 - n, ranks=1, train={"zero_stage": n}) for n in (1, 2))
    found = advice(planted(*stages))
    assert "With one rank, ZeRO 2 has nothing to shard across." in found.advice


def with_the_curve_of_the_first_repeat(runs: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    """As of a script that does not read the seed."""
    first = {run.params["label"]: run.curve for run in reversed(runs)}
    return [replace(run, curve=first[run.params["label"]]) for run in runs]


def test_repeats_with_the_same_losses_count_as_one(planted: Plant) -> None:
    runs = with_the_curve_of_the_first_repeat(
        planted(Planted("sgd", held_out=(3.031,) * 3), Planted("lion", held_out=(3.0,) * 3))
    )
    found = advice(runs)
    assert not found.established
    assert "learns best" not in found.sentence
    assert "repeats of sgd, lion have the same loss at every step and count as one" in found.sentence
    assert "count as one" in verdict(compare(*conditions_of(runs)))[-1]
    by_loss = advice(runs, Objective.LOSS)
    assert (names(by_loss)[0], by_loss.established) == ("lion", False)
    assert "Ranked first: lion" in by_loss.sentence
    conditions = conditions_of(runs)
    assert [(len(one.counted), len(one.learned)) for one in conditions] == [(3, 1), (3, 1)]
    assert conditions[0].estimate("held_out") == estimate([3.031])
    assert conditions[0].estimate("step_s") == estimate([run.timing.step_s for run in runs[:3] if run.timing])


def test_a_condition_that_a_retry_changed_is_no_default_baseline(planted: Plant) -> None:
    """What is concluded must not depend on the condition that ran out of memory."""
    shrunk = (Try(last=10, ended="oom", micro_batch=4), Try(micro_batch=2))
    runs = planted(Planted("large", tries=shrunk), Planted("slow", (0.2, 0.2, 0.2)), Planted("fast", (0.1, 0.1, 0.1)))
    conditions = conditions_of(runs)
    assert baseline_of(conditions).name == "slow"
    found = recommend(compare_to_baseline(conditions, baseline_of(conditions)))
    assert found.chosen
    assert (found.chosen.name, found.established) == ("fast", True)
    named = recommend(compare_to_baseline(conditions, conditions[0]))
    assert "only 2 of 3 repeats of large count" in named.sentence


def test_without_repeats_there_is_a_ranking_and_no_use(planted: Plant) -> None:
    found = advice(planted(Planted("base", (0.2,), (3.0,)), Planted("fast", (0.1,), (3.0,))))
    assert found.sentence.startswith("Ranked first: fast (2.00 × baseline): the fastest of 2")
    assert found.sentence.endswith("Inconclusive: only 1 run each; set `repeats: 3`.")


@pytest.mark.parametrize("config", [{"train": {"lr": 1}}, {"config": {"command": ["train.py"]}}])
def test_where_an_axis_changes_what_is_learned_loss_leads(planted: Plant, config: dict[str, Any]) -> None:
    """The fastest has the worst loss of all: it must not be named first, nor by a difference within the margin."""
    axis = "lr" if "train" in config else "depth"
    points = [("a", 0.10, 3.5), ("b", 0.12, 3.0), ("c", 0.11, 3.001)]
    found = advice(
        planted(*(Planted(name, (step,), (loss,), params={axis: name}, **config) for name, step, loss in points))
    )
    assert found.chosen
    assert found.chosen.name == "c"
    assert found.sentence.startswith("Ranked first: c")


def test_where_an_axis_only_changes_how_a_step_is_computed_speed_leads(planted: Plant) -> None:
    config = {"command": ["train.py"]}
    found = advice(
        planted(
            *(
                Planted(str(stage), (step,) * 3, (3.0, 3.001, 2.999), params={"zero": stage}, config=config)
                for stage, step in ((0, 0.1), (2, 0.2))
            )
        )
    )
    assert found.chosen
    assert found.chosen.name == "0"


def test_conditions_of_different_code_are_told_first_and_establish_nothing(planted: Plant) -> None:
    runs = planted(Planted("base", (0.2, 0.2, 0.2)), Planted("fast"))
    found = advice([replace(run, code=run.name[:4]) for run in runs])
    assert found.sentence.startswith("Not all runs ran the same code: base")
    assert not found.established
