"""The common part of PyTorch's engines, which have the methods of DeepSpeed's engine that the trainer calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from .config import TrainerConfig


class TorchEngine(ABC):
    """Trains a model with fused AdamW; subclasses place the states and reduce the gradients.

    `skipped_steps`: optimizer steps left out because fp16 gradients overflowed.
    """

    stage: ClassVar[int]
    """The stage of ZeRO that divides the same among the ranks."""

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
