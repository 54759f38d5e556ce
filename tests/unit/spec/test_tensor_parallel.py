"""Ranks that share layers: the arithmetic of their batch and of their states, and what is refused with the spec."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dscampaign.jobs.shared import layer_parts
from dscampaign.jobs.shared.layer_parts import Cut, cut_of
from dscampaign.jobs.trainer.config import TrainerConfig
from dscampaign.orchestrator.executors import job_request
from dscampaign.orchestrator.memory import config_changes
from dscampaign.orchestrator.memory.feasibility import needs_of
from dscampaign.orchestrator.memory.loss_memory import loss_gb
from dscampaign.orchestrator.memory.parameter_count import count_parameters
from dscampaign.orchestrator.memory.prediction import memory_key
from dscampaign.orchestrator.memory.zero_memory import Sizes, alternatives
from dscampaign.orchestrator.spec.model import RunConfig, Spec
from dscampaign.orchestrator.spec.rank_groups import remarks
from dscampaign.tests.unit.spec.rank_groups import problems_of, runs_of

LLAMA = {"model_type": "llama", "num_attention_heads": 16, "num_key_value_heads": 8, "hidden_size": 256}


runs, problems = partial(runs_of, "tensor_parallel"), partial(problems_of, "tensor_parallel")


def test_the_batch_is_divided_among_groups(tmp_path: Path) -> None:
    [run] = runs(tmp_path)
    assert (run.world_size, run.data_parallel, run.micro_batch, run.accumulation) == (8, 2, 8, 4)
    config = TrainerConfig.from_json(json.dumps(run.config.train_json(micro_batch=8, accumulation=4, world_size=8)))
    assert (config.tensor_parallel, config.ranks_per_sample, config.part_len) == (4, 4, 1024)


def test_it_is_an_axis_like_any_other(tmp_path: Path) -> None:
    found = runs(tmp_path, train={"micro_batch": 4}, matrix={"tensor_parallel": [1, 2, 4]})
    assert [(run.name, run.accumulation) for run in found] == [
        ("tensor_parallel-1", 2),
        ("tensor_parallel-2", 4),
        ("tensor_parallel-4", 8),
    ]
    assert len({run.config_hash for run in found}) == 3
    assert len({memory_key(run.config) for run in found}) == 3
    assert len({job_request.search_key(run.config) for run in found}) == 3
    assert [run.config.rendered_deepspeed().get("tensor_parallel", {}).get("autotp_size") for run in found] == [
        None,
        2,
        4,
    ]


def test_the_default_changes_no_key_and_no_configuration() -> None:
    given, default = ({"global_batch": 8, **more} for more in ({"tensor_parallel": 1}, {}))
    one, other = (RunConfig.model_validate({"train": train}) for train in (given, default))
    assert memory_key(one) == memory_key(other)
    assert "tensor_parallel" not in one.rendered_deepspeed()


@pytest.mark.parametrize(
    ("model", "sharers", "least"),
    [
        # By hand: tables, norms and the biases of what is cut by inputs stay whole.
        (
            {"model_type": "gpt2", "n_layer": 2, "n_embd": 8, "n_head": 2, "n_positions": 16, "vocab_size": 10},
            2,
            80 + 128 + 16 + 2 * (32 + 16) + 2 * (216 + 64 + 288 + 256) // 2,
        ),
        (
            {**LLAMA, "vocab_size": 10, "num_hidden_layers": 1, "intermediate_size": 512},
            4,
            2 * 2560 + 3 * 256 + (256 * (256 + 2 * 128 + 256) + 3 * 256 * 512) // 4,
        ),
    ],
)
def test_what_one_rank_has_of_a_model(model: dict[str, Any], sharers: int, least: int) -> None:
    assert count_parameters(model, None, sharers) == least
    assert count_parameters(model, None, 1) == count_parameters(model)


def test_states_are_those_of_a_rank_s_part_and_the_loss_that_of_whole_samples(tmp_path: Path) -> None:
    """ZeRO divides among the ranks with the same part: 8 ranks in groups of 4 are 2."""
    whole, parts = (
        runs(tmp_path, train={"model": "meta-llama/Llama-2-7b-hf", "zero_stage": 1, "tensor_parallel": n})[0].config
        for n in (1, 4)
    )
    assert loss_gb(parts, 8) == loss_gb(whole, 8)
    alone, shared = (needs_of(config, Sizes(8, 4, 4)) for config in (whole, parts))
    assert alone.parameters == shared.parameters == 6_738_415_616
    assert alone.states
    assert shared.states
    mine = count_parameters("meta-llama/Llama-2-7b-hf", None, 4)
    assert mine == 1_881_411_584
    assert shared.states.weights_gb == pytest.approx(2 * mine / 1e9)
    assert shared.states.optimizer_gb == pytest.approx(12 * mine / 2 / 1e9)
    assert alone.states.optimizer_gb == pytest.approx(12 * 6_738_415_616 / 8 / 1e9)
    assert not any("stage 3" in words for words, _ in alternatives(parts, 6_738_415_616, Sizes(8, 4, 4)))


def test_an_out_of_memory_is_not_answered_by_zero_3(tmp_path: Path) -> None:
    [run] = runs(tmp_path, train={"zero_stage": 2})
    assert config_changes.next_change(run.config, ["zero_stage"], []) is None
    assert config_changes.next_change(run.config, ["zero_stage", "offload_optimizer"], []) == "offload_optimizer"


@pytest.mark.parametrize(
    ("changes", "field", "said"),
    [
        (
            {"train": {"tensor_parallel": 3}},
            "train.tensor_parallel",
            "3 does not divide the 8 ranks of the run | use one of 1, 2, 4",
        ),
        (
            {"slurm": {"nodes": 1, "gpus_per_node": "h100:5"}, "train": {"tensor_parallel": 2, "global_batch": 40}},
            "train.tensor_parallel",
            "2 does not divide the 5 ranks of the run | use a number of ranks that 2 divides, or leave it out",
        ),
        (
            {"train": {"tensor_parallel": 8}},
            "train.tensor_parallel",
            "8 does not divide the model's 12 heads (n_head) | use one of 1, 2, 4: each",
        ),
        (
            {"train": {"model": {**LLAMA, "intermediate_size": 30}, "tokenizer": "bytes"}},
            "train.tensor_parallel",
            "4 does not divide the model's inner width 30 (intermediate_size) | use one of 1, 2:",
        ),
        ({"train": {"zero_stage": 3}}, "train.tensor_parallel", "is not served with ZeRO 3"),
        ({"train": {"strategy": "fsdp2"}}, "train.tensor_parallel", "engine fsdp2 does not use DeepSpeed"),
        ({"train": {"strategy": "ddp"}}, "train.tensor_parallel", "engine ddp does not use DeepSpeed"),
        ({"train": {"sequence_parallel": 2}}, "train.tensor_parallel", "does not go with sequence_parallel"),
        ({"train": {"deepcompile": True, "zero_stage": 1}}, "train.tensor_parallel", "was not tested with deepcompile"),
        ({"train": {"dropout": 0.1}}, "train.tensor_parallel", "does not go with dropout"),
        ({"train": {"attention": "flash_attention_2"}}, "train.tensor_parallel", "was not tested with attention"),
        ({"deepspeed": {"optimizer": {"type": "Lamb"}}}, "deepspeed.optimizer.type", "does not go with train.tensor"),
        ({"deepspeed": {"torch_autocast": {"enabled": True}}}, "deepspeed.torch_autocast", "was not tested with"),
        (
            {"train": {"model": {"model_type": "olmo2"}, "tokenizer": "bytes"}},
            "train.tensor_parallel",
            "is not served for model type olmo2",
        ),
        (
            {"train": {"model": {"model_type": "gpt2", "add_cross_attention": True}, "tokenizer": "bytes"}},
            "train.model.add_cross_attention",
            "is not served with tensor_parallel: its layers join",
        ),
        (
            {"train": {"model": {"model_type": "opt", "layerdrop": 0.1}, "tokenizer": "bytes"}},
            "train.model.layerdrop",
            "is not served with tensor_parallel: which layers",
        ),
        (
            {"train": {"global_batch": 63}},
            "train.global_batch",
            "is not a multiple of 2 groups of 4 ranks | use 62 or 64",
        ),
        ({"command": "train.py"}, "train.tensor_parallel", "is for the built-in training"),
    ],
)
def test_what_cannot_work_is_refused_with_its_place(
    tmp_path: Path, changes: dict[str, Any], field: str, said: str
) -> None:
    (tmp_path / "train.py").touch()
    assert said in problems(tmp_path, **changes)[field]


def test_groups_across_nodes_are_remarked() -> None:
    slurm = {"nodes": 2, "gpus_per_node": "h100:4"}
    found = [
        remarks(Spec.model_validate({"name": "s", "slurm": slurm, "train": {"tensor_parallel": n}})) for n in (4, 8)
    ]
    assert found[0] == []
    assert found[1][0].startswith("train.tensor_parallel 8 does not divide the 4 ranks of a node")


@pytest.mark.parametrize("section", [{"autotp_size": 4}, {"enabled": True}])
def test_deepspeed_s_own_section_points_to_the_field(tmp_path: Path, section: dict[str, Any]) -> None:
    found = problems(tmp_path, deepspeed={"tensor_parallel": section})
    assert found["deepspeed.tensor_parallel"].endswith("use train.tensor_parallel")


@pytest.mark.parametrize("name", ["tp_size", "tensor_model_parallel_size", "autotp_size"])
def test_other_tools_names_are_known(tmp_path: Path, name: str) -> None:
    assert '"tensor_parallel"' in problems(tmp_path, train={name: 2})[f"train.{name}"]


@pytest.mark.parametrize(
    ("weight", "cut"),
    [
        ("model.layers.0.self_attn.q_proj.weight", Cut.OUTPUTS),
        ("model.layers.0.self_attn.q_proj.bias", Cut.OUTPUTS),
        ("model.layers.0.mlp.down_proj.weight", Cut.INPUTS),
        ("model.layers.0.mlp.down_proj.bias", None),
        ("transformer.h.0.attn.c_attn.bias", Cut.THIRDS),
        ("transformer.h.0.ln_1.weight", None),
        ("model.layers.0.self_attn.q_norm.weight", None),
        ("lm_head.weight", None),
        ("weight", None),
    ],
)
def test_deepspeed_is_told_the_cut_by_which_weights_are_joined(weight: str, cut: Cut | None) -> None:
    assert cut_of(weight) is cut
    if not weight.endswith(".weight"):
        return
    specs = layer_parts.autotp_section(2)["partition_config"]["layer_specs"]
    told = [spec for spec in specs if any(re.match(pattern, weight) for pattern in spec["patterns"])]
    kinds = {None: "skip", Cut.OUTPUTS: "column", Cut.THIRDS: "column", Cut.INPUTS: "row"}
    assert len(told) <= 1
    assert all(spec["partition_type"] == kinds[cut] for spec in told)
    assert bool(told) >= (cut is not None)
    assert all(("shape" in spec) == (cut is Cut.THIRDS) for spec in told)
