"""The strategies that people compare, by name, and the options that exclude each other. Pure.

A combination that cannot work is refused when the spec is read, with the reason: on a cluster it would fail on every
node that it is given.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from dscampaign.orchestrator.errors import FieldPath, Finding

from .model import RunConfig, TrainConfig

STRATEGIES: Final[dict[str, dict[str, Any]]] = {
    "ddp": {"engine": "ddp", "zero_stage": 0, "offload": "none"},
    **{f"zero{stage}": {"engine": "deepspeed", "zero_stage": stage, "offload": "none"} for stage in range(4)},
    **{f"zero{s}-offload": {"engine": "deepspeed", "zero_stage": s, "offload": "optimizer"} for s in (1, 2, 3)},
    "zero3-offload-full": {"engine": "deepspeed", "zero_stage": 3, "offload": "full"},
    "zero-infinity": {"engine": "deepspeed", "zero_stage": 3, "offload": "nvme"},
    "fsdp2": {"engine": "fsdp2", "zero_stage": 0, "offload": "none"},
    "fsdp2-offload": {"engine": "fsdp2", "zero_stage": 0, "offload": "full"},
}
"""The fields that a strategy stands for."""

_GRAPHS: Final[FieldPath] = ("train", "cuda_graphs")


def spell_out(train: dict[str, Any], origins: dict[FieldPath, FieldPath]) -> list[Finding]:
    """Replace a strategy by its fields, in `train` itself; an unknown name stays, for the check of the field.

    Args:
        origins: Gets the place of each of these fields.

    Returns:
        A finding for each field that is given and differs.
    """
    fields = STRATEGIES.get(word) if isinstance(word := train.get("strategy"), str) else None
    if fields is None:
        _forget_unused_path(train)
        return []
    place: FieldPath = ("train", "strategy")
    findings = []
    for name, value in fields.items():
        if train.get(name, value) != value:
            message = f"{word} means {name} {value}, but train.{name} is {train[name]}"
            findings.append(Finding((place, ("train", name)), message, f"remove strategy or {name}"))
    del train["strategy"]
    origins.update({("train", name): origin(place, origins) for name in fields if name not in train})
    train.update(fields)
    _forget_unused_path(train)
    return findings


def origin(place: FieldPath, origins: dict[FieldPath, FieldPath]) -> FieldPath:
    """Return the place of the value that set a field, or the field's own."""
    lengths = (n for n in range(len(place), 0, -1) if place[:n] in origins)
    return next(((*origins[place[:n]], *place[n:]) for n in lengths), place)


def word_of(train: TrainConfig) -> str | None:
    """Return the name of a configuration's strategy, None for none."""
    given = train.model_dump(include={"engine", "zero_stage", "offload"})
    return next((word for word, fields in STRATEGIES.items() if fields == given), None)


def _forget_unused_path(train: dict[str, Any]) -> None:
    """A base spec may name the disk for some of its points; it does not change the digest of the others."""
    if train.get("offload") != "nvme":
        train.pop("nvme_path", None)


def check(config: RunConfig, gpus: int) -> Iterator[Finding]:
    """Find options that cannot work together; of a command, only those that this program uses."""
    train, on_gpus = config.train, bool(gpus) and config.env.get("DS_ACCELERATOR") != "cpu"
    if config.command is not None:
        yield from _offload(train)
        if train.cuda_graphs:
            hint = "leave it out, and let the script record its own passes"
            yield _finding("cuda_graphs", "is for the built-in training", hint)
        return
    if train.fsdp2_reduce != "each" and train.engine != "fsdp2":
        yield _finding("fsdp2_reduce", f"has no effect with engine {train.engine}", "leave it out, or use fsdp2")
    if train.engine != "deepspeed":
        yield from _without_deepspeed(config)
    else:
        yield from _offload(train)
        yield from _compilers(train, on_gpus)
    yield from _graphs(train, on_gpus)
    yield from _kernels(train, on_gpus)


def _without_deepspeed(config: RunConfig) -> Iterator[Finding]:
    train, hint = config.train, "leave it out, or remove the engine"
    offloads = train.offload != "none" and train.engine == "ddp"
    given = {"zero_stage": train.zero_stage, "offload": offloads, "deepcompile": train.deepcompile}
    given["deepspeed_patches"] = not train.deepspeed_patches
    for name in (name for name, value in given.items() if value):
        yield _finding(name, f"is a DeepSpeed setting, and engine {train.engine} does not use DeepSpeed", hint)
    if config.deepspeed:
        yield Finding((("deepspeed",), ("train", "engine")), f"has no effect with engine {train.engine}", hint)
    if train.engine == "fsdp2":
        yield from _fsdp(train)


def _fsdp(train: TrainConfig) -> Iterator[Finding]:
    if train.precision == "fp16":
        yield _finding("precision", "fp16 is not served with engine fsdp2: it scales no losses", "use bf16")
    if train.offload in ("optimizer", "nvme"):
        message = f"{train.offload} is not served with engine fsdp2: it offloads all states to host memory"
        yield _finding("offload", message, "write offload: full")
    if train.universal_checkpoint:
        message = "is a DeepSpeed setting, and engine fsdp2 resumes on the same number of ranks"
        yield _finding("universal_checkpoint", message, "leave it out, or use ZeRO 3")


