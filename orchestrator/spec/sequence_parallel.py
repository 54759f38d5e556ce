"""What does not go together with ranks that share samples (`train.sequence_parallel`). Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ...jobs.shared.model_shapes import PLAIN_CAUSAL_MODELS
from ..errors import FieldPath, Finding
from .model import RunConfig
from .rank_groups import HEADS, across_nodes, undivided_ranks, unfit_model

_PLACE: Final[FieldPath] = ("train", "sequence_parallel")


def check(config: RunConfig, world_size: int) -> Iterator[Finding]:
    """Everything that keeps the ranks of a run from sharing samples as its spec says."""
    train, size = config.train, config.train.sequence_parallel
    if size == 1:
        return
    if config.command is not None:
        yield Finding((_PLACE,), "is for the built-in training", "leave it out, and let the script share its samples")
        return
    yield from undivided_ranks(_PLACE, size, world_size)
    if train.seq_len % size:
        less, more = train.seq_len // size * size, (train.seq_len // size + 1) * size
        hint = f"use seq_len {f'{less} or ' if less else ''}{more}: each rank has as many tokens of a sample"
        yield Finding((_PLACE, ("train", "seq_len")), f"{size} does not divide seq_len {train.seq_len}", hint)
    why = "whose attention may not be plain"
    divided = dict.fromkeys(HEADS, "{} heads")
    yield from unfit_model(_PLACE, size, config, world_size, PLAIN_CAUSAL_MODELS, why, divided)
    if train.attention != "auto":
        message = f"does not go with attention {train.attention}: ranks exchange heads around causal attention"
        yield Finding((_PLACE, ("train", "attention")), message, "write attention: auto")
    if train.offload == "nvme":
        message = "is not served with offload nvme: the two have not been tested together"
        yield Finding((_PLACE, ("train", "offload"), ("train",)), message, "use offload: full")
    if train.deepcompile:
        message = "does not go with deepcompile: attention's exchange between ranks is left out of compiled code"
        yield Finding((_PLACE, ("train", "deepcompile")), message, "write compile: true")


def remarks(config: RunConfig) -> list[str]:
    """What works, and is slow."""
    why = "ranks that share samples exchange attention's inputs in every layer"
    return across_nodes("train.sequence_parallel", config.train.sequence_parallel, config, why)
