"""Which modules ZeRO 3 gathers at once."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.training

MODELS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_layer": 3, "n_embd": 32, "n_head": 2},
    "llama": {
        "num_hidden_layers": 3,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    },
    "opt": {
        "num_hidden_layers": 3,
        "hidden_size": 32,
        "ffn_dim": 64,
        "num_attention_heads": 2,
        "word_embed_proj_dim": 32,
    },
}


def gathered(kind: str, zero: dict[str, Any]) -> tuple[int, list[str]]:
    """How many blocks a model of this type has marked, and the names of all modules that are marked."""
    from deepspeed.utils import z3_leaf_module
    from transformers import AutoConfig, AutoModelForCausalLM

    from dscampaign.jobs.trainer.whole_blocks import gather_whole_blocks

    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, vocab_size=64, **MODELS[kind]))
    number = gather_whole_blocks(model, {"zero_optimization": zero})
    return number, [name for name, module in model.named_modules() if z3_leaf_module(module)]


@pytest.mark.parametrize("kind", MODELS)
def test_each_block_is_gathered_at_once(kind: str) -> None:
    number, names = gathered(kind, {"stage": 3})
    assert number == len(names) == 3
    assert [name.rpartition(".")[2] for name in names] == ["0", "1", "2"]


@pytest.mark.parametrize(
    "zero",
    [
        {"stage": 2},
        {"stage": 3, "leaf_module": {"classes": []}},
        {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/swap"}},
    ],
    ids=["parameters are whole anyway", "the spec says otherwise", "each parameter needs a buffer"],
)
def test_where_gathering_whole_blocks_does_not_help_none_is_marked(zero: dict[str, Any]) -> None:
    assert gathered("gpt2", zero) == (0, [])
