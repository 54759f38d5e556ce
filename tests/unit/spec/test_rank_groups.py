"""Ranks that work on the same samples, in groups: the arithmetic of their batch and states, and the refused specs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from dscampaign.jobs.shared import layer_parts
from dscampaign.jobs.shared.layer_parts import Cut, cut_of
from dscampaign.jobs.trainer.config import TrainerConfig
from dscampaign.orchestrator.errors import SpecError
from dscampaign.orchestrator.executors import job_request
from dscampaign.orchestrator.memory import config_changes
from dscampaign.orchestrator.memory.parameter_count import count_parameters
from dscampaign.orchestrator.memory.zero_memory import Sizes, needs_of
from dscampaign.orchestrator.spec.batch_size import sharers
from dscampaign.orchestrator.spec.expand import Run, expand
from dscampaign.tests.support.spec_files import load_spec

EIGHT = {"nodes": 2, "gpus_per_node": "h100:4"}
LLAMA = {"model_type": "llama", "num_attention_heads": 16, "num_key_value_heads": 8, "hidden_size": 256}
SEQUENCE, TENSOR = "sequence_parallel", "tensor_parallel"
both = pytest.mark.parametrize("field", [SEQUENCE, TENSOR])


def runs(field: str, tmp_path: Path, *, slurm: dict[str, Any] | None = None, **changes: Any) -> tuple[Run, ...]:
    """Return the runs of a spec whose ranks work in groups of four, with these changes."""
    given = {"model": "gpt2", "dataset": "d", "global_batch": 64, "steps": 10, field: 4}
    train = {**given, **changes.pop("train", {})}
    spec = tmp_path / "spec.yaml"
    spec.write_text(yaml.safe_dump({"name": "s", "slurm": slurm or EIGHT, "train": train, **changes}))
    return expand(load_spec(spec))


def problems(field: str, tmp_path: Path, **changes: Any) -> dict[str, str]:
    """Return each problem with its hint, by field."""
    (tmp_path / "train.py").touch()
    with pytest.raises(SpecError) as caught:
        runs(field, tmp_path, **changes)
    return {problem.field: f"{problem.message} | {problem.hint}" for problem in caught.value.problems}


@both
def test_the_batch_is_divided_among_groups(tmp_path: Path, field: str) -> None:
    """64 samples over 8 ranks, 4 to a group, are 32 a group: as many ranks with samples of their own have 8 each."""
    [run] = runs(field, tmp_path)
    assert (run.world_size, run.config.train.data_parallel(8), run.micro_batch, run.accumulation) == (8, 2, 8, 4)
    assert job_request.accumulation_of(run.config, 16, run.world_size) == 2
    assert (sharers(8, 4), sharers(8, 1), sharers(4, 4)) == ("2 groups of 4 ranks", "8 ranks", "1 group of 4 ranks")
    train = run.config.train_json(micro_batch=8, accumulation=4, world_size=8)
    config = TrainerConfig.from_json(json.dumps(train))
    assert (getattr(config, field), config.part_len) == (4, 256 if field == SEQUENCE else 1024)
    with pytest.raises(ValueError, match="global_batch is not"):
        TrainerConfig.from_json(json.dumps({**train, field: 2}))


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


def test_states_are_those_of_a_rank_s_part(tmp_path: Path) -> None:
    """ZeRO divides among the ranks with the same part: 8 ranks in groups of 4 are 2."""
    whole, parts = (
        runs(TENSOR, tmp_path, train={"model": "meta-llama/Llama-2-7b-hf", "zero_stage": 1, "tensor_parallel": n})[
            0
        ].config
        for n in (1, 4)
    )
    alone, shared = (needs_of(config, Sizes(8, 4, 4)) for config in (whole, parts))
    assert alone.parameters == shared.parameters == 6_738_415_616
    assert alone.states
    assert shared.states
    mine = count_parameters("meta-llama/Llama-2-7b-hf", None, 4)
    assert mine == 1_881_411_584
    assert shared.states.weights_gb == pytest.approx(2 * mine / 1e9)
    assert shared.states.optimizer_gb == pytest.approx(12 * mine / 2 / 1e9)
    assert alone.states.optimizer_gb == pytest.approx(12 * 6_738_415_616 / 8 / 1e9)


def test_an_out_of_memory_is_not_answered_by_zero_3(tmp_path: Path) -> None:
    [run] = runs(TENSOR, tmp_path, train={"zero_stage": 2})
    assert config_changes.next_change(run.config, ["zero_stage"], []) is None
    assert config_changes.next_change(run.config, ["zero_stage", "offload_optimizer"], []) == "offload_optimizer"


@pytest.mark.parametrize(
    ("kind", "changes", "field", "message"),
    [
        (SEQUENCE, {"train": {"seq_len": 1022}}, "", "4 does not divide seq_len 1022"),
        (
            TENSOR,
            {"train": {TENSOR: 3}},
            "",
            "3 does not divide the 8 ranks of the run | use a number of ranks that 3 divides",
        ),
        (
            SEQUENCE,
            {"train": {"attention": "sdpa"}},
            "train.attention",
            "attention sdpa does not work with sequence_parallel 4",
        ),
        (
            SEQUENCE,
            {"train": {"dataset": {"path": "d", "packing": False}}},
            "train.dataset.packing",
            "false does not work",
        ),
        (TENSOR, {"train": {"zero_stage": 3}}, "train.zero_stage", "zero_stage 3 does not work with tensor_parallel 4"),
        *(
            (
                kind,
                {"train": {"global_batch": 63}},
                "train.global_batch",
                "global_batch 63 is not a multiple of 2 groups of 4 ranks | use 62 or 64",
            )
            for kind in (SEQUENCE, TENSOR)
        ),
        (TENSOR, {"command": "train.py"}, "", "is for the built-in training"),
        (TENSOR, {"train": {"pp_size": 2}}, "train.pp_size", "unknown field"),
    ],
)
def test_what_cannot_work_is_refused_with_its_place(
    tmp_path: Path, kind: str, changes: dict[str, Any], field: str, message: str
) -> None:
    assert problems(kind, tmp_path, **changes)[field or f"train.{kind}"].startswith(message)


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
