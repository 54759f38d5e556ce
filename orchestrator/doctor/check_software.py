"""Verdicts on the training's Python: torch and its CUDA, DeepSpeed and its operators. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from dscampaign.jobs.probe.node_report import Gpus, Software

from .check import At, Check
from .requirements import Requirements

LEAST_DEEPSPEED: Final = (0, 19, 1)
_WRONG_GRADIENTS: Final = ((0, 17, 6), (0, 18, 2))
_TRAIN: Final = "`pip install -c constraints.txt '.[train]'` for that Python"


def software_checks(software: Software, gpus: Gpus | None, required: Requirements, at: At) -> Iterator[Check]:
    """Return verdicts on the training's Python; `gpus` is None if the driver showed none."""
    image = required.config.container
    place = f"{software.path} in {image.image}" if image else software.path
    yield at.ok("software.python", f"Python {software.python} ({place})")
    yield _torch(software, gpus, required, at)
    if not software.torch:
        return
    if not software.deepspeed_trouble or required.config.launcher in (None, "deepspeed"):
        yield _deepspeed(software, at)
    if software.ops:
        yield _ops(software, at)
    if required.config.command is None and software.missing:
        yield at.problem("software.packages", f"the built-in training needs {', '.join(software.missing)}", _TRAIN)


def _torch(software: Software, gpus: Gpus | None, required: Requirements, at: At) -> Check:
    if not software.torch:
        return at.problem("software.torch", f"torch does not load: {software.device_trouble}", _TRAIN)
    built = f"torch {software.torch}, built for {f'CUDA {software.torch_cuda}' if software.torch_cuda else 'CPUs'}"
    if not required.on_gpus:
        return at.ok("software.torch", f"{built}; the training runs on CPUs")
    trouble, hint = _no_gpus(software, gpus, required)
    if trouble:
        return at.problem("software.torch", f"{built}; {trouble}", hint)
    return at.ok("software.torch", f"{built}; sees {software.devices} GPUs")


def _no_gpus(software: Software, gpus: Gpus | None, required: Requirements) -> tuple[str, str]:
    if not software.torch_cuda:
        return "it sees no GPU", "install a build of torch for CUDA"
    # a driver serves newer minor versions of its CUDA than its own, but no newer major one
    if gpus and _numbers(software.torch_cuda)[:1] > _numbers(gpus.cuda)[:1]:
        hint = f"install a newer driver, or torch built for CUDA {_numbers(gpus.cuda)[0]}"
        return f"driver {gpus.driver} supports only up to CUDA {gpus.cuda}", hint
    if software.device_trouble:
        return f"CUDA does not start: {software.device_trouble}", "`nvidia-smi` on the node"
    if software.devices < required.gpus:
        return f"sees {software.devices} of {required.gpus} GPUs", "check CUDA_VISIBLE_DEVICES and the driver"
    return "", ""


def _deepspeed(software: Software, at: At) -> Check:
    version = _numbers(software.deepspeed)
    if software.deepspeed_trouble:
        return at.problem("software.deepspeed", f"DeepSpeed does not load: {software.deepspeed_trouble}", _TRAIN)
    seen = f"DeepSpeed {software.deepspeed} on {software.accelerator}"
    least, most = _WRONG_GRADIENTS
    if least <= version <= most:
        return at.problem("software.deepspeed", f"{seen} computes wrong ZeRO-2 gradients", _TRAIN)
    if version < LEAST_DEEPSPEED:
        wanted = ".".join(map(str, LEAST_DEEPSPEED))
        return at.warning("software.deepspeed", f"{seen} is older than {wanted}, the oldest that was tested", _TRAIN)
    return at.ok("software.deepspeed", seen)


def _ops(software: Software, at: At) -> Check:
    missing = [name for name, usable in software.ops.items() if not usable]
    if not missing:
        return at.ok("software.ops", f"DeepSpeed can use {', '.join(software.ops)}")
    need = "a C++ compiler, ninja, and libaio's headers for async_io or CUDA's compiler (nvcc, CUDA_HOME) for fused_*"
    seen = f"DeepSpeed cannot use {', '.join(missing)}, which the spec needs"
    return at.problem("software.ops", seen, f"install {need}; for details, run `ds_report` on the node")


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()
