"""The yardstick: a plain PyTorch loop, as fast as it gets without anything exotic."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AutoModelForCausalLM, GPT2Config

from .child import StepClock, Tokens
from .serve import serve
from .work import LEARNING_RATE, Measured, Request

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Loss(nn.Module):
    """A causal language model with its loss, so that one graph holds both."""

    def __init__(self, request: Request) -> None:
        super().__init__()
        model = request.work.model
        # a name that the library has no mask for: a mask would take attention off its fast kernel
        AttentionInterface.register("causal", causal_attention)
        config = GPT2Config(**model.fields(model.padded_vocab))
        self.model = AutoModelForCausalLM.from_config(config, attn_implementation="causal", dtype=torch.float32)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy in nats; inputs and targets are (batch, seq_len)."""
        logits = self.model(input_ids=inputs, use_cache=False).logits
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def causal_attention(
    _module: nn.Module, query: Tensor, key: Tensor, value: Tensor, _mask: object, **_: object
) -> tuple[Tensor, None]:
    """PyTorch's own attention; query, key and value are (batch, heads, seq_len, width of a head)."""
    output = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    return output.transpose(1, 2).contiguous(), None


def train(request: Request) -> Measured:
    """Trains for as many steps as asked for.

    Raises:
        FloatingPointError: it did not learn anything that can be compared.
    """
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    device, precision = torch.device(request.device), request.work.precision
    model = Loss(request).to(device)
    optimizer = adamw(model)
    forward = torch.compile(model, dynamic=False) if request.compile else model
    scaler = torch.amp.GradScaler(request.device, enabled=precision == "fp16")
    losses = torch.zeros(request.warmup + request.steps, device=device)
    clock = StepClock(request)
    gc.collect()
    gc.freeze()  # or a full collection now and then goes through all of the libraries' objects
    for step, (inputs, targets) in enumerate(batches(request, device)):
        with torch.autocast(request.device, DTYPES[precision], enabled=precision != "fp32"):
            loss = forward(inputs, targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses[step] = loss.detach()  # read after the end: to read it here would make the host wait
        clock.tick()
    last = float(losses[-1])
    if not math.isfinite(last):
        raise FloatingPointError(f"loss {last}")
    return clock.measured(last)


def adamw(model: nn.Module) -> torch.optim.AdamW:
    """Fused AdamW; biases and norms without weight decay."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, 0.95), fused=True)


def batches(request: Request, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Every step's inputs and targets; the copy of the next ones begins before these are handed out."""
    tokens, steps = Tokens(request), request.warmup + request.steps
    ahead = _on_device(tokens.batch(0), device)
    for step in range(1, steps + 1):
        present = ahead
        if step < steps:
            ahead = _on_device(tokens.batch(step), device)
        yield present


def _on_device(batch: tuple[Tensor, Tensor], device: torch.device) -> tuple[Tensor, Tensor]:
    if device.type == "cpu":
        return batch
    inputs, targets = (tensor.pin_memory().to(device, non_blocking=True) for tensor in batch)
    return inputs, targets


if __name__ == "__main__":
    serve(train)
