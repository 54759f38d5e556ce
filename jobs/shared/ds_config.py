"""The DeepSpeed configuration of an attempt, complete: nothing is left to DeepSpeed's own guesses about batches."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Final

from .layer_parts import autotp_section

NOT_FUSED: Final = ("foreach", "differentiable")  # options of AdamW that PyTorch cannot fuse
_NEVER_PRINT: Final = 10**9


def render(
    train: Mapping[str, Any],
    *,
    micro_batch: int | None,
    accumulation: int | None,
    world_size: int,
    overrides: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the DeepSpeed configuration of an attempt, with its highest learning rate: a schedule is the script's."""
    config = {
        **_batch(micro_batch, accumulation, world_size),
        **_precision(train["precision"]),
        **_offload(train.get("offload", "none"), train.get("nvme_path")),
        **({"compile": {"deepcompile": True}} if train.get("deepcompile") else {}),
        **({"tensor_parallel": autotp_section(shared)} if (shared := train.get("tensor_parallel", 1)) > 1 else {}),
        "gradient_clipping": train["grad_clip"],
        "steps_per_print": _NEVER_PRINT,
        "wall_clock_breakdown": False,
        # The timer synchronises the device twice a step; the trainer measures without that.
        "timers": {"throughput": {"enabled": False}},
    }
    others = {key: value for key, value in overrides.items() if key != "optimizer"}
    gradients = _gradients(train["zero_stage"], others.get("zero_optimization") or {})
    config["zero_optimization"] = {**gradients, **config.get("zero_optimization", {})}
    return merged(config | {"optimizer": _optimizer(train, overrides)}, others)


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `over` laid over `base`, mapping by mapping; neither is changed."""
    result = dict(base)
    for key, value in over.items():
        old = result.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        result[key] = merged(old, value) if both else deepcopy(value)  # type: ignore[arg-type]
    return result


def _batch(micro_batch: int | None, accumulation: int | None, world_size: int) -> dict[str, int]:
    micro_batch, accumulation = micro_batch or 1, accumulation or 1
    return {
        "train_batch_size": micro_batch * accumulation * world_size,
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": accumulation,
    }


def _precision(precision: str) -> dict[str, Any]:
    """Return both sections, so that no override enables a second unseen. In fp8 DeepSpeed trains in bf16."""
    return {
        # bf16 has the range of fp32: nothing overflows that loss scaling could save, and the check costs a sync a step.
        "bf16": {"enabled": precision in ("bf16", "fp8"), "check_grad_overflow": False},
        # Scale 0 is dynamic loss scaling.
        "fp16": {"enabled": precision == "fp16", "loss_scale": 0, "initial_scale_power": 16},
    }


def _gradients(stage: int, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The ZeRO stage, and how it reduces gradients.

    Stage 3 scatters them out of their own tensors. DeepSpeed's default copies each into a buffer of a gigabyte before,
    which is then not read (benchmarks/results/zero3-host-h200.json), unless the spec has them reduced instead.
    """
    scattered = stage == 3 and overrides.get("reduce_scatter", True)
    return {"stage": stage, **({"contiguous_gradients": False} if scattered else {})}


def _offload(offload: str, nvme_path: str | None) -> dict[str, Any]:
    """Return the offload sections. The optimizer then runs on the CPU: torch's, which needs no compiler."""
    if offload == "none":
        return {}
    nvme = {"device": "nvme", "nvme_path": nvme_path}
    place: dict[str, Any] = nvme if offload == "nvme" else {"device": "cpu"}
    parts = ["offload_optimizer"] if offload == "optimizer" else ["offload_optimizer", "offload_param"]
    config: dict[str, Any] = {
        "zero_optimization": {part: {**place, "pin_memory": True} for part in parts},
        "zero_force_ds_cpu_optimizer": False,
    }
    if offload == "nvme":  # at the top, not within zero_optimization, where DeepSpeed refuses it
        config["aio"] = {"block_size": 1 << 20, "queue_depth": 8, "single_submit": False, "overlap_events": True}
    return config


def _optimizer(train: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return AdamW of torch, fused: it needs no compiler on the node. Another type replaces it."""
    section = overrides.get("optimizer", {})
    shared = {"lr": train["lr"], "weight_decay": train["weight_decay"]}
    if section.get("type", "AdamW").lower() not in ("adam", "adamw"):
        return merged({"params": shared}, section)
    adam = {**shared, "betas": [train["beta1"], train["beta2"]], "eps": train["eps"], "torch_adam": True}
    optimizer = merged({"type": "AdamW", "params": adam}, section)
    params = optimizer["params"]
    if params["torch_adam"] and not any(params.get(other) for other in NOT_FUSED):
        params.setdefault("fused", True)
    return optimizer
