"""Tensor parallelism, as DeepSpeed's AutoTP trains it: neighbouring ranks share each layer's matrices.

`layer_parts` names them. DeepSpeed cuts them before ZeRO shards the parts over the ranks that have the same part.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import torch
import torch.distributed as dist
from deepspeed.runtime.utils import is_model_parallel_parameter
from deepspeed.utils import groups
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from dscampaign.jobs.shared.layer_parts import CUTTABLE_MODELS, UNCUT_FIELDS

DIVIDED: Final = ("num_attention_heads", "num_key_value_heads", "intermediate_size", "ffn_dim", "n_inner")
"""Fields of a model's configuration that the ranks of a group divide among them."""

_MARK: Final = "tensor_model_parallel"  # DeepSpeed's, on each parameter that is a part


def prepare(model: PreTrainedModel, ranks: int) -> None:
    """Prepare a model for DeepSpeed to cut: GPT-2's layers become ordinary layers. Raises ValueError."""
    config = model.config
    if config.model_type not in CUTTABLE_MODELS:
        served = ", ".join(sorted(CUTTABLE_MODELS))
        raise ValueError(f"train.tensor_parallel: not for {config.model_type}; it is known to fit {served}")
    for name, reason in UNCUT_FIELDS.items():
        if getattr(config, name, None):
            raise ValueError(f"train.tensor_parallel: not with the model's {name}: {reason}")
    for name in DIVIDED:
        if (size := getattr(config, name, None)) and size % ranks:
            raise ValueError(f"train.tensor_parallel: {ranks} ranks cannot share {name} {size} equally")
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
