"""`screen` in a spec: the short runs that come before the full ones."""

from __future__ import annotations

from typing import Any

import pytest

from dscampaign.db.states import Stage
from dscampaign.orchestrator.errors import InvalidSpec
from dscampaign.orchestrator.spec.expand import Run, expand
from dscampaign.orchestrator.spec.model import Spec
from dscampaign.orchestrator.spec.sections import ScreenConfig

TRAIN = {"model": {"model_type": "gpt2"}, "tokenizer": "bytes", "dataset": "t", "global_batch": 8, "steps": 1000}


def runs(screen: dict[str, Any], **more: Any) -> tuple[Run, ...]:
    train = {**TRAIN, **more.pop("train", {})}
    spec = {"name": "x", "train": train, "matrix": {"zero_stage": [1, 2]}, "repeats": 2, "screen": screen, **more}
    return expand(Spec.model_validate(spec))


def test_each_point_is_screened_once_before_all_full_runs() -> None:
    found = runs({"steps": 50, "keep": 1})
    assert [(run.name, run.stage, run.repeat) for run in found] == [
        ("zero_stage-1-screen", Stage.SCREENING, 0),
        ("zero_stage-2-screen", Stage.SCREENING, 0),
        ("zero_stage-1", Stage.FULL, 0),
        ("zero_stage-1-r1", Stage.FULL, 1),
        ("zero_stage-2", Stage.FULL, 0),
        ("zero_stage-2-r1", Stage.FULL, 1),
    ]
    assert len({run.config_hash for run in found}) == 6


def test_a_screening_run_is_shorter_and_nothing_else() -> None:
    saves = {"warmup_steps": 100, "checkpoint_every": 10, "keep_best": True, "eval_every": 10, "profile_at": 9}
    screens, _, full, *_ = runs({"steps": 50, "time": "0:10:00"}, train=saves)
    assert screens.params == full.params
    assert screens.target_step == 50
    short, whole = screens.config, full.config
    assert (short.slurm.time, whole.slurm.time) == ("0:10:00", "1:00:00")
    assert short.train.warmup_steps == 5
    differing = {"steps", "warmup_steps", "checkpoint_every", "keep_best", "eval_every", "profile_at"}
    names = type(short.train).model_fields
    assert {name for name in names if getattr(short.train, name) != getattr(whole.train, name)} == differing


def test_a_full_run_is_the_experiment_that_it_would_be_without() -> None:
    without = expand(Spec.model_validate({"name": "x", "train": TRAIN, "matrix": {"zero_stage": [1, 2]}, "repeats": 2}))
    assert [run.config_hash for run in runs({"steps": 50})[2:]] == [run.config_hash for run in without]


@pytest.mark.parametrize(
    ("given", "kept"), [("pareto", "pareto"), ("Within  7.5 %", "within 7.5 %"), ("within 10%", "within 10%"), (3, 3)]
)
def test_the_three_rules(given: object, kept: object) -> None:
    assert ScreenConfig.model_validate({"steps": 2, "keep": given}).keep == kept


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"train": {"steps": 50}}, "is no shorter than a full run of 50 steps"),
        ({"matrix": {}}, "has nothing to choose from: there is one point"),
        ({"matrix": {"steps": [100, 200]}}, "is screened by the same experiment as steps-100-screen"),
        ({"command": ["t.py", "{x}"], "train": {"steps": None}, "matrix": {"x": [1, 2]}}, "how long a full run is"),
        ({"max_runs": 5}, "expands to 6 runs, 5 allowed"),
    ],
)
def test_what_cannot_be_screened(more: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        runs({"steps": 50}, **more)
    assert message in str(caught.value)
    assert all(finding.hint for finding in caught.value.findings)
