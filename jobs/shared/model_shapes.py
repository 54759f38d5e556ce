"""Shapes of published models, so that random weights need no hub and no network. Only the standard library.

A shape has the fields of a Transformers configuration as published; other fields have the default of its `model_type`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

Shape = Mapping[str, Any]  # fields of a Transformers configuration, `model_type` among them
VOCAB_MULTIPLE: Final = 128
"""Rows of random embeddings are a multiple of this: tensor cores read 128 numbers of two bytes at once."""

BYTES: Final = "bytes"  # the tokenizer that needs no files: ids are the bytes of a text
BYTES_VOCABULARY: Final = 257  # its ids: 256 bytes and the end of a document
PLAIN_CAUSAL_MODELS: Final = frozenset({"gpt2", "gpt_neox", "llama", "olmo2", "opt", "qwen2", "qwen3", "smollm3"})
"""Types with plain causal attention; other types may use windows, soft caps or sinks."""

_LLAMA3_VOCABULARY: Final = 128_256
_LLAMA3_THETA: Final = 500_000.0
_LLAMA31_POSITIONS: Final = 131_072
_TRAINED_POSITIONS: Final = 8192  # of Llama 3, from which 3.1 and 3.2 are stretched


def _gpt2(n_embd: int, n_layer: int, n_head: int) -> Shape:
    shape = {"n_embd": n_embd, "n_layer": n_layer, "n_head": n_head}
    return {"model_type": "gpt2", **shape, "n_positions": 1024, "vocab_size": 50_257}


def _opt(hidden_size: int, layers: int, heads: int, **more: object) -> Shape:
    sizes = {"hidden_size": hidden_size, "num_hidden_layers": layers, "num_attention_heads": heads}
    # Without the padding token: with another tokenizer its id is a word's, and its row would never be trained.
    fixed = {"max_position_embeddings": 2048, "vocab_size": 50_272, "pad_token_id": None}
    return {"model_type": "opt", **sizes, "ffn_dim": 4 * hidden_size, **fixed, **more}


def _llama(hidden_size: int, intermediate_size: int, layers: int, heads: int, kv_heads: int, **more: object) -> Shape:
    sizes = {"hidden_size": hidden_size, "intermediate_size": intermediate_size, "num_hidden_layers": layers}
    attention = {"num_attention_heads": heads, "num_key_value_heads": kv_heads}
    return {"model_type": "llama", **sizes, **attention, "rms_norm_eps": 1e-5, **more}


def _llama2(hidden_size: int, intermediate_size: int, layers: int, heads: int, kv_heads: int) -> Shape:
    more = {"max_position_embeddings": 4096, "vocab_size": 32_000}
    return _llama(hidden_size, intermediate_size, layers, heads, kv_heads, **more)


def _llama3(
    hidden_size: int,
    intermediate_size: int,
    layers: int,
    heads: int,
    *,
    stretch: float | None = None,
    tied: bool = False,
) -> Shape:
    """`stretch`: factor by which the positions of Llama 3.1 and 3.2 are stretched; None for Llama 3."""
    rope: dict[str, object] = {"rope_type": "default", "rope_theta": _LLAMA3_THETA}
    if stretch is not None:
        band = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": _TRAINED_POSITIONS}
        rope |= {"rope_type": "llama3", "factor": stretch, **band}
    positions = _TRAINED_POSITIONS if stretch is None else _LLAMA31_POSITIONS
    more = {"max_position_embeddings": positions, "rope_parameters": rope, "tie_word_embeddings": tied}
    return _llama(hidden_size, intermediate_size, layers, heads, 8, vocab_size=_LLAMA3_VOCABULARY, **more)


SHAPES: Final[Mapping[str, Shape]] = MappingProxyType(
    {
        "gpt2": _gpt2(768, 12, 12),
        "gpt2-medium": _gpt2(1024, 24, 16),
        "gpt2-large": _gpt2(1280, 36, 20),
        "gpt2-xl": _gpt2(1600, 48, 25),
        "facebook/opt-125m": _opt(768, 12, 12),
        # Norms after each block, and embeddings of half the width.
        "facebook/opt-350m": _opt(1024, 24, 16, word_embed_proj_dim=512, do_layer_norm_before=False),
        "facebook/opt-1.3b": _opt(2048, 24, 32),
        "facebook/opt-2.7b": _opt(2560, 32, 32),
        "facebook/opt-6.7b": _opt(4096, 32, 32),
        "facebook/opt-13b": _opt(5120, 40, 40),
        "meta-llama/Llama-2-7b-hf": _llama2(4096, 11_008, 32, 32, 32),
        "meta-llama/Llama-2-13b-hf": _llama2(5120, 13_824, 40, 40, 40),
        "meta-llama/Llama-2-70b-hf": _llama2(8192, 28_672, 80, 64, 8),
        "meta-llama/Meta-Llama-3-8B": _llama3(4096, 14_336, 32, 32),
        "meta-llama/Meta-Llama-3-70B": _llama3(8192, 28_672, 80, 64),
        "meta-llama/Llama-3.1-8B": _llama3(4096, 14_336, 32, 32, stretch=8.0),
        "meta-llama/Llama-3.2-1B": _llama3(2048, 8192, 16, 32, stretch=32.0, tied=True),
        "meta-llama/Llama-3.2-3B": _llama3(3072, 8192, 28, 24, stretch=32.0, tied=True),
    }
)
"""Shapes by the names under which the models are published."""

_ALIASES: Final = {
    **{f"openai-community/{name}": name for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")},
    "meta-llama/Meta-Llama-3.1-8B": "meta-llama/Llama-3.1-8B",
}


def find_shape(model: str) -> Shape | None:
    """Return the shape of a name; None for a model of the hub, and for a folder, which wins over a name."""
    return None if Path(model).is_dir() else SHAPES.get(_ALIASES.get(model, model))


def positions_of(shape: Shape) -> int:
    """Return the tokens of the longest sample that a named model takes."""
    return int(shape.get("n_positions") or shape["max_position_embeddings"])
