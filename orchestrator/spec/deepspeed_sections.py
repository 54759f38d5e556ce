"""What of DeepSpeed's configuration the built-in trainer serves, and why not the rest. Pure.

A section that it does not serve would end the run on the node, or change nothing without a word. A script of the user's
own may have any.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dscampaign.orchestrator.errors import FieldPath, Finding, did_you_mean

from .deepspeed_keys import CLOSED, KEYS
from .model import RunConfig
from .normalize import section

_LEAVE_OUT: Final = "leave it out"
_OWN_SCRIPT: Final = "use a script of your own, as `command`"


@dataclass(frozen=True)
class Unserved:
    """A section, or a key of one, that the built-in trainer does not serve.

    Attributes:
        why: the message, without the key.
        instead: the hint.
        neutral: a value that asks for nothing; a section that only says `enabled: false` asks for nothing, too.
        removed: DeepSpeed stops at the key whatever its value is.
    """

    why: str
    instead: str
    neutral: Any = None
    removed: bool = False

    def asked_for(self, value: Any) -> bool:
        """Whether a value of the key is more than a way to leave it out."""
        if self.removed:
            return True
        off = isinstance(value, Mapping) and value.get("enabled") is False
        return not off and (self.neutral is None or value != self.neutral)


def _gone(instead: str = _LEAVE_OUT) -> Unserved:
    return Unserved("is no longer in DeepSpeed (0.19.8), which stops at this key", instead, removed=True)


SERVED: Final = frozenset(KEYS[""])
"""Keys at the top that do in the built-in training what they do in DeepSpeed."""

_OTHER_RANKS: Final = "use train.universal_checkpoint, by which a run resumes on another number of ranks"
_OLD_OFFLOAD: Final = "is an old key: states would be offloaded where train.offload says that they are not"
_ONLY_READ: Final = "has no effect: DeepSpeed (0.19.8) only reads it"
_OWN_LOADER: Final = "needs DeepSpeed's data loader, and the built-in training has its own"

UNSERVED: Final[Mapping[str, Unserved]] = {
    "tensor_parallel": Unserved(
        "is a field of train here, from which batches, data and checkpoints follow", "use train.tensor_parallel"
    ),
    "sequence_parallel_size": Unserved(
        "is a field of train here, from which batches and data follow", "use train.sequence_parallel", neutral=1
    ),
    "data_parallel_size": Unserved("is the number of ranks here", "use ranks_per_node and slurm.nodes"),
    "seq_parallel_communication_data_type": Unserved(
        "has no effect: gradients are reduced over all ranks alike, also where they share samples", _LEAVE_OUT
    ),
    "pipeline": Unserved("has no effect: the built-in training makes no pipeline", f"zero_stage: 3, or {_OWN_SCRIPT}"),
    "expert_parallel": Unserved(
        "spreads experts over ranks: here every rank has all of them, or its ZeRO part", _OWN_SCRIPT
    ),
    "use_data_before_expert_parallelism": Unserved(
        "is for expert parallelism, which is not served", _LEAVE_OUT, neutral=False
    ),
    "data_efficiency": Unserved(_OWN_LOADER, _OWN_SCRIPT),
    "dataloader_drop_last": Unserved(f"{_OWN_LOADER}, which takes whole batches only", _LEAVE_OUT, neutral=False),
    "scheduler": Unserved("the built-in training has its own", "use train.schedule"),
    "activation_checkpointing": Unserved(
        "has no effect: the model recomputes by PyTorch's own means", "use train.activation_checkpointing"
    ),
    "managed_gradient_accumulation": Unserved(
        "would step after each micro-batch: the built-in training lets DeepSpeed accumulate", _LEAVE_OUT, neutral=True
    ),
    "hybrid_engine": Unserved("is for generating between steps, which the built-in training does not do", _OWN_SCRIPT),
    "autotuning": Unserved(
        "ends each run to start experiments of its own", "use train.micro_batch: auto, and a matrix of what to try"
    ),
    "weight_quantization": Unserved("has no effect on weights that are trained", _LEAVE_OUT),
    "disable_allgather": Unserved(_ONLY_READ, _LEAVE_OUT, neutral=False),
    "datastates_ckpt": Unserved("still writes when a checkpoint is taken for complete", _LEAVE_OUT, neutral=False),
    "bfloat16": Unserved("has no effect beside bf16", "write bf16, or use train.precision"),
    "monitor_config": Unserved(
        "is not a DeepSpeed key: DeepSpeed would ignore it", "use tensorboard, wandb, comet or csv_monitor"
    ),
    "zenflow": Unserved("is not a DeepSpeed key: DeepSpeed would ignore it", _LEAVE_OUT),
    "nebula": _gone(),
    "compression_training": _gone(_OWN_SCRIPT),
    "amp": _gone("use train.precision"),
    "quantize_training": _gone(),
    "sparse_gradients": _gone(),
    "eigenvalue": _gone(),
    "sparse_attention": _gone("see train.attention"),
    "elasticity": _gone(_OTHER_RANKS),
    "graph_harvesting": _gone("use train.compile"),
    "curriculum_learning": _gone(),
    "progressive_layer_drop": _gone(),
    "zero_optimization.cpu_offload": Unserved(_OLD_OFFLOAD, "use train.offload: optimizer", neutral=False),
    "zero_optimization.cpu_offload_param": Unserved(_OLD_OFFLOAD, "use train.offload: full", neutral=False),
    "zero_optimization.cpu_offload_use_pin_memory": Unserved(_ONLY_READ, "use pin_memory in what is offloaded"),
    "zero_optimization.allgather_partitions": Unserved(_ONLY_READ, _LEAVE_OUT, neutral=True),
    "zero_optimization.elastic_checkpoint": Unserved(
        "stops DeepSpeed (0.19.8) when a run resumes", _OTHER_RANKS, neutral=False
    ),
    "zero_optimization.legacy_stage1": Unserved(
        "is no longer in DeepSpeed (0.19.8), which stops at it", _LEAVE_OUT, neutral=False
    ),
    "zero_optimization.load_from_fp32_weights": Unserved(
        "loses digits of the weights when a run resumes: it would learn something else", _LEAVE_OUT, neutral=True
    ),
    "zero_optimization.mics_shard_size": _gone("use zero_optimization.zero_hpz_partition_size"),
    "zero_optimization.mics_hierarchical_params_gather": _gone("use zero_optimization.zero_hpz_partition_size"),
    "zero_optimization.zeropp_loco_param": _gone(),
    "zero_optimization.zenflow": Unserved(
        "does not take the AdamW that the built-in training uses", f"use train.offload, or {_OWN_SCRIPT}"
    ),
    "checkpoint.load_universal": Unserved(
        "is set for an attempt that resumes on another number of ranks", "use train.universal_checkpoint", neutral=False
    ),
    "checkpoint.use_node_local_storage": Unserved(
        "keeps parts where other nodes cannot read them: a run resumes on any node", _LEAVE_OUT, neutral=False
    ),
    "checkpoint.writer": Unserved("stops DeepSpeed (0.19.8) where ranks share only data", _LEAVE_OUT),
}
"""Keys that DeepSpeed reads, or once read, and that the built-in trainer does not serve; a dot leads into a section."""

_OPTIMIZERS: Final = "Adagrad Adam AdamW Lamb Lion MuAdam MuAdamW MuSGD Muon".split()  # noqa: SIM905
"""Optimizers that DeepSpeed (0.19.8) finds in upper case or not."""

_OF_PYTORCH: Final = """ASGD Adadelta Adafactor Adagrad Adam AdamW Adamax LBFGS Muon NAdam RAdam RMSprop Rprop SGD
    SparseAdam""".split()  # noqa: SIM905
"""Those that it takes from torch.optim, where case counts."""

_PARAMETERS: Final = "optimizer.params"
_OF_EITHER: Final = "adam_w_mode amsgrad betas eps fp32_optimizer_states lr torch_adam weight_decay".split()  # noqa: SIM905
_TORCH_ADAM: Final = (*_OF_EITHER, "capturable", "differentiable", "foreach", "fused", "maximize")
_OWN_ADAM: Final = (*_OF_EITHER, "bias_correction", "set_grad_none")
"""What the two take that `optimizer.type: AdamW` may stand for."""

_FEW: Final = 2
"""Sections that a hint names."""

_KNOWN: Final = SERVED | {key for key in UNSERVED if "." not in key}


def misspelt(given: Mapping[str, Any]) -> Iterator[Finding]:
    """Keys that DeepSpeed would ignore or refuse. One that is like none of its own may be a newer version's."""
    for name in (name for name in KEYS if name != _PARAMETERS):
        around = tuple(name.split(".")) if name else ()
        known = KEYS[name] if name else _KNOWN
        what = f"a key of {around[-1]}" if around else "a DeepSpeed key"
        for key in section(given, around):
            hint = _elsewhere(str(key)) or did_you_mean(str(key).lower().replace("-", "_"), known, None, cutoff=0.8)
            if hint and key not in known and ".".join((*around, str(key))) not in UNSERVED:
                message = f"is not {what}: DeepSpeed would {'refuse' if name in CLOSED else 'ignore'} it"
                yield Finding((("deepspeed", *around, key),), message, hint, at_key=True)
    yield from _said_twice(section(given, ("zero_optimization",)))
    yield from _of_no_adam(section(given, ("optimizer",)))


