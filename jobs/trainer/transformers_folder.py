"""Writes the weights of a checkpoint in the format of Transformers, on a CPU and without the model in memory.

As a program it reads a `WeightsRequest` as JSON from its standard input, and ends with a line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

from dscampaign.files import ours
from dscampaign.jobs.shared.documents import decode

from .checkpoint_weights import SavedWeights
from .config import TrainerConfig
from .data import tokenizer_name
from .model import find_model_config
from .saving import TAG
from .tokens import load_tokenizer, save_tokenizer

FORMATS: Final = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
FILE_SIZE: Final = "4GB"  # of weights: a size that all hubs and file systems accept
_PIECES: Final = "pieces"


@dataclass(frozen=True)
class WeightsRequest:
    """A request for the weights of a checkpoint of a train.json, into an empty folder, in a format of ``FORMATS``."""

    checkpoint: str
    train: Mapping[str, Any]
    out: str
    dtype: str


def write(request: WeightsRequest) -> dict[str, Any]:
    """Write configuration, weights, tokenizer; return parameters, class and tokenizer. Raises ValueError, OSError."""
    config, out = TrainerConfig.from_json(json.dumps(dict(request.train))), Path(request.out)
    name, dtype = tokenizer_name(config), FORMATS[request.dtype]
    model_config = find_model_config(config, load_tokenizer(name))
    with torch.device("meta"):  # its shapes and names alone
        model: PreTrainedModel = AutoModelForCausalLM.from_config(model_config, dtype=dtype)
    weights = SavedWeights(Path(request.checkpoint), TAG, dtype)
    pieces = out / _PIECES
    pieces.mkdir()
    state = {
        key: _fitted(weights[key], wanted, pieces / str(number))
        for number, (key, wanted) in enumerate(_wanted(model, weights).items())
    }
    model.save_pretrained(str(out), state_dict=state, max_shard_size=FILE_SIZE)
    del state
    ours.remove(pieces)
    save_tokenizer(name, out)
    parameters = sum(weight.numel() for weight in model.parameters())
    return {"parameters": parameters, "model": type(model).__name__, "tokenizer": name}


def _wanted(model: PreTrainedModel, weights: SavedWeights) -> dict[str, Tensor]:
    """Return the model's weights by name, tied weights once. Raises ValueError: the names or shapes differ."""
    wanted = dict(model.named_parameters()) | {
        name: buffer for name, buffer in model.state_dict().items() if name in dict(model.named_buffers())
    }
    saved, rows = weights.shapes, model.config.vocab_size
    if missing := [name for name in wanted if name not in saved]:
        raise ValueError(f"the checkpoint has no weight {missing[0]}, which the model of the run has")
    for name, weight in wanted.items():
        padded = weight.shape[:1] == (rows,) and saved[name][0] > rows
        if saved[name][padded:] != weight.shape[padded:]:
            shapes = f"{tuple(saved[name])} in the checkpoint, {tuple(weight.shape)} in the model of the run"
            raise ValueError(f"weight {name}: {shapes}")
    if more := saved.keys() - model.state_dict().keys():
        raise ValueError(f"the checkpoint has a weight {min(more)}, which the model of the run has not")
    return wanted


def _fitted(weight: Tensor, wanted: Tensor, file: Path) -> Tensor:
    """The weight as the model has it, mapped from a file: the kernel needs to keep none of it in memory."""
    fitted = weight[: wanted.shape[0]] if wanted.dim() else weight
    dtype = wanted.dtype if fitted.is_floating_point() else fitted.dtype
    with file.open("wb") as room:  # what is mapped without room on the disk would end the process when it is written
        os.posix_fallocate(room.fileno(), 0, max(1, fitted.numel() * dtype.itemsize))
    mapped = torch.from_file(str(file), shared=True, size=fitted.numel(), dtype=dtype).view(fitted.shape)
    return mapped.copy_(fitted)


def main() -> None:
    """Serve the request on standard input."""
    logging.set_verbosity_error()
    with redirect_stdout(sys.stderr):
        done = write(decode(WeightsRequest, json.load(sys.stdin)))
    print(json.dumps(done))  # noqa: T201 - the answer


if __name__ == "__main__":
    main()
