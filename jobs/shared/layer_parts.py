"""The matrices of a model that ranks share with `train.tensor_parallel`, and how each is cut.

A layer is identified by the last part of its name; others stay whole on every rank. Only the standard library.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

from .model_shapes import PLAIN_CAUSAL_MODELS


class Cut(Enum):
    """How the matrix (outputs, inputs) of a layer is cut."""

    OUTPUTS = "by its outputs, and so is its bias"
    THIRDS = "by the outputs of each of the three layers that it joins: queries, keys, values"
    INPUTS = "by its inputs; its bias stays whole"


CUTS: Final[Mapping[str, Cut]] = {
    layer: cut
    for cut, layers in {
        Cut.OUTPUTS: "q_proj k_proj v_proj gate_proj up_proj fc1 query_key_value dense_h_to_4h c_fc",
        Cut.THIRDS: "c_attn",
        Cut.INPUTS: "o_proj out_proj down_proj fc2 dense dense_4h_to_h c_proj",
    }.items()
    for layer in layers.split()
}

TRANSPOSED: Final = frozenset({"c_attn", "c_fc", "c_proj"})
"""Layers that GPT-2 keeps as (inputs, outputs); ranks share them as (outputs, inputs), like all others."""

CUTTABLE_MODELS: Final = PLAIN_CAUSAL_MODELS - {"olmo2"}
"""Types with the layers above. OLMo 2 normalizes queries and keys over all heads, which no rank has."""

UNCUT_FIELDS: Final[Mapping[str, str]] = {
    "add_cross_attention": "its layers join queries, keys and values otherwise",
    "layerdrop": "which layers a step leaves out would differ from ranks with whole layers",
}
"""Fields of these types' configurations that are not supported, because they change the layers or their use."""


def cut_of(weight: str) -> Cut | None:
    """Return how a weight is cut, by its dotted name; None if every rank has it whole."""
    layer, _, kind = weight.rpartition(".")
    cut = CUTS.get(layer.rpartition(".")[2])
    return None if kind == "bias" and cut is Cut.INPUTS else cut


def autotp_section(ranks: int) -> dict[str, Any]:
    """Return the section `tensor_parallel` of DeepSpeed's configuration."""
    specs = [
        {"patterns": [_named(Cut.OUTPUTS)], "partition_type": "column"},
        {"patterns": [_named(Cut.THIRDS)], "partition_type": "column", "shape": [3, -1], "partition_dim": 0},
        {"patterns": [_named(Cut.INPUTS)], "partition_type": "row"},
        # Qwen 3 normalizes each head by the same weights: a rank's gradient of them is of its own heads alone.
        {"patterns": [r".*\.[qk]_norm\.weight$"], "partition_type": "skip", "grad_allreduce": True},
    ]
    return {"autotp_size": ranks, "partition_config": {"use_default_specs": False, "layer_specs": specs}}


def _named(cut: Cut) -> str:
    return rf".*\.(?:{'|'.join(layer for layer, its in CUTS.items() if its is cut)})\.weight$"
