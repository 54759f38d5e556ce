"""Conflicts of fields with groups of ranks that work on the same samples. Pure.

The ranks of a group share its samples (`train.sequence_parallel`) or the model's layers (`train.tensor_parallel`). What
no test has shown to learn the same is refused, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import gcd
from typing import Final, NamedTuple

from dscampaign.jobs.shared.layer_parts import CUTTABLE_MODELS, UNCUT_FIELDS
from dscampaign.jobs.shared.model_shapes import PLAIN_CAUSAL_MODELS, Shape, find_shape
from dscampaign.orchestrator.errors import FieldPath, Finding

from .batch_size import divisors
from .model import RunConfig, TrainConfig
from .normalize import section


class _Kind(NamedTuple):
    """A way in which the ranks of a group work on the same samples.

    Attributes:
        field: of `train`, the number of ranks in a group.
        models: types of models that are served.
        unserved: fields of these models that must not be set, with the reason.
        divided: the things that a group's ranks divide, by the field of the model's configuration, with `{}` for it.
    """

    field: str
    models: frozenset[str]
    unserved: Mapping[str, str]
    divided: Mapping[str, str]

    @property
    def place(self) -> FieldPath:
        """The field in a spec."""
        return ("train", self.field)

    def size(self, config: RunConfig) -> int:
        """How many ranks a group has."""
        return int(getattr(config.train, self.field))


_HEADS: Final = dict.fromkeys(("num_attention_heads", "n_head", "num_key_value_heads"), "{} heads")
"""Names of attention heads in the supported models, without asking Transformers."""

_WIDTH: Final = dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner"), "inner width {}")

_SEQUENCE: Final = _Kind(
    "sequence_parallel",
    PLAIN_CAUSAL_MODELS,
    {"use_sliding_window": "attention sees a window, not the whole sample"},
    _HEADS,
)
_TENSOR: Final = _Kind(
    "tensor_parallel",
    CUTTABLE_MODELS,
    UNCUT_FIELDS,
    _HEADS | _WIDTH,
)


def check(config: RunConfig, world_size: int) -> Iterator[Finding]:
    """Return all errors that keep the ranks of a run from working in groups."""
    for kind in (_SEQUENCE, _TENSOR):
        if kind.size(config) == 1:
            continue
        if config.command is not None:
            yield Finding((kind.place,), "is for the built-in training", "leave it out")
            continue
        yield from _undivided_ranks(kind, config, world_size)
        if kind is _SEQUENCE:
            yield from _undivided_samples(config.train)
        yield from _unfit_model(kind, config, world_size)
        yield from _beside_sequences(config.train) if kind is _SEQUENCE else _beside_tensors(config)


def remarks(config: RunConfig) -> list[str]:
    """Remark on a slow configuration: a group on several nodes."""
    on_node = config.ranks()
    return [
        f"train.{kind.field} {size} does not divide the {on_node} ranks of a node: a group talks in each layer, "
        "here over the network between nodes"
        for kind in (_SEQUENCE, _TENSOR)
        if config.nodes > 1 and on_node % (size := kind.size(config))
    ]


def _undivided_ranks(kind: _Kind, config: RunConfig, world_size: int) -> Iterator[Finding]:
    size = kind.size(config)
    if world_size % size:
        places = (kind.place, ("ranks_per_node",), ("slurm", "gpus_per_node"), ("slurm", "nodes"), ("train",))
        message = f"{size} does not divide the {world_size} ranks of the run"
        yield Finding(places, message, f"use a number of ranks that {size} divides, or leave it out")


def _undivided_samples(train: TrainConfig) -> Iterator[Finding]:
    size = train.sequence_parallel
    if train.seq_len % size:
        places = (_SEQUENCE.place, ("train", "seq_len"))
        hint = "each rank has as many tokens of a sample: choose a multiple"
        yield Finding(places, f"{size} does not divide seq_len {train.seq_len}", hint)


def _unfit_model(kind: _Kind, config: RunConfig, world_size: int) -> Iterator[Finding]:
    """Check whether a group can share the run's model, without loading it."""
    size, shape = kind.size(config), _shape(config)
    if shape is None or not isinstance(model_type := shape.get("model_type"), str):
        return
    places: tuple[FieldPath, ...] = (kind.place, ("train", "model"))
    if model_type not in kind.models:
        hint = f"known to fit: {', '.join(sorted(kind.models))}"
        yield Finding(places, f"is not served for model type {model_type}", hint)
        return
    if name := next((name for name in kind.unserved if shape.get(name)), None):
        message = f"is not served with {kind.field}: {kind.unserved[name]}"
        yield Finding((("train", "model", name), *places), message, "leave it out")
        return
    sizes = _sizes(shape, kind.divided)
    for name, count in sizes.items():
        if count % size:
            message = f"{size} does not divide the model's {kind.divided[name].format(count)} ({name})"
            hint = f"use one of {', '.join(map(str, divisors(gcd(world_size, *sizes.values()))))}"
            yield Finding((*places, ("train", "model", name)), message, hint)
            return


