"""What in `deepspeed:` does not go together, or with the fields of a run of the built-in trainer. Pure.

DeepSpeed (0.19.8) would stop at most of it on every node; with the rest a run would learn something else than it says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from dscampaign.jobs.shared.ds_config import NOT_FUSED
from dscampaign.jobs.shared.state_layout import joins_parameters
from dscampaign.orchestrator.errors import FieldPath, Finding

from .model import RunConfig
from .normalize import section

_LEAVE_OUT: Final = "leave it out"
_ZERO: Final = "zero_optimization"
_HALVES: Final = ("bf16", "fp16")
_FORMATS: Final = {"half": "fp16", "float16": "fp16", "bfloat16": "bf16", "float": "fp32", "float32": "fp32"}
"""Other words for a number format."""

_ADAM: Final = ("adam", "adamw")
_SHARDED: Final = (*_ADAM, "adagrad", "lion", "muon")
"""Optimizers that DeepSpeed shards without being told that it may."""
_WHOLE: Final = ("lamb", "muon", "adafactor")
"""Optimizers for which a matrix is more than its numbers."""
_UNSHARDED: Final = {
    **dict.fromkeys(("lamb", "adafactor"), "updates each matrix by itself, and ZeRO gives it parts of several"),
    "adagrad": "with ZeRO has one group of parameters in DeepSpeed (0.19.8), and the built-in training has two",
}
_OWN_ADAM: Final = "works only with DeepSpeed's own Adam, in host memory"
_WRITE_OWN_ADAM: Final = "set train.offload: optimizer, and deepspeed.optimizer.params.torch_adam: false"
_UNFIT: Final = {
    **dict.fromkeys(
        ("lbfgs", "rprop", "sparseadam"), "takes no weight decay, which the built-in training gives to all"
    ),
    **dict.fromkeys(("muadam", "muadamw", "musgd"), "needs base shapes, which the built-in training does not set"),
}


def check(config: RunConfig, merged: Mapping[str, Any], world_size: int, gpus: int) -> Iterator[Finding]:
    """Everything that is wrong with the section of a run of the built-in trainer.

    Args:
        merged: DeepSpeed's configuration as the run will have it.
        world_size: ranks of the run.
        gpus: of a node.
    """
    yield from _reduction(config)
    yield from _norm(config, merged)
    yield from _offload(config, merged)
    yield from _parts(config, world_size)
    yield from _formats(config)
    yield from _half_states(config, merged)
    yield from _optimizer(config, merged)
    yield from _universal(config)
    yield from _resuming(config)
    yield from _kernels(config, merged, on_gpus=bool(gpus) and config.env.get("DS_ACCELERATOR") != "cpu")


def _reduction(config: RunConfig) -> Iterator[Finding]:
    given, stage = config.deepspeed, config.train.zero_stage
    if str(given.get("gradient_allreduce_op", "mean")).lower() == "sum":
        if stage == 3 or config.train.deepcompile:
            what = "ZeRO 3" if stage == 3 else "deepcompile"
            places: tuple[FieldPath, ...] = (("deepspeed", "gradient_allreduce_op"), ("train", "zero_stage"))
            yield Finding(places, f"sum does not work with {what}", "leave it out: gradients are averaged")
        return
    if stage < 2 or not section(given, (_ZERO,)).get("reduce_scatter", True):
        return
    for name, neutral in (("prescale_gradients", False), ("gradient_predivide_factor", 1.0)):
        if given.get(name, neutral) != neutral:
            message = f"does not work with the reduce-scatter of ZeRO {stage}"
            hint = "leave it out, or set deepspeed.zero_optimization.reduce_scatter: false"
            yield Finding((("deepspeed", name), ("train", "zero_stage")), message, hint)


def _norm(config: RunConfig, merged: Mapping[str, Any]) -> Iterator[Finding]:
    """What needs the norm of the gradients, where it is not to be computed."""
    train = config.train
    if section(config.deepspeed, (_ZERO,)).get("compute_grad_norm", True):
        return
    needs = {
        "zero_stage": ("is for ZeRO 1 and 2", train.zero_stage not in (1, 2)),
        "grad_clip": ("does not go with train.grad_clip: gradients are clipped by their norm", bool(train.grad_clip)),
        "offload": ("does not work with an offloaded optimizer", _on_host(merged)),
        "precision": (
            "does not work with ZeRO 1 and fp32 sums of bf16 gradients (grad_accum_dtype)",
            _sums_bf16_in_fp32(config),
        ),
    }
    for field, (message, wrong) in needs.items():
        if wrong:
            hint = "leave it out, or set train.grad_clip: 0" if field == "grad_clip" else _LEAVE_OUT
            yield Finding((("deepspeed", _ZERO, "compute_grad_norm"), ("train", field)), message, hint)
            return


def _offload(config: RunConfig, merged: Mapping[str, Any]) -> Iterator[Finding]:
    """What takes back `train.offload`, and ways to offload an optimizer that not every stage or optimizer has."""
    by_train = config.model_copy(update={"deepspeed": {}}).rendered_deepspeed()[_ZERO]
    for name in ("offload_optimizer", "offload_param"):
        if name in by_train and merged[_ZERO][name] is None:
            message = "is empty: states would not be offloaded where train.offload says that they are"
            hint = "leave it out, or change train.offload"
            yield Finding((("deepspeed", _ZERO, name), ("train", "offload")), message, hint)
    given = section(config.deepspeed, (_ZERO, "offload_optimizer"))
    for name, neutral in (("ratio", 1.0), ("super_offload", False)):
        if float(given.get(name, neutral)) == neutral:  # a ratio may be in quotes
            continue
        places: tuple[FieldPath, ...] = (("deepspeed", _ZERO, "offload_optimizer", name), ("train", "zero_stage"))
        if config.train.zero_stage != 3:
            yield Finding(places, "is for ZeRO 3", "leave it out, or set train.zero_stage: 3")
        elif not _own_adam_on_host(merged):
            yield Finding(places, _OWN_ADAM, _WRITE_OWN_ADAM)


def _parts(config: RunConfig, world_size: int) -> Iterator[Finding]:
    given, place = section(config.deepspeed, (_ZERO,)), ("deepspeed", _ZERO)
    bucket = int(given.get("allgather_bucket_size", 0))
    if config.train.zero_stage in (1, 2) and bucket % 2 and not _sums_bf16_in_fp32(config):
        places: tuple[FieldPath, ...] = ((*place, "allgather_bucket_size"), ("train", "zero_stage"))
        yield Finding(places, f"{bucket} is odd: ZeRO 1 and 2 gather weights in pairs", f"write {bucket + 1}")
    size = int(given.get("zero_hpz_partition_size", 1))
    if config.train.zero_stage == 3 and size > 1 and world_size % size:
        more = size > world_size  # by which DeepSpeed keeps as little as without it
        what = "is more than" if more else "does not divide"
        message = f"{size} {what} the {world_size} ranks of the run"
        hint = "write the ranks of a node" + (", or leave it out on a single one" if more else "")
        yield Finding(((*place, "zero_hpz_partition_size"), ("ranks_per_node",)), message, hint)
    if config.train.zero_stage == 3 and given.get("zero_quantized_gradients") and not given.get("reduce_scatter", True):
        message = "needs reduce_scatter"
        yield Finding(((*place, "zero_quantized_gradients"), (*place, "reduce_scatter")), message, _LEAVE_OUT)


def _sums_bf16_in_fp32(config: RunConfig) -> bool:
    """Whether ZeRO 1 is that of an optimizer which DeepSpeed (0.19.8) has for this alone."""
    train, sums = config.train, _format(section(config.deepspeed, ("data_types",)).get("grad_accum_dtype"))
    return (train.zero_stage, train.precision, train.offload, sums) == (1, "bf16", "none", "fp32")


def _on_host(merged: Mapping[str, Any]) -> bool:
    return bool(section(merged, (_ZERO, "offload_optimizer")).get("device", "none") != "none")


def _own_adam_on_host(merged: Mapping[str, Any]) -> bool:
    optimizer = merged["optimizer"]
    own = not optimizer["params"].get("torch_adam", False)
    return own and _named(optimizer) in _ADAM and _on_host(merged)


def _formats(config: RunConfig) -> Iterator[Finding]:
    train, types = config.train, section(config.deepspeed, ("data_types",))
    trained = train.precision if train.precision in _HALVES else "fp32"
    weights, sums = (_format(types.get(name)) for name in ("param_dtype", "grad_accum_dtype"))
    if weights not in (None, trained):
        places: tuple[FieldPath, ...] = (("deepspeed", "data_types", "param_dtype"), ("train", "precision"))
        yield Finding(places, f"is {weights}, but weights are in {trained} by train.precision", _LEAVE_OUT)
    if sums not in (None, trained) and not train.zero_stage:
        places = (("deepspeed", "data_types", "grad_accum_dtype"), ("train", "zero_stage"))
        message = f"{sums} needs ZeRO: without it gradients are summed in the weights' format, {trained}"
        yield Finding(places, message, "use zero_stage 1, 2 or 3, or leave it out")
    yield from _autocast(config)


def _autocast(config: RunConfig) -> Iterator[Finding]:
    """Without a format GPUs take fp16. DeepSpeed (0.19.8) clips its gradients while they are scaled."""
    given, precision = section(config.deepspeed, ("torch_autocast",)), config.train.precision
    if not given.get("enabled"):
        return
    if precision in _HALVES:
        message = f"is for weights in fp32, and train.precision is {precision}"
        hint = "set train.precision: fp32, or leave it out"
        yield Finding((("deepspeed", "torch_autocast"), ("train", "precision")), message, hint)
        return
    places: tuple[FieldPath, ...] = (("deepspeed", "torch_autocast", "dtype"), ("deepspeed", "torch_autocast"))
    kind, hint = _format(given.get("dtype")), "write dtype: bf16, or leave it out and use train.precision: fp16"
    if kind is None:
        yield Finding(places, "dtype is required: GPUs would take fp16, and scale no losses", hint)
    elif kind == "fp16":
        yield Finding(places, "fp16 is not served: DeepSpeed (0.19.8) clips gradients while they are scaled", hint)


def _half_states(config: RunConfig, merged: Mapping[str, Any]) -> Iterator[Finding]:
    """Optimizers without an fp32 copy of the weights."""
    train = config.train
    for half in _HALVES:
        given, key = section(config.deepspeed, (half,)), f"{half}_master_weights_and_grads"
        place: FieldPath = ("deepspeed", half, key)
        if not given.get(key):
            if given.get("bf16_optimizer_states"):
                hint = f"set deepspeed.{half}.{key}: true beside it, or leave it out"
                yield Finding((("deepspeed", half, "bf16_optimizer_states"),), f"needs {key}", hint)
        elif train.precision != half:
            yield Finding((place, ("train", "precision")), f"is for train.precision: {half}", _LEAVE_OUT)
        elif not train.zero_stage:
            yield Finding((place, ("train", "zero_stage")), "needs ZeRO", "use zero_stage 1, 2 or 3, or leave it out")
        elif not _own_adam_on_host(merged) and (_on_host(merged) or not given.get("bf16_optimizer_states")):
            near = (
                f"set deepspeed.{half}.bf16_optimizer_states: true, or "
                if half == "bf16" and not _on_host(merged)
                else ""
            )
            yield Finding((place, ("train", "offload")), _OWN_ADAM, near + _WRITE_OWN_ADAM)


def _optimizer(config: RunConfig, merged: Mapping[str, Any]) -> Iterator[Finding]:
    train = config.train
    given = section(config.deepspeed, ("optimizer",))
    kind, place = _named(given), ("deepspeed", "optimizer", "type")
    if kind in _UNFIT:
        yield Finding((place,), f"{given['type']} {_UNFIT[kind]}", "use another one, or a script of your own")
        return
    own_on_host = kind == "adagrad" and _on_host(merged)  # DeepSpeed's own, which keeps its groups
    if train.zero_stage and kind in _UNSHARDED and not own_on_host:
        yield Finding((place, ("train", "zero_stage")), f"{given['type']} {_UNSHARDED[kind]}", "use zero_stage: 0")
    elif train.zero_stage and kind not in _SHARDED and not config.deepspeed.get("zero_allow_untested_optimizer"):
        message = f"DeepSpeed shards {given['type']} only where it is told that it may"
        hint = "set deepspeed.zero_allow_untested_optimizer: true, or zero_stage: 0"
        yield Finding((place, ("train", "zero_stage")), message, hint)
    if kind in _WHOLE and joins_parameters(train.model_dump()):
        message = f"{given['type']} updates each matrix by itself, and train.compile joins them all"
        yield Finding((place, ("train", "compile")), message, "write compile: false")
    params = section(given, ("params",))
    if kind in _ADAM and params.get("fused"):
        for other in (name for name in NOT_FUSED if params.get(name)):
            yield Finding(
                (("deepspeed", "optimizer", "params", other),), "does not go with fused", "leave out one of them"
            )
    if kind == "muon" and train.zero_stage == 3 and section(config.deepspeed, (_ZERO,)).get("reduce_scatter", True):
        message = "Muon does not work with the reduce-scatter of ZeRO 3"
        hint = "set deepspeed.zero_optimization.reduce_scatter: false"
        yield Finding((place, ("train", "zero_stage")), message, hint)


def _universal(config: RunConfig) -> Iterator[Finding]:
    """What DeepSpeed (0.19.8) saves, and cannot convert for another number of ranks."""
    if not (config.train.universal_checkpoint and config.train.zero_stage):
        return
    given, zero = section(config.deepspeed, ("optimizer",)), section(config.deepspeed, (_ZERO,))
    place, hint = ("train", "universal_checkpoint"), "leave it out: the run then resumes on the same number of ranks"
    if _named(given) not in _ADAM or section(given, ("params",)).get("amsgrad"):
        message = "is for plain Adam: DeepSpeed (0.19.8) cannot convert the states of other optimizers"
        yield Finding((place, ("deepspeed", "optimizer")), message, hint)
    if config.train.zero_stage < 3 and zero.get("round_robin_gradients"):
        message = (
            "does not go with round_robin_gradients: DeepSpeed (0.19.8) mixes up the weights when it converts them"
        )
        yield Finding((place, ("deepspeed", _ZERO, "round_robin_gradients")), message, hint)


def _resuming(config: RunConfig) -> Iterator[Finding]:
    """Reading checkpoints one rank after another, at which DeepSpeed stops once a run resumes."""
    stage = config.train.zero_stage
    if stage in (1, 2) and section(config.deepspeed, (_ZERO,)).get("pipeline_loading_checkpoint"):
        places: tuple[FieldPath, ...] = (("deepspeed", _ZERO, "pipeline_loading_checkpoint"), ("train", "zero_stage"))
        yield Finding(places, f"is for ZeRO 3: with ZeRO {stage} no run could resume", _LEAVE_OUT)


def _kernels(config: RunConfig, merged: Mapping[str, Any], *, on_gpus: bool) -> Iterator[Finding]:
    if on_gpus:
        return
    kind = _named(section(config.deepspeed, ("optimizer",)))
    if kind == "lamb" or (kind == "lion" and not _on_host(merged)):
        message = f"{config.deepspeed['optimizer']['type']} needs GPUs"
        hint = "use another one on CPUs" + (", or train.offload: optimizer" if kind == "lion" else "")
        yield Finding((("deepspeed", "optimizer", "type"),), message, hint)
    for name in ("zero_quantized_weights", "zero_quantized_nontrainable_weights"):
        if config.train.zero_stage == 3 and section(config.deepspeed, (_ZERO,)).get(name):
            yield Finding((("deepspeed", _ZERO, name),), "needs GPUs", "leave it out on CPUs")


def _named(optimizer: Mapping[str, Any]) -> str:
    return str(optimizer.get("type", "AdamW")).lower()


def _format(word: Any) -> str | None:
    """A number format in the word that `train.precision` has for it."""
    plain = word.removeprefix("torch.") if isinstance(word, str) else None
    return _FORMATS.get(plain, plain) if plain else None
