"""The arrival of ZeRO 3's gathered weights, with less work for the host; the weights are the same.

A gather brings the weights of a whole block, each as a part of every rank. DeepSpeed 0.19.8 cuts out and joins these
parts weight by weight, and makes the host wait for the device after a few weights: the host cannot be ahead by a
whole block, and a small step waits for it. A version that works in another way is left alone.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.zero import partition_parameters
from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus
from deepspeed.runtime.zero.partitioned_param_coordinator import InflightParamRegistry
from torch import Tensor

_HANDLE: Final = "AllGatherCoalescedHandle"
_NEEDED: Final = {"allgather_handle", "params", "partitions", "world_size", "use_secondary_tensor", "quantization"}


def join_gathered_weights() -> None:
    """Make each gather of this process a single copy and event for all its weights. Once is enough."""
    handle = getattr(partition_parameters, _HANDLE, None)
    if handle is None or getattr(handle.wait, "joins", False):
        return
    own = handle.wait

    def wait(self: Any, handle_dependency: bool = True) -> None:
        flat = _flat(self) if handle_dependency and not self.complete else None
        if flat is None:
            own(self, handle_dependency)
        else:
            _join(self, flat)

    wait.joins = True  # type: ignore[attr-defined]
    handle.wait = wait
    InflightParamRegistry.pop = _pop_gather


def _flat(handle: Any) -> Tensor | None:
    """Return the arriving data, of shape (ranks x part of a rank,); None if DeepSpeed's own way is needed."""
    if not vars(handle).keys() >= _NEEDED or handle.use_secondary_tensor or handle.quantization:
        return None
    flat: Tensor | None = handle.partitions[0]._base  # noqa: SLF001 - the parts are views of it
    part = sum(weight.ds_tensor.ds_numel for weight in handle.params)
    return flat if flat is not None and flat.numel() == handle.world_size * part else None


def _join(handle: Any, flat: Tensor) -> None:
    handle.allgather_handle.wait()
    parts = [weight.ds_tensor.ds_numel for weight in handle.params]
    wholes = [flat.new_empty(handle.world_size, part) for part in parts]
    torch.split_with_sizes_copy(flat.view(handle.world_size, -1), parts, dim=1, out=wholes)
    for weight, whole in zip(handle.params, wholes, strict=True):
        # the padding is at the end of the last parts
        alone = whole if whole.numel() == weight.ds_numel else whole.view(-1)[: weight.ds_numel]
        weight.data = alone.view(weight.ds_shape).to(weight.ds_tensor.dtype)
        weight.ds_status = ZeroParamStatus.AVAILABLE
    accelerator = get_accelerator()
    if not accelerator.is_synchronized_device():
        flat.record_stream(accelerator.current_stream())
    handle.complete = True


def _pop_gather(registry: InflightParamRegistry, weight: torch.nn.Parameter) -> Any:
    gather = registry.data.pop(weight)
    for other in [other for other, its in registry.data.items() if its is gather]:
        del registry.data[other]
    return gather
