"""Sequence parallelism, as in DeepSpeed-Ulysses: neighbouring ranks share each sample.

Every rank's loss is the mean over equally many tokens, so ZeRO averages gradients over all ranks as usual.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
import torch.distributed as dist
from deepspeed.sequence.layer import DistributedAttention
from torch import Tensor
from transformers import AttentionInterface, PreTrainedConfig

ULYSSES: Final = "causal_ulysses"

_Attention = Callable[..., tuple[Tensor, None]]


def require_heads(model_config: PreTrainedConfig, ranks: int) -> None:
    """Raise ValueError if the ranks cannot share a model's attention heads equally."""
    counts = {name: getattr(model_config, name, None) for name in ("num_attention_heads", "num_key_value_heads")}
    for name, heads in counts.items():
        if heads and heads % ranks:
            raise ValueError(f"train.sequence_parallel: {ranks} ranks cannot share {heads} heads ({name}) equally")


def register(attention: _Attention, ranks: int) -> str:
    """Make an attention of whole samples one that ranks share; return its name for Transformers. All ranks call it."""
    group, _ = dist.new_subgroups(ranks)

    def whole(query_BThD: Tensor, key_BThD: Tensor, value_BThD: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        heads_first = (tensor.transpose(1, 2) for tensor in (query_BThD, key_BThD, value_BThD))
        return attention(None, *heads_first, None, *args, **kwargs)[0]

    exchange = DistributedAttention(whole, group, scatter_idx=2, gather_idx=1)

    def shared(
        _module: object,
        query_BHtD: Tensor,
        key_BHtD: Tensor,
        value_BHtD: Tensor,
        _mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        **_kwargs: object,
    ) -> tuple[Tensor, None]:
        """Of this rank's stretch of the tokens."""
        query, key, value = (tensor.transpose(1, 2) for tensor in (query_BHtD, key_BHtD, value_BHtD))
        return exchange(query, key, value, 0, dropout=dropout, scaling=scaling), None

    # Left out of compiled code: some versions of torch.compile lose the gradient of DeepSpeed's exchange.
    AttentionInterface.register(ULYSSES, torch.compiler.disable(shared))
    return ULYSSES