def _shape(config: RunConfig) -> Shape | None:
    model = config.train.model
    return find_shape(model) if isinstance(model, str) else model


def _sizes(shape: Shape, names: Iterable[str]) -> dict[str, int]:
    return {name: size for name in names if isinstance(size := shape.get(name), int) and size > 0}


def _beside_sequences(train: TrainConfig) -> Iterator[Finding]:
    if train.attention != "auto":
        message = f"does not go with attention {train.attention}: ranks exchange heads around causal attention"
        yield Finding((_SEQUENCE.place, ("train", "attention")), message, "write attention: auto")
    if train.offload == "nvme":
        message = "is not served with offload nvme: the two have not been tested together"
        yield _conflict(_SEQUENCE, "offload", message, "use offload: full")
    if train.deepcompile:
        message = "does not go with deepcompile: attention's exchange between ranks is left out of compiled code"
        yield Finding((_SEQUENCE.place, ("train", "deepcompile")), message, "write compile: true")


def _beside_tensors(config: RunConfig) -> Iterator[Finding]:
    train = config.train
    if train.engine != "deepspeed":
        message = f"is DeepSpeed's, and engine {train.engine} does not use DeepSpeed"
        yield _conflict(_TENSOR, "engine", message, "remove one of them")
    if train.zero_stage == 3:
        message = "is not served with ZeRO 3, which shards the layers itself"
        yield _conflict(_TENSOR, "zero_stage", message, "zero_stage 0, 1 or 2")
    if train.sequence_parallel > 1:
        message = "does not go with sequence_parallel: ranks share samples or layers, not both"
        yield _conflict(_TENSOR, "sequence_parallel", message, "remove one of them")
    if train.deepcompile:
        message = "was not tested with deepcompile, whose passes are for whole layers"
        yield _conflict(_TENSOR, "deepcompile", message, "write compile: true")
    if train.dropout:
        message = "does not go with dropout: the ranks would drop the same numbers in different heads"
        yield _conflict(_TENSOR, "dropout", message, "write dropout: 0")
    if train.attention == "flash_attention_2":
        message = "was not tested with attention flash_attention_2"
        yield _conflict(_TENSOR, "attention", message, "write attention: auto")
    kind = section(config.deepspeed, ("optimizer",)).get("type", "AdamW")
    if str(kind).lower() not in ("adam", "adamw"):
        places: tuple[FieldPath, ...] = (("deepspeed", "optimizer", "type"), _TENSOR.place)
        message = f"{kind} does not go with train.tensor_parallel: each rank has a part of a matrix, and AdamW alone"
        yield Finding(places, f"{message} is known to update parts as it does the whole", "leave it out")
    if section(config.deepspeed, ("torch_autocast",)).get("enabled"):
        places = (("deepspeed", "torch_autocast"), _TENSOR.place)
        yield Finding(places, "was not tested with train.tensor_parallel", "use train.precision")


def _conflict(kind: _Kind, name: str, message: str, hint: str) -> Finding:
    return Finding((kind.place, ("train", name), ("train",)), message, hint)
