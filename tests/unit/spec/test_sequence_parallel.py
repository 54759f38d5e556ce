"""Ranks that share samples: the arithmetic of their batch, and what is refused when the spec is read."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dscampaign.jobs.trainer.config import TrainerConfig
from dscampaign.orchestrator.executors import job_request
from dscampaign.orchestrator.memory.feasibility import needs_of
from dscampaign.orchestrator.memory.loss_memory import loss_gb
from dscampaign.orchestrator.memory.prediction import memory_key
from dscampaign.orchestrator.memory.zero_memory import Sizes
from dscampaign.orchestrator.spec.batch_size import sharers
from dscampaign.orchestrator.spec.model import RunConfig, Spec
from dscampaign.orchestrator.spec.rank_groups import remarks
from dscampaign.tests.unit.spec.rank_groups import problems_of, runs_of

runs, problems = partial(runs_of, "sequence_parallel"), partial(problems_of, "sequence_parallel")


def test_the_batch_is_divided_among_groups(tmp_path: Path) -> None:
    """64 samples over 8 ranks, 4 to a sample, are 32 a group: as many ranks with samples of their own have 8 each."""
    found = runs(tmp_path, train={"sequence_parallel": 4, "model": {"model_type": "gpt2"}, "tokenizer": "bytes"})
    [run] = found
    assert (run.world_size, run.data_parallel, run.micro_batch, run.accumulation) == (8, 2, 8, 4)
    assert job_request.accumulation_of(run.config, 16, run.world_size) == 2
    assert (sharers(8, 4), sharers(8, 1), sharers(4, 4)) == ("2 groups of 4 ranks", "8 ranks", "1 group of 4 ranks")


def test_it_is_an_axis_like_any_other(tmp_path: Path) -> None:
    found = runs(tmp_path, train={"micro_batch": 4}, matrix={"sequence_parallel": [1, 2, 4]})
    assert [(run.name, run.accumulation) for run in found] == [
        ("sequence_parallel-1", 2),
        ("sequence_parallel-2", 4),
        ("sequence_parallel-4", 8),
    ]
    assert len({run.config_hash for run in found}) == 3
    assert len({memory_key(run.config) for run in found}) == 3
    assert len({job_request.search_key(run.config) for run in found}) == 3


def test_the_trainer_reads_what_the_spec_makes(tmp_path: Path) -> None:
    [run] = runs(tmp_path)
    told = run.config.train_json(micro_batch=8, accumulation=4, world_size=8)
    config = TrainerConfig.from_json(json.dumps(told))
    assert (config.sequence_parallel, config.part_len) == (4, 256)
    with pytest.raises(ValueError, match="global_batch is not"):
        TrainerConfig.from_json(json.dumps({**told, "sequence_parallel": 2}))


def test_the_loss_is_of_a_rank_s_part_of_the_tokens(tmp_path: Path) -> None:
    whole, parts = (runs(tmp_path, train={"sequence_parallel": size})[0].config for size in (1, 4))
    assert loss_gb(parts, 8) == pytest.approx(loss_gb(whole, 2))
    states = [needs_of(config, Sizes(8, 4, 4)).states for config in (whole, parts)]
    assert states[0] == states[1]


def test_a_loss_that_is_too_large_is_told_a_micro_batch_of_the_groups(tmp_path: Path) -> None:
    """Of 64 samples in 2 groups, 32 at once: 8,192 tokens a rank of them, whose logits are 12 bytes each."""
    [run] = runs(tmp_path, train={"micro_batch": 32})
    room_gb = 12 * 32 * 256 * 50_304 / 1e9  # of the logits, with nothing left for the states
    shortage = needs_of(run.config, Sizes(8, 4, 1), room_gb).shortage
    assert shortage
    assert "micro-batch 32 takes 4.9 GB" in shortage.message
    assert shortage.hint.startswith("micro_batch: 16")


@pytest.mark.parametrize(
    ("changes", "field", "said"),
    [
        (
            {"train": {"sequence_parallel": 3, "seq_len": 1023}},
            "train.sequence_parallel",
            "3 does not divide the 8 ranks of the run | ",
        ),
        (
            {"train": {"seq_len": 1022}},
            "train.sequence_parallel",
            "4 does not divide seq_len 1022 | use seq_len 1020 or",
        ),
        (
            {"train": {"sequence_parallel": 8}},
            "train.sequence_parallel",
            "8 does not divide the model's 12 heads (n_head) | use one of 1, 2, 4: each",
        ),
        ({"train": {"attention": "sdpa"}}, "train.sequence_parallel", "does not go with attention sdpa"),
        (
            {"train": {"strategy": "zero-infinity", "nvme_path": "/local"}},
            "train.sequence_parallel",
            "is not served with offload nvme",
        ),
        ({"train": {"deepcompile": True, "zero_stage": 1}}, "train.sequence_parallel", "does not go with deepcompile"),
        (
            {"train": {"model": {"model_type": "qwen2", "use_sliding_window": True}, "tokenizer": "bytes"}},
            "train.model.use_sliding_window",
            "is not served with sequence_parallel: attention sees a window",
        ),
        (
            {"train": {"model": {"model_type": "mistral"}, "tokenizer": "bytes"}},
            "train.sequence_parallel",
            "is not served for model type mistral",
        ),
        (
            {"train": {"global_batch": 63}},
            "train.global_batch",
            "is not a multiple of 2 groups of 4 ranks | use 62 or 64",
        ),
        ({"command": "train.py"}, "train.sequence_parallel", "is for the built-in training"),
    ],
)
def test_what_cannot_work_is_refused_with_its_place(
    tmp_path: Path, changes: dict[str, Any], field: str, said: str
) -> None:
    (tmp_path / "train.py").touch()
    assert said in problems(tmp_path, **changes)[field]


def test_kv_heads_count(tmp_path: Path) -> None:
    model = {"model_type": "llama", "num_attention_heads": 16, "num_key_value_heads": 2, "hidden_size": 256}
    said = problems(tmp_path, train={"model": model, "tokenizer": "bytes"})["train.sequence_parallel"]
    assert said.startswith("4 does not divide the model's 2 heads (num_key_value_heads) | use one of 1, 2:")


def test_groups_across_nodes_are_remarked() -> None:
    def said(size: int, nodes: int) -> list[str]:
        slurm = {"nodes": nodes, "gpus_per_node": "h100:4"}
        return remarks(Spec.model_validate({"name": "s", "slurm": slurm, "train": {"sequence_parallel": size}}))

    assert said(4, 2) == said(2, 2) == said(1, 2) == []
    assert said(8, 2)[0].startswith("train.sequence_parallel 8 does not divide the 4 ranks of a node")


def test_deepspeed_s_own_key_points_to_the_field(tmp_path: Path) -> None:
    found = problems(tmp_path, deepspeed={"sequence_parallel_size": 4})
    assert found["deepspeed.sequence_parallel_size"].endswith("use train.sequence_parallel")


def test_other_tools_names_are_known(tmp_path: Path) -> None:
    assert (
        "sequence_parallel"
        in problems(tmp_path, train={"ulysses_sequence_parallel_size": 2})["train.ulysses_sequence_parallel_size"]
    )


@pytest.mark.parametrize("name", ["pp_size", "pipeline-parallel-size"])
def test_what_splits_the_stack_of_layers_is_told_what_there_is_instead(tmp_path: Path, name: str) -> None:
    assert problems(tmp_path, train={name: 2})[f"train.{name}"] == (
        "unknown field | the stack of layers is not split here: use zero_stage: 3, or tensor_parallel, which splits"
        " each layer"
    )
    assert "stack of layers is not split" in str(problems(tmp_path, matrix={name: [1, 2]}))


def test_the_default_changes_no_key() -> None:
    assert memory_key(RunConfig.model_validate({"train": {"global_batch": 8}})) == memory_key(
        RunConfig.model_validate({"train": {"global_batch": 8, "sequence_parallel": 1}})
    )
