"""DeepSpeed's compiled operators, built before the engine asks for them, by one rank of a node.

PyTorch marks a build by a file that a killed process leaves behind, and everybody waits for it for ever. A lock that
ends with its process stands before it here, and who holds that may take the mark away.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deepspeed.accelerator import get_accelerator
from deepspeed.ops.op_builder.dc import DeepCompileBuilder
from filelock import FileLock
from torch.utils import cpp_extension

from . import swap_space
from .config import TrainConfig


def build(config: TrainConfig, ds_config: Mapping[str, Any]) -> None:
    """Builds what the configurations need, or waits until another process of this node has.

    Raises:
        ValueError: something is missing on the node that the operator needs.
    """
    if swap_space.in_use(ds_config):
        _build(get_accelerator().create_op_builder("AsyncIOBuilder"), "train.offload nvme needs libaio and its headers")
    if config.deepcompile:
        _build(DeepCompileBuilder(), "train.deepcompile needs CUDA's compiler")


def _build(builder: Any, needs: str) -> None:
    if not builder.is_compatible(verbose=False):
        raise ValueError(f"{needs}, which this node does not have (Debian: libaio-dev, cuda-toolkit)")
    folder = Path(cpp_extension._get_build_directory(builder.name, verbose=False))  # noqa: SLF001 - it has no other name
    with FileLock(folder.with_name(f"{folder.name}.dscampaign.lock")):
        (folder / "lock").unlink(missing_ok=True)
        builder.load(verbose=False)
