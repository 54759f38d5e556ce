"""Random weights, drawn module by module, so that under ZeRO 3 no rank ever holds a whole model.

Each rank draws all weights from the seed, on the CPU, in fp32 and in the same order. Tables with a row for each token
stay whole until DeepSpeed gets the model, because the vocabulary is padded before.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Iterator, Mapping
from copy import deepcopy
from itertools import chain
from typing import Any, Final

import torch
from deepspeed import zero
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.zero.partition_parameters import is_zero_param
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

WHOLE_BYTES = 1_000_000_000  # layers of at least so many bytes are drawn before they are partitioned
_HALVES: Final = {"bf16": torch.bfloat16, "fp16": torch.float16}


def random_model(
    model_config: PreTrainedConfig, options: Mapping[str, Any], seed: int, ds_config: Mapping[str, Any] | None
) -> PreTrainedModel:
    """Return a model with random weights in fp32.

    `ds_config`: partition them by this configuration with ZeRO 3, in its number format; None leaves them whole. Call
    ``hand_over`` for a partitioned model when its vocabulary is padded.
    """
    try:
        return _drawn(deepcopy(model_config), options, seed, ds_config)
    except _NotDrawnError:  # a few models draw some weights only while they are made, and as a whole
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(model_config, **options)
        return model


def hand_over(model: PreTrainedModel, ds_config: Mapping[str, Any]) -> None:
    """Set format and device of whole weights, which DeepSpeed skips once a weight is partitioned."""
    if not any(is_zero_param(weight) for weight in model.parameters()):
        return
    for weight in model.parameters():
        if not is_zero_param(weight):
            weight.data = weight.data.to(_format(ds_config))
    device = torch.device(get_accelerator().current_device_name())
    for buffer in model.buffers():
        buffer.data = buffer.data.to(device)


class _NotDrawnError(Exception):
    """Transformers' own initialisation leaves a weight as it lies in memory."""


def _drawn(
    model_config: PreTrainedConfig, options: Mapping[str, Any], seed: int, ds_config: Mapping[str, Any] | None
) -> PreTrainedModel:
    with torch.device("meta"):  # shapes alone: the layers' own first draw would be thrown away
        model: PreTrainedModel = AutoModelForCausalLM.from_config(model_config, **options)
    partition = _Partition(model, ds_config) if ds_config is not None else None
    torch.manual_seed(seed)
    with torch.no_grad():
        for owner, module in _children_first(model, model):
            module.to_empty(device=torch.device("cpu"), recurse=False)
            for tensor in chain(module.parameters(recurse=False), module.buffers(recurse=False)):
                if (mark := _mark_of(tensor)) is not None:
                    for end in (0, -1):
                        tensor.detach()[(end,) * tensor.ndim] = mark
            owner._init_weights(module)  # noqa: SLF001 - what Transformers calls for each module
            if partition:
                partition.add(module)
    if partition:
        partition.flush()
    model.tie_weights()
    _require_drawn(chain(model.parameters(), model.buffers()))
    return model


def _children_first(module: nn.Module, owner: PreTrainedModel) -> Iterator[tuple[PreTrainedModel, nn.Module]]:
    """Every module below its children, with the model that knows how it is drawn: the order of Transformers."""
    for child in module.children():
        yield from _children_first(child, child if isinstance(child, PreTrainedModel) else owner)
    yield owner, module


def _require_drawn(tensors: Iterator[Tensor]) -> None:
    for tensor in tensors:
        if (mark := _mark_of(tensor)) is not None:
            ends = [tensor.detach()[(end,) * tensor.ndim].item() for end in (0, -1)]
            if any(end == mark or cmath.isnan(end) for end in ends):
                raise _NotDrawnError


def _mark_of(tensor: Tensor) -> float | None:
    """Return NaN or the least number; None for a partitioned tensor, or if its least value may be drawn."""
    if is_zero_param(tensor) or not tensor.numel() or tensor.dtype in (torch.bool, torch.uint8):
        return None
    whole = not (tensor.is_floating_point() or tensor.is_complex())
    return torch.iinfo(tensor.dtype).min if whole else math.nan


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    if isinstance(module, nn.ModuleList):
        yield from module
    else:
        for child in module.children():
            yield from _layers(child)


def _format(ds_config: Mapping[str, Any]) -> torch.dtype:
    return next((kind for name, kind in _HALVES.items() if ds_config.get(name, {}).get("enabled")), torch.float32)


class _Partition:
    """Gives each rank its part of the drawn weights.

    Whole layers at a time: a module may draw its children's weights anew, as GPT-2's attention does.
    """

    def __init__(self, model: PreTrainedModel, ds_config: Mapping[str, Any]) -> None:
        self._config = dict(ds_config)
        self._tokens = model.get_input_embeddings().weight.shape[0]
        self._layers = set(_layers(model))
        self._drawn: list[nn.Parameter] = []
        self._first: Any = None  # as DeepSpeed has changed it

    def add(self, module: nn.Module) -> None:
        own = module.parameters(recurse=False)
        self._drawn += [weight for weight in own if weight.shape[:1] != (self._tokens,)]
        if module in self._layers and sum(weight.nbytes for weight in self._drawn) >= WHOLE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Partition the collected weights. All ranks call it at the same weights."""
        _require_drawn(iter(self._drawn))
        for weight in self._drawn:
            weight.data = weight.data.to(_format(self._config))
        if self._first is not None:  # a second Init would remove what the first has put on a disk
            self._first.convert_to_zero_parameters(param_list=self._drawn)
        elif self._drawn:
            zero.Init(module=nn.ParameterList(self._drawn), config_dict_or_path=self._config)
            self._first = self._drawn[0]
        self._drawn = []
