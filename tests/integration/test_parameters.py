"""Parameters by arithmetic: the published numbers, and what Transformers itself builds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from dscampaign.jobs.shared.model_shapes import SHAPES
from dscampaign.orchestrator.memory.parameter_count import count_of_shape, count_parameters

PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "facebook/opt-125m": 125_239_296,
    "facebook/opt-350m": 331_196_416,
    "facebook/opt-1.3b": 1_315_758_080,
    "facebook/opt-2.7b": 2_651_596_800,
    "facebook/opt-6.7b": 6_658_473_984,
    "facebook/opt-13b": 12_853_473_280,
    "meta-llama/Llama-2-7b-hf": 6_738_415_616,
    "meta-llama/Llama-2-13b-hf": 13_015_864_320,
    "meta-llama/Llama-2-70b-hf": 68_976_648_192,
    "meta-llama/Meta-Llama-3-8B": 8_030_261_248,
    "meta-llama/Meta-Llama-3-70B": 70_553_706_496,
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "meta-llama/Llama-3.2-3B": 3_212_749_824,
}
UNUSUAL: list[dict[str, Any]] = [
    {"model_type": "gpt2", "hidden_size": 64, "n_layer": 3, "n_head": 4, "n_inner": 100, "tie_word_embeddings": False},
    {"model_type": "opt", "hidden_size": 64, "ffn_dim": 96, "num_attention_heads": 4, "enable_bias": False},
    {"model_type": "opt", "hidden_size": 64, "num_attention_heads": 4, "layer_norm_elementwise_affine": False},
    {"model_type": "opt", "hidden_size": 64, "num_attention_heads": 4, "word_embed_proj_dim": 32},
    {"model_type": "opt", "hidden_size": 64, "num_attention_heads": 4, "_remove_final_layer_norm": True},
    {"model_type": "opt", "hidden_size": 64, "num_attention_heads": 4, "tie_word_embeddings": False},
    {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "mlp_bias": True},
    {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "head_dim": 32, "attention_bias": True},
    {"model_type": "gpt2"},
    {"model_type": "opt"},
    {"model_type": "llama"},
]


def built(fields: Mapping[str, Any]) -> int:
    """Parameters of the model that Transformers builds, on a device without memory."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**fields))
    return sum(parameter.numel() for parameter in model.parameters())


def test_every_name_has_its_published_number() -> None:
    assert {name: count_parameters(name) for name in SHAPES} == PUBLISHED


@pytest.mark.parametrize("name", SHAPES)
def test_every_named_model_is_what_transformers_builds(name: str) -> None:
    assert built(SHAPES[name]) == PUBLISHED[name]


@pytest.mark.parametrize("fields", [pytest.param(fields, id=f"{i}") for i, fields in enumerate(UNUSUAL)])
def test_an_unusual_configuration_is_counted_as_it_is_built(fields: dict[str, Any]) -> None:
    assert count_of_shape(fields) == built(fields)


@pytest.mark.parametrize(
    ("tokenizer", "vocabulary"), [("bytes", 257), ("gpt2", 50_257), ("meta-llama/Meta-Llama-3-8B", 128_256)]
)
def test_an_inline_model_has_the_tokenizers_vocabulary(tokenizer: str, vocabulary: int) -> None:
    fields = {"model_type": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 1, "n_positions": 8}
    assert count_parameters(fields, tokenizer) == count_parameters({**fields, "vocab_size": vocabulary})
    assert count_parameters({**fields, "vocab_size": "auto"}, tokenizer) == count_parameters(fields, tokenizer)


@pytest.mark.parametrize(
    ("model", "tokenizer"),
    [
        ("someone/unheard-of", None),
        ({"model_type": "mamba", "vocab_size": 100}, None),
        ({"model_type": "gpt2"}, "someone/unheard-of"),
        ({"model_type": "gpt2"}, "facebook/opt-125m"),
        ({"model_type": "gpt2", "vocab_size": 100, "n_embd": "wide"}, None),
        ({"model_type": "gpt2", "vocab_size": 100, "add_cross_attention": True}, None),
        ({"model_type": "llama", "vocab_size": 100, "num_attention_heads": 0}, None),
    ],
)
def test_what_only_the_compute_node_can_know_is_unknown(model: Any, tokenizer: str | None) -> None:
    assert count_parameters(model, tokenizer) is None
