"""train.json and the environment of a rank."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dscampaign.jobs.trainer.config import Job, TrainerConfig
from dscampaign.tests.integration.trainer.attempts import Attempt, train_config, train_json


def test_reads_what_was_written() -> None:
    config = train_config()
    assert (config.dataset.eval_fraction, config.model["n_embd"], config.lr) == (0.01, 32, 1e-3)  # type: ignore[index]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_rate": 1.0}, "learning_rate: Unexpected"),
        ({"dataset": {**train_json()["dataset"], "file": "x"}}, r"dataset\.file: Unexpected"),
        ({"dataset": {"path": "x"}}, r"dataset\.name: Field required"),
        ({"accumulation": 3}, "global_batch is not"),
    ],
)
def test_refuses_what_it_does_not_understand(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainerConfig.from_json(json.dumps({**train_json(), **changes}))


def test_what_the_version_before_has_queued_is_understood() -> None:
    queued = train_json()
    queued.pop("keep_best")
    assert TrainerConfig.from_json(json.dumps(queued)) == train_config()
    with pytest.raises(ValueError, match="log_every: Field required"):
        TrainerConfig.from_json(json.dumps({name: value for name, value in queued.items() if name != "log_every"}))


def test_an_empty_resume_is_a_fresh_start(tmp_path: Path) -> None:
    ranks = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_SIZE": "2"}
    job = Job.from_environment({**Attempt(tmp_path).prepare(tmp_path), **ranks})
    assert job.resume is None
    assert (job.rank, job.local_rank, job.world_size, job.local_world, job.generation) == (3, 1, 4, 2, 1)
