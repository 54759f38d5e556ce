"""What in `deepspeed:` does not go together, or with a run's other fields: it would end it or change what it learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dscampaign.orchestrator.errors import Problem, SpecError
from dscampaign.orchestrator.spec.load import load_runs

MASTER = "bf16_master_weights_and_grads"
UNTESTED = {"zero_allow_untested_optimizer": True}
OWN_ADAM = {"params": {"torch_adam": False}}


def problems(folder: Path, train: dict[str, Any], deepspeed: dict[str, Any], **more: Any) -> list[Problem]:
    spec = folder / "spec.yaml"
    common = {"model": "gpt2", "tokenizer": "bytes", "dataset": "wikitext", "global_batch": 8, "steps": 4}
    given = {"name": "s", "train": {**common, **train}, "deepspeed": deepspeed, **more}
    spec.write_text(yaml.safe_dump(given, sort_keys=False))
    try:
        load_runs(spec)
    except SpecError as error:
        return error.problems
    return []


@pytest.mark.parametrize(
    ("train", "deepspeed", "field"),
    [
        ({"zero_stage": 3}, {"gradient_allreduce_op": "sum"}, "gradient_allreduce_op"),
        ({"precision": "fp32"}, {"data_types": {"param_dtype": "bf16"}}, "data_types.param_dtype"),
        ({}, {"data_types": {"grad_accum_dtype": "fp32"}}, "data_types.grad_accum_dtype"),
        ({"precision": "fp16"}, {"data_types": {"grad_accum_dtype": "float"}}, "data_types.grad_accum_dtype"),
        ({}, {"torch_autocast": {"enabled": True, "dtype": "bf16"}}, "torch_autocast"),
        ({"precision": "fp32"}, {"torch_autocast": {"enabled": True}}, "torch_autocast"),
        ({"precision": "fp32"}, {"torch_autocast": {"enabled": True, "dtype": "half"}}, "torch_autocast.dtype"),
        ({}, {"bf16": {MASTER: True, "bf16_optimizer_states": True}}, f"bf16.{MASTER}"),
        ({"zero_stage": 1}, {"bf16": {MASTER: True}}, f"bf16.{MASTER}"),
        ({"strategy": "zero2-offload"}, {"bf16": {MASTER: True}}, f"bf16.{MASTER}"),
        ({"zero_stage": 1, "precision": "fp32"}, {"bf16": {MASTER: True}}, f"bf16.{MASTER}"),
        ({"zero_stage": 1}, {"bf16": {"bf16_optimizer_states": True}}, "bf16.bf16_optimizer_states"),
        (
            {"zero_stage": 2, "precision": "fp16"},
            {"fp16": {"fp16_master_weights_and_grads": True}},
            "fp16.fp16_master_weights_and_grads",
        ),
        (
            {"strategy": "zero2-offload"},
            {"zero_optimization": {"offload_optimizer": {"ratio": 0.5}}},
            "zero_optimization.offload_optimizer.ratio",
        ),
        (
            {"strategy": "zero3-offload"},
            {"zero_optimization": {"offload_optimizer": {"super_offload": True}}},
            "zero_optimization.offload_optimizer.super_offload",
        ),
        (
            {"strategy": "zero3-offload-full"},
            {"zero_optimization": {"offload_param": None}},
            "zero_optimization.offload_param",
        ),
        (
            {"strategy": "zero2-offload"},
            {"zero_optimization": {"offload_optimizer": None, "offload_param": None}},
            "zero_optimization.offload_optimizer",
        ),
        ({"zero_stage": 1}, {"zero_optimization": {"legacy_stage1": True}}, "zero_optimization.legacy_stage1"),
        ({"zero_stage": 2}, {"optimizer": {"type": "NAdam"}}, "optimizer.type"),
        ({"zero_stage": 1}, {"optimizer": {"type": "Adafactor"}, **UNTESTED}, "optimizer.type"),
        ({"zero_stage": 3}, {"optimizer": {"type": "Adagrad"}}, "optimizer.type"),
        ({}, {"optimizer": {"type": "LBFGS"}}, "optimizer.type"),
        ({}, {"optimizer": {"type": "MuAdam"}}, "optimizer.type"),
        ({"compile": True}, {"optimizer": {"type": "Muon"}}, "optimizer.type"),
        ({"zero_stage": 3}, {"optimizer": {"type": "muon"}}, "optimizer.type"),
        (
            {"zero_stage": 3},
            {"zero_optimization": {"zero_hpz_partition_size": 3}},
            "zero_optimization.zero_hpz_partition_size",
        ),
        (
            {"zero_stage": 3},
            {"zero_optimization": {"zero_hpz_partition_size": 16}},
            "zero_optimization.zero_hpz_partition_size",
        ),
        (
            {"zero_stage": 2},
            {"zero_optimization": {"allgather_bucket_size": 1e3 + 1}},
            "zero_optimization.allgather_bucket_size",
        ),
        (
            {"zero_stage": 1},
            {"zero_optimization": {"allgather_partitions": False}},
            "zero_optimization.allgather_partitions",
        ),
        (
            {"strategy": "zero1-offload"},
            {"zero_optimization": {"allgather_bucket_size": 1001}, "data_types": {"grad_accum_dtype": "fp32"}},
            "zero_optimization.allgather_bucket_size",
        ),
        (
            {"zero_stage": 1},
            {"zero_optimization": {"pipeline_loading_checkpoint": True}},
            "zero_optimization.pipeline_loading_checkpoint",
        ),
        (
            {"zero_stage": 3},
            {"zero_optimization": {"zero_quantized_gradients": True, "reduce_scatter": False}},
            "zero_optimization.zero_quantized_gradients",
        ),
        ({}, {"optimizer": {"params": {"fused": True, "foreach": True}}}, "optimizer.params.foreach"),
    ],
)
def test_what_does_not_go_together_is_refused_where_it_stands(
    tmp_path: Path, train: dict[str, Any], deepspeed: dict[str, Any], field: str
) -> None:
    (found,) = problems(tmp_path, train, deepspeed)
    assert found.field == f"deepspeed.{field}"
    assert found.line > 1
    assert found.hint
    (tmp_path / "train.py").touch()
    assert not problems(tmp_path, train, deepspeed, command="train.py")


@pytest.mark.parametrize(
    ("train", "deepspeed"),
    [
        ({"zero_stage": 2, "precision": "fp32"}, {"gradient_allreduce_op": "sum"}),
        ({"zero_stage": 2}, {"data_types": {"grad_accum_dtype": "fp32", "param_dtype": "torch.bfloat16"}}),
        ({}, {"data_types": {"grad_accum_dtype": "bfloat16"}}),
        ({"precision": "tf32"}, {"data_types": {"param_dtype": "float32"}}),
        ({"precision": "fp32"}, {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}),
        ({"precision": "fp32"}, {"torch_autocast": {"enabled": False}}),
        ({"zero_stage": 3}, {"bf16": {MASTER: True, "bf16_optimizer_states": True}}),
        ({"strategy": "zero2-offload"}, {"bf16": {MASTER: True}, "optimizer": OWN_ADAM}),
        (
            {"strategy": "zero3-offload"},
            {"zero_optimization": {"offload_optimizer": {"ratio": 0.5}}, "optimizer": OWN_ADAM},
        ),
        ({"zero_stage": 2}, {"optimizer": {"type": "NAdam"}, **UNTESTED}),
        ({"zero_stage": 1}, {"optimizer": {"type": "Lion"}}),
        ({"strategy": "zero2-offload"}, {"optimizer": {"type": "Adagrad"}}),
        ({"zero_stage": 3, "compile": True}, {"optimizer": {"type": "Lion"}}),
        ({"zero_stage": 3}, {"optimizer": {"type": "Muon"}, "zero_optimization": {"reduce_scatter": False}}),
        ({"zero_stage": 3}, {"zero_optimization": {"zero_hpz_partition_size": 8, "zero_quantized_weights": True}}),
        ({"zero_stage": 2}, {"zero_optimization": {"zero_hpz_partition_size": 16, "allgather_partitions": True}}),
        ({"zero_stage": 2}, {"zero_optimization": {"allgather_bucket_size": 1000}}),
        ({"zero_stage": 3}, {"zero_optimization": {"pipeline_loading_checkpoint": True, "offload_optimizer": None}}),
        ({"zero_stage": 3}, {"zero_optimization": {"allgather_bucket_size": 1001}}),
        (
            {"zero_stage": 1},
            {"zero_optimization": {"allgather_bucket_size": 1001}, "data_types": {"grad_accum_dtype": "fp32"}},
        ),
        ({"strategy": "zero2-offload"}, {"zero_optimization": {"offload_optimizer": {"ratio": "1.0"}}}),
        ({"zero_stage": 2, "grad_clip": 0}, {"zero_optimization": {"compute_grad_norm": False}}),
    ],
)
def test_what_goes_together_passes(tmp_path: Path, train: dict[str, Any], deepspeed: dict[str, Any]) -> None:
    assert not problems(tmp_path, train, deepspeed)


@pytest.mark.parametrize(
    ("train", "deepspeed", "other"),
    [
        ({"zero_stage": 3, "grad_clip": 0}, {}, "zero_stage"),
        ({"zero_stage": 2}, {}, "grad_clip"),
        ({"strategy": "zero2-offload", "grad_clip": 0}, {}, "offload"),
        ({"zero_stage": 1, "grad_clip": 0}, {"data_types": {"grad_accum_dtype": "fp32"}}, "precision"),
    ],
)
def test_the_norm_of_gradients_is_computed_where_it_is_needed(
    tmp_path: Path, train: dict[str, Any], deepspeed: dict[str, Any], other: str
) -> None:
    given = {**deepspeed, "zero_optimization": {"compute_grad_norm": False}}
    (found,) = problems(tmp_path, train, given)
    assert found.field == "deepspeed.zero_optimization.compute_grad_norm", other


@pytest.mark.parametrize("kind", ["Lamb", "lion"])
def test_an_optimizer_that_deepspeed_has_for_gpus_alone_is_refused_on_cpus(tmp_path: Path, kind: str) -> None:
    given = {"optimizer": {"type": kind}}
    (found,) = problems(tmp_path, {}, given, env={"DS_ACCELERATOR": "cpu"})
    assert (found.field, found.message) == ("deepspeed.optimizer.type", f"{kind} needs GPUs")
    assert not problems(tmp_path, {}, given)


@pytest.mark.parametrize("key", ["zero_quantized_weights", "zero_quantized_nontrainable_weights"])
def test_weights_of_few_bits_are_refused_on_cpus(tmp_path: Path, key: str) -> None:
    given = {"zero_optimization": {key: True}}
    (found,) = problems(tmp_path, {"zero_stage": 3}, given, env={"DS_ACCELERATOR": "cpu"})
    assert (found.field, found.message) == (f"deepspeed.zero_optimization.{key}", "needs GPUs")


@pytest.mark.parametrize(
    "given",
    [
        {"optimizer": {"type": "Lion"}},
        {"optimizer": {"params": {"amsgrad": True}}},
        {"zero_optimization": {"round_robin_gradients": True}},
    ],
)
def test_states_that_deepspeed_cannot_convert_need_the_same_ranks(tmp_path: Path, given: dict[str, Any]) -> None:
    train = {"zero_stage": 1, "universal_checkpoint": True}
    (found,) = problems(tmp_path, train, given)
    assert found.field == "train.universal_checkpoint"
    assert not problems(tmp_path, {**train, "zero_stage": 0}, given)
    assert not problems(tmp_path, train, {"optimizer": {"type": "Adam"}})
