"""Mistakes in `deepspeed:` that DeepSpeed itself does not report, or reports hours later. Pure.

The built-in training sets some keys itself and leaves others without effect; a few combinations silently learn
something else. DeepSpeed is asked about all other keys, see `doctor/option_checks.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from dscampaign.jobs.shared.state_layout import joins_parameters
from dscampaign.orchestrator.errors import FieldPath, Finding

from .model import RunConfig
from .normalize import section

_BATCH_TRIPLE: Final = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
_ZERO: Final = "zero_optimization"
_OFFLOADS: Final = {"offload_optimizer": 1, "offload_param": 3}
"""The sections for offloaded states, and the lowest ZeRO stage of each."""
_BF16: Final = ("bf16", "bfloat16", "torch.bfloat16")

_LEAVE_OUT: Final = "leave it out"
_OWN_SCRIPT: Final = "use a script of your own, as `command`"

UNSERVED: Final[Mapping[str, tuple[str, str]]] = {
    "tensor_parallel": ("is set by train.tensor_parallel", "use train.tensor_parallel"),
    "sequence_parallel_size": ("is set by train.sequence_parallel", "use train.sequence_parallel"),
    "data_parallel_size": ("is the number of ranks", "use ranks_per_node and slurm.nodes"),
    "pipeline": ("has no effect: there is no pipeline", f"zero_stage: 3, or {_OWN_SCRIPT}"),
    "expert_parallel": ("is not served: every rank has all experts", _OWN_SCRIPT),
    "data_efficiency": ("needs DeepSpeed's data loader, which is not used", _OWN_SCRIPT),
    "dataloader_drop_last": ("needs DeepSpeed's data loader, which is not used", _LEAVE_OUT),
    "scheduler": ("is set by train.schedule", "use train.schedule"),
    "activation_checkpointing": ("has no effect: the model recomputes itself", "use train.activation_checkpointing"),
    "managed_gradient_accumulation": ("would step after each micro-batch", _LEAVE_OUT),
    "hybrid_engine": ("generates text between steps, which is not served", _OWN_SCRIPT),
    "autotuning": ("would start experiments of its own", "use train.micro_batch: auto, and a matrix of choices"),
    "weight_quantization": ("has no effect on weights that are trained", _LEAVE_OUT),
    "datastates_ckpt": ("still writes when a checkpoint is taken as complete", _LEAVE_OUT),
    "zero_optimization.cpu_offload": ("is an old key", "use train.offload: optimizer"),
    "zero_optimization.cpu_offload_param": ("is an old key", "use train.offload: full"),
    "zero_optimization.elastic_checkpoint": ("stops a run that resumes", "use train.universal_checkpoint"),
    "zero_optimization.pipeline_loading_checkpoint": ("stops a run that resumes", _LEAVE_OUT),
    "zero_optimization.load_from_fp32_weights": ("changes the weights of a run that resumes", _LEAVE_OUT),
    "zero_optimization.zenflow": ("does not take the optimizer of the built-in training", "use train.offload"),
    "checkpoint.load_universal": ("is set for each attempt", "use train.universal_checkpoint"),
    "checkpoint.use_node_local_storage": ("keeps checkpoints from other nodes: a run resumes on any", _LEAVE_OUT),
}
"""Keys that the built-in training does not serve: why, and the hint. A dot leads into a section."""

_UNSHARDED: Final = ("lamb", "adafactor")
"""Optimizers that need whole matrices; ZeRO gives them parts of several."""
_WHOLE: Final = (*_UNSHARDED, "muon")


def check(config: RunConfig) -> Iterator[Finding]:
    """Return everything wrong with the section of a run."""
    given = config.deepspeed
    for key in _BATCH_TRIPLE:
        if key in given:
            yield Finding((("deepspeed", key),), "is made from train.global_batch and train.micro_batch", "remove it")
    autos = list(_autos(given, ("deepspeed",)))
    yield from autos
    if config.command is None:
        yield from _unserved(given)
    if not autos:
        yield from conflicts(config)


def conflicts(config: RunConfig) -> Iterator[Finding]:
    """Return the conflicts within the section, or with a run's other fields."""
    merged = config.rendered_deepspeed()
    yield from _offloads(merged[_ZERO], section(config.deepspeed, (_ZERO,)))
    if config.command is None:
        yield from _taken_back(config, merged)
        yield from _autocast(config)
        yield from _optimizer(config)
        yield from _universal(config)


