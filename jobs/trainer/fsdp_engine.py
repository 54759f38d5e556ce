"""Sharded training with PyTorch alone, by ``fully_shard``, for comparison with DeepSpeed's ZeRO 3.

The master weights are fp32 and gradients are reduced in fp32; in bf16 a block is gathered and computed in bf16.
Gradients that are reduced after the last micro-batch of a step take 4 bytes for each parameter of the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from dscampaign.files.private_files import make_folder

from .config import TrainerConfig
from .model import NextTokenLoss, parameter_groups
from .torch_engine import TorchEngine
from .whole_blocks import blocks_of

_MOMENTS: Final = ("exp_avg", "exp_avg_sq")


class FsdpEngine(TorchEngine):
    """Every rank holds a part of each parameter, and the optimizer's states of that part."""

    stage = 3

    def __init__(self, model: NextTokenLoss, config: TrainerConfig, device: torch.device) -> None:
        half = torch.bfloat16 if config.precision in ("bf16", "fp8") else None
        offload = CPUOffloadPolicy(pin_memory=device.type == "cuda") if config.offload == "full" else OffloadPolicy()
        options: dict[str, Any] = {
            "mesh": init_device_mesh(device.type, (dist.get_world_size(),)),
            "mp_policy": MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32),
            "offload_policy": offload,
            "reshard_after_forward": True,
        }
        self._loss = model
        self._blocks = blocks_of(model)
        for block in self._blocks:
            fully_shard(block, **options)
        self._sharded = fully_shard(model, **options)
        if config.offload != "full":
            model.to(device)
        else:
            for buffer in model.buffers():
                buffer.data = buffer.data.to(device)
        self._parameters = list(model.parameters())  # after sharding, which replaces them
        super().__init__(model, parameter_groups(model), config, device)

    def compile(self) -> None:
        """Compile each block, without the hooks that gather it, and the loss.

        The call of a block is compiled, not its ``forward``: that spares the host the path of the hooks.
        """
        for block in self._blocks:
            block.compile()
        self._loss.compile_parts(())

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Return the loss of a micro-batch."""
        if self._config.fsdp2_reduce == "last":
            self._sharded.set_requires_gradient_sync(self.is_gradient_accumulation_boundary())
        loss: Tensor = self.module(*inputs)
        return loss

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a micro-batch to the gradients of its step."""
        (loss / self._config.accumulation).backward()

    def _update(self) -> None:
        self._norm = self._clip()
        self.optimizer.step()

    def _clip(self) -> Tensor:
        """Clip the gradients and return their norm over all ranks before that.

        PyTorch's own function communicates on the device of the parts, and NCCL cannot use host memory.
        """
        if self._config.offload != "full":
            norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._config.grad_clip or torch.inf)
            return norm.full_tensor() if isinstance(norm, DTensor) else norm
        grads = [p.grad.to_local() for p in self._parameters if isinstance(p.grad, DTensor)]
        squared = torch.nn.utils.get_total_norm(grads).to(self.device) ** 2
        dist.all_reduce(squared)
        norm = squared.sqrt()
        if self._config.grad_clip:
            factor = torch.clamp(self._config.grad_clip / (norm + 1e-6), max=1.0)
            torch._foreach_mul_(grads, factor.to(grads[0].device))
        return norm

    def save_checkpoint(self, save_dir: str, tag: str, client_state: Mapping[str, Any], **_latest: object) -> None:
        """Write this rank's parts to ``save_dir/tag``."""
        folder = Path(save_dir, tag)
        make_folder(folder)
        state = {"ranks": dist.get_world_size(), "parts": self._parts(), "buffers": self._buffers()}
        torch.save({**state, "client_state": dict(client_state)}, folder / _file(dist.get_rank()))

    def load_checkpoint(self, load_dir: str, tag: str) -> tuple[str, dict[str, Any]]:
        """Read this rank's file of ``save_checkpoint``; return its path and the client's state."""
        file = Path(load_dir, tag, _file(dist.get_rank()))
        state = torch.load(file, map_location="cpu", weights_only=True)
        for name, parameter in self.module.named_parameters():
            part = state["parts"][name]
            kept = self.optimizer.state[parameter]
            if "step" in part:
                kept["step"] = part["step"].to(parameter.device)
            for moment in _MOMENTS if "step" in part else ():
                kept[moment] = torch.zeros_like(parameter)
                _local(kept[moment]).copy_(part[moment])
            _local(parameter).copy_(part["weight"])
        for name, buffer in self._buffers().items():
            buffer.copy_(state["buffers"][name])
        client_state: dict[str, Any] = state["client_state"]
        return str(file), client_state

    def _parts(self) -> dict[str, dict[str, Tensor]]:
        """Return this rank's parts as plain tensors: PyTorch's own format needs pickles that run code."""
        parts = {}
        for name, parameter in self.module.named_parameters():
            kept = self.optimizer.state.get(parameter, {})  # none of what has no part in the loss
            states = {state: _alone(_local(value)) for state, value in kept.items()}
            parts[name] = {"weight": _alone(_local(parameter)), **states}
        return parts

    def _buffers(self) -> dict[str, Tensor]:
        kept = self.module.state_dict().keys()
        return {name: buffer for name, buffer in self.module.named_buffers() if name in kept}


def shards_in(folder: Path) -> list[Path]:
    """The files of all ranks in a folder that ``save_checkpoint`` wrote, in their order; none in another's."""
    return sorted(folder.glob(_file("*")), key=lambda file: int(file.name.split("_")[2]))


def _local(tensor: Tensor) -> Tensor:
    data = tensor.detach()
    return data.to_local() if isinstance(data, DTensor) else data


def _alone(tensor: Tensor) -> Tensor:
    """Return a tensor with a storage of its own size: a copy in host memory, as the device may lack room."""
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.to("cpu", copy=True)


def _file(rank: int | str) -> str:
    return f"fsdp_rank_{rank}_states.pt"
