"""What does not go together with ranks that share layers (`train.tensor_parallel`). Pure.

What no test has shown to learn the same is refused, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ...jobs.shared.layer_parts import CUTTABLE_MODELS
from ..errors import FieldPath, Finding
from .model import RunConfig, TrainConfig
from .normalize import section
from .rank_groups import HEADS, across_nodes, undivided_ranks, unfit_model

_PLACE: Final[FieldPath] = ("train", "tensor_parallel")
_DIVIDED: Final = dict.fromkeys(HEADS, "{} heads") | dict.fromkeys(
    ("intermediate_size", "ffn_dim", "n_inner"), "inner width {}"
)


def check(config: RunConfig, world_size: int) -> Iterator[Finding]:
    """Everything that keeps the ranks of a run from sharing layers as its spec says."""
    train, size = config.train, config.train.tensor_parallel
    if size == 1:
        return
    if config.command is not None:
        yield Finding((_PLACE,), "is for the built-in training", "leave it out, and let the script share its layers")
        return
    yield from undivided_ranks(_PLACE, size, world_size)
    why = "whose layers may not be cut so"
    yield from unfit_model(_PLACE, size, config, world_size, CUTTABLE_MODELS, why, _DIVIDED)
    yield from _strategy(train)
    yield from _not_shown(train)
    yield from _optimizer(config)


def remarks(config: RunConfig) -> list[str]:
    """What works, and is slow."""
    why = "ranks that share layers add up what they have computed four times in each block"
    return across_nodes("train.tensor_parallel", config.train.tensor_parallel, config, why)


def _strategy(train: TrainConfig) -> Iterator[Finding]:
    if train.engine != "deepspeed":
        message = f"is DeepSpeed's, and engine {train.engine} does not use DeepSpeed"
        yield _conflict("engine", message, "remove one of them")
    if train.zero_stage == 3:
        message = "is not served with ZeRO 3, which shards the layers itself"
        yield _conflict("zero_stage", message, "zero_stage 0, 1 or 2")
    if train.sequence_parallel > 1:
        message = "does not go with sequence_parallel: ranks share samples or layers, not both"
        yield _conflict("sequence_parallel", message, "remove one of them")


def _not_shown(train: TrainConfig) -> Iterator[Finding]:
    if train.deepcompile:
        message = "was not tested with deepcompile, whose passes are for whole layers"
        yield _conflict("deepcompile", message, "write compile: true")
    if train.dropout:
        message = "does not go with dropout: the ranks would drop the same numbers in different heads"
        yield _conflict("dropout", message, "write dropout: 0")
    if train.attention == "flash_attention_2":
        yield _conflict("attention", "was not tested with attention flash_attention_2", "write attention: auto")


def _optimizer(config: RunConfig) -> Iterator[Finding]:
    kind = section(config.deepspeed, ("optimizer",)).get("type", "AdamW")
    if str(kind).lower() not in ("adam", "adamw"):
        places: tuple[FieldPath, ...] = (("deepspeed", "optimizer", "type"), _PLACE)
        message = f"{kind} does not go with train.tensor_parallel: each rank has a part of a matrix, and AdamW alone"
        yield Finding(places, f"{message} is known to update parts as it does the whole", "leave it out")
    if section(config.deepspeed, ("torch_autocast",)).get("enabled"):
        places = (("deepspeed", "torch_autocast"), _PLACE)
        yield Finding(places, "was not tested with train.tensor_parallel", "use train.precision")


def _conflict(name: str, message: str, hint: str) -> Finding:
    return Finding((_PLACE, ("train", name), ("train",)), message, hint)
