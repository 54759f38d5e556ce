"""Options that cannot work together: on a cluster they would fail on every node, or learn something else. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from math import gcd
from typing import Any, Final, get_args

from dscampaign.jobs.shared.layer_parts import CUTTABLE_MODELS, UNCUT_FIELDS
from dscampaign.jobs.shared.model_shapes import PLAIN_CAUSAL_MODELS, find_shape
from dscampaign.jobs.shared.state_layout import joins_parameters
from dscampaign.orchestrator.errors import FieldPath, Finding

from .batch_size import divisors
from .field_types import MAX_WHOLE
from .model import RunConfig, TrainConfig

_ON: Final = (True,)
_SEVERAL: Final = range(2, MAX_WHOLE + 1)
_OFFLOADED: Final = ("optimizer", "full", "nvme")
_NOT_DEEPSPEED: Final = ("ddp", "fsdp2")
_FLASH: Final = ("flash_attention_2",)
_WHOLE_LAYERS: Final[Mapping[str, Container[Any]]] = {"zero_stage": (3,), "deepcompile": _ON}
_CLASHES: Final[Sequence[tuple[str, Container[Any], Mapping[str, Container[Any]]]]] = (
    ("engine", _NOT_DEEPSPEED, {"zero_stage": (1, 2, 3), "deepcompile": _ON}),
    ("engine", ("ddp",), {"offload": _OFFLOADED, "attention": _FLASH}),
    ("engine", ("fsdp2",), {"offload": ("optimizer", "nvme"), "precision": ("fp16",)}),
    ("deepcompile", _ON, {"zero_stage": (0,), "offload": _OFFLOADED}),
    ("attention", _FLASH, {"precision": ("fp32", "tf32")}),
    ("fused_loss", _ON, {"zero_stage": (3,)}),
    ("precision", ("fp8",), {"tensor_parallel": _SEVERAL, **_WHOLE_LAYERS}),
    (
        "sequence_parallel",
        _SEVERAL,
        {"attention": ("sdpa", "eager", *_FLASH), "offload": ("nvme",), "deepcompile": _ON},
    ),
    ("tensor_parallel", _SEVERAL, {"engine": _NOT_DEEPSPEED, "sequence_parallel": _SEVERAL, "attention": _FLASH}),
    ("tensor_parallel", _SEVERAL, _WHOLE_LAYERS),
)
"""Values of a field of `train`, and those of others with which the built-in training does not work."""
_ON_GPUS: Final[Mapping[str, Container[Any]]] = {
    "deepcompile": _ON,
    "attention": _FLASH,
    "precision": ("tf32",),
}
"""Values of `train` that work on GPUs only."""

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
    "torch_autocast": ("is for weights in fp32", "use train.precision"),
    "datastates_ckpt": ("still writes when a checkpoint is taken as complete", _LEAVE_OUT),
    "zero_optimization.elastic_checkpoint": ("stops a run that resumes", _LEAVE_OUT),
    "zero_optimization.pipeline_loading_checkpoint": ("stops a run that resumes", _LEAVE_OUT),
    "zero_optimization.zenflow": ("does not take the optimizer of the built-in training", "use train.offload"),
    "checkpoint.load_universal": ("needs a conversion first, which is not served", _LEAVE_OUT),
    "checkpoint.use_node_local_storage": ("keeps checkpoints from other nodes: a run resumes on any", _LEAVE_OUT),
}
"""Keys that the built-in training does not serve: why, and the hint."""

_STAGES: Final = {"none": "0, 1, 2 or 3", "optimizer": "1, 2 or 3", "full": "3", "nvme": "3"}
"""The ZeRO stages of each `train.offload`."""
_UNSHARDED: Final = ("lamb", "adafactor")
"""Optimizers that need whole matrices; ZeRO gives them parts of several."""

_HEADS: Final = dict.fromkeys(("num_attention_heads", "n_head", "num_key_value_heads"), "{} heads")
_WIDTH: Final = dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner"), "inner width {}")
_GROUPS: Final = {
    "sequence_parallel": (
        PLAIN_CAUSAL_MODELS,
        {"use_sliding_window": "attention sees a window, not the whole sample"},
        _HEADS,
    ),
    "tensor_parallel": (CUTTABLE_MODELS, UNCUT_FIELDS, _HEADS | _WIDTH),
}
"""By the field for the ranks of a group that works on the same samples: the types of models that are served, fields of
these that must not be set, and the numbers of the model that a group divides."""


def check(config: RunConfig, world_size: int, gpus: int) -> Iterator[Finding]:
    """Find options that cannot work together; of a command, only those that this program uses."""
    train, on_gpus = config.train, bool(gpus) and config.env.get("DS_ACCELERATOR") != "cpu"
    if config.deepspeed:  # the part that is made from `train` alone is right
        yield from _deepspeed(config)
    if train.engine == "deepspeed" or config.command is not None:
        yield from _offload(config)
    if config.command is not None:
        yield from _of_own_script(train)
        return
    yield from _clashes(train)
    for field, values in _ON_GPUS.items():
        if not on_gpus and (value := getattr(train, field)) in values:
            yield _finding(field, f"{_shown(field, value)} needs GPUs", "leave it out on CPUs")
    if config.deepspeed and train.engine != "deepspeed":
        message = f"has no effect with engine {train.engine}"
        yield Finding.at("deepspeed train.engine", message, "leave it out, or remove the engine")
    if train.precision == "fp8":
        yield from _fp8(train)
    if train.ranks_per_sample > 1:
        yield from _groups(config, world_size)


def _clashes(train: TrainConfig) -> Iterator[Finding]:
    """Find the pairs of fields that do not work together; a field that is wrong already counts once."""
    wrong: set[str] = set()
    for field, values, others in _CLASHES:
        if field in wrong or (value := getattr(train, field)) not in values:
            continue
        for other, unfit in others.items():
            if (own := getattr(train, other)) in unfit and other not in wrong:
                message = f"{_shown(other, own)} does not work with {_shown(field, value)}"
                yield Finding.at(f"train.{other} train.{field} train", message, _remedy(other, unfit))
                wrong.add(other)


def _remedy(field: str, unfit: Container[Any]) -> str:
    choices = range(4) if field == "zero_stage" else get_args(TrainConfig.model_fields[field].annotation)
    fit = [str(value) for value in choices if value not in unfit]
    return f"write {field}: {' or '.join(fit)}" if fit else "leave one of them out"


def _shown(field: str, value: object) -> str:
    return field if value is True else f"{field} {str(value).lower() if isinstance(value, bool) else value}"


def _of_own_script(train: TrainConfig) -> Iterator[Finding]:
    if train.precision == "fp8":
        yield _finding("precision", "fp8 is for the built-in training", "use bf16, and FP8 in your script")
    for field in _GROUPS:
        if getattr(train, field) != TrainConfig.model_fields[field].default:
            yield _finding(field, "is for the built-in training", _LEAVE_OUT)


def _offload(config: RunConfig) -> Iterator[Finding]:
    train = config.train
    if str(train.zero_stage) not in (stages := _STAGES[train.offload]):
        message = f"{train.offload} needs ZeRO {stages}: DeepSpeed offloads only sharded states"
        yield _finding("offload", message, f"zero_stage: {stages}")
    if train.offload == "nvme" and not (train.nvme_path or "").startswith("/"):
        hint = "name a folder on a fast local disk of each node, for example /local/scratch"
        required = "nvme_path is required with offload nvme"
        wrong = f"{train.nvme_path} is not an absolute path" if train.nvme_path else required
        yield Finding.at("train.nvme_path train.offload train", wrong, hint)
    if train.checkpoint_every and train.offload == "nvme":
        message = "has no effect with offload nvme: DeepSpeed cannot resume from states on a disk"
        yield _finding("checkpoint_every", message, "leave it out: an interrupted run starts over")


def _fp8(train: TrainConfig) -> Iterator[Finding]:
    shape = find_shape(train.model) if isinstance(train.model, str) else train.model
    if (shape or {}).get("model_type") == "gpt2":
        message = "fp8 does not work with GPT-2: its layers are Conv1D, not Linear"
        yield _finding("model", message, "use bf16, or a model of type llama or opt")
    if train.seq_len // train.sequence_parallel % 16:
        yield _finding("seq_len", "fp8 needs samples of a multiple of 16 tokens", "use a multiple of 16")


# Ranks that work on the same samples


def _groups(config: RunConfig, world_size: int) -> Iterator[Finding]:
    train = config.train
    for field in (field for field in _GROUPS if getattr(train, field) > 1):
        size = getattr(train, field)
        if world_size % size:
            message = f"{size} does not divide the {world_size} ranks of the run"
            hint = f"use a number of ranks that {size} divides, or leave it out"
            yield Finding.at(f"train.{field} ranks_per_node slurm.gpus_per_node slurm.nodes", message, hint)
        yield from _unfit_model(field, size, train, world_size)
    if train.seq_len % train.sequence_parallel:
        message = f"{train.sequence_parallel} does not divide seq_len {train.seq_len}"
        yield Finding.at("train.sequence_parallel train.seq_len", message, "use a multiple of it")
    dataset, optimizer = train.dataset, _optimizer_of(config)
    if train.sequence_parallel > 1 and dataset and not dataset.packing:
        message = "false does not work with sequence_parallel: parts of a sample would have unequal numbers of targets"
        yield Finding.at("train.dataset.packing train.sequence_parallel", message, "leave one of them out")
    if train.tensor_parallel == 1:
        return
    if train.dropout:
        message = "does not work with tensor_parallel: ranks would drop the same numbers in different heads"
        yield _finding("dropout", message, _LEAVE_OUT)
    if optimizer not in ("adam", "adamw"):
        message = f"{optimizer} does not work with tensor_parallel: it may update parts of a matrix unlike the whole"
        yield Finding.at("deepspeed.optimizer.type train.tensor_parallel", message, "use AdamW")


def _unfit_model(field: str, size: int, train: TrainConfig, world_size: int) -> Iterator[Finding]:
    """Check whether a group can share the run's model, without loading it."""
    models, unserved, divided = _GROUPS[field]
    shape = find_shape(train.model) if isinstance(train.model, str) else train.model
    if shape is None or not isinstance(model_type := shape.get("model_type"), str):
        return
    places = f"train.{field} train.model"
    if model_type not in models:
        hint = f"known to fit: {', '.join(sorted(models))}"
        yield Finding.at(places, f"is not served for model type {model_type}", hint)
    elif name := next((name for name in unserved if shape.get(name)), None):
        message = f"is not served with {field}: {unserved[name]}"
        yield Finding.at(f"train.model.{name} {places}", message, _LEAVE_OUT)
    else:
        sizes = {name: count for name in divided if isinstance(count := shape.get(name), int) and count > 0}
        if name := next((name for name, count in sizes.items() if count % size), None):
            message = f"{size} does not divide the model's {divided[name].format(sizes[name])} ({name})"
            hint = f"use one of {', '.join(map(str, divisors(gcd(world_size, *sizes.values()))))}"
            yield Finding.at(f"{places} train.model.{name}", message, hint)


