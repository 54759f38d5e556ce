"""Random weights: the same whatever the strategy, and under ZeRO 3 never whole on any rank."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from dscampaign.jobs.trainer.weights import random_model
from dscampaign.tests.integration.trainer.attempts import LLAMA, ON_CPU, TINY
from dscampaign.tests.integration.trainer.conftest import Launch

GROUPED = {**LLAMA, "num_key_value_heads": 2, "vocab_size": 257}
GPT2 = {**TINY["model"], "vocab_size": 257}
FP32 = {"dtype": torch.float32}
PADDED = 384


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


def test_what_transformers_draws_only_while_it_makes_a_model_is_drawn() -> None:
    """The activations of this type have weights that its own initialisation leaves alone."""
    fields = {**LLAMA, "model_type": "apertus", "vocab_size": 257, "pad_token_id": None}
    model = random_model(AutoConfig.for_model(**fields), FP32, seed=7, ds_config=None)
    torch.manual_seed(7)
    usual = AutoModelForCausalLM.from_config(AutoConfig.for_model(**fields), **FP32)
    for ours, theirs in zip(model.state_dict().values(), usual.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)
        assert ours.isfinite().all()


SCRIPT = """
import json, sys
import deepspeed, torch
import torch.distributed as dist
from deepspeed import zero
from deepspeed.runtime.zero.partition_parameters import is_zero_param
from transformers import AutoConfig
from dscampaign.jobs.trainer import weights
from dscampaign.jobs.trainer.engine import leave_process_group
from dscampaign.jobs.trainer.model import pad_vocabulary

deepspeed.ops.__compatible_ops__ = {}
deepspeed.init_distributed(verbose=False)
weights.WHOLE_BYTES = 10_000  # several times within this model

def drawn(shape, kind):
    fp32 = {"dtype": torch.float32}
    expected = weights.random_model(AutoConfig.for_model(**shape), fp32, 7, None)
    half = {"bf16": {"enabled": kind == "bf16"}}
    config = {"train_micro_batch_size_per_gpu": 1, **half, "zero_optimization": {"stage": 3}}
    model = weights.random_model(AutoConfig.for_model(**shape), fp32, 7, config)
    parts = {name: weight.ds_tensor.numel() for name, weight in model.named_parameters() if is_zero_param(weight)}
    for one in (expected, model):
        torch.manual_seed(8)
        pad_vocabulary(one)
    weights.hand_over(model, config)
    with zero.GatheredParameters([weight for weight in model.parameters() if is_zero_param(weight)]):
        pairs = list(zip(expected.parameters(), model.parameters(), strict=True))
        same = all(torch.equal(a.to(b.dtype), b) for a, b in pairs)
        formats = sorted({str(b.dtype) for _, b in pairs})
    rows = {name: list(weight.shape) for name, weight in expected.named_parameters()}
    return {"same": same, "formats": formats, "whole": rows, "parts": parts}

found = [drawn(*case) for case in json.loads(sys.argv[1])]
if dist.get_rank() == 0:
    with open(sys.argv[2], "w") as file:
        json.dump(found, file)
dist.barrier()
leave_process_group()
"""

TIED_BIAS = {
    "model_type": "bert",
    "is_decoder": True,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "vocab_size": 257,
}

DIVIDED = [(GROUPED, "bf16"), (GPT2, "fp32"), (TIED_BIAS, "fp32")]


@pytest.fixture(scope="module")
def divided(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What became of each of these models under ZeRO 3, in one launch."""
    folder = tmp_path_factory.mktemp("divided")
    script, found = folder / "draw.py", folder / "found.json"
    script.write_text(SCRIPT)
    code, output = launch(str(script), json.dumps(DIVIDED), str(found), env=ON_CPU).finish()
    assert code == 0, output
    result: list[dict[str, Any]] = json.loads(found.read_text())
    return result


@pytest.mark.training
@pytest.mark.parametrize("number", range(len(DIVIDED)))
def test_under_zero_3_a_rank_keeps_its_part_of_the_same_weights(number: int, divided: list[dict[str, Any]]) -> None:
    seen, (_, kind) = divided[number], DIVIDED[number]
    assert seen["same"]
    assert seen["formats"] == ["torch.bfloat16" if kind == "bf16" else "torch.float32"]
    inner = {name: math.prod(size) for name, size in seen["whole"].items() if size[0] != PADDED}
    assert seen["parts"] == {name: -(-size // 2) for name, size in inner.items()}
