"""Random weights, drawn one module after another, so that under ZeRO 3 no rank ever holds a whole model.

Each rank draws all of them from the seed, on the CPU and in the same order, whatever the strategy: so all strategies
begin alike. Under ZeRO 3 they are partitioned as they come, about a gigabyte at a time; the embeddings stay whole until
DeepSpeed gets the model, for their vocabulary is padded before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from deepspeed import zero
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

WHOLE_BYTES = 1_000_000_000
"""Layers of at least so many bytes are drawn before they are partitioned."""


def random_model(
    model_config: PreTrainedConfig, options: Mapping[str, Any], seed: int, ds_config: Mapping[str, Any] | None
) -> PreTrainedModel:
    """A model with random weights in fp32.

    Args:
        model_config: its shape.
        options: of ``from_config``.
        seed: of the weights.
        ds_config: partition them as this DeepSpeed configuration with ZeRO 3 says; None leaves them whole.
    """
    with torch.device("meta"):  # shapes alone: the layers' own first draw would be thrown away
        model: PreTrainedModel = AutoModelForCausalLM.from_config(model_config, **options)
    partition = _Partition(model, ds_config) if ds_config is not None else None
    torch.manual_seed(seed)
    with torch.no_grad():
        for owner, module in _children_first(model, model):
            module.to_empty(device=torch.device("cpu"), recurse=False)
            owner._init_weights(module)  # noqa: SLF001 - what Transformers calls for each module
            if partition:
                partition.add(module)
    if partition:
        partition.flush()
    model.tie_weights()
    return model


def _children_first(module: nn.Module, owner: PreTrainedModel) -> Iterator[tuple[PreTrainedModel, nn.Module]]:
    """Every module below its children, with the model that knows how it is drawn: the order of Transformers."""
    for child in module.children():
        yield from _children_first(child, child if isinstance(child, PreTrainedModel) else owner)
    yield owner, module


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    """The elements of the outermost lists of modules."""
    if isinstance(module, nn.ModuleList):
        yield from module
    else:
        for child in module.children():
            yield from _layers(child)


class _Partition:
    """Gives each rank its part of what was drawn.

    Whole layers at a time: within one, a module may draw its children's weights anew, as GPT-2's attention does.
    """

    def __init__(self, model: PreTrainedModel, ds_config: Mapping[str, Any]) -> None:
        self._config = dict(ds_config)
        self._whole = {model.get_input_embeddings(), model.get_output_embeddings()}
        self._layers = set(_layers(model))
        self._drawn: list[nn.Parameter] = []
        self._first: Any = None  # as DeepSpeed has changed it

    def add(self, module: nn.Module) -> None:
        """Takes a module whose own weights are drawn."""
        if module in self._whole:
            return
        self._drawn += module.parameters(recurse=False)
        if module in self._layers and sum(weight.nbytes for weight in self._drawn) >= WHOLE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Partitions what has come together. All ranks call it at the same weights."""
        if self._first is not None:  # a second Init would remove what the first has put on a disk
            self._first.convert_to_zero_parameters(param_list=self._drawn)
        elif self._drawn:
            zero.Init(module=nn.ParameterList(self._drawn), config_dict_or_path=self._config)
            self._first = self._drawn[0]
        self._drawn = []