# Mistakes in `deepspeed:` that DeepSpeed does not report, or reports hours later


def _deepspeed(config: RunConfig) -> Iterator[Finding]:
    built_in, places = config.command is None, set[FieldPath]()
    fields = {**_OF_TRAIN, **_OF_BUILT_IN} if built_in else _OF_TRAIN
    rules = {key: (f"is set by train.{field}", f"use train.{field}") for key, field in fields.items()}
    for key, (message, hint) in {**rules, **(_UNSERVED if built_in else {})}.items():
        *around, name = key.split(".")
        holder, place = _section(config.deepspeed, tuple(around)), ("deepspeed", *around, name)
        is_off = key in _UNSERVED and False in (holder.get(name), _section(holder, (name,)).get("enabled"))
        if name in holder and not is_off:
            places.add(place)
            yield Finding((place,), message, hint, at_key=True)
    autos = [finding for finding in _autos(config.deepspeed, ("deepspeed",)) if finding.places[0] not in places]
    yield from autos
    if built_in and not autos:
        yield from _optimizer(config)


def _autos(value: Any, place: FieldPath) -> Iterator[Finding]:
    """`auto` is for the Hugging Face trainer to fill in: DeepSpeed ignores it, but for one key of its own."""
    if value == "auto" and place[-2:] != ("data_types", "keep_in_fp32_modules"):
        yield Finding((place,), '"auto" is not a value of DeepSpeed', "write the value, or leave it out")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _autos(item, (*place, key))


def _optimizer(config: RunConfig) -> Iterator[Finding]:
    train, name = config.train, _optimizer_of(config)
    message = f"{name} updates each matrix by itself, and "
    if train.zero_stage and name in _UNSHARDED:
        message += "ZeRO gives it parts of several"
        yield Finding.at("deepspeed.optimizer.type train.zero_stage", message, "use zero_stage: 0")
    elif name in (*_UNSHARDED, "muon") and joins_parameters(train.model_dump()):
        message += "train.compile joins them all"
        yield Finding.at("deepspeed.optimizer.type train.compile", message, "write compile: false")


def _section(value: Any, path: tuple[str, ...]) -> Mapping[str, Any]:
    """Return the mapping at a path; an empty mapping for anything else."""
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def _optimizer_of(config: RunConfig) -> str:
    return str(_section(config.deepspeed, ("optimizer",)).get("type", "AdamW")).lower()


def _finding(field: str, message: str, hint: str) -> Finding:
    return Finding.at(f"train.{field} train", message, hint)
