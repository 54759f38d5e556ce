"""The examples of scripts of one's own do what they show."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dscampaign.tests.integration.trainer.attempts import Attempt
from dscampaign.tests.integration.trainer.conftest import Launch
from dscampaign.tests.support import REPOSITORY

pytestmark = pytest.mark.training


def test_a_deepspeed_script_stops_and_resumes(launch: Launch, data_dir: Path, tmp_path: Path) -> None:
    script = str(REPOSITORY / "examples/byo_deepspeed/train.py")
    stopped, resumed = Attempt(tmp_path / "run"), Attempt(tmp_path / "run", generation=2)
    for attempt in (stopped, resumed):
        environment = attempt.prepare(data_dir, stop=attempt is stopped)
        code, output = launch(script, env={**environment, "CAMPAIGN_STEPS": "4", "CAMPAIGN_SEED": "1"}).finish()
        assert code == 0, output
    assert list(stopped.values("loss")) == [1]
    assert list(resumed.values("loss")) == [2, 3, 4]
    assert resumed.values("loss")[4] < stopped.values("loss")[1]


def test_the_callback_stops_and_saves_and_a_script_resumes(launch: Launch, data_dir: Path, tmp_path: Path) -> None:
    script = str(REPOSITORY / "examples/byo_hf_trainer/train.py")
    stopped, resumed = Attempt(tmp_path / "run"), Attempt(tmp_path / "run", generation=2)
    for attempt in (stopped, resumed):
        environment = attempt.prepare(data_dir, stop=attempt is stopped)
        config = json.loads(Path(environment["CAMPAIGN_DS_CONFIG"]).read_text())
        sizes = {
            "CAMPAIGN_MICRO_BATCH": str(config["train_micro_batch_size_per_gpu"]),
            "CAMPAIGN_ACCUMULATION": str(config["gradient_accumulation_steps"]),
        }
        given = {**environment, **sizes, "CAMPAIGN_STEPS": "3", "CAMPAIGN_SEED": "1"}
        code, output = launch(script, env=given).finish()
        assert code == 0, output
    assert list(stopped.values("loss")) == [1]
    assert list(resumed.values("loss")) == list(resumed.values("step_time")) == [2, 3]
