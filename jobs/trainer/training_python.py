"""Report the packages of the training's Python (`software OUTPUT [OPERATOR]...`), or test ranks (`all_reduce OUTPUT`).

Run by file path under the Python of the training: 3.8 syntax, and nothing of this package. A launcher starts the
all-reduce on each rank of a node.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

sys.path[:] = [path for path in sys.path if path != os.path.dirname(os.path.abspath(__file__))]
"""The modules beside this file would hide others of their names."""

PACKAGES = ("datasets", "filelock", "numpy", "pyarrow", "tokenizers", "transformers")
GPU_BYTES = 256 << 20
CPU_BYTES = 4 << 20
WARM_UP = 3
ROUNDS = 10
TIMEOUT_S = 120


def main() -> None:
    """Write the facts as JSON."""
    what, output, *operators = sys.argv[1:]
    facts = _software(operators) if what == "software" else _all_reduce()
    if facts:
        with open(output, "w") as file:
            json.dump(facts, file)


# -- packages --------------------------------------------------------------------------------------------------


def _software(operators: list[str]) -> dict[str, Any]:
    """Return the facts, also if a part cannot be loaded."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    facts = {"python": platform.python_version(), "path": sys.executable, "torch": "", "missing": missing}
    try:
        facts.update(_torch())
    except Exception as exc:  # noqa: BLE001 - any failure of a foreign library is what is asked for
        facts["device_trouble"] = _line(exc)
    else:
        facts.update(_deepspeed(operators))
    return facts


def _torch() -> dict[str, Any]:
    import torch

    facts = {"torch": torch.__version__, "torch_cuda": torch.version.cuda or torch.version.hip or "", "devices": 0}
    try:
        facts["devices"] = torch.cuda.device_count()
        if facts["devices"]:
            torch.zeros(1, device="cuda")
    except Exception as exc:  # noqa: BLE001 - as above
        facts["device_trouble"] = _line(exc)
    return facts


def _deepspeed(operators: list[str]) -> dict[str, Any]:
    try:
        import deepspeed
        from deepspeed.accelerator import get_accelerator
        from deepspeed.git_version_info import installed_ops
        from deepspeed.ops.op_builder.all_ops import ALL_OPS
    except Exception as exc:  # noqa: BLE001 - as above
        return {"deepspeed_trouble": _line(exc)}
    ops = {name: bool(installed_ops.get(name)) or _compatible(ALL_OPS.get(name)) for name in operators}
    return {"deepspeed": deepspeed.__version__, "accelerator": get_accelerator().device_name(), "ops": ops}


def _compatible(builder: object) -> bool:
    try:
        return bool(builder.is_compatible(verbose=False))  # type: ignore[attr-defined]
    except Exception:  # noqa: BLE001 - it asks compilers and drivers that may not be there
        return False


def _line(exc: Exception) -> str:
    return "{}: {}".format(type(exc).__name__, (str(exc).strip().splitlines() or [""])[0])


# -- ranks -----------------------------------------------------------------------------------------------------


def _all_reduce() -> dict[str, Any]:
    """Add the ranks' numbers plus one; the first rank returns whether all got the sum, and how fast."""
    import torch
    import torch.distributed as dist

    rank, local, ranks = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    on_gpus = os.environ.get("DS_ACCELERATOR") != "cpu"
    if on_gpus:
        if os.environ.get("CAMPAIGN_VISIBLE_DEVICES"):  # the launcher numbers devices from 0, Slurm gave us others
            os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["CAMPAIGN_VISIBLE_DEVICES"]
        torch.cuda.set_device(local)
    backend, device, size = ("nccl", "cuda", GPU_BYTES) if on_gpus else ("gloo", "cpu", CPU_BYTES)
    dist.init_process_group(backend, timeout=timedelta(seconds=TIMEOUT_S))
    numbers = torch.full((size // 4,), rank + 1.0, device=device)
    dist.all_reduce(numbers)
    wrong = (numbers != ranks * (ranks + 1) / 2).any().float().reshape(1)
    dist.all_reduce(wrong)
    numbers.zero_()
    for rounds in (WARM_UP, ROUNDS):
        begun_s = time.perf_counter()
        for _ in range(rounds):
            dist.all_reduce(numbers)
        if on_gpus:
            torch.cuda.synchronize()
    seconds = (time.perf_counter() - begun_s) / ROUNDS
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.1)  # see engine.py, `leave_process_group`
    if rank:
        return {}
    bus = 2 * (ranks - 1) / ranks * size / seconds / 1e9 if ranks > 1 else None
    return {"backend": backend, "ranks": ranks, "correct": not wrong.item(), "bus_gb_s": bus}


if __name__ == "__main__":
    main()
