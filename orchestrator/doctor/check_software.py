"""From what the training's Python has to verdicts: torch and its CUDA, DeepSpeed and its operators. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ...jobs.probe.node_report import Gpus, Software
from .check import At, Check
from .check_host import numbers
from .requirements import Wants

LEAST_DEEPSPEED: Final = (0, 19, 1)
_WRONG_GRADIENTS: Final = ((0, 17, 6), (0, 18, 2))
_OLDEST_DRIVERS: Final = {11: "450.80", 12: "525.60", 13: "580.65"}
"""By CUDA's major version: the oldest driver that serves all its minor versions."""
_TRAIN: Final = "`pip install -c constraints.txt '.[train]'` for that Python"
_NEEDS: Final = {
    "async_io": "libaio and its headers (libaio-dev), a C++ compiler and ninja",
    "cpu_adam": "a C++ compiler and ninja",
    "cpu_adagrad": "a C++ compiler and ninja",
    "cpu_lion": "a C++ compiler and ninja",
}
"""What an operator is compiled from; others need CUDA's compiler."""


def software_checks(software: Software, gpus: Gpus | None, want: Wants, at: At) -> Iterator[Check]:
    """Verdicts on the training's Python.

    Args:
        software: What it has.
        gpus: What the driver shows; None where it showed nothing.
        want: What the runs ask for.
        at: The node.
    """
    yield at.ok("software.python", f"Python {software.python} ({want.config.python or 'the one that runs campaign'})")
    yield _torch(software, gpus, want, at)
    if not software.torch:
        return
    yield _deepspeed(software, at)
    if software.ops:
        yield _ops(software, want, at)
    missing = [name for name, version in software.packages.items() if not version and name != "accelerate"]
    if want.config.command is None and missing:
        yield at.problem("software.packages", f"the built-in training needs {', '.join(missing)}", _TRAIN)


def _torch(software: Software, gpus: Gpus | None, want: Wants, at: At) -> Check:
    if not software.torch:
        return at.problem("software.torch", f"torch does not load: {software.device_trouble}", _TRAIN)
    built = f"torch {software.torch}, built for {f'CUDA {software.torch_cuda}' if software.torch_cuda else 'CPUs'}"
    if not want.on_gpus:
        return at.ok("software.torch", f"{built}; the training runs on CPUs")
    trouble, hint = _no_gpus(software, gpus, want)
    if trouble:
        return at.problem("software.torch", f"{built}; {trouble}", hint)
    return at.ok("software.torch", f"{built}; sees {software.devices} GPUs")


def _no_gpus(software: Software, gpus: Gpus | None, want: Wants) -> tuple[str, str]:
    """Why torch cannot use the GPUs, and what to do; "" if it can."""
    if not software.torch_cuda:
        return "it sees no GPU", "install a build of torch for CUDA"
    if gpus and _too_new(software.torch_cuda, gpus.cuda):
        oldest = _OLDEST_DRIVERS.get(numbers(software.torch_cuda)[0])
        driver = f"a driver from {oldest} on" if oldest else "a newer driver"
        hint = f"ask for {driver}, or install torch built for CUDA {numbers(gpus.cuda)[0]}"
        return f"driver {gpus.driver} serves only up to CUDA {gpus.cuda}", hint
    if software.device_trouble:
        return f"CUDA does not start: {software.device_trouble}", "`nvidia-smi` on the node"
    if software.devices < want.gpus:
        return f"sees {software.devices} of {want.gpus} GPUs", "look at CUDA_VISIBLE_DEVICES, and at the driver"
    return "", ""


def _too_new(built_for: str, served: str) -> bool:
    """A driver serves newer minor versions of its CUDA than its own, but no newer major one."""
    return numbers(built_for)[:1] > numbers(served)[:1]


def _deepspeed(software: Software, at: At) -> Check:
    version = numbers(software.deepspeed)
    if software.deepspeed_trouble:
        return at.problem("software.deepspeed", f"DeepSpeed does not load: {software.deepspeed_trouble}", _TRAIN)
    seen = f"DeepSpeed {software.deepspeed} on {software.accelerator}"
    least, most = _WRONG_GRADIENTS
    if least <= version <= most:
        return at.problem("software.deepspeed", f"{seen} computes wrong ZeRO-2 gradients", _TRAIN)
    if version < LEAST_DEEPSPEED:
        wanted = ".".join(map(str, LEAST_DEEPSPEED))
        return at.warning("software.deepspeed", f"{seen} is older than {wanted}, the first that was tried", _TRAIN)
    return at.ok("software.deepspeed", seen)


def _ops(software: Software, want: Wants, at: At) -> Check:
    missing = [name for name in want.ops if not software.ops.get(name)]
    if missing:
        need = _NEEDS.get(missing[0], "CUDA's compiler (nvcc, CUDA_HOME) of the version that torch was built for")
        seen = f"DeepSpeed cannot use {', '.join(missing)}, which the spec needs"
        return at.problem("software.ops", seen, f"it takes {need}; `ds_report` on the node says more")
    others = [name for name, usable in software.ops.items() if not usable]
    usable = f"{len(software.ops) - len(others)} of {len(software.ops)} of DeepSpeed's operators can be used"
    return at.ok("software.ops", usable + (f"; not {', '.join(others)}, which no run needs" if others else ""))
