"""How many parameters a model has, by arithmetic: without torch, so that a plan is there at once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from dscampaign.jobs.shared.model_shapes import BYTES, BYTES_VOCABULARY, SHAPES, Shape, find_shape

_GPT2_ALIASES: Final = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_hidden_layers": "n_layer",
}
_OPT_EXTRA_POSITIONS: Final = 2  # its table of positions begins two rows late
_MOST: Final = 10**18
"""More parameters than any model has."""

_Count = tuple[int, int]
"""All parameters, and the parameters that ranks can share: not tables, norms, and biases of matrices cut by inputs."""


def count_parameters(model: str | Mapping[str, Any], tokenizer: str | None = None, sharers: int = 1) -> int | None:
    """Return the number of a model's parameters, shared only once, without padding of the vocabulary; None if unknown.

    `model` and `tokenizer` are as in `train`; if ranks share each layer (`sharers`), the part of a rank is counted.
    """
    shape = _with_vocabulary(model, tokenizer) if isinstance(model, Mapping) else _of_name(model)
    if shape is None:
        return None
    try:
        count = count_of_shape(shape, sharers)
    except (ArithmeticError, TypeError, ValueError):
        return None  # the trainer says what is wrong with it
    return count if count is not None and abs(count) < _MOST else None


def count_of_shape(shape: Shape, sharers: int = 1) -> int | None:
    """Parameters of a configuration of type gpt2, opt or llama; None for other types.

    The defaults of Transformers are the sizes of a published model.
    """
    match shape.get("model_type"):
        case "gpt2":
            own = {_GPT2_ALIASES.get(name, name): value for name, value in shape.items()}
            parameters = _gpt2({**SHAPES["gpt2"], **own})
        case "opt":
            parameters = _opt({**SHAPES["facebook/opt-125m"], **shape})
        case "llama":
            parameters = _llama({**SHAPES["meta-llama/Llama-2-7b-hf"], "num_key_value_heads": None, **shape})
        case _:
            return None
    if parameters is None:
        return None
    total, cut = parameters
    return int(total - cut + cut // sharers)


def _of_name(model: str) -> Shape | None:
    if shape := find_shape(model):
        return shape
    try:
        fields = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # a name on the hub, or a folder that only the compute nodes see
    return fields if isinstance(fields, dict) else None


def _with_vocabulary(model: Shape, tokenizer: str | None) -> Shape | None:
    """Return the configuration with the trainer's number of tokens; None if only files have it."""
    if model.get("vocab_size", "auto") != "auto":
        return model
    if tokenizer == BYTES:
        return {**model, "vocab_size": BYTES_VOCABULARY}
    shape = find_shape(tokenizer) if tokenizer else None
    # OPT's models have a few more rows than their tokenizer has tokens.
    return {**model, "vocab_size": shape["vocab_size"]} if shape and shape["model_type"] != "opt" else None


def _linear(inputs: int, outputs: int, *, bias: bool) -> int:
    return outputs * (inputs + bias)


def _gpt2(c: Mapping[str, Any]) -> _Count | None:
    if c.get("add_cross_attention"):
        return None
    width, inner = c["n_embd"], c.get("n_inner") or 4 * c["n_embd"]
    attention = _linear(width, 3 * width, bias=True) + _linear(width, width, bias=True)
    block = attention + _linear(width, inner, bias=True) + _linear(inner, width, bias=True) + 2 * 2 * width
    tables = (1 if c.get("tie_word_embeddings", True) else 2) * c["vocab_size"] * width + c["n_positions"] * width
    return tables + c["n_layer"] * block + 2 * width, c["n_layer"] * (block - 2 * width - 2 * 2 * width)


def _opt(c: Mapping[str, Any]) -> _Count:
    width, bias = c["hidden_size"], c.get("enable_bias", True)
    norm = 2 * width if c.get("layer_norm_elementwise_affine", True) else 0
    feed = _linear(width, c["ffn_dim"], bias=bias) + _linear(c["ffn_dim"], width, bias=bias)
    block = 4 * _linear(width, width, bias=bias) + feed + 2 * norm
    embedded = c.get("word_embed_proj_dim") or width
    projections = 0 if embedded == width else 2 * embedded * width
    tables = (1 if c.get("tie_word_embeddings", True) else 2) * c["vocab_size"] * embedded
    positions = (c["max_position_embeddings"] + _OPT_EXTRA_POSITIONS) * width
    last_norm = norm if c.get("do_layer_norm_before", True) and not c.get("_remove_final_layer_norm") else 0
    cut = c["num_hidden_layers"] * (block - 2 * width * bias - 2 * norm)
    return tables + positions + projections + c["num_hidden_layers"] * block + last_norm, cut


def _llama(c: Mapping[str, Any]) -> _Count:
    width, inner, heads = c["hidden_size"], c["intermediate_size"], c["num_attention_heads"]
    head = c.get("head_dim") or width // heads
    queries, keys = heads * head, (c["num_key_value_heads"] or heads) * head
    bias, mlp_bias = c.get("attention_bias", False), c.get("mlp_bias", False)
    into_heads = _linear(width, queries, bias=bias) + 2 * _linear(width, keys, bias=bias)
    attention = into_heads + _linear(queries, width, bias=bias)
    feed = 2 * _linear(width, inner, bias=mlp_bias) + _linear(inner, width, bias=mlp_bias)
    tables = (2 - bool(c.get("tie_word_embeddings"))) * c["vocab_size"] * width
    cut = c["num_hidden_layers"] * (attention + feed - width * bias - width * mlp_bias)
    return tables + c["num_hidden_layers"] * (attention + feed + 2 * width) + width, cut
