"""Groups of ranks that share samples, and layouts of the built-in trainer's state, by the fields of `train`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

DEEPSPEED = "deepspeed"
_JOINED = {"model": "joined", "blocks": "blocks", None: "single"}


def ranks_per_sample(train: Mapping[str, Any]) -> int:
    """Return the number of consecutive ranks that share each sample's tokens, or each layer's matrices; 1 for none."""
    return int(train.get("sequence_parallel") or 1) * int(train.get("tensor_parallel") or 1)


def joins_parameters(train: Mapping[str, Any]) -> Literal["model", "blocks"] | None:
    """Return the part whose parameters lie in two tensors: the model, or with ZeRO 3 each block; None for neither.

    Its backward pass must be one graph over whole parameters.
    """
    one_graph = train.get("compile", False) and not train.get("deepcompile", False)
    recomputed, deepspeed = train.get("activation_checkpointing", False), train.get("engine", DEEPSPEED) == DEEPSPEED
    uncut = train.get("tensor_parallel", 1) == 1
    if not (train.get("deepspeed_patches", True) and deepspeed and one_graph and uncut) or recomputed:
        return None
    offload = train.get("offload", "none")
    if train.get("zero_stage", 0) == 3:
        return "blocks" if offload != "nvme" else None
    return "model" if offload == "none" else None


def arrangement(train: Mapping[str, Any]) -> str:
    """Name the layout, such as ``single padded``: a checkpoint can be loaded only into the same layout and ZeRO stage.

    A vocabulary of random weights is padded; earlier versions did not pad it.
    """
    if train.get("engine", DEEPSPEED) != DEEPSPEED:
        words = [train["engine"]]
    elif train.get("offload", "none") == "nvme":
        words = ["nvme"]
    else:
        words = [_JOINED[joins_parameters(train)]]
    return " ".join([*words, *([] if train.get("pretrained", False) else ["padded"])])
