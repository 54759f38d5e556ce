"""Rules of `deepspeed:`: mistakes that DeepSpeed does not report, or reports hours later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from dscampaign.jobs.shared.state_layout import joins_parameters
from dscampaign.orchestrator.errors import FieldPath, Finding

from .model import RunConfig

_LEAVE_OUT: Final = "leave it out"
_OF_TRAIN: Final = {
    **dict.fromkeys(("train_batch_size", "gradient_accumulation_steps"), "global_batch"),
    "train_micro_batch_size_per_gpu": "micro_batch",
    "zero_optimization.stage": "zero_stage",
    "gradient_clipping": "grad_clip",
    **dict.fromkeys(("bf16.enabled", "fp16.enabled"), "precision"),
}
"""Keys of DeepSpeed that fields of `train` set. A dot leads into a section."""
_OF_BUILT_IN: Final = {
    "zero_optimization.offload_optimizer.device": "offload",
    "zero_optimization.offload_param.device": "offload",
    "compile.deepcompile": "deepcompile",
    "optimizer.params.lr": "lr",
    "scheduler": "schedule",
    "sequence_parallel_size": "sequence_parallel",
    "tensor_parallel": "tensor_parallel",
}
"""Those that the built-in training sets by fields of `train`, too."""
_UNSERVED: Final[Mapping[str, tuple[str, str]]] = {
    "activation_checkpointing": ("has no effect: the model recomputes itself", "use train.activation_checkpointing"),
    "datastates_ckpt": ("still writes when a checkpoint is taken as complete", _LEAVE_OUT),
    "zero_optimization.elastic_checkpoint": ("stops a run that resumes", _LEAVE_OUT),
    "zero_optimization.pipeline_loading_checkpoint": ("stops a run that resumes", _LEAVE_OUT),
    "checkpoint.use_node_local_storage": ("keeps checkpoints from other nodes: a run resumes on any", _LEAVE_OUT),
}
"""Keys that the built-in training does not serve: why, and the hint."""
_UNSHARDED: Final = ("lamb", "adafactor")
"""Optimizers that need whole matrices; ZeRO gives them parts of several."""


def deepspeed_findings(config: RunConfig) -> Iterator[Finding]:
    """Return the mistakes in a run's `deepspeed:`."""
    built_in, places = config.command is None, set[FieldPath]()
    fields = {**_OF_TRAIN, **_OF_BUILT_IN} if built_in else _OF_TRAIN
    rules = {key: (f"is set by train.{field}", f"use train.{field}") for key, field in fields.items()}
    for key, (message, hint) in {**rules, **(_UNSERVED if built_in else {})}.items():
        *around, name = key.split(".")
        holder, place = _section(config.deepspeed, tuple(around)), ("deepspeed", *around, name)
        if name in holder and not (key in _UNSERVED and holder[name] in (False, {"enabled": False})):
            places.add(place)
            yield Finding((place,), message, hint, at_key=True)
    autos = [finding for finding in _autos(config.deepspeed, ("deepspeed",)) if finding.places[0] not in places]
    yield from autos
    train, optimizer = config.train, optimizer_of(config)
    if autos or not built_in:
        return
    if train.zero_stage and optimizer in _UNSHARDED:
        message = f"{optimizer} updates each matrix by itself, and ZeRO gives it parts of several"
        yield Finding.at("deepspeed.optimizer.type train.zero_stage", message, "use zero_stage: 0")
    elif optimizer in (*_UNSHARDED, "muon") and joins_parameters(train.model_dump()):
        message = f"{optimizer} updates each matrix by itself, and train.compile joins them all"
        yield Finding.at("deepspeed.optimizer.type train.compile", message, "write compile: false")


def _autos(value: Any, place: FieldPath) -> Iterator[Finding]:
    """`auto` is for the Hugging Face trainer to fill in: DeepSpeed ignores it."""
    if value == "auto":
        yield Finding((place,), '"auto" is not a value of DeepSpeed', "write the value, or leave it out")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _autos(item, (*place, key))


def _section(value: Any, path: tuple[str, ...]) -> Mapping[str, Any]:
    """Return the mapping at a path; an empty mapping for anything else."""
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def optimizer_of(config: RunConfig) -> str:
    """Return the name of a run's optimizer, in lower case."""
    return str(_section(config.deepspeed, ("optimizer",)).get("type", "AdamW")).lower()