def _said_twice(zero: Mapping[str, Any]) -> Iterator[Finding]:
    for key in zero:
        if (other := f"stage3_{key}") in zero:
            places: tuple[FieldPath, ...] = tuple(("deepspeed", "zero_optimization", name) for name in (key, other))
            message = f"is {other} by another name: DeepSpeed would refuse the two"
            yield Finding(places, message, "leave out one of them")


def _elsewhere(key: str) -> str | None:
    """Where a key belongs that is one of another section, if few have it."""
    homes = _homes(key)
    return f"move it to {' or '.join(homes)}" if 0 < len(homes) <= _FEW else None


def key_of_deepspeed(key: str) -> str | None:
    """The whole path of what is a key of DeepSpeed's own configuration, if a single section has it."""
    homes = _homes(key)
    return f"{homes[0]}.{key}" if len(homes) == 1 else None


def _homes(key: str) -> list[str]:
    return [".".join(filter(None, ("deepspeed", name))) for name in KEYS if key in KEYS[name] and name != _PARAMETERS]


def _of_no_adam(optimizer: Mapping[str, Any]) -> Iterator[Finding]:
    """Parameters that the AdamW in use would refuse, as far as they are another one's, or like one of its own."""
    if str(optimizer.get("type", "AdamW")).lower() not in ("adam", "adamw"):
        return
    given = section(optimizer, ("params",))
    torch = bool(given.get("torch_adam", True))
    own, other = (_TORCH_ADAM, _OWN_ADAM) if torch else (_OWN_ADAM, _TORCH_ADAM)
    name = "PyTorch's AdamW, which is used" if torch else "DeepSpeed's own Adam"
    for key in (key for key in given if key not in own):
        place: FieldPath = ("deepspeed", "optimizer", "params", key)
        message = f"is no parameter of {name}"
        if key == "max_grad_norm":
            yield Finding((place,), message, "use train.grad_clip", at_key=True)
        elif key in other:
            other_one = f"leave it out, or write torch_adam: {str(not torch).lower()} beside it"
            yield Finding((place,), message, other_one, at_key=True)
        elif hint := did_you_mean(str(key).lower().replace("-", "_"), own, None, cutoff=0.8):
            yield Finding((place,), message, hint, at_key=True)


