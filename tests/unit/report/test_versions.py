"""Versions as conditions: their names, the pairs that differ in them, and the limits of a regression."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dscampaign.db import queries
from dscampaign.db.states import RunState
from dscampaign.db.store import Store
from dscampaign.orchestrator.cli.main import main
from dscampaign.orchestrator.errors import EXIT_FAILED, EXIT_OK, EXIT_UNDECIDED, EXIT_USAGE, ExitCode, UserError
from dscampaign.orchestrator.report.compare.baseline import compare_to_baseline
from dscampaign.orchestrator.report.compare.conditions import conditions_of
from dscampaign.orchestrator.report.compare.difference import compare_operands, limits_of
from dscampaign.orchestrator.report.compare.sensitivity import sensitivities
from dscampaign.tests.support.planted import Plant, Planted, PlantStore

Output = pytest.CaptureFixture[str]
OLD, NEW = "deepspeed 0.19.5", "deepspeed 0.19.8"


def planted_version(name: str, version: str, stage: int = 1, step_s: float = 0.1, spread: float = 0.001) -> Planted:
    return Planted(
        name,
        (step_s - spread, step_s, step_s + spread),
        (3.0, 3.01, 3.02),
        {"label": None, "zero_stage": stage, "python": f"/envs/{name}/bin/python"},
        software={"deepspeed": version},
    )


def test_versions_that_differ_name_the_conditions_in_place_of_paths(planted: Plant) -> None:
    runs = planted(*(planted_version(f"z{stage}-{at}", at, stage) for stage in (1, 2) for at in ("0.19.5", "0.19.8")))
    titles = [f"ZeRO {stage} · {version}" for stage in (1, 2) for version in (OLD, NEW)]
    assert [one.title for one in conditions_of(runs)] == titles


def test_environments_with_the_same_versions_keep_their_names(planted: Plant) -> None:
    runs = planted(planted_version("one", "0.19.8"), planted_version("other", "0.19.8"))
    conditions = conditions_of(runs)
    assert [one.title for one in conditions] == ["python one", "python other"]
    (effect,) = sensitivities(compare_to_baseline(conditions, conditions[0]))
    assert effect.change == "python one → other"


def test_a_version_that_ends_before_its_report_is_no_pass(planted_url: PlantStore) -> None:
    """As of an environment that cannot import; another condition of the same environment reports its version."""
    config = {"python": "/envs/new/bin/python"}
    broken = replace(planted_version("d", "", 2), software={"deepspeed": ""}, config=config, state=RunState.FAILED)
    new = replace(planted_version("b", "0.19.8"), config=config)
    url = planted_url(planted_version("a", "0.19.5"), new, planted_version("c", "0.19.5", 2), broken)
    assert main(["compare", OLD, NEW, "--store", url, "--fail-if", "slower=30%"]) == EXIT_UNDECIDED


def test_repeats_that_do_not_count_leave_a_limit_undecided(planted_url: PlantStore, capsys: Output) -> None:
    url = planted_url(*(Planted(name, (pace,) * 4, (3.0,) * 4) for name, pace in (("a", 0.1), ("b", 0.1), ("c", 0.2))))
    store, limit = Store.open(url), ("--store", url, "--fail-if", "slower=3%")
    for state, why in ((RunState.FAILED, "only 3 of 4 repeats of b count"), (RunState.RUNNING, "provisional: ")):
        with store.write() as conn:
            for run in (run for run in queries.runs(conn, 1) if run.name in ("b-r3", "c-r3")):
                queries.update_run(conn, run.id, state=state)
        assert main(["compare", "a", "b", *limit]) == EXIT_UNDECIDED
        assert f"; {why}" in capsys.readouterr().out.splitlines()[-1]
        assert main(["compare", "a", "c", *limit]) == EXIT_FAILED
    store.close()


def test_a_part_of_titles_compares_all_conditions_that_differ_in_it_only(planted_url: PlantStore) -> None:
    url = planted_url(
        planted_version("a", "0.19.5", 1),
        planted_version("b", "0.19.8", 1, 0.11),
        planted_version("c", "0.19.5", 2),
        planted_version("d", "0.19.8", 2),
        planted_version("e", "0.19.8", 3),
    )
    store = Store.open(url)
    found = compare_operands(store, [OLD, NEW]).comparisons
    store.close()
    assert [(one.left.name, one.right.name, one.result.among) for one in found] == [("a", "b", 2), ("c", "d", 2)]
    assert [(one.shared, *one.titles) for one in found] == [(f"ZeRO {stage}", OLD, NEW) for stage in (1, 2)]
    assert ("deepspeed", "0.19.5", "0.19.8") in found[0].differences
    assert found[0].step_time
    assert found[0].step_time.value == pytest.approx(1.1, rel=0.01)


@pytest.mark.parametrize(
    ("step_s", "spread", "limits", "code"),
    [
        (0.110, 0.0005, "slower=3%", EXIT_FAILED),
        (0.110, 0.0005, "slower=15%", EXIT_OK),
        (0.090, 0.0005, "slower=0%,loss=0.01", EXIT_OK),
        (0.110, 0.0500, "slower=3%", EXIT_UNDECIDED),
        (0.110, 0.0500, "slower=3%,loss=0.01", EXIT_UNDECIDED),
    ],
)
def test_the_whole_interval_decides_on_a_limit(
    step_s: float, spread: float, limits: str, code: ExitCode, planted_url: PlantStore, capsys: Output
) -> None:
    url = planted_url(
        planted_version("old", "0.19.5", spread=0.0005), planted_version("new", "0.19.8", 1, step_s, spread)
    )
    command = ["compare", OLD, NEW, "--store", url, "--fail-if", limits]
    assert main(command) == code
    page = capsys.readouterr().out
    word = {EXIT_OK: "passed", EXIT_FAILED: "failed", EXIT_UNDECIDED: "undecided"}[code]
    assert f"{limits.partition(',')[0]} {word}: mean step time " in page
    repeated = [word for limit in limits.split(",") for word in ("--fail-if", limit)]
    assert main([*command[:-2], *repeated, "--json"]) == code
    (one,) = json.loads(capsys.readouterr().out)["comparisons"]
    assert [check["limit"]["text"] for check in one["checks"]] == limits.split(",")
    low, high, most = one["step_time"]["low"], one["step_time"]["high"], one["checks"][0]["limit"]["most"]
    assert code == (EXIT_FAILED if low - 1 > most else EXIT_OK if high - 1 <= most else EXIT_UNDECIDED)


def test_losses_have_a_limit_of_their_own(planted_url: PlantStore, capsys: Output) -> None:
    worse = Planted("worse", held_out=(3.05, 3.051, 3.052))
    nan = Planted("nan", held_out=(3.0, float("nan"), 3.0))
    both = replace(nan, name="both")
    url = planted_url(
        Planted("base", held_out=(3.0, 3.001, 3.002)), worse, nan, both, Planted("single", (0.1,), (3.0,))
    )
    assert main(["compare", "nan", "both", "--store", url, "--fail-if", "loss=1"]) == EXIT_UNDECIDED
    cases = [("worse", "0.04", EXIT_FAILED), ("worse", "0.06", EXIT_OK), ("nan", "1", EXIT_FAILED)]
    for name, most, code in [*cases, ("single", "1", EXIT_UNDECIDED)]:
        assert main(["compare", "base", name, "--store", url, "--fail-if", f"loss={most}"]) == code
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("loss=")]
    assert said == [
        "loss=1 undecided: a loss is not finite.",
        "loss=0.04 failed: held-out loss +0.0500 [0.0500, 0.0500] nats.",
        "loss=0.06 passed: held-out loss +0.0500 [0.0500, 0.0500] nats.",
        "loss=1 failed: a loss is not finite.",
        "loss=1 undecided: only 1 run each; add repeats.",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *(
            (text, f'"{text}" is not a limit')
            for text in ("slower", "slower=-1%", "loss=nan", "slower=0.03", "loss=1%")
        ),
        ("loss=1e400", '"loss=1e400" is not a limit'),
        ("speed=3%", '"speed=3%" is not a limit'),
        ("slower=3%,", '"" is not a limit'),
        ("slower=3%,slower=4%", "two limits for slower"),
    ],
)
def test_a_mistake_in_a_limit_is_named(text: str, message: str, capsys: Output) -> None:
    with pytest.raises(UserError, match=message):
        limits_of(text)
    assert main(["compare", "a", "b", "--fail-if", text]) == EXIT_USAGE
    assert message in capsys.readouterr().err
