"""Ranks that work together on a sample, as DeepSpeed has them: they share its tokens, or the matrices of each layer.

Sequence parallelism is DeepSpeed-Ulysses. Every rank's loss is the mean over equally many tokens, so ZeRO averages
gradients over all ranks as usual. Tensor parallelism is DeepSpeed's AutoTP, which cuts the matrices that `layer_parts`
names before ZeRO shards the parts over the ranks that have the same part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
import torch.distributed as dist
from deepspeed.runtime.utils import is_model_parallel_parameter
from deepspeed.sequence.layer import DistributedAttention
from deepspeed.utils import groups
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from dscampaign.jobs.shared.layer_parts import CUTTABLE_MODELS, UNCUT_FIELDS

ULYSSES: Final = "causal_ulysses"
HEADS: Final = ("num_attention_heads", "num_key_value_heads")
WIDTHS: Final = ("intermediate_size", "ffn_dim", "n_inner")
_MARK: Final = "tensor_model_parallel"  # DeepSpeed's, on each parameter that is a part

_Attention = Callable[..., tuple[Tensor, None]]


def require_shares(option: str, model_config: PreTrainedConfig, names: Iterable[str], ranks: int) -> None:
    """Raise ValueError if the ranks cannot share a number in a model's configuration equally."""
    for name in names:
        if (size := getattr(model_config, name, None)) and size % ranks:
            raise ValueError(f"train.{option}: {ranks} ranks cannot share {name} {size} equally")


def register(attention: _Attention, ranks: int) -> str:
    """Let ranks share an attention of whole samples; return its name for Transformers. All ranks call it."""
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


def prepare_to_cut(model: PreTrainedModel, ranks: int) -> None:
    """Prepare a model for DeepSpeed to cut: GPT-2's layers become ordinary layers. Raises ValueError."""
    config = model.config
    if config.model_type not in CUTTABLE_MODELS:
        served = ", ".join(sorted(CUTTABLE_MODELS))
        raise ValueError(f"train.tensor_parallel: not for {config.model_type}; it is known to fit {served}")
    for name, reason in UNCUT_FIELDS.items():
        if getattr(config, name, None):
            raise ValueError(f"train.tensor_parallel: not with the model's {name}: {reason}")
    require_shares("tensor_parallel", config, (*HEADS, *WIDTHS), ranks)
    for module in model.modules():
        for name, child in list(module.named_children()):
            if isinstance(child, Conv1D):
                setattr(module, name, _linear(child))
        if hasattr(module, "split_size"):  # of GPT-2's attention: where queries, keys and values end
            module.split_size //= ranks


def norm_of_parts(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Return the 2-norm of the gradients of a whole model; parameters that all ranks of a group have count once."""
    graded = [(p.grad, is_model_parallel_parameter(p)) for p in parameters if p.grad is not None]
    parts, whole = ([gradient for gradient, part in graded if part is kind] for kind in (True, False))
    squared = torch.nn.utils.get_total_norm(parts) ** 2
    dist.all_reduce(squared, group=groups.get_tensor_model_parallel_group())
    return (squared + torch.nn.utils.get_total_norm(whole) ** 2).sqrt()


def mark_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Has half precision without ZeRO clip by the norm of the whole model; call it before each optimizer step.

    For that norm DeepSpeed 0.19.8 looks on the gradients for the mark that it has put on the parameters. It finds none
    and takes them for whole: then only the first rank's parts count.
    """
    for parameter in parameters:
        if parameter.grad is not None and is_model_parallel_parameter(parameter):
            setattr(parameter.grad, _MARK, True)


def _linear(conv: Any) -> nn.Linear:
    inputs, outputs = conv.weight.shape
    linear = nn.Linear(inputs, outputs, device="meta")
    linear.weight = nn.Parameter(conv.weight.detach().t().contiguous())
    linear.bias = conv.bias
    return linear
