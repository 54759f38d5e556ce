"""PyTorch's engines, which have the methods of DeepSpeed's engine that the trainer calls: the common part, and DDP."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dscampaign.files.private_files import make_folder

from .config import TrainerConfig

STATE_FILE: Final = "training_state.pt"
_HALF: Final = {"bf16": torch.bfloat16, "fp8": torch.bfloat16, "fp16": torch.float16}


class TorchEngine(ABC):
    """Trains a model with fused AdamW; subclasses place the states and reduce the gradients."""

    stage: ClassVar[int]  # the stage of ZeRO that divides the same among the ranks

    def __init__(
        self, module: nn.Module, groups: list[dict[str, Any]], config: TrainerConfig, device: torch.device
    ) -> None:
        self.module, self.device, self._config = module, device, config
        self.skipped_steps = 0
        self.optimizer = torch.optim.AdamW(
            groups,
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

    @property
    def loss_scale(self) -> float:
        """Return the factor of fp16 losses before the backward pass; 1 in other formats."""
        return 1.0

    def train(self, mode: bool = True) -> Self:
        """Set the model's mode."""
        self.module.train(mode)
        return self

    def eval(self) -> Self:
        """Set the model's mode."""
        return self.train(mode=False)

    def zero_optimization_stage(self) -> int:
        """Return the stage, as DeepSpeed's engine does."""
        return self.stage


class DdpEngine(TorchEngine):
    """Data parallel training with PyTorch alone, the baseline of DeepSpeed's engines: as most people train without it.

    Weights and optimizer states are in fp32, and half precision is autocast. Gradients are averaged at the last
    micro-batch of a step.
    """

    stage = 0

    def __init__(
        self, model: nn.Module, groups: list[dict[str, Any]], config: TrainerConfig, device: torch.device
    ) -> None:
        super().__init__(model.to(device), groups, config, device)
        self._half = _HALF.get(config.precision)
        self._scaler = torch.amp.GradScaler(device.type, enabled=config.precision == "fp16")
        self._parameters = [p for group in groups for p in group["params"]]
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
        limit = self._config.grad_clip or torch.inf
        self._norm = nn.utils.clip_grad_norm_(self._parameters, limit)
        before = self.loss_scale
        self._scaler.step(self.optimizer)
        self._scaler.update()
        self.skipped_steps += self.loss_scale < before

    @property
    def loss_scale(self) -> float:
        """Return the factor of fp16 losses before the backward pass; 1 in other formats."""
        return float(self._scaler.get_scale()) if self._scaler.is_enabled() else 1.0

    def train(self, mode: bool = True) -> Self:
        """Set the mode of the model and of its wrapper."""
        self._parallel.train(mode)
        return self

    def torch_autocast_enabled(self) -> bool:
        """Return whether a pass through the bare module takes other memory than a pass through the engine."""
        return self._half is not None

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
        client_state: dict[str, Any] = state["client_state"]
        return str(file), client_state
