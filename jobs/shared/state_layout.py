"""Groups of ranks that share samples, and layouts of the built-in trainer's state, by the fields of `train`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DEEPSPEED = "deepspeed"
JOINED = "joined"
SINGLE = "single"


def ranks_per_sample(train: Mapping[str, Any]) -> int:
    """Return the number of consecutive ranks that share each sample's tokens, or each layer's matrices; 1 for none."""
    return int(train.get("sequence_parallel") or 1) * int(train.get("tensor_parallel") or 1)


def joins_parameters(train: Mapping[str, Any]) -> bool:
    """Return whether all parameters lie in two tensors: if the backward pass is one graph over whole parameters."""
    if not train.get("deepspeed_patches", True):
        return False
    whole = train.get("zero_stage", 0) < 3 and train.get("offload", "none") == "none"
    whole = whole and train.get("tensor_parallel", 1) == 1
    one_graph = train.get("compile", False) and not train.get("deepcompile", False)
    recomputed, deepspeed = train.get("activation_checkpointing", False), train.get("engine", DEEPSPEED) == DEEPSPEED
    return bool(deepspeed and one_graph and whole and not recomputed)


def arrangement(train: Mapping[str, Any]) -> str:
    """Name the layout, such as ``single padded``: a checkpoint can be loaded only into the same layout and ZeRO stage.

    A vocabulary of random weights is padded; earlier versions did not pad it.
    """
    if train.get("engine", DEEPSPEED) != DEEPSPEED:
        words = [train["engine"]]
    elif train.get("offload", "none") == "nvme":
        words = ["nvme"]
    else:
        words = [JOINED if joins_parameters(train) else SINGLE]
    return " ".join([*words, *([] if train.get("pretrained", False) else ["padded"])])
