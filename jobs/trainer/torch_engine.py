"""PyTorch's own engines, for comparison, with the methods of DeepSpeed's engine that the trainer calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from dscampaign.files.private_files import make_folder

from .config import TrainerConfig
from .model import NextTokenLoss, blocks_of, parameter_groups

STATE_FILE: Final = "training_state.pt"
_HALF: Final = {"bf16": torch.bfloat16, "fp8": torch.bfloat16, "fp16": torch.float16}
_MOMENTS: Final = ("exp_avg", "exp_avg_sq")


class TorchEngine(ABC):
    """Trains a model with fused AdamW; subclasses place the states and reduce the gradients."""

    loss_scale = 1.0
    """The factor of fp16 losses before the backward pass; 1 in other formats."""

    def __init__(self, module: NextTokenLoss, config: TrainerConfig, device: torch.device) -> None:
        self.module, self.device, self._config = module, device, config
        self.skipped_steps = 0
        self._parameters = list(module.parameters())
        self.optimizer = torch.optim.AdamW(
            parameter_groups(module),
            lr=config.lr,
            betas=(config.beta1, config.beta2),
            eps=config.eps,
            weight_decay=config.weight_decay,
            fused=True,
        )
        self._micro_steps = 0
        self._norm: Tensor | None = None

    def step(self) -> None:
        """After the last micro-batch of a step, updates the weights."""
        boundary = self.is_gradient_accumulation_boundary()
        self._micro_steps += 1
        if boundary:
            self._update()
            self.optimizer.zero_grad(set_to_none=True)

    @abstractmethod
    def _update(self) -> None:
        """Clips the gradients, notes their norm and makes the optimizer's step."""

    def is_gradient_accumulation_boundary(self) -> bool:
        """Return whether the coming ``step`` updates the weights."""
        return (self._micro_steps + 1) % self._config.accumulation == 0

    def get_global_grad_norm(self) -> Tensor | None:
        """2-norm of the last step's gradients before clipping."""
        return self._norm

    def train(self, mode: bool = True) -> Self:
        """Set the model's mode."""
        self.module.train(mode)
        return self