def _offload(train: TrainConfig) -> Iterator[Finding]:
    if train.offload == "optimizer" and not train.zero_stage:
        message = "optimizer needs ZeRO: DeepSpeed offloads only sharded states"
        yield _finding("offload", message, "zero_stage 1, 2 or 3")
    if train.offload in ("full", "nvme") and train.zero_stage != 3:
        yield _finding("offload", f"{train.offload} needs ZeRO 3: only it shards parameters", "set zero_stage: 3")
    if train.offload == "nvme" and not train.nvme_path:
        hint = "name a folder on a fast local disk of each node"
        places = (("train", "nvme_path"), ("train", "offload"), ("train",))
        yield Finding(places, "nvme_path is required with offload nvme", hint)
    if train.offload == "nvme" and train.nvme_path and not train.nvme_path.startswith("/"):
        hint = "no shell expands it: name a folder on a disk of each node, for example /local/scratch"
        yield _finding("nvme_path", f"{train.nvme_path} is not an absolute path", hint)
    if train.offload == "nvme" and train.checkpoint_every:
        yield no_checkpoints()


def no_checkpoints() -> Finding:
    """Return the finding for checkpoints of states on a disk."""
    message = "has no effect with offload nvme: DeepSpeed cannot resume from states on a disk"
    return _finding("checkpoint_every", message, "leave it out: an interrupted run starts over")


def _compilers(train: TrainConfig, on_gpus: bool) -> Iterator[Finding]:
    if not train.deepcompile:
        return
    if not train.zero_stage:
        yield _finding("deepcompile", "has no passes for ZeRO 0 and would only be torch.compile", "write compile: true")
    if not on_gpus:
        yield _finding("deepcompile", "needs GPUs: its operators are written in CUDA", "write compile: true on CPUs")
    if train.offload != "none":
        yield _finding("deepcompile", "does not support offloaded states", "remove one of them")


def _graphs(train: TrainConfig, on_gpus: bool) -> Iterator[Finding]:
    if not train.cuda_graphs:
        return
    if not on_gpus:
        yield _finding("cuda_graphs", "needs GPUs", "leave it out on CPUs")
        return
    if not train.compile and not train.deepcompile:
        message = "needs a forward and a backward pass that are compiled as a whole"
        yield Finding((_GRAPHS, ("train", "compile"), ("train",)), message, "write compile: true")
    for name, setting, why, hint in _uncaptured(train):
        message = f"{setting} is not served with cuda_graphs: {why}"
        yield Finding((("train", name), _GRAPHS, ("train",)), message, f"{hint}, or leave cuda_graphs out")


def _uncaptured(train: TrainConfig) -> Iterator[tuple[str, str, str, str]]:
    """With `compile`, these are the conditions of `joins_parameters`, and that no ranks share a sample."""
    if train.engine != "deepspeed":
        yield "engine", f"engine {train.engine}", "its passes are not compiled as a whole", "write engine: deepspeed"
    if train.zero_stage == 3:
        yield "zero_stage", "ZeRO 3", "it gathers parameters within the passes", "use zero_stage 0, 1 or 2"
    if train.offload != "none":
        yield "offload", f"offload {train.offload}", "states are not on the GPU", "write offload: none"
    if train.deepcompile:
        yield "deepcompile", "deepcompile", "it compiles the passes in its own way", "write compile: true instead"
    if not train.deepspeed_patches:
        why = "a replay needs flat parameters"
        yield "deepspeed_patches", "deepspeed_patches false", why, "write deepspeed_patches: true"
    if train.activation_checkpointing:
        name = "activation_checkpointing"
        yield name, name, "blocks are computed again one by one", f"write {name}: false"
    for name in ("sequence_parallel", "tensor_parallel"):
        if (size := getattr(train, name)) > 1:
            yield name, f"{name} {size}", "its ranks exchange data within the passes", "leave it out"


def _kernels(train: TrainConfig, on_gpus: bool) -> Iterator[Finding]:
    if train.attention == "flash_attention_2" and train.precision in ("fp32", "tf32"):
        yield _finding("attention", "flash_attention_2 is for half precision", "attention: sdpa")
    if train.attention == "flash_attention_2" and train.engine == "ddp":
        yield _finding(
            "attention", "flash_attention_2 does not work with the autocast of engine ddp", "attention: sdpa"
        )
    if train.attention == "flash_attention_2" and not on_gpus:
        yield _finding("attention", "flash_attention_2 needs GPUs", "attention: sdpa")
    if train.fused_loss and train.zero_stage == 3:
        yield _finding("fused_loss", "needs the whole output layer, which ZeRO 3 shards", "zero_stage 0 to 2")
    if train.precision == "tf32" and not on_gpus:
        yield _finding("precision", "tf32 needs GPUs: on CPUs it is fp32", "write fp32")


def _finding(field: str, message: str, hint: str) -> Finding:
    return Finding((("train", field), ("train",)), message, hint)
