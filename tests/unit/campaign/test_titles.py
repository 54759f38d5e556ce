"""The names of conditions for people."""

from __future__ import annotations

from typing import Any

import pytest

from dscampaign.orchestrator.campaign.titles import candidates, matching, numbered, titles_of
from dscampaign.orchestrator.errors import UserError


def titles(*params: dict[str, Any]) -> list[str]:
    return list(titles_of({f"c{place}": own for place, own in enumerate(params)}).values())


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (
            [{"zero_stage": 0, "precision": "fp16", "lr": 1.0}, {"zero_stage": 2, "precision": "bf16", "lr": 1.0}],
            ["ZeRO 0 · fp16", "ZeRO 2 · bf16"],
        ),
        ([{"lr": 3e-4, "n_layer": 12}, {"lr": 0.01, "n_layer": 1}], ["lr 3e-4 · 12 layers", "lr 0.01 · 1 layer"]),
        ([{"compile": True}, {"compile": False}], ["compile", "no compile"]),
        ([{"activation_checkpointing": True}, {}], ["activation checkpointing", "c1"]),
        ([{"wd": 1.5e-5}, {"wd": None}], ["wd 1.5e-5", "wd unset"]),
        ([{"NCCL_ALGO": "Ring"}, {"NCCL_ALGO": "Tree"}], ["NCCL_ALGO Ring", "NCCL_ALGO Tree"]),
        ([{"ds": "configs/zero2.json"}, {"ds": "configs/zero3.json"}], ["ds zero2.json", "ds zero3.json"]),
        ([{"nodes": 1, "gpus_per_node": 8}, {"nodes": 2, "gpus_per_node": 4}], ["1 node · 8 GPUs", "2 nodes · 4 GPUs"]),
        ([{"label": "Adam/β"}, {"label": "Lion"}], ["Adam/β", "Lion"]),
        ([{"engine": "ddp"}, {"engine": "fsdp2"}], ["DDP", "FSDP2"]),
        ([{"opt": "x" * 40}, {"opt": "lion"}], [f"opt {'x' * 12}…{'x' * 11}", "opt lion"]),
    ],
)
def test_a_title_is_made_of_the_axes_that_differ(params: list[dict[str, Any]], expected: list[str]) -> None:
    assert titles(*params) == expected


def test_a_label_stands_for_the_settings_that_it_names() -> None:
    one, two = {"zero_stage": 2, "strategy": "sharded"}, {"zero_stage": 0, "strategy": "plain"}
    assert titles(one, two) == ["sharded", "plain"]
    both = titles({**one, "lr": 1e-3}, {**one, "lr": 2e-3}, {**two, "lr": 1e-3})
    assert both == ["sharded · lr 1e-3", "sharded · lr 2e-3", "plain · lr 1e-3"]
    points = [{"strategy": "zero3", "label": label} for label in ("plain", "recomputed")]
    assert titles(*points, {"strategy": "ddp", "label": "ddp"}) == ["plain", "recomputed", "ddp"]


def test_an_axis_with_labels_stands_for_the_settings_of_its_entries() -> None:
    small, large = {"width": 16, "lr": 1e-3, "size": "small"}, {"width": 64, "lr": 1e-3, "size": "large"}
    runs = {"size-small": small, "size-large": large}
    assert [*titles_of(runs).values()] == ["size small", "size large"]
    crossed = {f"{name}_opt-{opt}": {**own, "opt": opt} for name, own in runs.items() for opt in ("lion", "adam")}
    assert titles_of(crossed)["size-small_opt-lion"] == "size small · opt lion"
    alike = titles_of({"size-small": small, "size-small-2ab9e3f0": {**small, "width": 32}})
    assert [*alike.values()] == ["width 16", "width 32"]
    assert titles_of({"x-1_y-2": {"x": 1, "y": 2}, "x-2_y-1": {"x": 2, "y": 1}})["x-1_y-2"] == "x 1 · y 2"


def test_equal_titles_end_in_the_names() -> None:
    equal = titles({"ds": "a/x.json"}, {"ds": "b/x.json"}, {"ds": "b/y.json"})
    assert equal == ["ds x.json · c0", "ds x.json · c1", "ds y.json"]
    assert titles_of({"a": {"model": "b"}, "b": {"model": "c"}}) == {"a": "b · a", "b": "c"}
    assert titles_of({"a": {}, "b": {}}) == {"a": "a", "b": "b"}


def test_trials_are_named_by_their_parameters() -> None:
    trials = {"trial-0003": {"lr": 3e-4, "zero_stage": 2}, "trial-0004": {"lr": 1e-3, "zero_stage": 2}}
    assert titles_of(trials) == {"trial-0003": "lr 3e-4", "trial-0004": "lr 1e-3"}
    assert titles_of(trials, whole=True)["trial-0003"] == "lr 3e-4 · ZeRO 2"
    only = {"trial-0003": trials["trial-0003"]}
    assert titles_of(only) == {"trial-0003": "lr 3e-4 · ZeRO 2"}
    both = titles_of({**only, "trial-0003-confirm": trials["trial-0003"]})
    assert list(both.values()) == ["lr 3e-4 · ZeRO 2 · trial-0003", "lr 3e-4 · ZeRO 2 · trial-0003-confirm"]
    assert numbered("trial-0003-confirm-r1", [*both.values()][1]) == "trial-0003-confirm-r1  lr 3e-4 · ZeRO 2"


PARAMS: dict[str, dict[str, Any]] = {
    "lr-0.0001_n-1": {"lr": 1e-4, "n_layer": 1},
    "lr-0.0003_n-1": {"lr": 3e-4, "n_layer": 1},
    "lr-0.0003_n-12": {"lr": 3e-4, "n_layer": 12},
}
REPEATED = ["lr-0.0001_n-1", "lr-0.0001_n-1-r1"]
RUNS = candidates([*PARAMS, REPEATED[1]], PARAMS)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("lr-0.0001_n-1", REPEATED[:1]),
        ("lr-1e-4_n-1", REPEATED[:1]),
        ("lr-1.0E-04_n-1-r1", REPEATED[1:]),
        ("lr-0.0001_n-1-r0", REPEATED[:1]),
        ("lr 1e-4 · 1 layer", REPEATED),
        ("lr 0.0003 12 layers", ["lr-0.0003_n-12"]),
        ("lr-0.0001*", REPEATED),
        ("lr-*_n-12", ["lr-0.0003_n-12"]),
        ("lr-0.0001", REPEATED),
        ("lr 1e-4", REPEATED),
        ("lr-0.0003_n-12", ["lr-0.0003_n-12"]),
        ("lr-0.0001_n", REPEATED),
        ("lr-0.000", []),
        ("lr-0.0001_n-12", []),
        ("n-12", []),
    ],
)
def test_a_run_is_found_by_name_title_pattern_or_beginning(word: str, expected: list[str]) -> None:
    assert [run.name for run in matching(word, RUNS)] == expected


@pytest.mark.parametrize("word", ["lr-0.0003_n", "LR 3E-4", "lr-1e-4_n-2"])
def test_a_word_that_may_mean_several_conditions_is_refused_with_its_matches(word: str) -> None:
    runs = [*RUNS, *candidates(["lr-0.0001_n-2", "lr-0.00010_n-2"], {})]
    with pytest.raises(UserError, match=f"{word} may mean 2 runs") as raised:
        matching(word, runs)
    assert "_n-" in (raised.value.hint or "")