class DdpEngine(TorchEngine):
    """Data parallel training with PyTorch alone, the baseline of DeepSpeed's engines: as most people train without it.

    Weights and optimizer states are in fp32, and half precision is autocast. Gradients are averaged at the last
    micro-batch of a step.
    """

    def __init__(self, model: NextTokenLoss, config: TrainerConfig, device: torch.device) -> None:
        super().__init__(model.to(device), config, device)
        self._half = _HALF.get(config.precision)
        self._scaler = torch.amp.GradScaler(device.type, enabled=config.precision == "fp16")
        self._parallel: nn.Module = self.module
        if dist.get_world_size() > 1:
            self._parallel = DistributedDataParallel(self.module, gradient_as_bucket_view=True, broadcast_buffers=False)
        self._called: nn.Module = self._parallel

    def compile(self) -> None:
        """Compiles the model, with the reduction of its gradients between its parts."""
        self._called = torch.compile(self._parallel)  # type: ignore[assignment]

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Return the loss of a micro-batch."""
        if isinstance(self._parallel, DistributedDataParallel):
            self._parallel.require_backward_grad_sync = self.is_gradient_accumulation_boundary()
        with torch.autocast(self.device.type, self._half, enabled=self._half is not None):
            loss: Tensor = self._called(*inputs)
        return loss

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a micro-batch to the gradients of its step."""
        self._scaler.scale(loss / self._config.accumulation).backward()

    def _update(self) -> None:
        self._scaler.unscale_(self.optimizer)
        self._norm = nn.utils.clip_grad_norm_(self._parameters, self._config.grad_clip or torch.inf)
        before = self._scaler.get_scale()
        self._scaler.step(self.optimizer)
        self._scaler.update()
        self.loss_scale = self._scaler.get_scale()
        self.skipped_steps += self.loss_scale < before

    def train(self, mode: bool = True) -> Self:
        """Set the mode of the model and of its wrapper."""
        self._parallel.train(mode)
        return self

    def save_checkpoint(self, save_dir: str, tag: str, client_state: Mapping[str, Any], **_latest: object) -> None:
        """Write ``save_dir/tag``, from the first rank: all have the same."""
        if dist.get_rank():
            return
        folder = Path(save_dir, tag)
        make_folder(folder)
        state = {
            "module": self.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self._scaler.state_dict(),
            "skipped_steps": self.skipped_steps,
            "client_state": dict(client_state),
        }
        torch.save(state, folder / STATE_FILE)

    def load_checkpoint(self, load_dir: str, tag: str) -> tuple[str, dict[str, Any]]:
        """Read the file of ``save_checkpoint``; return its path and the client's state."""
        file = Path(load_dir, tag, STATE_FILE)
        state = torch.load(file, map_location=self.device, weights_only=True)
        self.module.load_state_dict(state["module"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._scaler.load_state_dict(state["scaler"])
        self.skipped_steps = state["skipped_steps"]
        return str(file), state["client_state"]


class FsdpEngine(TorchEngine):
    """Sharded training by ``fully_shard``, for comparison with ZeRO 3: every rank holds a part of each parameter.

    The master weights are fp32 and gradients are reduced in fp32; in bf16 a block is gathered and computed in bf16.
    Gradients that are reduced after the last micro-batch of a step take 4 bytes for each parameter of the model.
    """

    def __init__(self, model: NextTokenLoss, config: TrainerConfig, device: torch.device) -> None:
        half = torch.bfloat16 if config.precision in ("bf16", "fp8") else None
        offload = CPUOffloadPolicy(pin_memory=device.type == "cuda") if config.offload == "full" else OffloadPolicy()
        options: dict[str, Any] = {
            "mesh": init_device_mesh(device.type, (dist.get_world_size(),)),
            "mp_policy": MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32),
            "offload_policy": offload,
            "reshard_after_forward": True,
        }
        self._blocks = blocks_of(model)
        for block in self._blocks:
            fully_shard(block, **options)
        self._sharded = fully_shard(model, **options)
        if config.offload != "full":
            model.to(device)
        else:
            for buffer in model.buffers():
                buffer.data = buffer.data.to(device)
        super().__init__(model, config, device)  # after sharding, which replaces the parameters

    def compile(self) -> None:
        """Compile each block, without the hooks that gather it, and the loss.

        The call of a block is compiled, not its ``forward``: that spares the host the path of the hooks.
        """
        for block in self._blocks:
            block.compile()
        self.module.compile_parts(())

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
        limit = self._config.grad_clip or torch.inf
        if self._config.offload != "full":
            norm = nn.utils.clip_grad_norm_(self._parameters, limit)
            self._norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        else:  # that function communicates on the device of the parts, and NCCL cannot use host memory
            grads = [p.grad.to_local() for p in self._parameters if isinstance(p.grad, DTensor)]
            squared = nn.utils.get_total_norm(grads).to(self.device) ** 2
            dist.all_reduce(squared)
            self._norm = squared.sqrt()
            factor = torch.clamp(limit / (self._norm + 1e-6), max=1.0)
            torch._foreach_mul_(grads, factor.to(grads[0].device))
        self.optimizer.step()

    def save_checkpoint(self, save_dir: str, tag: str, client_state: Mapping[str, Any], **_latest: object) -> None:
        """Write this rank's parts to ``save_dir/tag``, as plain tensors: PyTorch's own format needs code to be read."""
        folder = Path(save_dir, tag)
        make_folder(folder)
        parts = {}
        for name, parameter in self.module.named_parameters():
            kept = self.optimizer.state.get(parameter, {})  # none of what has no part in the loss
            states = {state: _alone(_local(value)) for state, value in kept.items()}
            parts[name] = {"weight": _alone(_local(parameter)), **states}
        state = {"ranks": dist.get_world_size(), "parts": parts, "buffers": self._buffers()}
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
        return str(file), state["client_state"]

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
