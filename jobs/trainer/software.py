"""Report torch, DeepSpeed and the packages of the training's Python. Run by file path: OUTPUT [OPERATOR]...

Runs under the Python of the training: 3.8 syntax, and nothing of this package.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from importlib.util import find_spec
from typing import Any

sys.path[:] = [path for path in sys.path if path != os.path.dirname(os.path.abspath(__file__))]
"""The modules beside this file would hide others of their names."""

PACKAGES = ("datasets", "filelock", "numpy", "pyarrow", "tokenizers", "transformers")


def main() -> None:
    """Write the facts, also if a part cannot be loaded."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    facts = {"python": platform.python_version(), "path": sys.executable, "torch": "", "missing": missing}
    try:
        facts.update(_torch())
    except Exception as exc:  # noqa: BLE001 - any failure of a foreign library is what is asked for
        facts["device_trouble"] = _line(exc)
    else:
        facts.update(_deepspeed())
    with open(sys.argv[1], "w") as file:
        json.dump(facts, file)


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


def _deepspeed() -> dict[str, Any]:
    try:
        import deepspeed
        from deepspeed.accelerator import get_accelerator
        from deepspeed.git_version_info import installed_ops
        from deepspeed.ops.op_builder.all_ops import ALL_OPS
    except Exception as exc:  # noqa: BLE001 - as above
        return {"deepspeed_trouble": _line(exc)}
    ops = {name: bool(installed_ops.get(name)) or _compatible(ALL_OPS.get(name)) for name in sys.argv[2:]}
    return {"deepspeed": deepspeed.__version__, "accelerator": get_accelerator().device_name(), "ops": ops}


def _compatible(builder: object) -> bool:
    try:
        return bool(builder.is_compatible(verbose=False))  # type: ignore[attr-defined]
    except Exception:  # noqa: BLE001 - it asks compilers and drivers that may not be there
        return False


def _line(exc: Exception) -> str:
    return "{}: {}".format(type(exc).__name__, (str(exc).strip().splitlines() or [""])[0])


if __name__ == "__main__":
    main()
