"""`micro_batch: auto` in a spec: who may ask for it, and what an attempt of such a run is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dscampaign.jobs.shared.layout import CampaignPaths
from dscampaign.jobs.shared.payload import Payload
from dscampaign.jobs.trainer.config import TrainerConfig
from dscampaign.orchestrator.errors import UserError
from dscampaign.orchestrator.executors import job_request
from dscampaign.orchestrator.spec.expand import Run
from dscampaign.tests.support.spec_files import load_runs

SPEC = """\
name: sweep
executor: local
ranks_per_node: 2
repeats: 2
train:
  model: {{model_type: gpt2, n_layer: 2, n_embd: 32, n_head: 2}}
  tokenizer: bytes
  dataset: {{path: {text}}}
  global_batch: 48
  micro_batch: {size}
  steps: 10
matrix: {matrix}
"""


def runs(folder: Path, size: str = "auto", matrix: str = "{zero_stage: [1, 2]}", more: str = "") -> tuple[Run, ...]:
    (folder / "text.txt").write_text("text")
    spec = folder / "spec.yaml"
    spec.write_text((SPEC + more).format(text=folder / "text.txt", size=size, matrix=matrix))
    return load_runs(spec)[1]


def payload(run: Run, folder: Path, micro_batch: int | None) -> Payload:
    payloads = job_request.Payloads(CampaignPaths(folder, "sweep"), store=None)
    return payloads.of(run, run.config, "/runs/a/g0001", generation=1, micro_batch=micro_batch, token="t", attempt_id=1)


def test_the_size_is_part_of_the_experiment_and_open_until_it_is_found(tmp_path: Path) -> None:
    found, given = runs(tmp_path)[0], runs(tmp_path, "8")[0]
    assert (found.micro_batch, found.accumulation, found.global_batch) == (None, None, 48)
    assert found.stored_config["train"]["micro_batch"] == "auto"
    assert found.config_hash != given.config_hash


def test_the_first_attempt_searches_from_the_usual_size(tmp_path: Path) -> None:
    told = payload(runs(tmp_path)[0], tmp_path, None)
    assert (told.micro_batch, told.accumulation, told.share) == (8, 3, 24)
    assert told.train
    assert (told.train["micro_batch"], told.ds_config["train_micro_batch_size_per_gpu"]) == (8, 8)
    assert told.search


def test_repeats_train_with_one_size_and_other_conditions_with_their_own(tmp_path: Path) -> None:
    keys = {run.name: payload(run, tmp_path, None).search for run in runs(tmp_path)}
    assert keys["zero_stage-1"] == keys["zero_stage-1-r1"]
    assert keys["zero_stage-2"] == keys["zero_stage-2-r1"]
    assert len(set(keys.values())) == 2


@pytest.mark.parametrize(
    ("matrix", "number"),
    [
        ("{lr: [1e-4, 1e-3]}", 1),
        ("{warmup_steps: [0, 2]}", 1),
        ("{compile: [true, false]}", 2),
        ("{seq_len: [8, 16]}", 2),
    ],
)
def test_points_share_a_search_where_a_step_is_the_same(tmp_path: Path, matrix: str, number: int) -> None:
    assert len({payload(run, tmp_path, None).search for run in runs(tmp_path, matrix=matrix)}) == number


def test_what_is_searched_has_the_batch_of_a_search_and_what_is_trained_the_spec_s(tmp_path: Path) -> None:
    told = payload(runs(tmp_path)[0], tmp_path, None)
    searching = told.searching(12, 30.0)
    assert searching.train
    assert searching.train["search"] == {"share": 24, "seconds": 30.0, "too_big": None}
    sizes = [searching.ds_config[name] for name in ("train_batch_size", "train_micro_batch_size_per_gpu")]
    assert sizes == [searching.train["global_batch"], 12] == [48, 12]
    larger = told.resized(24, 1)
    assert (larger.global_batch, larger.micro_batch, larger.ds_config["train_batch_size"]) == (48, 24, 48)


def test_a_script_of_ones_own_cannot_be_searched_for(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    spec = tmp_path / "spec.yaml"
    spec.write_text("name: x\nexecutor: local\ncommand: train.py\ntrain: {global_batch: 8, micro_batch: auto}\n")
    with pytest.raises(UserError, match=r"4:.*train\.micro_batch: auto is for the built-in training"):
        load_runs(spec)


@pytest.mark.parametrize("field", ["sequence_parallel", "tensor_parallel"])
def test_ranks_with_the_same_samples_search_with_one_batch(tmp_path: Path, field: str) -> None:
    (run,) = (run for run in runs(tmp_path, matrix=f"{{{field}: [2]}}") if not run.name.endswith("r1"))
    searching = payload(run, tmp_path, None).searching(12, 30.0)
    assert searching.train
    assert (searching.train["global_batch"], searching.ds_config["train_batch_size"]) == (24, 48)
    assert TrainerConfig.from_json(json.dumps(dict(searching.train))).ranks_per_sample == 2