def misspelt_optimizer(kind: str) -> Iterator[Finding]:
    """A type that would stop DeepSpeed, as far as it is like one that it knows."""
    if kind.lower() in map(str.lower, _OPTIMIZERS) or kind in _OF_PYTORCH:
        return
    if hint := did_you_mean(kind, [*_OPTIMIZERS, *_OF_PYTORCH], None, cutoff=0.8):
        yield Finding((("deepspeed", "optimizer", "type"),), "is no optimizer of DeepSpeed or PyTorch", hint)


def unserved(config: RunConfig) -> Iterator[Finding]:
    """What a run of the built-in trainer asks DeepSpeed for, and would not get."""
    for key, row in _asked_for(config):
        yield Finding((("deepspeed", *key.split(".")),), row.why, row.instead, at_key=True)


def remarks(config: RunConfig) -> list[str]:
    """Return the removed keys in the section of a script of one's own, which may use an older DeepSpeed."""
    if config.command is None:
        return []
    return [f"deepspeed.{key} {row.why}" for key, row in _asked_for(config) if row.removed]


def _asked_for(config: RunConfig) -> Iterator[tuple[str, Unserved]]:
    for key, row in UNSERVED.items():
        *around, name = key.split(".")
        holder = section(config.deepspeed, tuple(around))
        if name in holder and row.asked_for(holder[name]):
            yield key, row
