"""What the loss takes at least, and what a plan says where that does not fit."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dscampaign.orchestrator.memory.feasibility import Shortage, needs_of
from dscampaign.orchestrator.memory.loss_memory import loss_gb
from dscampaign.orchestrator.memory.zero_memory import Sizes
from dscampaign.orchestrator.spec.model import RunConfig
from dscampaign.tests.support import REPOSITORY

LLAMA3 = "meta-llama/Llama-3.1-8B"


def config(**train: Any) -> RunConfig:
    given = {"model": LLAMA3, "dataset": "d", "global_batch": 64, "steps": 10, "seq_len": 4096, "zero_stage": 3}
    slurm = {"gpus_per_node": "h100:8"}
    return RunConfig.model_validate({"slurm": slurm, "train": {**given, **train}})


def shortage(accumulation: int | None = 1, ranks: int = 8, **train: Any) -> Shortage | None:
    return needs_of(config(**train), Sizes(ranks, 8, accumulation)).shortage


@pytest.mark.parametrize(
    ("train", "bytes_each"),
    [
        ({}, 12),
        ({"precision": "fp32"}, 12),
        ({"compile": True}, 2),
        ({"compile": True, "precision": "fp32"}, 4),
        ({"deepcompile": True}, 2),
        ({"fused_loss": True}, 4 / 4),  # of the first quarter of the tokens
    ],
)
def test_what_each_logit_takes(train: dict[str, Any], bytes_each: float) -> None:
    assert loss_gb(config(**train), 8) == pytest.approx(bytes_each * 8 * 4096 * 128_256 / 1e9)


def test_the_vocabulary_is_padded_unless_the_weights_are_given() -> None:
    random, given = (loss_gb(config(model="gpt2", seq_len=1024, pretrained=given), 1) for given in (False, True))
    assert random == pytest.approx(12 * 1024 * 50_304 / 1e9)
    assert given == pytest.approx(12 * 1024 * 50_257 / 1e9)


def test_where_nothing_is_known_of_the_vocabulary_nothing_is_said() -> None:
    assert loss_gb(config(model="someone/model"), 8) is None
    assert loss_gb(config().model_copy(update={"command": ("t.py",)}), 8) is None
    assert loss_gb(config(model={"model_type": "qwen2", "vocab_size": 128}), 1) == pytest.approx(12 * 4096 * 128 / 1e9)


def test_it_is_less_than_what_a_sample_was_measured_to_take() -> None:
    """benchmarks/results/oom-h200.json: GPT-2 with 50,304 rows at 1024 tokens, bf16."""
    measured = json.loads((REPOSITORY / "benchmarks/results/oom-h200.json").read_text())
    sample_gb = measured["siblings"]["line_gb"]["per_sample"]
    least_gb = loss_gb(config(model=measured["train"]["model"], seq_len=1024), 1)
    assert least_gb is not None
    assert sample_gb / 2 < least_gb < sample_gb


def test_logits_that_cannot_fit_are_told_with_what_would() -> None:
    found = shortage(accumulation=1, global_batch=128)
    assert found is not None
    assert "the loss of micro-batch 16 takes 100.9 GB for its logits, beside 14.1 GB of weights" in found.message
    assert found.hint == "micro_batch: 8"
    assert shortage(accumulation=2, global_batch=128) is None


def test_the_fused_loss_is_another_way_where_no_layer_is_sharded() -> None:
    found = shortage(global_batch=128, zero_stage=2, model="meta-llama/Llama-3.2-1B")
    assert found is not None
    assert found.hint == "micro_batch: 8 or fused_loss: true"
    assert shortage(global_batch=128, zero_stage=2, model="meta-llama/Llama-3.2-1B", fused_loss=True) is None


def test_one_sample_that_is_too_long() -> None:
    found = shortage(global_batch=8, seq_len=131_072)
    assert found is not None
    assert found.hint == "use shorter samples (seq_len), or a smaller vocabulary"


def test_a_micro_batch_that_is_searched_for_is_not_judged() -> None:
    assert shortage(global_batch=128, micro_batch="auto") is None
    assert shortage(accumulation=None, global_batch=128) is None
