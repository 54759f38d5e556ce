"""What does not go together with ranks that share samples (`train.sequence_parallel`). Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from ...jobs.shared.model_shapes import PLAIN_CAUSAL_MODELS, find_shape
from ..errors import FieldPath, Finding
from . import transformers_source
from .batch_size import divisors
from .model import RunConfig

_PLACE: Final[FieldPath] = ("train", "sequence_parallel")
_HEADS: Final = ("num_attention_heads", "n_head", "num_key_value_heads")
"""The words of the models that are served, Transformers here or not."""


def check(config: RunConfig, world_size: int) -> Iterator[Finding]:
    """Everything that keeps the ranks of a run from sharing samples as its spec says."""
    train, size = config.train, config.train.sequence_parallel
    if size == 1:
        return
    if config.command is not None:
        yield Finding((_PLACE,), "is for the built-in training", "leave it out, and let the script share its samples")
        return
    if world_size % size:
        places = (_PLACE, ("ranks_per_node",), ("slurm", "gpus_per_node"), ("slurm", "nodes"), ("train",))
        message = f"{size} does not divide the {world_size} ranks of the run"
        yield Finding(places, message, f"use one of {_listed(divisors(world_size))}")
    if train.seq_len % size:
        less, more = train.seq_len // size * size, (train.seq_len // size + 1) * size
        hint = f"use seq_len {f'{less} or ' if less else ''}{more}: each rank has as many tokens of a sample"
        yield Finding((_PLACE, ("train", "seq_len")), f"{size} does not divide seq_len {train.seq_len}", hint)
    yield from _model(config)
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
    size, on_node = config.train.sequence_parallel, config.ranks()
    if config.nodes == 1 or on_node % size == 0:
        return []
    why = "ranks that share samples exchange attention's inputs in every layer, here over the network between nodes"
    return [f"train.sequence_parallel {size} does not divide the {on_node} ranks of a node: {why}"]


def _model(config: RunConfig) -> Iterator[Finding]:
    """As far as the model is known without loading it; the trainer checks the same."""
    model, size = config.train.model, config.train.sequence_parallel
    shape = find_shape(model) if isinstance(model, str) else model
    if shape is None or not isinstance(kind := shape.get("model_type"), str):
        return
    places: tuple[FieldPath, ...] = (_PLACE, ("train", "model"))
    if kind not in PLAIN_CAUSAL_MODELS:
        hint = f"known to fit: {_listed(sorted(PLAIN_CAUSAL_MODELS))}"
        yield Finding(places, f"is not served for model type {kind}, whose attention may not be plain", hint)
        return
    for name, heads in _heads(shape, config.python).items():
        if heads % size:
            hint = f"use one of {_listed(divisors(heads))}: each rank computes as many heads"
            yield Finding(places, f"{size} does not divide the model's {heads} heads ({name})", hint)
            return


def _heads(shape: Mapping[str, Any], python: str | None) -> dict[str, int]:
    """The numbers of attention heads that are known, by the model's own words; defaults only where Transformers is."""
    known = transformers_source.of_shape(shape, python)
    given = {**known.defaults, **known.canonical(shape)} if known else shape
    return {name: heads for name in _HEADS if isinstance(heads := given.get(name), int) and heads > 0}


def _listed(values: Any) -> str:
    return ", ".join(str(value) for value in values)
