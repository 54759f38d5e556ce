"""DeepSpeed's compiled operators, built before the engine asks for them, by one rank of a node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deepspeed.accelerator import get_accelerator
from deepspeed.ops.op_builder.dc import DeepCompileBuilder

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
    builder.load(verbose=False)
