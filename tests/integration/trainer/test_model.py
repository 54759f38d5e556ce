"""The model: padding that changes nothing, attention that is only faster, the same weights always."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from dscampaign.jobs.trainer.data import Data, Samples
from dscampaign.jobs.trainer.fused_loss import IGNORED_TARGET
from dscampaign.jobs.trainer.model import NextTokenLoss, _facts, build_model, find_model_config, parameter_groups
from dscampaign.tests.integration.trainer.attempts import LLAMA, TINY, train_config

NOTHING = Samples(np.zeros(0, dtype=np.uint16), 32)
GROUPED = {**LLAMA, "num_key_value_heads": 2}
MISTRAL = {**GROUPED, "model_type": "mistral"}
OPT = {"model_type": "opt", "hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


def build(vocab_size: int = 257, **changes: Any) -> NextTokenLoss:
    config = train_config(**changes)
    return build_model(config, Data(NOTHING, NOTHING, vocab_size, vocab_size - 1), {})[0]


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(257, (2, 17), generator=torch.Generator().manual_seed(0))
    return tokens[:, :-1], tokens[:, 1:]


def test_the_loss_is_the_mean_over_targets_that_count(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    model, (inputs, targets) = build(), batch
    ignored = targets.clone()
    ignored[:, 8:] = IGNORED_TARGET
    logits = model.model(input_ids=inputs).logits[..., :257]
    expected = functional.cross_entropy(logits[:, :8].reshape(-1, 257), targets[:, :8].reshape(-1))
    torch.testing.assert_close(model(inputs, ignored), expected)


@pytest.mark.parametrize(
    ("architecture", "kind"),
    [({"model_type": "bloom", "hidden_size": 32, "n_layer": 1, "n_head": 2}, "eager"), (MISTRAL, "sdpa")],
)
def test_any_other_attention_is_the_one_that_transformers_has(
    architecture: dict[str, Any], kind: str, batch: tuple[torch.Tensor, torch.Tensor]
) -> None:
    model = build(model=architecture)
    assert model.model.config._attn_implementation == kind
    assert torch.isfinite(model(*batch))


@pytest.mark.parametrize("architecture", [TINY["model"], GROUPED, OPT])
def test_fast_attention_is_the_same_attention(
    architecture: dict[str, Any], batch: tuple[torch.Tensor, torch.Tensor]
) -> None:
    fast = build(model=architecture)
    assert fast.model.config._attn_implementation == "causal_sdpa"
    slow = build(model=architecture)
    slow.model.set_attn_implementation("eager")
    torch.testing.assert_close(fast(*batch), slow(*batch))


def test_weights_follow_the_seed_alone() -> None:
    first, again, other = build(), build(zero_stage=3, micro_batch=1), build(seed=8)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(first.model.lm_head.weight, other.model.lm_head.weight)


def test_only_matrices_decay() -> None:
    decaying, others = parameter_groups(build())
    assert {p.dim() for p in decaying["params"]} == {2}
    assert {p.dim() for p in others["params"]} == {1}
    assert others["weight_decay"] == 0.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {**TINY["model"], "vocab_size": 256}}, "256 token ids, the tokenizer 257"),
        ({"model": {**TINY["model"], "n_positions": 16}}, "seq_len: 32, but the model has 16"),
    ],
)
def test_model_and_data_must_fit(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(**changes)


def test_experts_that_do_not_compute_are_no_work() -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = {"model_type": "mixtral", **sizes, "num_key_value_heads": 2, "num_local_experts": 8, "vocab_size": 257}

    def flops(experts_per_token: int) -> float:
        config = train_config(model={**model, "num_experts_per_tok": experts_per_token})
        return build_model(config, Data(NOTHING, NOTHING, 257, 256), {})[1].flops_per_token

    weights_of_one = 2 * 3 * 32 * 48
    assert flops(8) - flops(2) == pytest.approx(6.0 * 6 * weights_of_one)


def shape(
    model_type: str, width: int, inner: int, layers: int, heads: int, kv_heads: int, **more: Any
) -> dict[str, Any]:
    sizes = {"hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers}
    return {"model_type": model_type, **sizes, "num_attention_heads": heads, "num_key_value_heads": kv_heads, **more}


QWEN3 = {"head_dim": 128, "vocab_size": 151_936, "max_position_embeddings": 40_960, "tie_word_embeddings": True}
MLA = {"q_lora_rank": 64, "kv_lora_rank": 32, "qk_nope_head_dim": 96, "qk_rope_head_dim": 32, "v_head_dim": 64}


@pytest.mark.parametrize(
    ("model", "seq_len"),
    [
        ({"model_type": "gpt2"}, 1024),
        ({"model_type": "gpt2", "tie_word_embeddings": False}, 512),
        (shape("llama", 256, 688, 4, 4, 4, vocab_size=32_000), 512),
        (shape("llama", 256, 688, 4, 4, 4, vocab_size=32_000, tie_word_embeddings=True), 512),
        (shape("llama", 1024, 3584, 4, 32, 8, vocab_size=128_256), 8192),
        (shape("qwen3", 1024, 3072, 4, 16, 8, **QWEN3), 2048),
        (shape("mistral", 512, 1024, 2, 8, 2, head_dim=32, vocab_size=1000, sliding_window=None), 2048),
        (shape("gemma2", 512, 1024, 2, 8, 2, head_dim=96, vocab_size=1000), 2048),
        (shape("deepseek_v3", 256, 512, 2, 4, 4, first_k_dense_replace=2, vocab_size=1000, **MLA), 1024),
    ],
)
def test_the_work_of_a_token_is_what_pytorch_counts(model: dict[str, Any], seq_len: int) -> None:
    """All matrix products and attention in full, forwards and backwards; on the meta device, which holds no memory."""
    with torch.device("meta"):
        config = CONFIG_MAPPING[model["model_type"]](**model)
        built = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        tokens, mask = torch.zeros(1, seq_len, dtype=torch.long), torch.zeros(1, 1, seq_len, seq_len)
    with FlopCounterMode(display=False) as counter:
        built(input_ids=tokens, attention_mask=mask, use_cache=False).logits.sum().backward()
    assert _facts(built, seq_len).flops_per_token == pytest.approx(counter.get_total_flops() / seq_len, rel=0.02)


@pytest.mark.parametrize(
    ("model", "seen"),
    [
        ({"model_type": "mistral", "sliding_window": 128}, 128),
        ({"model_type": "mistral", "sliding_window": 4096}, 512),
        ({"model_type": "gemma2", "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"]}, 320),
        ({"model_type": "qwen3_next", "layer_types": ["linear_attention", "full_attention"]}, 256),
    ],
)
def test_attention_counts_as_far_as_a_layer_sees(model: dict[str, Any], seen: int) -> None:
    with torch.device("meta"):
        fields = {**shape("", 32, 64, 2, 4, 2, head_dim=24, vocab_size=100), **model}
        built = AutoModelForCausalLM.from_config(CONFIG_MAPPING[fields.pop("model_type")](**fields))
    of_attention = _facts(built, 512).flops_per_token - _facts(built, 1).flops_per_token
    assert of_attention == pytest.approx(12 * 2 * 4 * 24 * seen, rel=0.01)


@pytest.mark.parametrize(("model_type", "field"), [("biogpt", "hidden_dropout_prob"), ("seed_oss", "residual_dropout")])
def test_the_spec_decides_about_dropout_whatever_a_model_calls_it(model_type: str, field: str) -> None:
    config = train_config(model={"model_type": model_type}, dropout=0.0)
    found = find_model_config(config, Data(NOTHING, NOTHING, 257, 256))
    assert getattr(found, field) == 0.0


def test_a_misspelt_field_of_the_model_is_refused() -> None:
    with pytest.raises(ValueError, match="did you mean n_layer"):
        build(model={"model_type": "gpt2", "n_layers": 2})
