"""The rules that connect fields of a run: on a cluster it would fail on every node, or learn something else."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dscampaign.jobs.shared.model_shapes import find_shape, positions_of
from dscampaign.orchestrator.errors import Finding
from dscampaign.orchestrator.formatting import count

from . import batch_size
from .deepspeed_section import deepspeed_findings, optimizer_of
from .field_types import MAX_WHOLE
from .model import DatasetConfig, RunConfig, TrainConfig
from .slurm_section import option_findings
from .slurm_syntax import MINUTES_SECONDS

_SLICE: Final = re.compile(r"[\w./-]+\[(?:-?\d+%?)?:(?:-?\d+%?)?\](?:\(\w+\))?")
_REQUIRED: Final = {
    "model": "name a model, or give your own script as `command`",
    "dataset": "name the text to train on, or give your own script as `command`",
    "global_batch": "write the number of samples of an optimizer step over all ranks",
}
_REPOSITORY: Final = re.compile(r"[\w.-]+(?:/[\w.-]+)?")
"""A name on the hub."""

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
_ON_GPUS: Final[Mapping[str, Container[Any]]] = {"deepcompile": _ON, "attention": _FLASH, "precision": ("tf32",)}
"""Values of `train` that work on GPUs only."""

_LEAVE_OUT: Final = "leave it out"

_STAGES: Final = {"none": "0, 1, 2 or 3", "optimizer": "1, 2 or 3", "full": "3", "nvme": "3"}
"""The ZeRO stages of each `train.offload`."""
_GROUPS: Final = ("sequence_parallel", "tensor_parallel")
"""Fields for the ranks of a group that works on the same samples."""


def check(config: RunConfig, world_size: int, local_gpus: int = 0) -> list[Finding]:
    """Return all errors in the configuration of a run whose single fields are valid."""
    is_local = config.executor == "local"
    findings = [*_train(config), *_batch(config, world_size), *_slurm(config)]
    findings += _local(config, world_size, local_gpus) if is_local else _gpus(config)
    findings += conflicts(config, world_size, local_gpus if is_local else config.slurm.gpus)
    findings += _of_command(config) if config.command is not None else _of_training(config)
    return findings


def remarks(configs: Iterable[RunConfig]) -> list[str]:
    """Return remarks on times whose hours are minutes for Slurm, and on ranks that do not fit the GPUs of a node."""
    on_slurm = (config for config in configs if config.executor == "slurm")
    return list(dict.fromkeys(remark for config in on_slurm for remark in _remarks(config)))


def _remarks(config: RunConfig) -> Iterator[str]:
    if match := MINUTES_SECONDS.fullmatch(time := config.slurm.time):
        minutes = match["minutes"]
        yield f'slurm.time "{time}" is {minutes} minutes for Slurm; {minutes} hours are "{time}:00"'
    ranks, gpus = config.ranks(), config.slurm.gpus
    launched = config.command is not None and config.launcher != "python" and config.env.get("DS_ACCELERATOR") != "cpu"
    if launched and gpus not in (0, ranks):
        effect = "NCCL needs a GPU for each" if ranks > gpus else "the others idle, unless a rank uses several"
        yield f"`command` starts {count(ranks, 'rank')} on a node with {count(gpus, 'GPU')}: {effect}"


def _of_command(config: RunConfig) -> Iterator[Finding]:
    train = config.train
    if config.launcher == "python" and (config.ranks_per_node or 1) > 1:
        hint = "leave it out: a script without a launcher starts its processes itself"
        yield Finding.at("ranks_per_node launcher", "launcher python starts one process per node", hint)
    if train.searches:
        hint = "write a number; a script that searches itself leaves it out"
        yield Finding.at("train.micro_batch", "auto is for the built-in training", hint)
    if train.precision == "fp8":
        yield _finding("precision", "fp8 is for the built-in training", "use bf16, and FP8 in your script")
    groups = [f"train.{field}" for field in _GROUPS if getattr(train, field) > 1]
    for place in [*groups, *(["retry.allow"] if config.retry.allow else [])]:
        yield Finding.at(place, "is for the built-in training", _LEAVE_OUT)


def _of_training(config: RunConfig) -> Iterator[Finding]:
    train = config.train
    for field in ("launcher", "launcher_options", "metrics"):
        if getattr(config, field):
            hint = "leave it out: deepspeed launches the built-in training, which reports its metrics"
            yield Finding(((field,),), "is for a script of your own", hint, at_key=True)
    for field, hint in _REQUIRED.items():
        if getattr(train, field) is None:
            yield Finding.at(f"train.{field} train", f"{field} is required", hint)
    if train.steps is None and train.epochs is None:
        yield Finding.at("train.steps train", "steps is required", "give steps, or epochs")
    yield from _model(train)
    yield from _splits(train.dataset) if train.dataset else ()
    if train.dataset and (most := train.dataset.max_tokens) and most < train.seq_len:
        yield Finding.at("train.dataset.max_tokens train.seq_len", f"{most} are less than a sample of {train.seq_len}")


def _train(config: RunConfig) -> Iterator[Finding]:
    train = config.train
    if train.steps is not None and train.epochs is not None:
        yield Finding.at("train.epochs train.steps", "epochs is given together with steps", "remove one of them")
    if train.steps and train.schedule_steps and train.schedule_steps < train.steps:
        yield Finding.at("train.schedule_steps train.steps", f"is less than the {train.steps} steps of the run")
    if train.steps and train.warmup_steps > max(train.steps, train.schedule_steps or 0):
        message = f"warmup_steps {train.warmup_steps} is more than the {train.steps} steps of the run"
        yield Finding.at("train.warmup_steps train.steps", message)


def _batch(config: RunConfig, world_size: int) -> Iterator[Finding]:
    train = config.train
    if train.global_batch is None or world_size % train.ranks_per_sample:
        return
    try:
        shares, micro_batch = train.data_parallel(world_size), train.fixed_micro_batch or 1
        batch_size.accumulation(train.global_batch, micro_batch, shares, train.ranks_per_sample)
    except batch_size.IndivisibleError as error:
        places = "train.micro_batch " * (error.field == "micro_batch") + "train.global_batch slurm.nodes"
        yield Finding.at(f"{places} slurm.gpus_per_node slurm.gres ranks_per_node", error.message, error.hint)


def _local(config: RunConfig, ranks: int, gpus: int) -> Iterator[Finding]:
    """Require a GPU for each rank if this machine has any."""
    if config.container and config.container.runtime == "pyxis":
        hint = "use apptainer or charliecloud on this machine"
        yield Finding.at("container.runtime executor", "pyxis is a plugin of Slurm", hint)
    parallel = config.local.parallel
    if gpus and parallel * ranks > gpus and config.env.get("DS_ACCELERATOR") != "cpu":
        places = "local.parallel ranks_per_node" if parallel > 1 else "ranks_per_node local.parallel"
        runs = f" of {parallel} runs at the same time" if parallel > 1 else ""
        message = f"{parallel * ranks} ranks{runs} need as many GPUs, this machine has {gpus}"
        yield Finding.at(places, message, "use fewer ranks, or train on the CPU: `env: {DS_ACCELERATOR: cpu}`")


def _slurm(config: RunConfig) -> Iterator[Finding]:
    slurm = config.slurm
    yield from option_findings(slurm.model_extra or {})
    if (delay_s := slurm.signal_delay_s) >= slurm.time_min * 60:
        message = f"signal_delay_s {delay_s} is not shorter than the time limit of {slurm.time_min} minutes"
        hint = "raise slurm.time, or set a shorter slurm.signal_delay_s: a run needs time to train and to save"
        yield Finding.at("slurm.signal_delay_s slurm.time", message, hint)


def _gpus(config: RunConfig) -> Iterator[Finding]:
    slurm = config.slurm
    beside = slurm.gpus_per_node if "gpus_per_node" in slurm.model_fields_set else None
    if slurm.gres is not None and beside is None and not slurm.node_gpus:
        hint = "write gpu:8 or gpu:h100:8; for a run on CPUs, write gpus_per_node: 0 beside it"
        yield Finding.at("slurm.gres slurm.gpus_per_node", f"{slurm.gres} does not give a number of GPUs", hint)
    elif slurm.gres is not None and beside is not None and (slurm.node_gpus or beside != "0"):
        yield Finding.at("slurm.gres", "is given together with gpus_per_node", "remove one of them")
    yield from _lanes(config)
    ranks, shared = config.ranks_per_node or 0, config.env.get("DS_ACCELERATOR") != "cpu"
    if slurm.gpus and ranks > slurm.gpus and config.command is None and shared:
        message = f"{ranks} ranks need as many GPUs, a {'run' if slurm.gpus_per_run else 'node'} has {slurm.gpus}"
        hint = f"use at most {slurm.gpus}, or train on the CPU: `env: {{DS_ACCELERATOR: cpu}}`"
        yield Finding.at("ranks_per_node slurm.gpus_per_run slurm.gpus_per_node slurm.gres", message, hint)


def _lanes(config: RunConfig) -> Iterator[Finding]:
    """Find what keeps runs from sharing a node."""
    slurm, own, on_node = config.slurm, config.slurm.gpus_per_run, config.slurm.node_gpus
    if not own:
        return
    if slurm.nodes > 1:
        message = f"shares a node between runs, but a run has {slurm.nodes} nodes"
        yield Finding.at("slurm.gpus_per_run slurm.nodes", message, "leave out gpus_per_run, or set slurm.nodes to 1")
    if own > on_node or on_node % own:
        sizes = ", ".join(map(str, batch_size.divisors(on_node))) if on_node else ""
        hint = f"use {sizes}" if on_node else "set slurm.gpus_per_node to the GPUs of a node"
        message = f"{own} is not an equal part of {on_node} GPUs per node"
        yield Finding.at("slurm.gpus_per_run slurm.gpus_per_node", message, hint)
    if config.container and config.container.runtime == "pyxis":
        message = "cannot share a node's GPUs with pyxis, whose containers see all GPUs of the job"
        hint = "use apptainer, or leave out gpus_per_run"
        yield Finding.at("slurm.gpus_per_run container.runtime", message, hint)


# The model and its tokenizer, without loading either


def _model(train: TrainConfig) -> Iterator[Finding]:
    if isinstance(train.model, str):
        name, folder, shape = train.model, Path(train.model), find_shape(train.model)
        if folder.is_absolute() and folder.exists() and not (folder / "config.json").is_file():
            hint = "name the folder that save_pretrained() of the model writes"
            yield Finding.at("train.model", f"is not a folder with a config.json: {name}", hint)
        if shape is not None and train.seq_len > (positions := positions_of(shape)):
            message = f"seq_len {train.seq_len} is more than the {positions} positions of {name}"
            yield Finding.at("train.seq_len train.model", message, f"use at most {positions}")
    elif train.model is not None:
        if not isinstance(train.model.get("model_type"), str):
            hint = "write the type of the model (gpt2, llama) beside its sizes"
            yield Finding.at("train.model.model_type train.model", "model_type is required", hint)
        if train.tokenizer is None:
            hint = "name it (`gpt2`, or a folder), or `bytes` for a token per byte"
            yield Finding.at("train.tokenizer train", "tokenizer is required: the model has none", hint)
        if train.pretrained:
            hint = "name the model that has them, or leave pretrained out"
            yield Finding.at("train.pretrained", "a configuration has no published weights", hint)
    names = {"model": train.model, "tokenizer": train.tokenizer, "dataset": train.dataset and train.dataset.path}
    for field, text in names.items():
        if isinstance(text, str) and not Path(text).is_absolute() and not _REPOSITORY.fullmatch(text):
            message = f"{text} is neither here nor a name on the hub, as gpt2 or OWNER/NAME"
            places = f"train.{field}.path " * (field == "dataset") + f"train.{field}"
            yield Finding.at(places, message, "paths start at the spec's folder")


def _splits(dataset: DatasetConfig) -> Iterator[Finding]:
    """Find splits and configurations that data does not have: the training would fail, or read all of a file."""
    if dataset.name and (path := Path(dataset.path)).is_absolute() and path.exists():
        message = f"{dataset.name} is ignored: local data has no configurations"
        yield Finding.at("train.dataset.name", message, "leave it out, and name a folder or files of it as path")
    for field, place in (("split", dataset.path), ("eval_split", dataset.eval_path or dataset.path)):
        split, path, at = getattr(dataset, field), Path(place), f"train.dataset.{field}"
        is_local = path.is_absolute() and path.exists()  # else of the hub, or on another machine
        parts = [split or ""] if is_local else (split or "").split("+")
        if any("[" in part and not _SLICE.fullmatch(part.strip()) for part in parts):
            yield Finding.at(at, f"{split} is not a slice", "write train[:20%], train[100:] or train[10%:50%]")
        elif is_local and split and path.is_file() and "[" not in split:
            hint = "name a folder, another file, or a slice of this one (train[:80%])"
            yield Finding.at(at, f"{path.name} is a file, which has no splits", hint)


# Options that cannot work together


def conflicts(config: RunConfig, world_size: int, gpus: int) -> Iterator[Finding]:
    """Find options that cannot work together; of a command, only options that this program uses."""
    train = config.train
    if config.deepspeed:  # the part that is made from `train` alone is right
        yield from deepspeed_findings(config)
    if train.engine == "deepspeed" or config.command is not None:
        yield from _offload(config)
    if config.command is None:
        yield from _built_in(config, world_size, on_gpus=bool(gpus) and config.env.get("DS_ACCELERATOR") != "cpu")


def _built_in(config: RunConfig, world_size: int, *, on_gpus: bool) -> Iterator[Finding]:
    train = config.train
    yield from _clashes(train)
    for field, values in _ON_GPUS.items():
        if not on_gpus and (value := getattr(train, field)) in values:
            yield _finding(field, f"{_shown(field, value)} needs GPUs", "leave it out on CPUs")
    if config.deepspeed and train.engine != "deepspeed":
        message = f"has no effect with engine {train.engine}"
        yield Finding.at("deepspeed train.engine", message, "leave it out, or remove the engine")
    if train.precision == "fp8" and train.seq_len // train.sequence_parallel % 16:
        yield _finding("seq_len", "fp8 needs samples of a multiple of 16 tokens", "use a multiple of 16")
    shape = find_shape(train.model) if isinstance(train.model, str) else train.model
    if train.precision == "fp8" and (shape or {}).get("model_type") == "gpt2":
        yield _finding("precision", "fp8 does not work with GPT-2, which has no linear layers of PyTorch", "use bf16")
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
                yield Finding.at(f"train.{other} train.{field} train", message, "leave one of them out")
                wrong.add(other)


def _shown(field: str, value: object) -> str:
    return field if value is True else f"{field} {str(value).lower() if isinstance(value, bool) else value}"


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


# Ranks that work on the same samples


def _groups(config: RunConfig, world_size: int) -> Iterator[Finding]:
    train = config.train
    for field in (field for field in _GROUPS if getattr(train, field) > 1):
        size = getattr(train, field)
        if world_size % size:
            message = f"{size} does not divide the {world_size} ranks of the run"
            hint = f"use a number of ranks that {size} divides, or leave it out"
            yield Finding.at(f"train.{field} ranks_per_node slurm.gpus_per_node slurm.nodes", message, hint)
    if train.seq_len % train.sequence_parallel:
        message = f"{train.sequence_parallel} does not divide seq_len {train.seq_len}"
        yield Finding.at("train.sequence_parallel train.seq_len", message, "use a multiple of it")
    dataset, optimizer = train.dataset, optimizer_of(config)
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


def _finding(field: str, message: str, hint: str) -> Finding:
    return Finding.at(f"train.{field} train", message, hint)
