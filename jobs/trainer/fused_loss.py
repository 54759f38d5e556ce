"""The output layer fused with its cross-entropy, a stretch of tokens at a time, so that logits never exist as a whole.

Each stretch's gradient is computed with its loss in the forward pass; only gradients of hidden states and weights stay.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, library
from torch.nn import functional as F

IGNORED_TARGET = -100
STRETCH = 8192  # tokens at a time: large enough for the matrix units, and 0.8 GB of logits for GPT-2
_FP16_ROOM = 256.0


def linear_cross_entropy(hidden_NW: Tensor, weight_VW: Tensor, target_N: Tensor, vocab_size: int) -> Tensor:
    """Mean cross-entropy (nats) of ``hidden @ weight.T`` over all targets that are not ``IGNORED_TARGET``.

    Shapes: (tokens, width), (vocabulary, width), (tokens,). Ids from `vocab_size` on are padding and take no part.
    """
    if torch.is_autocast_enabled(hidden_NW.device.type):
        dtype = torch.get_autocast_dtype(hidden_NW.device.type)
        hidden_NW, weight_VW = hidden_NW.to(dtype), weight_VW.to(dtype)
    counts = (target_N != IGNORED_TARGET).sum()
    if not torch.is_grad_enabled():  # no gradient is wanted with the loss
        return _sum_of_losses(hidden_NW, weight_VW, target_N, vocab_size) / counts
    loss: Tensor = _fused(hidden_NW, weight_VW, target_N, vocab_size)[0]
    return loss / counts


def _sum_of_losses(hidden_NW: Tensor, weight_VW: Tensor, target_N: Tensor, vocab_size: int) -> Tensor:
    total = torch.zeros((), dtype=torch.float32, device=hidden_NW.device)
    for hidden_nW, target_n in zip(hidden_NW.split(STRETCH), target_N.split(STRETCH), strict=True):
        total = total + plain_cross_entropy(hidden_nW @ weight_VW.t(), target_n, vocab_size, reduction="sum")
    return total


# An operator of its own, which a compiler leaves whole: it would compute all stretches' logits before any gradient.
@library.custom_op("dscampaign::linear_cross_entropy", mutates_args=())
def _fused(hidden_NW: Tensor, weight_VW: Tensor, target_N: Tensor, vocab_size: int) -> tuple[Tensor, Tensor, Tensor]:
    total = torch.zeros((), dtype=torch.float32, device=hidden_NW.device)
    d_hidden_NW = torch.empty_like(hidden_NW)
    d_weight_VW = torch.zeros_like(weight_VW, dtype=torch.float32)
    kernel = _compiled_kernel() if hidden_NW.is_cuda else _kernel
    rows = zip(hidden_NW.split(STRETCH), target_N.split(STRETCH), d_hidden_NW.split(STRETCH), strict=True)
    for hidden_nW, target_n, d_hidden_nW in rows:
        loss, d_logits_nV = kernel(hidden_nW @ weight_VW.t(), target_n, vocab_size)
        total += loss
        torch.mm(d_logits_nV, weight_VW, out=d_hidden_nW)
        d_weight_VW += _product(d_logits_nV, hidden_nW)
    return total, d_hidden_NW, d_weight_VW


def _product(d_logits_nV: Tensor, hidden_nW: Tensor) -> Tensor:
    """Their product over the tokens. In fp16 a token that is frequent would sum up to more than the format holds."""
    if d_logits_nV.dtype != torch.float16:
        return d_logits_nV.t() @ hidden_nW
    return (d_logits_nV.mul_(1.0 / _FP16_ROOM).t() @ hidden_nW).float() * _FP16_ROOM


@_fused.register_fake
def _shapes(hidden_NW: Tensor, weight_VW: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor]:
    total = hidden_NW.new_empty((), dtype=torch.float32)
    return total, torch.empty_like(hidden_NW), torch.empty_like(weight_VW, dtype=torch.float32)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1], output[2])
    ctx.weight_dtype = inputs[1].dtype


def _backward(ctx: Any, gradient: Tensor, *_: Tensor | None) -> tuple[Tensor, Tensor, None, None]:
    """The scale comes in only here, in fp32: divided by the number of tokens, half precision would lose the small."""
    d_hidden_NW, d_weight_VW = ctx.saved_tensors
    hidden = (d_hidden_NW.float() * gradient).to(d_hidden_NW.dtype)
    return hidden, (d_weight_VW * gradient).to(ctx.weight_dtype), None, None


_fused.register_autograd(_backward, setup_context=_keep)


def _kernel(logits_nV: Tensor, target_n: Tensor, vocab_size: int) -> tuple[Tensor, Tensor]:
    """Return the sum of the tokens' losses and its gradient by their logits; compiled, a single pass for each."""
    column_V = torch.arange(logits_nV.shape[1], device=logits_nV.device)
    counts_n1 = (target_n != IGNORED_TARGET)[:, None]
    scores_nV = torch.where(column_V < vocab_size, logits_nV.float(), -torch.inf)
    normal_n1 = torch.logsumexp(scores_nV, 1, keepdim=True)
    chosen_n1 = scores_nV.gather(1, target_n.clamp(min=0)[:, None])
    loss = torch.where(counts_n1, normal_n1 - chosen_n1, 0.0).sum()
    at_target_nV = (column_V == target_n[:, None]).float()
    d_logits_nV = torch.where(counts_n1, torch.exp(scores_nV - normal_n1) - at_target_nV, 0.0)
    return loss, d_logits_nV.to(logits_nV.dtype)


@cache
def _compiled_kernel() -> Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]:
    """Compile on first use: naming the compiler loads it, a fifth of a rank's imports."""
    return torch.compile(_kernel, dynamic=False)


def plain_cross_entropy(logits_NV: Tensor, target_N: Tensor, vocab_size: int, reduction: str = "mean") -> Tensor:
    """The same of logits that are there: cross-entropy (nats); ids from ``vocab_size`` on take no part.

    The padding is masked, not cut off: rows of an odd length would be slow to read.
    """
    if vocab_size < logits_NV.shape[-1]:
        column_V = torch.arange(logits_NV.shape[-1], device=logits_NV.device)
        logits_NV = torch.where(column_V < vocab_size, logits_NV, -torch.inf)
    return F.cross_entropy(logits_NV.float(), target_N, ignore_index=IGNORED_TARGET, reduction=reduction)