def _unserved(given: Mapping[str, Any]) -> Iterator[Finding]:
    for key, (why, hint) in UNSERVED.items():
        *around, name = key.split(".")
        holder = section(given, tuple(around))
        off = section(holder, (name,)).get("enabled") is False or holder.get(name) is False
        if name in holder and not off:
            yield Finding((("deepspeed", *around, name),), why, hint, at_key=True)
    if "lr" in section(given, ("optimizer", "params")):
        yield Finding((("deepspeed", "optimizer", "params", "lr"),), "is set by the schedule", "use train.lr")


def _autos(value: Any, place: FieldPath) -> Iterator[Finding]:
    """`auto` is for the Hugging Face trainer to fill in: DeepSpeed ignores it, but for one key of its own."""
    if value == "auto" and place[-2:] != ("data_types", "keep_in_fp32_modules"):
        yield Finding((place,), '"auto" is not a value of DeepSpeed', "write the value, or leave it out")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _autos(item, (*place, key))


def _offloads(zero: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[Finding]:
    """Offloading that DeepSpeed would leave out, or do elsewhere. `train.offload` is checked with the strategies."""
    place: FieldPath = ("deepspeed", _ZERO)
    for name, least in _OFFLOADS.items():
        offload = section(given, (name,))
        device = offload.get("device", "none")
        if device != "none" and zero["stage"] < least:
            stages = " or ".join(str(stage) for stage in range(least, 4))
            places: tuple[FieldPath, ...] = ((*place, name), ("train", "zero_stage"))
            yield Finding(places, f"{name} does not work with ZeRO stage {zero['stage']}", f"use stage {stages}")
        elif device == "nvme" and zero["stage"] < 3:
            message = f"device nvme needs ZeRO 3: with stage {zero['stage']} DeepSpeed would use host memory"
            places = ((*place, name, "device"), ("train", "zero_stage"))
            yield Finding(places, message, "write device: cpu, or use stage 3")
        elif device == "nvme" and not offload.get("nvme_path"):
            yield Finding(((*place, name),), "device nvme needs nvme_path", "name a folder on a disk of the node")


def _taken_back(config: RunConfig, merged: Mapping[str, Any]) -> Iterator[Finding]:
    by_train = config.model_copy(update={"deepspeed": {}}).rendered_deepspeed()[_ZERO]
    for name in _OFFLOADS:
        if name in by_train and merged[_ZERO][name] is None:
            places: tuple[FieldPath, ...] = (("deepspeed", _ZERO, name), ("train", "offload"))
            yield Finding(places, "is empty, which takes back train.offload", "leave it out, or change train.offload")


def _autocast(config: RunConfig) -> Iterator[Finding]:
    given, precision = section(config.deepspeed, ("torch_autocast",)), config.train.precision
    if not given.get("enabled"):
        return
    if precision in ("bf16", "fp16"):
        message, hint = f"is for weights in fp32, and train.precision is {precision}", "leave it out"
        yield Finding((("deepspeed", "torch_autocast"), ("train", "precision")), message, hint)
    elif given.get("dtype") not in _BF16:
        place = ("deepspeed", "torch_autocast")
        hint = "write dtype: bf16, or leave it out and use train.precision: fp16"
        yield Finding(((*place, "dtype"), place), "dtype is not bf16: DeepSpeed clips scaled fp16 gradients", hint)


def _optimizer(config: RunConfig) -> Iterator[Finding]:
    train, name, place = config.train, _named(config), ("deepspeed", "optimizer", "type")
    if train.zero_stage and name in _UNSHARDED:
        message = f"{name} updates each matrix by itself, and ZeRO gives it parts of several"
        yield Finding((place, ("train", "zero_stage")), message, "use zero_stage: 0")
    if name in _WHOLE and joins_parameters(train.model_dump()):
        message = f"{name} updates each matrix by itself, and train.compile joins them all"
        yield Finding((place, ("train", "compile")), message, "write compile: false")


def _universal(config: RunConfig) -> Iterator[Finding]:
    if not (config.train.universal_checkpoint and config.train.zero_stage):
        return
    place, hint = ("train", "universal_checkpoint"), "leave it out: the run then resumes on the same number of ranks"
    if _named(config) not in ("adam", "adamw") or section(config.deepspeed, ("optimizer", "params")).get("amsgrad"):
        message = "is for plain Adam: DeepSpeed (0.19.8) cannot convert the states of other optimizers"
        yield Finding((place, ("deepspeed", "optimizer")), message, hint)
    if config.train.zero_stage < 3 and section(config.deepspeed, (_ZERO,)).get("round_robin_gradients"):
        message = "does not go with round_robin_gradients: DeepSpeed (0.19.8) mixes up the weights"
        yield Finding((place, ("deepspeed", _ZERO, "round_robin_gradients")), message, hint)


def _named(config: RunConfig) -> str:
    return str(section(config.deepspeed, ("optimizer",)).get("type", "AdamW")).lower()
