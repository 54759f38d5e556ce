"""Random weights: the same whatever the strategy, and under ZeRO 3 never whole on any rank."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from dscampaign.jobs.trainer.weights import random_model

from .attempts import LLAMA, TINY
from .conftest import Launch

GROUPED = {**LLAMA, "num_key_value_heads": 2, "vocab_size": 257}
GPT2 = {**TINY["model"], "vocab_size": 257}
FP32 = {"dtype": torch.float32}


@pytest.mark.parametrize("shape", [GROUPED, GPT2])
def test_they_are_distributed_as_transformers_draws_them(shape: dict[str, int | str]) -> None:
    usual = AutoModelForCausalLM.from_config(AutoConfig.for_model(**shape), **FP32)
    drawn = random_model(AutoConfig.for_model(**shape), FP32, seed=7, ds_config=None)
    assert [name for name, _ in drawn.named_parameters()] == [name for name, _ in usual.named_parameters()]
    for ours, theirs in zip(drawn.parameters(), usual.parameters(), strict=True):
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours.std(), theirs.std(), rtol=0.25, atol=1e-6)
    for ours, theirs in zip(drawn.buffers(), usual.buffers(), strict=True):
        assert torch.equal(ours, theirs)


def test_tied_weights_are_one() -> None:
    model = random_model(AutoConfig.for_model(**GPT2), FP32, seed=7, ds_config=None)
    assert model.lm_head.weight is model.transformer.wte.weight


SCRIPT = """
import json, os, sys
import deepspeed, torch
import torch.distributed as dist
from deepspeed import zero
from deepspeed.runtime.zero.partition_parameters import is_zero_param
from transformers import AutoConfig
from dscampaign.jobs.trainer import weights
from dscampaign.jobs.trainer.leaving import leave_process_group

deepspeed.ops.__compatible_ops__ = {}
deepspeed.init_distributed(verbose=False)
weights.WHOLE_BYTES = 10_000  # several times within this model
shape, fp32 = json.loads(sys.argv[1]), {"dtype": torch.float32}
whole = weights.random_model(AutoConfig.for_model(**shape), fp32, 7, None)
config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
parted = weights.random_model(AutoConfig.for_model(**shape), fp32, 7, config)
sizes = {name: weight.ds_tensor.numel() if is_zero_param(weight) else 0 for name, weight in parted.named_parameters()}
with zero.GatheredParameters([weight for weight in parted.parameters() if is_zero_param(weight)]):
    same = all(torch.equal(a, b) for a, b in zip(whole.parameters(), parted.parameters(), strict=True))
if dist.get_rank() == 0:
    names = {name: weight.numel() for name, weight in whole.named_parameters()}
    with open(sys.argv[2], "w") as file:
        json.dump({"same": same, "whole": names, "parted": sizes}, file)
dist.barrier()
leave_process_group()
"""


@pytest.mark.training
@pytest.mark.parametrize("shape", [GROUPED, GPT2])
def test_under_zero_3_a_rank_keeps_its_part_of_the_same_weights(
    shape: dict[str, int | str], launch: Launch, tmp_path: Path
) -> None:
    script, found = tmp_path / "draw.py", tmp_path / "found.json"
    script.write_text(SCRIPT)
    process = launch(str(script), json.dumps(shape), str(found), env={"DS_ACCELERATOR": "cpu"})
    output, _ = process.communicate()
    assert process.returncode == 0, output
    seen = json.loads(found.read_text())
    assert seen["same"]
    embeddings = {"model.embed_tokens.weight", "lm_head.weight", "transformer.wte.weight"}
    assert {name for name, size in seen["parted"].items() if not size} == embeddings & seen["whole"].keys()
    assert all(size == -(-seen["whole"][name] // 2) for name, size in seen["parted"].items() if size)
